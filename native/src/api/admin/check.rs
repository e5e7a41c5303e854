//! Dry runs of a holder's submissions.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};

use super::super::answers::{LacksScope, NoKey, NoService, OutOfRange, Unavailable};
use super::super::caller::Operator;
use super::super::check::{self, Checked, Wanted};
use super::super::problem::ApiError;
use super::super::state::Api;
use super::request::{self, Names};

/// Checks whether a submission of a holder would be accepted now.
///
/// Reserves nothing, so another submission may take the room in between. An unknown holder has the default plan.
#[utoipa::path(
    get,
    path = "/admin/holders/{subject}/quota",
    operation_id = "checkQuotaOfHolder",
    tag = "Holders",
    params(("subject" = String, Path, description = "The text that names the holder in tokens", min_length = 1, max_length = 255), Wanted),
    responses((status = 200, body = Checked, description = "The outcome of such a submission"), NoKey, LacksScope, NoService, OutOfRange, Unavailable)
)]
pub(super) async fn check(
    State(api): State<Arc<Api>>,
    _operator: Operator,
    Names(subject): Names<String>,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<Json<Checked>, ApiError> {
    let user = request::user(&api, &subject)?;
    check::check_for_holder(&api, api.holders.subject(&user.subject), wanted).await
}
