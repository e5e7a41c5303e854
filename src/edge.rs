//! A request's way through the edge.

use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::{Headers, Request, Response};
use weir_policy::address::{AddressHeaders, AddressKey, ClientAddress, client_address};
use weir_policy::route::RouteClass;

use crate::answer::{self, Fields};
use crate::bindings::{Bindings, random_uuid};
use crate::caller::{Credentials, credentials};
use crate::clock;
use crate::config::{Config, Mode};
use crate::cors;
use crate::events::{Event, report};
use crate::forward::{self, Forwarded, Outgoing};
use crate::limiter::{self, Decision};
use crate::target::Target;
use crate::trace::Trace;

/// Answers any request: the API's by way of the origin, all others from the page's files.
pub(crate) async fn answer(
    bindings: &Bindings,
    config: &Config,
    request: Request,
) -> Result<Response, JsValue> {
    let url = request.url();
    let Some(target) = Target::of(&url) else {
        return answer::problem(&answer::not_found(), &Fields::new());
    };
    if target.is_api() {
        api(bindings, config, &request, &target).await
    } else {
        page(bindings, &request).await
    }
}

/// Only what is a file of the page. The origin's own routes are not reachable from here, whatever their names.
async fn page(bindings: &Bindings, request: &Request) -> Result<Response, JsValue> {
    if let Some(assets) = bindings.assets()
        && ["GET", "HEAD"].contains(&request.method().as_str())
    {
        let response: Response = JsFuture::from(assets.fetch(request)?).await?.unchecked_into();
        if response.status() != 404 {
            return Ok(response);
        }
    }
    answer::problem(&answer::not_found(), &Fields::new())
}

async fn api(
    bindings: &Bindings,
    config: &Config,
    request: &Request,
    target: &Target<'_>,
) -> Result<Response, JsValue> {
    let started = clock::now_ms();
    let headers = request.headers();
    let method = request.method();
    let origin = headers.get("origin")?;

    if method == "OPTIONS" && origin.is_some() && headers.has("access-control-request-method")? {
        return preflight(config, origin.as_deref());
    }
    let mut fields = access_fields(config, origin.as_deref());

    let address = address(bindings, config, &headers)?;
    let credentials = credentials(bindings, config, &headers, target.origin()).await;
    let user_id = match &credentials {
        Credentials::User(user) => Some(user.id.clone()),
        Credentials::Anonymous | Credentials::Refused(_) => {
            let class = config.limited_routes.class(&method, target.path());
            match decide(bindings, config, request, class, address.key).await {
                Decision::Admitted(allowance) => fields.extend(answer::rate_limit_fields(&allowance)),
                Decision::Denied(allowance) => {
                    fields.extend(answer::rate_limit_fields(&allowance));
                    fields.push(("retry-after", allowance.retry_after().to_string()));
                    return answer::problem(&answer::too_many_requests(&allowance), &fields);
                }
                Decision::Unavailable => {
                    fields.push(("retry-after", "10".to_owned()));
                    return answer::problem(&answer::cannot_count(), &fields);
                }
            }
            None
        }
    };
    if let Credentials::Refused(error) = &credentials {
        fields.push(("www-authenticate", answer::challenge(error)));
        return answer::problem(&answer::unauthorized(error), &fields);
    }
    if config.drills && headers.has("weir-drill-panic")? {
        drill();
    }

    let trace = Trace::new(random_uuid(), headers.get("traceparent")?.as_deref());
    fields.push(("x-request-id", trace.request_id.clone()));
    let outgoing = Outgoing {
        request,
        method: &method,
        host: target.host(),
        scheme: target.scheme(),
        path_and_query: target.path_and_query(),
        user_id,
        address,
        trace: &trace,
    };
    let before_origin = clock::now_ms();
    let forwarded = forward::send(bindings, config, &outgoing).await?;
    let answered = clock::now_ms();
    fields.push((
        "server-timing",
        format!(
            "edge;dur={}, origin;dur={}",
            before_origin - started,
            answered - before_origin
        ),
    ));
    match forwarded {
        Forwarded::Answer(response) => forward::answer(&response, &fields),
        Forwarded::Problem(problem) => answer::problem(&problem, &fields),
    }
}

/// Which policy decides, and whether its denials are carried out.
async fn decide(
    bindings: &Bindings,
    config: &Config,
    request: &Request,
    class: RouteClass,
    key: AddressKey,
) -> Decision {
    let decision = match class {
        RouteClass::Limited => limiter::submission(bindings, config, request.unchecked_ref(), key).await,
        RouteClass::Other => limiter::read(bindings, config, key).await,
    };
    match decision {
        Decision::Denied(allowance) if config.mode == Mode::Shadow => {
            report(bindings, Event::ShadowDenial, allowance.named.name);
            Decision::Admitted(allowance)
        }
        decision => decision,
    }
}

fn address(bindings: &Bindings, config: &Config, headers: &Headers) -> Result<ClientAddress, JsValue> {
    let cf_connecting_ip = headers.get("cf-connecting-ip")?;
    let cf_connecting_ipv6 = headers.get("cf-connecting-ipv6")?;
    let cf_worker = headers.get("cf-worker")?;
    let x_forwarded_for = headers.get("x-forwarded-for")?;
    let x_real_ip = headers.get("x-real-ip")?;
    let address = client_address(
        config.client_ip_source,
        &AddressHeaders {
            cf_connecting_ip: cf_connecting_ip.as_deref(),
            cf_connecting_ipv6: cf_connecting_ipv6.as_deref(),
            cf_worker: cf_worker.as_deref(),
            x_forwarded_for: x_forwarded_for.as_deref(),
            x_real_ip: x_real_ip.as_deref(),
        },
    );
    if address.key == AddressKey::Unknown {
        report(
            bindings,
            Event::AddressUnknown,
            "no header names the client; see CLIENT_IP_SOURCE",
        );
    }
    Ok(address)
}

/// Answers a preflight. It is never counted: the browser asks it by itself, before the request that counts.
fn preflight(config: &Config, origin: Option<&str>) -> Result<Response, JsValue> {
    let mut fields = access_fields(config, origin);
    fields.push((
        "vary",
        "Origin, Access-Control-Request-Method, Access-Control-Request-Headers".to_owned(),
    ));
    fields.push(("access-control-allow-methods", cors::METHODS.to_owned()));
    fields.push(("access-control-allow-headers", cors::REQUEST_HEADERS.to_owned()));
    fields.push(("access-control-max-age", "7200".to_owned()));
    answer::empty(204, &fields)
}

/// The fields that let a page of another origin read an answer.
fn access_fields(config: &Config, origin: Option<&str>) -> Fields {
    let Some(origin) = origin else {
        return Fields::new();
    };
    let access = config.allowed_origins.access(origin);
    let mut fields = vec![("vary", "Origin".to_owned())];
    if access.read {
        fields.push(("access-control-allow-origin", origin.to_owned()));
        fields.push(("access-control-expose-headers", cors::EXPOSED.to_owned()));
    }
    if access.credentials {
        fields.push(("access-control-allow-credentials", "true".to_owned()));
    }
    fields
}

/// A drill: what if there were a bug here?
#[allow(clippy::panic)]
fn drill() {
    panic!("this is a drill");
}
