//! The values of options. An error gives an example instead of a parser's reason.

use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

pub(super) fn time(text: &str) -> Result<Timestamp, String> {
    text.parse()
        .map_err(|_| "use a time with its zone, such as 2027-01-31T00:00:00Z".to_owned())
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| "use a duration such as 90s, 8h or 30d".to_owned())
}

pub(super) fn webhook(text: &str) -> Result<Uuid, String> {
    text.parse()
        .map_err(|_| "not the id of a webhook; `weir webhook list` shows the ids".to_owned())
}

pub(super) fn grant(text: &str) -> Result<Uuid, String> {
    text.parse()
        .map_err(|_| "not the id of a grant; `weir user show` lists a user's grants".to_owned())
}
