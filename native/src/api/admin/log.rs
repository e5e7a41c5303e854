//! The log of changes.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;
use weir_ledger::control::{self, LogEntry};
use weir_ledger::database::DatabaseError;

use super::super::answers::{LacksScope, NoKey, OutOfRange, Unavailable};
use super::super::caller::Operator;
use super::super::problem::ApiError;
use super::super::state::Api;
use super::request;

/// A part of the log.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// The `next` of the previous answer. Default: from the first change.
    after: Option<String>,
    /// The maximum number of items. Default: 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
}

/// A part of the log.
#[derive(Serialize, ToSchema)]
pub(super) struct AuditLog {
    changes: Vec<LoggedChange>,
    /// The `after` of the next request. After a failover that lost changes, it still finds all changes made since.
    next: String,
}

/// A change that was made.
#[derive(Serialize, ToSchema)]
pub(super) struct LoggedChange {
    /// Increases with every change. After a failover, the ids of lost changes are assigned again.
    id: i64,
    at: Timestamp,
    /// `key:NAME` over HTTP, `shell:USER` on the command line, `weir` for scheduled changes.
    actor: String,
    #[schema(example = "plan.set")]
    action: String,
    /// The holder that was changed.
    holder: Option<Uuid>,
    /// The holder's subject; null if the holder was deleted, or if the subject is the id.
    subject: Option<String>,
    meter: Option<String>,
    reason: Option<String>,
    before: Option<Value>,
    after: Option<Value>,
}

impl From<LogEntry> for LoggedChange {
    fn from(entry: LogEntry) -> Self {
        Self {
            id: entry.id,
            at: entry.at,
            actor: entry.actor,
            action: entry.action,
            holder: entry.holder,
            subject: entry.subject,
            meter: entry.meter.map(|meter| meter.to_string()),
            reason: entry.reason,
            before: entry.before,
            after: entry.after,
        }
    }
}

/// Lists all changes, with their actor and the values before and after.
///
/// The oldest change comes first. No route edits the log.
#[utoipa::path(
    get,
    path = "/admin/audit-log",
    operation_id = "listAuditLog",
    tag = "Audit log",
    params(Page),
    responses((status = 200, body = AuditLog, description = "The changes"), NoKey, LacksScope, OutOfRange, Unavailable)
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    _operator: Operator,
    page: Result<Query<Page>, QueryRejection>,
) -> Result<Json<AuditLog>, ApiError> {
    let wants = || {
        ApiError::Unprocessable(
            "limit must be a whole number from 1 to 1000, and after the `next` of an earlier response"
                .to_owned(),
        )
    };
    let Ok(Query(Page { after, limit })) = page else {
        return Err(wants());
    };
    let limit = request::limit(limit).ok_or_else(wants)?;
    let after = match after {
        Some(after) => after.parse().map_err(|_| wants())?,
        None => control::LogCursor::default(),
    };
    let (entries, next) = api
        .pool
        .with(async |client| Ok::<_, DatabaseError>(control::log_after(client, after, limit).await?))
        .await?;
    Ok(Json(AuditLog {
        changes: entries.into_iter().map(LoggedChange::from).collect(),
        next: next.to_string(),
    }))
}
