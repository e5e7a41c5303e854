//! The handling of a request, from authentication to the response.

use std::rc::Rc;

use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::{Request, Response};
use weir_policy::address::{AddressHeaders, AddressKey, ClientAddress, client_address};
use weir_policy::assertion::TokenClaims;
use weir_policy::cidr::Ranges;
use weir_policy::counts::RequestOutcome;
use weir_policy::route::{Exposure, Found, Route, RouteClass, exposure};
use weir_policy::subject::Identity;

use crate::access_log::{LogLine, RequestSummary};
use crate::bindings::{Bindings, random_uuid};
use crate::caller::{CredentialHeaders, Credentials, SERVICE_KEY, Unverifiable, credentials};
use crate::clock;
use crate::config::{Config, EnforcementMode, Unmatched};
use crate::context::RequestContext;
use crate::events::Event;
use crate::forward::{self, Forwarded, Outgoing};
use crate::glue::{self, HeaderChanges, Lines, Names};
use crate::jwks;
use crate::limiter::{self, RateLimitDecision};
use crate::reports;
use crate::response;
use crate::tally;
use crate::target::Target;
use crate::timeout;
use crate::trace::Trace;
use crate::url;

/// A header that the edge itself reads. The order is that of [`READ`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Header {
    Origin,
    PreflightMethod,
    PreflightHeaders,
    Authorization,
    Cookie,
    Traceparent,
    Drill,
    CfConnectingIp,
    CfConnectingIpv6,
    CfWorker,
    XForwardedFor,
    XRealIp,
}

const READ: [(Header, &str); 12] = [
    (Header::Origin, "origin"),
    (Header::PreflightMethod, "access-control-request-method"),
    (Header::PreflightHeaders, "access-control-request-headers"),
    (Header::Authorization, "authorization"),
    (Header::Cookie, "cookie"),
    (Header::Traceparent, "traceparent"),
    (Header::Drill, "weir-drill-panic"),
    (Header::CfConnectingIp, "cf-connecting-ip"),
    (Header::CfConnectingIpv6, "cf-connecting-ipv6"),
    (Header::CfWorker, "cf-worker"),
    (Header::XForwardedFor, "x-forwarded-for"),
    (Header::XRealIp, "x-real-ip"),
];

/// The values of these headers in one request.
struct Headers<'a>([Option<&'a str>; READ.len()]);

impl<'a> Headers<'a> {
    fn of(mut lines: Lines<'a>) -> Self {
        Self(READ.map(|_| lines.value()))
    }

    fn get(&self, header: Header) -> Option<&'a str> {
        self.0[header as usize]
    }
}

/// The longest path and query that are forwarded, in bytes, as at Cloudflare.
const MAX_TARGET_BYTES: usize = 16 * 1024;

thread_local! {
    static READ_NAMES: Names = glue::names(&READ.map(|(_, name)| name).join("\n"));
}

/// Answers any request, counts it and writes its line in the access log.
pub(crate) async fn handle(
    bindings: &Bindings,
    config: &Rc<Config>,
    request: Request,
) -> Result<Response, JsValue> {
    let id = random_uuid();
    let started = clock::now_ms();
    let facts = READ_NAMES.with(|names| glue::facts_of(&request, names));
    let mut lines = facts.lines();
    let (method, target) = (lines.text(), Target::of(lines.text()));
    let headers = Headers::of(lines);
    let origin = headers.get(Header::Origin);
    let context = RequestContext {
        bindings,
        config,
        request_id: &id,
        is_https: target.is_some_and(|target| target.scheme() == "https"),
    };
    let handled = match route(&context, &request, method, target, &headers).await {
        Ok(handled) => handled,
        Err(error) => {
            context.report(Event::Internal, &timeout::message(&error));
            let fields = fields(&context, origin);
            Handled::new(
                RequestOutcome::Failed,
                response::problem(&response::internal(), &fields),
            )?
        }
    };
    tally::count_request(handled.outcome);
    reports::schedule(bindings, config);
    let status = handled.response.status();
    if config.access_log.records(status) {
        let summary = RequestSummary {
            status,
            outcome: handled.outcome,
            user: handled.user.as_ref(),
            duration_ms: clock::now_ms() - started,
        };
        let path = target.map_or("", |target| target.path());
        LogLine::new(&id, method, path, summary).write();
    }
    Ok(handled.response)
}

/// A request that has been handled.
struct Handled {
    outcome: RequestOutcome,
    user: Option<Identity>,
    response: Response,
}

impl Handled {
    fn new(outcome: RequestOutcome, response: Result<Response, JsValue>) -> Result<Self, JsValue> {
        response.map(|response| Self {
            outcome,
            user: None,
            response,
        })
    }
}

/// Sends requests that match a route to the origin, and the others where the configuration says.
async fn route(
    context: &RequestContext<'_>,
    request: &Request,
    method: &str,
    target: Option<Target<'_>>,
    headers: &Headers<'_>,
) -> Result<Handled, JsValue> {
    let origin = headers.get(Header::Origin);
    let Some(target) = target else {
        return not_found(context, origin);
    };
    let found = match (
        context.config.routes.find(method, target.path()),
        &context.config.unmatched,
    ) {
        (Found::Route(route), _) => route,
        (Found::None, Unmatched::Forward(route)) => route,
        (Found::None, Unmatched::Assets) => return page(context, request, method, origin).await,
        (Found::OtherSpelling, _) | (Found::None, Unmatched::NotFound) => return not_found(context, origin),
    };
    let is_forwarded = match exposure(target.path()) {
        Exposure::Public => true,
        Exposure::Development => context.config.development && is_same_site(target, origin),
        Exposure::Private => false,
    };
    if !is_forwarded {
        return not_found(context, origin);
    }
    let api_request = ApiRequest {
        route: found,
        method,
        target,
        credentials: CredentialHeaders {
            origin,
            authorization: headers.get(Header::Authorization),
            cookie: headers.get(Header::Cookie),
        },
        traceparent: headers.get(Header::Traceparent),
        drill: headers.get(Header::Drill),
        address: AddressHeaders {
            cf_connecting_ip: headers.get(Header::CfConnectingIp),
            cf_connecting_ipv6: headers.get(Header::CfConnectingIpv6),
            cf_worker: headers.get(Header::CfWorker),
            x_forwarded_for: headers.get(Header::XForwardedFor),
            x_real_ip: headers.get(Header::XRealIp),
        },
    };
    let is_preflight = origin.is_some() && headers.get(Header::PreflightMethod).is_some();
    if method == "OPTIONS" && is_preflight {
        let response = preflight(context, origin, headers.get(Header::PreflightHeaders));
        return Handled::new(RequestOutcome::Other, response);
    }
    api(context, request, &api_request).await
}

/// Whether a request was not sent by a page of another website that is open on the developer's machine. Such a page may
/// have a name that resolves to this machine, so the host must be one of the loopback interface.
fn is_same_site(target: Target<'_>, origin: Option<&str>) -> bool {
    url::is_loopback(target.host()) && origin.is_none_or(|origin| origin == target.origin())
}

fn not_found(context: &RequestContext<'_>, origin: Option<&str>) -> Result<Handled, JsValue> {
    Handled::new(
        RequestOutcome::Other,
        response::problem(&response::not_found(), &fields(context, origin)),
    )
}

/// What the edge reads of a request to the API.
#[derive(Debug)]
struct ApiRequest<'a> {
    route: &'a Route,
    method: &'a str,
    target: Target<'a>,
    credentials: CredentialHeaders<'a>,
    traceparent: Option<&'a str>,
    /// The header `Weir-Drill-Panic`: `trap` is a trap without a panic, anything else a panic.
    drill: Option<&'a str>,
    address: AddressHeaders<'a>,
}

/// Serves the page's files and nothing else: the origin's other routes cannot be reached through the edge.
async fn page(
    context: &RequestContext<'_>,
    request: &Request,
    method: &str,
    origin: Option<&str>,
) -> Result<Handled, JsValue> {
    if ["GET", "HEAD"].contains(&method)
        && let Some(assets) = context.bindings.assets()
    {
        let response: Response = JsFuture::from(assets.fetch(request)?).await?.unchecked_into();
        if response.status() != 404 {
            return Handled::new(RequestOutcome::Other, Ok(response));
        }
    }
    not_found(context, origin)
}

async fn api(
    context: &RequestContext<'_>,
    request: &Request,
    api_request: &ApiRequest<'_>,
) -> Result<Handled, JsValue> {
    let started = clock::now_ms();
    let config = context.config;
    let target = api_request.target;
    let mut fields = fields(context, api_request.credentials.origin);
    let address = address(context, &api_request.address);
    let is_in = |ranges: &Ranges| address.address.is_some_and(|address| ranges.contain(address));
    if is_in(&config.deny) {
        return Handled::new(
            RequestOutcome::Other,
            response::problem(&response::denied_address(), &fields),
        );
    }
    let route = api_request.route;
    let credentials = match credentials(context, &api_request.credentials, target.origin()).await {
        // The origin knows what it is.
        Credentials::Refused(error) if route.passes_authorization && error != SERVICE_KEY => {
            Credentials::Anonymous
        }
        credentials => credentials,
    };
    let signed_in = match &credentials {
        Credentials::User(user) => Some(user),
        Credentials::Anonymous | Credentials::Refused(_) | Credentials::Unverifiable(_) => None,
    };
    let user = signed_in.map(|user| &user.identity);
    let answered = |outcome, problem, fields: &HeaderChanges| {
        Ok(Handled {
            outcome,
            user: user.cloned(),
            response: response::problem(&problem, fields)?,
        })
    };
    if target.path_and_query().len() > MAX_TARGET_BYTES {
        return answered(RequestOutcome::Other, response::uri_too_long(), &fields);
    }
    // The configuration has an origin for every route.
    let Some((name, origin)) = config.origin(route) else {
        return answered(RequestOutcome::Failed, response::misconfigured(), &fields);
    };
    if origin.is_at(target.host()) {
        context.report(
            Event::Internal,
            &format!("{name} is the address of the edge itself: requests would be forwarded in a circle"),
        );
        return answered(RequestOutcome::Failed, response::misconfigured(), &fields);
    }
    let names = &config.assertion_claims;
    let chosen = signed_in.map(|user| TokenClaims::chosen(&user.claims, names));
    let claims = match chosen.unwrap_or_else(|| Ok(TokenClaims::default())) {
        Ok(claims) => claims,
        Err(error) => return answered(RequestOutcome::Other, response::claims_too_long(error), &fields),
    };
    if route.signed_in && matches!(credentials, Credentials::Anonymous) {
        fields.set("www-authenticate", "Bearer realm=\"weir\"");
        return answered(RequestOutcome::Other, response::sign_in_required(), &fields);
    }
    // Without keys, no user's token can be verified, so these are not counted as bad tokens.
    if matches!(credentials, Credentials::Unverifiable(Unverifiable::NoKeys)) {
        fields.set("retry-after", &jwks::retry_after_secs(context).to_string());
        return answered(RequestOutcome::Unverifiable, response::unverifiable(), &fields);
    }
    let detail = match (&credentials, user) {
        (Credentials::Refused(_) | Credentials::Unverifiable(_), _) => response::TOO_MANY_BAD_TOKENS,
        (_, Some(_)) => response::TOO_MANY_OF_USER,
        (_, None) => response::TOO_MANY_ANONYMOUS,
    };
    let is_exempt = matches!(credentials, Credentials::Anonymous) && is_in(&config.allow);
    let decision = if is_exempt {
        None
    } else {
        let key = address.key.within(config.ipv6_prefix);
        decide(context, request, route, key, &credentials).await
    };
    match decision {
        None => {}
        Some(RateLimitDecision::Admitted(status)) => {
            response::add_rate_limit_fields(&status, user.is_some(), &mut fields);
        }
        Some(RateLimitDecision::Denied(status)) => {
            response::add_rate_limit_fields(&status, user.is_some(), &mut fields);
            fields.set("retry-after", &status.retry_after().to_string());
            let outcome = match (&credentials, route.class, user) {
                (Credentials::Refused(_) | Credentials::Unverifiable(_), _, _) => RequestOutcome::BadToken,
                (_, _, Some(_)) => RequestOutcome::DeniedUser,
                (_, RouteClass::Limited | RouteClass::Own, None) => RequestOutcome::Denied,
                (_, RouteClass::Other | RouteClass::Unlimited, None) => RequestOutcome::DeniedRead,
            };
            return answered(outcome, response::too_many_requests(&status, detail), &fields);
        }
        Some(RateLimitDecision::Unavailable) => {
            fields.set("retry-after", "10");
            let problem = response::counting_unavailable(user.is_some());
            return answered(RequestOutcome::Uncountable, problem, &fields);
        }
    }
    if let Credentials::Unverifiable(_) = credentials {
        fields.set("retry-after", &jwks::retry_after_secs(context).to_string());
        return answered(RequestOutcome::UnknownKey, response::unverifiable(), &fields);
    }
    if let Credentials::Refused(error) = &credentials {
        fields.set("www-authenticate", &response::challenge(error));
        let response = response::problem(&response::unauthenticated(error), &fields);
        return Handled::new(RequestOutcome::BadToken, response);
    }
    match api_request.drill {
        Some("trap") if config.drills => trap_drill(),
        Some(_) if config.drills => panic_drill(),
        _ => {}
    }

    let trace = Trace::new(context.request_id, api_request.traceparent);
    let outgoing = Outgoing {
        request,
        origin,
        method: api_request.method,
        host: target.host(),
        scheme: target.scheme(),
        path_and_query: target.path_and_query(),
        user: signed_in,
        claims: &claims,
        authorization: api_request
            .credentials
            .authorization
            .filter(|_| route.passes_authorization),
        cookie: api_request.credentials.cookie.filter(|_| route.passes_cookie),
        address,
        trace: &trace,
    };
    let before_origin = clock::now_ms();
    let forwarded = forward::send(context, &outgoing).await?;
    let (edge_ms, origin_ms) = (before_origin - started, clock::now_ms() - before_origin);
    fields.append(
        "server-timing",
        &format!("edge;dur={edge_ms}, origin;dur={origin_ms}"),
    );
    let response = match forwarded {
        Forwarded::Response(response) => forward::pass(context, &response, &fields),
        Forwarded::Problem(problem) => {
            // The origin may be there again soon.
            if matches!(problem.status, 502 | 504) {
                fields.set("retry-after", "2");
            }
            if matches!(problem.status, 400 | 408 | 413) {
                return answered(RequestOutcome::Other, problem, &fields);
            }
            response::problem(&problem, &fields)
        }
    };
    Ok(Handled {
        outcome: if user.is_some() {
            RequestOutcome::User
        } else {
            RequestOutcome::Anonymous
        },
        user: user.cloned(),
        response: response?,
    })
}

/// Decides by the policies of the route; `None` for a request without one. In shadow mode, a denial is
/// reported and the request admitted.
async fn decide(
    context: &RequestContext<'_>,
    request: &Request,
    route: &Route,
    address: AddressKey,
    credentials: &Credentials,
) -> Option<RateLimitDecision> {
    let incoming = request.unchecked_ref();
    let decision = match (credentials, route.class, context.config.users) {
        (Credentials::User(user), RouteClass::Own, _) => {
            limiter::own(context, incoming, &route.limits, address, Some(user)).await?
        }
        (Credentials::Anonymous, RouteClass::Own, _) => {
            limiter::own(context, incoming, &route.limits, address, None).await?
        }
        (Credentials::User(user), RouteClass::Limited, Some(limits)) => {
            let key = AddressKey::user(&user.identity.holder);
            limiter::user(context, incoming, key, limits).await
        }
        (Credentials::User(_), _, _) | (Credentials::Anonymous, RouteClass::Unlimited, _) => return None,
        (Credentials::Refused(_) | Credentials::Unverifiable(_), _, _) => {
            limiter::bad_token(context, address).await
        }
        (Credentials::Anonymous, RouteClass::Limited, _) => {
            limiter::submission(context, incoming, address).await
        }
        (Credentials::Anonymous, RouteClass::Other, _) => limiter::read(context, address).await,
    };
    Some(match decision {
        RateLimitDecision::Denied(status) if context.config.mode == EnforcementMode::Shadow => {
            context.report(Event::ShadowDenial, status.named.name);
            RateLimitDecision::Admitted(status)
        }
        decision => decision,
    })
}

fn address(context: &RequestContext<'_>, headers: &AddressHeaders<'_>) -> ClientAddress {
    let address = client_address(context.config.client_ip_source, headers);
    if address.key == AddressKey::Unknown {
        context.report(
            Event::AddressUnknown,
            "no header names the client; see CLIENT_IP_SOURCE",
        );
    }
    address
}

/// Answers a preflight. It is never counted: the browser sends it by itself, before the request that counts.
fn preflight(
    context: &RequestContext<'_>,
    origin: Option<&str>,
    requested_headers: Option<&str>,
) -> Result<Response, JsValue> {
    let mut fields = fields(context, origin);
    let access = origin.map(|origin| context.config.allowed_origins.access(origin));
    let allowed = &context.config.cors_fields;
    let requested = requested_headers.filter(|_| access.is_some_and(|access| access.credentials));
    fields
        .append(
            "vary",
            "Access-Control-Request-Method, Access-Control-Request-Headers",
        )
        .set("access-control-allow-methods", &allowed.methods)
        .set(
            "access-control-allow-headers",
            &allowed.request_headers(requested.unwrap_or_default()),
        )
        .set("access-control-max-age", "7200");
    response::empty(204, &fields)
}

/// The fields of every response: its id, and those that let a page of another origin read it.
fn fields(context: &RequestContext<'_>, origin: Option<&str>) -> HeaderChanges {
    let mut fields = response::base_fields(context.is_https);
    fields
        .set("x-request-id", context.request_id)
        // Also without Origin: a cache must not answer a page with this response.
        .append("vary", "Origin");
    let Some(origin) = origin else { return fields };
    let access = context.config.allowed_origins.access(origin);
    if access.read {
        fields.set("access-control-allow-origin", origin).set(
            "access-control-expose-headers",
            &context.config.cors_fields.exposed,
        );
    }
    if access.credentials {
        fields.set("access-control-allow-credentials", "true");
    }
    fields
}

/// Traps on request, as a stack without end does: no panic hook is called.
fn trap_drill() {
    #[cfg(target_arch = "wasm32")]
    core::arch::wasm32::unreachable();
}

/// Panics on request, to test what happens after a bug in the edge.
#[allow(clippy::panic)]
fn panic_drill() {
    panic!("this is a drill");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_header_is_read_at_its_own_place() {
        for (place, (header, _)) in READ.into_iter().enumerate() {
            assert_eq!(header as usize, place, "{header:?}");
        }
    }
}
