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
    /// The request did not come through the edge
    401 Unauthenticated;
    /// The caller has no such job
    404 NoSuchJob;
    /// A parameter is out of range
    422 OutOfRange;
    /// The caller has too many event streams open
    429 ManyStreams;
    /// The database cannot be reached
    503 Unavailable;
}
