//! A request's surroundings: what everything that has a hand in answering it needs to know.

use crate::bindings::Bindings;
use crate::config::Config;
use crate::events::{self, Event};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) bindings: &'a Bindings,
    pub(crate) config: &'a Config,
    /// The id that the edge gives the request, a UUID. Clients cannot choose it.
    pub(crate) request_id: &'a str,
}

impl Call<'_> {
    /// Reports something that happened on the request's way; see [`events::report`].
    pub(crate) fn report(&self, event: Event, detail: &str) {
        events::report(self.bindings, event, Some(self.request_id), detail);
    }
}
