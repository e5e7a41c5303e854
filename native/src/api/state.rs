//! What the routes share.

use std::collections::HashMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use weir_ledger::database::ConnectionPool;
use weir_ledger::holder::Holders;
use weir_ledger::reservation::Reserver;
use weir_ledger::rules::Rules;
use weir_ledger::settlement::Settler;
use weir_policy::assertion::AssertionKey;

use super::changes::Changes;
use super::edge_reports::RecentReports;
use super::feed::Feed;
use super::job_token::JobTokens;
use super::live_view::LiveView;
use super::receiving::Receiving;
use super::sending::Sending;
use super::wrong_keys::WrongKeys;
use crate::config::Settings;
use crate::handler::{AttemptTokens, Handler};

/// One for all requests of a process.
pub(super) struct Api {
    /// The settings the process was started with.
    pub(super) settings: Arc<Settings>,
    /// Connections that all requests use in turn.
    pub(super) pool: ConnectionPool,
    /// Room for what is submitted.
    pub(super) receiving: Receiving,
    /// Room for large answers.
    pub(super) sending: Sending,
    /// Makes changes of one holder that are transactions of their own.
    pub(super) changes: Changes,
    /// Admits submissions.
    pub(super) reserver: Reserver,
    /// What admission decides by, where it is not the reserver that decides.
    pub(super) rules: Arc<Rules>,
    /// Settles what is cancelled.
    pub(super) settler: Settler,
    /// Check submissions' arguments, by River's job kind.
    pub(super) handlers: HashMap<String, Arc<dyn Handler>>,
    /// The keys that assertions may be signed with.
    pub(super) keys: Vec<AssertionKey>,
    /// Slows down who tries service keys.
    pub(super) wrong_keys: WrongKeys,
    /// The edge's reports that were counted.
    pub(super) reports: RecentReports,
    /// Makes holders out of addresses.
    pub(super) holders: Holders,
    /// River's client, which works nothing here.
    pub(super) river: riverqueue::Client,
    /// Tells event streams which jobs have changed.
    pub(super) feed: Feed,
    /// What anonymous submitters read their jobs with.
    pub(super) job_tokens: JobTokens,
    /// What endpoints that answer later prove themselves with.
    pub(super) attempt_tokens: AttemptTokens,
    /// The lanes, for all who look.
    pub(super) live_view: LiveView,
    /// Cancelled when the process is to stop.
    pub(super) stopping: CancellationToken,
}
