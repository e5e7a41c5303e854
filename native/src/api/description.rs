//! The API's description: an OpenAPI 3.1 document of all routes.

use utoipa::OpenApi;
use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn, PathItem};
use utoipa::openapi::schema::{ObjectBuilder, SchemaType, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{RefOr, Required, Schema};
use weir_ledger::catalogue::Catalogue;
use weir_policy::subject::MAX_BYTES;

const USER_TOKEN: &str = "userToken";
const SERVICE_KEY: &str = "serviceKey";
const ATTEMPT_TOKEN: &str = "attemptToken";

/// The document without the routes.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Weir API",
        description = "Submit jobs under a plan's quota and follow them. Errors are problem details (RFC 9457)."
    ),
    servers((
        url = "/",
        description = "The server that returned this document. The edge forwards /api; only the origin serves /admin and /worker"
    )),
    tags(
        (name = "Jobs", description = "Submit, follow and cancel jobs"),
        (name = "Usage", description = "Usage, for users and for billing"),
        (name = "Lanes", description = "Queued and running jobs of all lanes"),
        (name = "Development", description = "Routes that exist only in development mode"),
        (name = "Workers", description = "Reports of handlers that answer later"),
        (name = "Holders", description = "Plans, overrides, grants and adjustments of holders"),
        (name = "Audit log", description = "Changes that operators and billing made"),
        (name = "Webhooks", description = "Where events are delivered"),
    )
)]
pub(super) struct Document;

/// Adds what all routes share: the version, the security schemes and the header of service keys.
pub(super) fn complete(document: &mut utoipa::openapi::OpenApi, catalogue: &Catalogue) {
    document.info.version = env!("CARGO_PKG_VERSION").to_owned();
    name_plans(document, catalogue);
    let components = document.components.get_or_insert_default();
    for (name, format, description) in [
        (
            USER_TOKEN,
            "JWT",
            "A user's token, which the edge verifies. Without one, the caller is anonymous.",
        ),
        (
            SERVICE_KEY,
            "weir_sk_…",
            "A service key from `weir key create`, for backends that call the origin. Routes below /api need the scope read \
             or submit, and /admin needs admin.",
        ),
        (
            ATTEMPT_TOKEN,
            "opaque",
            "The token of an attempt, from the header Weir-Attempt-Token of the request to the handler.",
        ),
    ] {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .bearer_format(format)
            .description(Some(description))
            .build();
        components.add_security_scheme(name, SecurityScheme::Http(scheme));
    }
    for (path, item) in &mut document.paths.paths {
        for operation in operations(item) {
            complete_operation(path, operation);
        }
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.put, &mut item.post, &mut item.delete]
        .into_iter()
        .flatten()
}

fn complete_operation(path: &str, operation: &mut Operation) {
    let parameters = operation.parameters.get_or_insert_default();
    for parameter in &mut *parameters {
        if let RefOr::T(parameter) = parameter {
            leave_out_null(parameter);
        }
    }
    let bearer = |name: &str| SecurityRequirement::new(name, [] as [&str; 0]);
    operation.security = Some(if path.starts_with("/admin/") {
        vec![bearer(SERVICE_KEY)]
    } else if path.starts_with("/worker/") {
        vec![bearer(ATTEMPT_TOKEN)]
    } else {
        parameters.push(RefOr::T(on_behalf_of()));
        let mut accepted = vec![bearer(USER_TOKEN), bearer(SERVICE_KEY)];
        if !USER_OPERATIONS.contains(&operation.operation_id.as_deref().unwrap_or_default()) {
            accepted.push(SecurityRequirement::default());
        }
        accepted
    });
}

/// Operations below `/api` that anonymous callers may not use.
const USER_OPERATIONS: [&str; 3] = ["listJobs", "submitBatch", "streamJobs"];

fn on_behalf_of() -> Parameter {
    let subject = ObjectBuilder::new()
        .schema_type(Type::String)
        .min_length(Some(1))
        // Percent-encoding needs three characters for a byte.
        .max_length(Some(3 * MAX_BYTES));
    ParameterBuilder::new()
        .name("Weir-On-Behalf-Of")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(
            "The subject of the user that a service key acts for, in percent-encoded UTF-8. Required with a service key; \
             ignored without one",
        ))
        .schema(Some(subject))
        .build()
}

/// An optional parameter is left out. It cannot be null.
fn leave_out_null(parameter: &mut Parameter) {
    let Some(RefOr::T(Schema::Object(schema))) = &mut parameter.schema else {
        return;
    };
    if let SchemaType::Array(types) = &mut schema.schema_type {
        types.retain(|each| *each != Type::Null);
        if let [one] = types.as_slice() {
            schema.schema_type = SchemaType::Type(one.clone());
        }
    }
}

/// Lists the plans that a development token can have: those of the catalogue.
fn name_plans(document: &mut utoipa::openapi::OpenApi, catalogue: &Catalogue) {
    let Some(RefOr::T(Schema::Object(wanted))) = document
        .components
        .as_mut()
        .and_then(|components| components.schemas.get_mut("WantedToken"))
    else {
        return;
    };
    if let Some(RefOr::T(Schema::Object(plan))) = wanted.properties.get_mut("plan") {
        let plans = catalogue.plans.keys();
        plan.enum_values = Some(plans.map(|name| name.as_str().into()).collect());
    }
}
