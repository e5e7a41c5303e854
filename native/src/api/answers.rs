//! Answers that several routes share, as in the API's description.

use utoipa::IntoResponses;

use super::problem::ProblemDetails;

macro_rules! answers {
    ($($(#[$description:meta])* $status:literal $name:ident;)+) => {$(
        $(#[$description])*
        #[derive(IntoResponses)]
        #[response(status = $status, content_type = "application/problem+json")]
        #[allow(dead_code, reason = "describes what `ApiError` answers")]
        pub(super) struct $name(ProblemDetails);
    )+};
}

answers! {
    /// The request did not come through the edge, and has no valid service key
    401 Unauthenticated;
    /// No valid service key
    401 NoKey;
    /// The service key lacks the scope
    403 LacksScope;
    /// The holder is unknown
    404 UnknownHolder;
    /// The service is unknown
    404 NoService;
    /// A service key needs one valid header Weir-On-Behalf-Of
    422 NoSubject;
    /// Unknown webhook
    404 NoSuchWebhook;
    /// River has no job of this id
    404 NotInRiver;
    /// No service has the lane, or no worker ever worked it
    404 NoLane;
    /// The webhook is disabled, or the URL already has one, or there are too many
    409 WebhookConflict;
    /// The same key or event was used for something else
    409 AlreadyUsed;
    /// The body is not valid; the detail has the reason
    422 InvalidBody;
    /// No valid token for an attempt at this job
    401 NoAttempt;
    /// The attempt is over: the job has ended, or the attempt was taken over
    409 AttemptEnded;
    /// The body is too large
    413 TooLarge;
    /// The caller has no such job
    404 NoSuchJob;
    /// A parameter is out of range
    422 OutOfRange;
    /// The caller has too many event streams open
    429 ManyStreams;
    /// The database cannot be reached
    503 Unavailable;
}
