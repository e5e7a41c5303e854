//! A request's way through the edge.

use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::{Request, Response};
use weir_policy::address::{AddressHeaders, AddressKey, ClientAddress, client_address};
use weir_policy::route::RouteClass;

use crate::answer;
use crate::bindings::{Bindings, random_uuid};
use crate::caller::{Credentials, Sent, credentials};
use crate::clock;
use crate::config::{Config, Mode};
use crate::cors;
use crate::events::{Event, report};
use crate::forward::{self, Forwarded, Outgoing};
use crate::glue::{self, Changes};
use crate::limiter::{self, Decision};
use crate::target::Target;
use crate::trace::Trace;

/// The headers that the edge itself looks at, in the order in which they are taken out again.
const LOOKED_AT: &str = "origin\naccess-control-request-method\nauthorization\ncookie\ntraceparent\nweir-drill-panic\n\
    cf-connecting-ip\ncf-connecting-ipv6\ncf-worker\nx-forwarded-for\nx-real-ip";

/// Answers any request: the API's by way of the origin, all others from the page's files.
pub(crate) async fn answer(
    bindings: &Bindings,
    config: &Config,
    request: Request,
) -> Result<Response, JsValue> {
    let facts = glue::facts_of(&request, LOOKED_AT);
    let mut lines = facts.lines();
    let (method, url) = (lines.text(), lines.text());
    let Some(target) = Target::of(url) else {
        return answer::problem(&answer::not_found(), &Changes::default());
    };
    if !target.is_api() {
        return page(bindings, &request, method).await;
    }
    let (origin, preflights) = (lines.value(), lines.value().is_some());
    let asked = Asked {
        method,
        target,
        sent: Sent {
            origin,
            authorization: lines.value(),
            cookie: lines.value(),
        },
        traceparent: lines.value(),
        drills: lines.value().is_some(),
        address: AddressHeaders {
            cf_connecting_ip: lines.value(),
            cf_connecting_ipv6: lines.value(),
            cf_worker: lines.value(),
            x_forwarded_for: lines.value(),
            x_real_ip: lines.value(),
        },
    };
    if method == "OPTIONS" && origin.is_some() && preflights {
        return preflight(config, origin);
    }
    api(bindings, config, &request, &asked).await
}

/// What a request to the API says, as far as the edge looks at it.
#[derive(Debug)]
struct Asked<'a> {
    method: &'a str,
    target: Target<'a>,
    sent: Sent<'a>,
    traceparent: Option<&'a str>,
    drills: bool,
    address: AddressHeaders<'a>,
}

/// Only what is a file of the page. The origin's own routes are not reachable from here, whatever their names.
async fn page(bindings: &Bindings, request: &Request, method: &str) -> Result<Response, JsValue> {
    if ["GET", "HEAD"].contains(&method)
        && let Some(assets) = bindings.assets()
    {
        let response: Response = JsFuture::from(assets.fetch(request)?).await?.unchecked_into();
        if response.status() != 404 {
            return Ok(response);
        }
    }
    answer::problem(&answer::not_found(), &Changes::default())
}

async fn api(
    bindings: &Bindings,
    config: &Config,
    request: &Request,
    asked: &Asked<'_>,
) -> Result<Response, JsValue> {
    let started = clock::now_ms();
    let mut fields = access_fields(config, asked.sent.origin);
    let address = address(bindings, config, &asked.address);
    let credentials = credentials(bindings, config, &asked.sent, asked.target.origin()).await;
    let user_id = match &credentials {
        Credentials::User(user) => Some(user.id.clone()),
        Credentials::Anonymous | Credentials::Refused(_) => {
            let class = config.limited_routes.class(asked.method, asked.target.path());
            match decide(bindings, config, request, class, address.key).await {
                Decision::Admitted(allowance) => answer::rate_limit_fields(&allowance, &mut fields),
                Decision::Denied(allowance) => {
                    answer::rate_limit_fields(&allowance, &mut fields);
                    fields.set("retry-after", &allowance.retry_after().to_string());
                    return answer::problem(&answer::too_many_requests(&allowance), &fields);
                }
                Decision::Unavailable => {
                    fields.set("retry-after", "10");
                    return answer::problem(&answer::cannot_count(), &fields);
                }
            }
            None
        }
    };
    if let Credentials::Refused(error) = &credentials {
        fields.set("www-authenticate", &answer::challenge(error));
        return answer::problem(&answer::unauthorized(error), &fields);
    }
    if config.drills && asked.drills {
        drill();
    }

    let trace = Trace::new(random_uuid(), asked.traceparent);
    fields.set("x-request-id", &trace.request_id);
    let outgoing = Outgoing {
        request,
        method: asked.method,
        host: asked.target.host(),
        scheme: asked.target.scheme(),
        path_and_query: asked.target.path_and_query(),
        user_id,
        address,
        trace: &trace,
    };
    let before_origin = clock::now_ms();
    let forwarded = forward::send(bindings, config, &outgoing).await?;
    let (edge, origin) = (before_origin - started, clock::now_ms() - before_origin);
    fields.append("server-timing", &format!("edge;dur={edge}, origin;dur={origin}"));
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

fn address(bindings: &Bindings, config: &Config, headers: &AddressHeaders<'_>) -> ClientAddress {
    let address = client_address(config.client_ip_source, headers);
    if address.key == AddressKey::Unknown {
        report(
            bindings,
            Event::AddressUnknown,
            "no header names the client; see CLIENT_IP_SOURCE",
        );
    }
    address
}

/// Answers a preflight. It is never counted: the browser asks it by itself, before the request that counts.
fn preflight(config: &Config, origin: Option<&str>) -> Result<Response, JsValue> {
    let mut fields = access_fields(config, origin);
    fields
        .append(
            "vary",
            "Access-Control-Request-Method, Access-Control-Request-Headers",
        )
        .set("access-control-allow-methods", cors::METHODS)
        .set("access-control-allow-headers", cors::REQUEST_HEADERS)
        .set("access-control-max-age", "7200");
    answer::empty(204, &fields)
}

/// The fields that let a page of another origin read an answer.
fn access_fields(config: &Config, origin: Option<&str>) -> Changes {
    let mut fields = Changes::default();
    let Some(origin) = origin else { return fields };
    let access = config.allowed_origins.access(origin);
    fields.append("vary", "Origin");
    if access.read {
        fields
            .set("access-control-allow-origin", origin)
            .set("access-control-expose-headers", cors::EXPOSED);
    }
    if access.credentials {
        fields.set("access-control-allow-credentials", "true");
    }
    fields
}

/// A drill: what if there were a bug here?
#[allow(clippy::panic)]
fn drill() {
    panic!("this is a drill");
}
