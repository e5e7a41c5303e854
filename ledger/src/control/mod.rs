//! The control plane: changes that operators and billing make to holders, and the keys that authorise them.
//!
//! Every change is one transaction and writes a row to an append-only log. The API and the command line make the same
//! changes.

mod adjustments;
mod cancel;
mod deletion;
mod deliveries;
mod error;
mod grants;
mod import;
mod jobs;
mod keys;
mod log;
mod overrides;
mod plan;
mod requests;
mod usage_archive;
mod usage_by_period;
mod usage_feed;
mod user;
mod webhooks;

pub use adjustments::{Adjustment, Credit, NewAdjustment, adjust};
pub use cancel::cancel_waiting;
pub use deletion::{Deleted, ToDelete, delete, to_delete};
pub use deliveries::{
    DELIVERY_KIND, DeliveryState, Receiver, Replay, TestDelivery, delivery, delivery_queues, receiver,
    replay_webhook, test_webhook,
};
pub use error::ControlError;
pub use grants::{Granted, NewGrant, grant, grants_of, lower_grant};
pub use import::{ImportFault, ImportSource, ImportTotal, Imported, import};
pub use jobs::{
    FAILED, JobFilter, SLICE, UNFINISHED, all_matching_jobs, matching_jobs, record_jobs, retry_jobs,
};
pub use keys::{
    KEY_PREFIX, KeyRefusal, Scope, ServiceKey, create_key, has_key, is_valid_key, keys, revoke_key,
    verify_key,
};
pub use log::{LogCursor, LogEntry, log_after, record};
pub use overrides::{MAX_LIMIT, Override, override_of, remove_override, set_override};
pub use plan::{
    Effective, NotApplied, PaidPeriod, PlanChange, PlanOutcome, PlanStatus, apply_scheduled, plan_status,
    set_plan,
};
pub use requests::Idempotent;
pub use usage_archive::{ArchiveError, archive_usage};
pub use usage_by_period::{PeriodUsage, usage_by_period};
pub use usage_feed::{UsageCursor, UsageEvent, usage_after, usage_now};
pub use user::User;
pub use webhooks::{
    Deliveries, NewWebhook, WEBHOOK_EVENTS, WEBHOOK_THRESHOLDS, Webhook, add_webhook,
    disable_failing_webhook, disable_webhook, emit_renewals, enable_webhook, note_delivery, remove_webhook,
    rotate_webhook, webhooks,
};
