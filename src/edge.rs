//! The handling of a request, from authentication to the response.

use std::pin::Pin;
use std::rc::Rc;

use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::{Request, Response};
use weir_policy::address::{AddressHeaders, AddressKey, ClientAddress, client_address};
use weir_policy::assertion::TokenClaims;
use weir_policy::cidr::Ranges;
use weir_policy::counts::RequestOutcome;
use weir_policy::problem::Problem;
use weir_policy::route::{Exposure, Found, Route, RouteClass, exposure};
use weir_policy::subject::Identity;
use weir_policy::token::User;

use crate::access_log::{LogLine, RequestSummary};
use crate::bindings::{Bindings, random_uuid};
use crate::caller::{CredentialHeaders, Credentials, SERVICE_KEY, Unverifiable, credentials};
use crate::clock;
use crate::config::{Config, EnforcementMode, Unmatched};
use crate::context::RequestContext;
use crate::events::Event;
use crate::forward::{self, Forwarded, Outgoing};
use crate::glue::{self, HeaderChanges, Lines, Names};
use crate::limiter::{self, RateLimitDecision};
use crate::origin::Origin;
use crate::reports;
use crate::response::{self, Fields};
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
    Upgrade,
}

const READ: [(Header, &str); 13] = [
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
    (Header::Upgrade, "upgrade"),
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
            let fields = fields(&context, origin, false);
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

/// Sends requests that match a route to the origin, and the others as UNMATCHED sets.
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
    // A preflight asks about another request.
    let preflight_method = headers
        .get(Header::PreflightMethod)
        .filter(|_| method == "OPTIONS" && origin.is_some());
    let found = match (
        context
            .config
            .routes
            .find(preflight_method.unwrap_or(method), target.path()),
        &context.config.unmatched,
    ) {
        (Found::Route(route), _) => route,
        (Found::None, Unmatched::Forward(route)) => route,
        (Found::None, Unmatched::Assets) => return page(context, request, method, origin).await,
        (Found::OtherSpelling, _) | (Found::None, Unmatched::NotFound) => return not_found(context, origin),
    };
    // The reserved paths are those of Weir's origin.
    let is_own = context
        .config
        .origin(found)
        .is_some_and(|(_, origin)| origin.is_own_handler());
    let is_forwarded = is_own
        || match exposure(target.path()) {
            Exposure::Public => true,
            Exposure::Development => context.config.development && is_same_site(target, origin),
            Exposure::Private => false,
        };
    if !is_forwarded {
        return not_found(context, origin);
    }
    if preflight_method.is_some() && context.config.handler.cors {
        let response = preflight(context, origin, headers.get(Header::PreflightHeaders));
        return Handled::new(RequestOutcome::Other, response);
    }
    let for_preflights = preflight_method.map(|_| found.for_preflights());
    let api_request = ApiRequest {
        route: for_preflights.as_ref().unwrap_or(found),
        is_own,
        method,
        target,
        credentials: CredentialHeaders {
            origin,
            authorization: headers.get(Header::Authorization),
            cookie: headers.get(Header::Cookie),
        },
        traceparent: headers.get(Header::Traceparent),
        opens_websocket: method == "GET"
            && headers
                .get(Header::Upgrade)
                .is_some_and(|protocol| protocol.eq_ignore_ascii_case("websocket")),
        drill: headers.get(Header::Drill),
        address: AddressHeaders {
            cf_connecting_ip: headers.get(Header::CfConnectingIp),
            cf_connecting_ipv6: headers.get(Header::CfConnectingIpv6),
            cf_worker: headers.get(Header::CfWorker),
            x_forwarded_for: headers.get(Header::XForwardedFor),
            x_real_ip: headers.get(Header::XRealIp),
        },
    };
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
        response::problem(&response::not_found(), &fields(context, origin, false)),
    )
}

/// The parts of an API request that the edge reads.
#[derive(Debug)]
struct ApiRequest<'a> {
    route: &'a Route,
    /// Whether the Worker's own handler answers it.
    is_own: bool,
    method: &'a str,
    target: Target<'a>,
    credentials: CredentialHeaders<'a>,
    traceparent: Option<&'a str>,
    opens_websocket: bool,
    /// The `Weir-Drill-Panic` header: `trap` is a trap without a panic, anything else a panic.
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

/// The sender of a request to the API.
struct Sender {
    address: ClientAddress,
    credentials: Credentials,
}

impl Sender {
    fn user(&self) -> Option<&User> {
        match &self.credentials {
            Credentials::User(user) => Some(user),
            Credentials::Anonymous | Credentials::Refused(_) | Credentials::Unverifiable(_) => None,
        }
    }

    fn identity(&self) -> Option<&Identity> {
        self.user().map(|user| &user.identity)
    }

    fn is_anonymous(&self) -> bool {
        matches!(self.credentials, Credentials::Anonymous)
    }
}

/// The edge's own answer to a request that it does not forward.
struct Refusal {
    outcome: RequestOutcome,
    problem: Problem,
}

impl Refusal {
    fn new(outcome: RequestOutcome, problem: Problem) -> Self {
        Self { outcome, problem }
    }

    fn answer(self, user: Option<&Identity>, fields: &HeaderChanges) -> Result<Handled, JsValue> {
        Ok(Handled {
            outcome: self.outcome,
            user: user.cloned(),
            response: response::problem(&self.problem, fields)?,
        })
    }
}

/// A request that passed all checks.
struct Admitted<'a> {
    origin: &'a Origin,
    claims: TokenClaims,
}

/// Checks and counts a request to the API, then forwards it.
async fn api(
    context: &RequestContext<'_>,
    request: &Request,
    api_request: &ApiRequest<'_>,
) -> Result<Handled, JsValue> {
    let started = clock::now_ms();
    let mut fields = fields(context, api_request.credentials.origin, api_request.is_own);
    let address = address(context, &api_request.address);
    if contain(&context.config.deny, address) {
        let refusal = Refusal::new(RequestOutcome::Other, response::denied_address());
        return refusal.answer(None, &fields);
    }
    let sender = Sender {
        address,
        credentials: sent_credentials(context, api_request, address).await,
    };
    let admitted = match admit(context, request, api_request, &sender, &mut fields).await {
        Ok(admitted) => admitted,
        Err(refusal) => return refusal.answer(sender.identity(), &fields),
    };
    match api_request.drill {
        Some("trap") if context.config.drills => trap_drill(),
        Some(_) if context.config.drills => panic_drill(),
        _ => {}
    }
    let trace = Trace::new(context.request_id, api_request.traceparent);
    let outgoing = outgoing(context, request, api_request, &sender, &admitted, &trace);
    forward_to_origin(context, &outgoing, fields, started).await
}

fn contain(ranges: &Ranges, address: ClientAddress) -> bool {
    address.address.is_some_and(|address| ranges.contain(address))
}

async fn sent_credentials(
    context: &RequestContext<'_>,
    api_request: &ApiRequest<'_>,
    address: ClientAddress,
) -> Credentials {
    let own_origin = api_request.target.origin();
    // A request that is not verified must be denied. Routes that pass the header leave unknown tokens to the origin.
    let is_denied =
        !api_request.route.passes_authorization && context.config.mode == EnforcementMode::Enforce;
    let key = address.key.within(context.config.ipv6_prefix);
    let is_blocked = || is_denied && limiter::has_sent_bad_tokens(context, key);
    match credentials(context, &api_request.credentials, own_origin, &is_blocked).await {
        // The origin may know what it is. A token that a key of the edge's has verified is for the edge.
        Credentials::Refused(error)
            if api_request.route.passes_authorization && error != SERVICE_KEY && !error.is_about_time() =>
        {
            Credentials::Anonymous
        }
        credentials => credentials,
    }
}

/// Makes all checks of a request, and counts it between those that need no count and those of its token.
async fn admit<'a>(
    context: &RequestContext<'a>,
    request: &Request,
    api_request: &ApiRequest<'_>,
    sender: &Sender,
    fields: &mut HeaderChanges,
) -> Result<Admitted<'a>, Refusal> {
    let origin = destination(context, api_request)?;
    let claims = passed_claims(context, sender)?;
    if api_request.route.signed_in && sender.is_anonymous() {
        fields.set("www-authenticate", "Bearer realm=\"weir\"");
        return Err(Refusal::new(RequestOutcome::Other, response::sign_in_required()));
    }
    // Without keys, no user's token can be verified, so these are not counted as bad tokens.
    if let Credentials::Unverifiable(Unverifiable::NoKeys(seconds)) = sender.credentials {
        fields.set("retry-after", &seconds.to_string());
        return Err(Refusal::new(
            RequestOutcome::Unverifiable,
            response::unverifiable(),
        ));
    }
    count(context, request, api_request, sender, fields).await?;
    match &sender.credentials {
        Credentials::Unverifiable(Unverifiable::NoKeys(seconds) | Unverifiable::OldKeys(seconds)) => {
            fields.set("retry-after", &seconds.to_string());
            Err(Refusal::new(RequestOutcome::UnknownKey, response::unverifiable()))
        }
        Credentials::Refused(error) => {
            fields.set("www-authenticate", &response::challenge(error));
            let problem = response::unauthenticated(error);
            Err(Refusal::new(RequestOutcome::BadToken, problem))
        }
        Credentials::User(_) | Credentials::Anonymous => Ok(Admitted { origin, claims }),
    }
}

/// The origin that the request goes to.
fn destination<'a>(
    context: &RequestContext<'a>,
    api_request: &ApiRequest<'_>,
) -> Result<&'a Origin, Refusal> {
    let target = api_request.target;
    if target.path_and_query().len() > MAX_TARGET_BYTES {
        return Err(Refusal::new(RequestOutcome::Other, response::uri_too_long()));
    }
    let misconfigured = || Refusal::new(RequestOutcome::Failed, response::misconfigured());
    // The configuration has an origin for every route.
    let (name, origin) = context
        .config
        .origin(api_request.route)
        .ok_or_else(misconfigured)?;
    if origin.is_at(target.host()) {
        context.report(
            Event::Internal,
            &format!("{name} is the address of the edge itself, so requests would loop"),
        );
        return Err(misconfigured());
    }
    Ok(origin)
}

/// The claims of the user's token that the origin receives.
fn passed_claims(context: &RequestContext<'_>, sender: &Sender) -> Result<TokenClaims, Refusal> {
    let Some(user) = sender.user() else {
        return Ok(TokenClaims::default());
    };
    TokenClaims::chosen(&user.claims, &context.config.assertion_claims)
        .map_err(|error| Refusal::new(RequestOutcome::Other, response::claims_too_long(error)))
}

/// Counts the request, unless its address is exempt. Adds the fields of its limits to the response.
async fn count(
    context: &RequestContext<'_>,
    request: &Request,
    api_request: &ApiRequest<'_>,
    sender: &Sender,
    fields: &mut HeaderChanges,
) -> Result<(), Refusal> {
    let (config, route) = (context.config, api_request.route);
    let is_user = sender.user().is_some();
    let how = match (api_request.is_own, is_user) {
        (true, _) => Fields::Yield,
        (false, true) => Fields::Append,
        (false, false) => Fields::Replace,
    };
    if sender.is_anonymous() && contain(&config.allow, sender.address) {
        return Ok(());
    }
    let key = sender.address.key.within(config.ipv6_prefix);
    match decide(context, request, route, key, &sender.credentials).await {
        None => Ok(()),
        Some(RateLimitDecision::Admitted(status)) => {
            response::add_rate_limit_fields(&status, how, fields);
            Ok(())
        }
        Some(RateLimitDecision::Denied(status)) => {
            response::add_rate_limit_fields(&status, how, fields);
            fields.set("retry-after", &status.retry_after().to_string());
            let (outcome, detail) = denial(&sender.credentials, route.class);
            Err(Refusal::new(
                outcome,
                response::too_many_requests(&status, detail),
            ))
        }
        Some(RateLimitDecision::Unavailable) => {
            fields.set("retry-after", "10");
            let problem = response::counting_unavailable(is_user);
            Err(Refusal::new(RequestOutcome::Uncountable, problem))
        }
    }
}

/// How a denial is counted, and its text for the client.
fn denial(credentials: &Credentials, class: RouteClass) -> (RequestOutcome, &'static str) {
    match (credentials, class) {
        (Credentials::Refused(_) | Credentials::Unverifiable(_), _) => {
            (RequestOutcome::BadToken, response::TOO_MANY_BAD_TOKENS)
        }
        (Credentials::User(_), _) => (RequestOutcome::DeniedUser, response::TOO_MANY_OF_USER),
        (Credentials::Anonymous, RouteClass::Limited | RouteClass::OwnLimits) => {
            (RequestOutcome::Denied, response::TOO_MANY_ANONYMOUS)
        }
        (Credentials::Anonymous, RouteClass::Other | RouteClass::Unlimited) => {
            (RequestOutcome::DeniedRead, response::TOO_MANY_ANONYMOUS)
        }
    }
}

fn outgoing<'a>(
    context: &RequestContext<'_>,
    request: &'a Request,
    api_request: &ApiRequest<'a>,
    sender: &'a Sender,
    admitted: &'a Admitted<'_>,
    trace: &'a Trace,
) -> Outgoing<'a> {
    let ApiRequest {
        route,
        target,
        credentials,
        ..
    } = api_request;
    Outgoing {
        request,
        origin: admitted.origin,
        method: api_request.method,
        host: target.host(),
        scheme: target.scheme(),
        path_and_query: target.path_and_query(),
        opens_websocket: api_request.opens_websocket,
        user: sender.user(),
        claims: &admitted.claims,
        authorization: credentials.authorization.filter(|_| route.passes_authorization),
        cookie: credentials.cookie.filter(|_| route.passes_cookie),
        address: sender.address,
        trace,
        max_body_bytes: route.max_body_bytes.or_else(|| {
            let is_set = !api_request.is_own || context.config.handler.max_body_bytes;
            is_set.then_some(context.config.max_body_bytes)
        }),
    }
}

/// Forwards the request, and passes the origin's response on. `started` is when the handling began.
async fn forward_to_origin(
    context: &RequestContext<'_>,
    outgoing: &Outgoing<'_>,
    mut fields: HeaderChanges,
    started: u64,
) -> Result<Handled, JsValue> {
    let before_origin = clock::now_ms();
    let forwarded = forward::send(context, outgoing).await?;
    let (edge_ms, origin_ms) = (before_origin - started, clock::now_ms() - before_origin);
    let is_own = outgoing.origin.is_own_handler();
    if !is_own {
        fields.append(
            "server-timing",
            &format!("edge;dur={edge_ms}, origin;dur={origin_ms}"),
        );
    }
    let user = outgoing.user.map(|user| &user.identity);
    let outcome = match user {
        Some(_) => RequestOutcome::User,
        None => RequestOutcome::Anonymous,
    };
    match forwarded {
        Forwarded::Response(response) => Ok(Handled {
            outcome,
            user: user.cloned(),
            response: forward::pass(&response, &fields, is_own, context.config.handler.cors)?,
        }),
        Forwarded::Problem(problem) => {
            // The origin may be there again soon.
            if matches!(problem.status, 502 | 504) {
                fields.set("retry-after", "2");
            }
            let is_clients = matches!(problem.status, 400 | 408 | 413);
            let outcome = if is_clients {
                RequestOutcome::Other
            } else {
                outcome
            };
            Refusal::new(outcome, problem).answer(user, &fields)
        }
    }
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
        (Credentials::User(_) | Credentials::Anonymous, RouteClass::OwnLimits, _) => {
            let user = match credentials {
                Credentials::User(user) => Some(user),
                _ => None,
            };
            // As separate code, which only isolates with such routes compile.
            let deciding: Pin<Box<dyn Future<Output = _>>> =
                Box::pin(limiter::own(context, incoming, &route.limits, address, user));
            deciding.await?
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

/// Answers a preflight. It is never counted: the browser sends it on its own, before the request that counts.
fn preflight(
    context: &RequestContext<'_>,
    origin: Option<&str>,
    requested_headers: Option<&str>,
) -> Result<Response, JsValue> {
    let mut fields = fields(context, origin, false);
    let access = origin.map(|origin| context.config.allowed_origins.access(origin));
    let allowed = &context.config.cors_fields;
    let requested = requested_headers.filter(|_| access.is_some_and(|access| access.read));
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

/// The fields of every response: its id, and those that let a page of another origin read it. A response of the Worker's
/// own handler (`is_own`) keeps its own.
fn fields(context: &RequestContext<'_>, origin: Option<&str>, is_own: bool) -> HeaderChanges {
    let mut fields = HeaderChanges::default();
    if is_own {
        fields.set_absent("x-request-id", context.request_id);
    } else {
        fields = response::base_fields(context.is_https);
        fields.set("x-request-id", context.request_id);
    }
    if !context.config.handler.cors {
        return fields;
    }
    // Also without Origin: a cache must not answer a page with this response.
    fields.append("vary", "Origin");
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
    fn each_header_is_read_from_its_position() {
        for (place, (header, _)) in READ.into_iter().enumerate() {
            assert_eq!(header as usize, place, "{header:?}");
        }
    }
}
