//! A request's way through the edge.

use std::rc::Rc;

use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::{Request, Response};
use weir_policy::address::{AddressHeaders, AddressKey, ClientAddress, client_address};
use weir_policy::counts::Outcome;
use weir_policy::route::{RouteClass, is_the_edges_own};

use crate::access::{End, Line};
use crate::answer;
use crate::bindings::{Bindings, random_uuid};
use crate::call::Call;
use crate::caller::{Credentials, Sent, credentials};
use crate::clock;
use crate::config::{Config, Mode};
use crate::cors;
use crate::counts;
use crate::events::Event;
use crate::forward::{self, Forwarded, Outgoing};
use crate::glue::{self, Changes, Lines};
use crate::limiter::{self, Decision};
use crate::target::Target;
use crate::trace::Trace;
use crate::wait;

/// The headers that the edge itself looks at, in the order in which they are taken out again.
const LOOKED_AT: &str = "origin\naccess-control-request-method\nauthorization\ncookie\ntraceparent\nweir-drill-panic\n\
    cf-connecting-ip\ncf-connecting-ipv6\ncf-worker\nx-forwarded-for\nx-real-ip";

/// Answers any request, and counts it.
pub(crate) async fn answer(
    bindings: &Bindings,
    config: &Rc<Config>,
    request: Request,
) -> Result<Response, JsValue> {
    let id = random_uuid();
    let call = Call {
        bindings,
        config,
        request_id: &id,
    };
    let started = clock::now_ms();
    let facts = glue::facts_of(&request, LOOKED_AT);
    let mut lines = facts.lines();
    let (method, target) = (lines.text(), Target::of(lines.text()));
    let answered = match route(&call, &request, method, target, lines).await {
        Ok(answered) => answered,
        Err(error) => {
            call.report(Event::Internal, &wait::message(&error));
            let fields = Changes::default();
            Answered::new(Outcome::Failed, answer::problem(&answer::internal(), &fields))?
        }
    };
    counts::request(answered.outcome);
    counts::tell(bindings, config);
    let status = answered.response.status();
    if config.access_log.wants(status) {
        let end = End {
            status,
            outcome: answered.outcome,
            user: answered.user.as_deref(),
            duration_ms: clock::now_ms() - started,
        };
        let path = target.map_or("", |target| target.path());
        Line::new(&id, method, path, end).write();
    }
    Ok(answered.response)
}

/// An answer, and what it is.
struct Answered {
    outcome: Outcome,
    user: Option<String>,
    response: Response,
}

impl Answered {
    fn new(outcome: Outcome, response: Result<Response, JsValue>) -> Result<Self, JsValue> {
        response.map(|response| Self {
            outcome,
            user: None,
            response,
        })
    }
}

/// The API's requests go by way of the origin, all others are for the page's files.
async fn route(
    call: &Call<'_>,
    request: &Request,
    method: &str,
    target: Option<Target<'_>>,
    mut looked_at: Lines<'_>,
) -> Result<Answered, JsValue> {
    let Some(target) = target else {
        return not_found();
    };
    if !target.is_api() {
        return page(call.bindings, request, method).await;
    }
    if is_the_edges_own(target.path()) {
        return not_found();
    }
    let (origin, preflights) = (looked_at.value(), looked_at.value().is_some());
    let asked = Asked {
        method,
        target,
        sent: Sent {
            origin,
            authorization: looked_at.value(),
            cookie: looked_at.value(),
        },
        traceparent: looked_at.value(),
        drills: looked_at.value().is_some(),
        address: AddressHeaders {
            cf_connecting_ip: looked_at.value(),
            cf_connecting_ipv6: looked_at.value(),
            cf_worker: looked_at.value(),
            x_forwarded_for: looked_at.value(),
            x_real_ip: looked_at.value(),
        },
    };
    if method == "OPTIONS" && origin.is_some() && preflights {
        return Answered::new(Outcome::Other, preflight(call.config, origin));
    }
    api(call, request, &asked).await
}

fn not_found() -> Result<Answered, JsValue> {
    let fields = Changes::default();
    Answered::new(Outcome::Other, answer::problem(&answer::not_found(), &fields))
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
async fn page(bindings: &Bindings, request: &Request, method: &str) -> Result<Answered, JsValue> {
    if ["GET", "HEAD"].contains(&method)
        && let Some(assets) = bindings.assets()
    {
        let response: Response = JsFuture::from(assets.fetch(request)?).await?.unchecked_into();
        if response.status() != 404 {
            return Answered::new(Outcome::Other, Ok(response));
        }
    }
    not_found()
}

async fn api(call: &Call<'_>, request: &Request, asked: &Asked<'_>) -> Result<Answered, JsValue> {
    let started = clock::now_ms();
    let config = call.config;
    let mut fields = access_fields(config, asked.sent.origin);
    fields.set("x-request-id", call.request_id);
    let address = address(call, &asked.address);
    let credentials = credentials(call, &asked.sent, asked.target.origin()).await;
    let user_id = match &credentials {
        Credentials::User(user) => Some(user.id.clone()),
        Credentials::Anonymous | Credentials::Refused(_) => {
            let class = config.limited_routes.class(asked.method, asked.target.path());
            match decide(call, request, class, address.key).await {
                Decision::Admitted(allowance) => answer::rate_limit_fields(&allowance, &mut fields),
                Decision::Denied(allowance) => {
                    answer::rate_limit_fields(&allowance, &mut fields);
                    fields.set("retry-after", &allowance.retry_after().to_string());
                    let outcome = match class {
                        RouteClass::Limited => Outcome::Denied,
                        RouteClass::Other => Outcome::DeniedRead,
                    };
                    let problem = answer::too_many_requests(&allowance);
                    return Answered::new(outcome, answer::problem(&problem, &fields));
                }
                Decision::Unavailable => {
                    fields.set("retry-after", "10");
                    let response = answer::problem(&answer::cannot_count(), &fields);
                    return Answered::new(Outcome::Uncountable, response);
                }
            }
            None
        }
    };
    if let Credentials::Refused(error) = &credentials {
        fields.set("www-authenticate", &answer::challenge(error));
        let response = answer::problem(&answer::unauthorized(error), &fields);
        return Answered::new(Outcome::BadToken, response);
    }
    if config.drills && asked.drills {
        drill();
    }

    let trace = Trace::new(call.request_id, asked.traceparent);
    let outgoing = Outgoing {
        request,
        method: asked.method,
        host: asked.target.host(),
        scheme: asked.target.scheme(),
        path_and_query: asked.target.path_and_query(),
        user_id: user_id.as_deref(),
        address,
        trace: &trace,
    };
    let before_origin = clock::now_ms();
    let forwarded = forward::send(call, &outgoing).await?;
    let (edge, origin) = (before_origin - started, clock::now_ms() - before_origin);
    fields.append("server-timing", &format!("edge;dur={edge}, origin;dur={origin}"));
    let response = match forwarded {
        Forwarded::Answer(response) => forward::answer(&response, &fields),
        Forwarded::Problem(problem) => answer::problem(&problem, &fields),
    };
    Ok(Answered {
        outcome: if user_id.is_some() {
            Outcome::User
        } else {
            Outcome::Anonymous
        },
        user: user_id,
        response: response?,
    })
}

/// Which policy decides, and whether its denials are carried out.
async fn decide(call: &Call<'_>, request: &Request, class: RouteClass, key: AddressKey) -> Decision {
    let decision = match class {
        RouteClass::Limited => limiter::submission(call, request.unchecked_ref(), key).await,
        RouteClass::Other => limiter::read(call, key).await,
    };
    match decision {
        Decision::Denied(allowance) if call.config.mode == Mode::Shadow => {
            call.report(Event::ShadowDenial, allowance.named.name);
            Decision::Admitted(allowance)
        }
        decision => decision,
    }
}

fn address(call: &Call<'_>, headers: &AddressHeaders<'_>) -> ClientAddress {
    let address = client_address(call.config.client_ip_source, headers);
    if address.key == AddressKey::Unknown {
        call.report(
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
