//! The data that functions need to answer a request.

use crate::bindings::Bindings;
use crate::config::Config;
use crate::events::{self, Event};

/// The context of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestContext<'a> {
    pub(crate) bindings: &'a Bindings,
    pub(crate) config: &'a Config,
    /// A UUID that the edge chooses. Clients cannot influence it.
    pub(crate) request_id: &'a str,
    /// Whether the client is connected by TLS.
    pub(crate) is_https: bool,
}

impl RequestContext<'_> {
    /// Reports an event that this request caused; see [`events::report`].
    pub(crate) fn report(&self, event: Event, detail: &str) {
        events::report(self.bindings, event, Some(self.request_id), detail);
    }
}
