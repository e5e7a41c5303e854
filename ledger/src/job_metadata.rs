//! Weir's members of a job's metadata (`river_job.metadata`).

/// The request id of the submission.
pub const REQUEST_ID: &str = "weir:request_id";

/// The submission's place in its trace, as a W3C `traceparent`.
pub const TRACEPARENT: &str = "weir:traceparent";

/// The subject of the token that the job was submitted with. The holder may be an organisation, and the subject a
/// member.
pub const SUBJECT: &str = "weir:subject";

/// The seconds from the submission, or from its start time, after which a job that still waits is cancelled.
pub const EXPIRES_IN: &str = "weir:expires_in";

/// The handler's usage in the meter's unit, for the settlement of the job.
pub const USED: &str = "weir:used";

/// Why a handler discarded the job, for the job's owner.
pub const REASON: &str = "weir:reason";

/// The attempt that discarded it, because an operator may retry the job.
pub const REASON_ATTEMPT: &str = "weir:reason_attempt";
