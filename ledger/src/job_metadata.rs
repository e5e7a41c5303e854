//! The members of a job's metadata (`river_job.metadata`) that are Weir's.

/// The request id of the submission.
pub const REQUEST_ID: &str = "weir:request_id";

/// The submission's place in its trace, as a W3C `traceparent`.
pub const TRACEPARENT: &str = "weir:traceparent";

/// The subject of the token that the job was submitted with. Its holder may be an organisation, and this one of its people.
pub const SUBJECT: &str = "weir:subject";

/// What the handler used, in the meter's unit, for the settlement of the job.
pub const USED: &str = "weir:used";

/// Why a handler gave the job up for good, for the job's owner.
pub const REASON: &str = "weir:reason";

/// At which attempt that was: an operator may have the job tried again.
pub const REASON_ATTEMPT: &str = "weir:reason_attempt";
