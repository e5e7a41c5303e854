//! Answers that several routes have, as the API's description has them.

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
    /// The request did not come through the edge, and has no service key that is accepted
    401 Unauthenticated;
    /// There is no service key, or not one that is accepted
    401 NoKey;
    /// The service key lacks the scope
    403 LacksScope;
    /// The holder was never seen
    404 NeverSeen;
    /// A service key needs one valid header Weir-On-Behalf-Of
    422 NoSubject;
    /// There is no such webhook
    404 NoSuchWebhook;
    /// The webhook is disabled, or there is one for this URL already, or there are too many
    409 WebhookInTheWay;
    /// The same key or event was used for something else
    409 UsedBefore;
    /// The body is not what is wanted; the detail says what is
    422 NotWanted;
    /// There is no token of an attempt at this job, or not one that is accepted
    401 NoAttempt;
    /// The attempt is over: the job has ended, or the attempt was taken back
    409 AttemptOver;
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
