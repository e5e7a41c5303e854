//! The state that the routes share.

use std::collections::HashMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use weir_ledger::database::{ConnectionPool, Database};
use weir_ledger::holder::Holders;
use weir_ledger::reservation::Reserver;
use weir_ledger::settlement::Settler;
use weir_policy::assertion::AssertionKey;

use super::changes::Changes;
use super::edge_reports::RecentReports;
use super::feed::Feed;
use super::history::History;
use super::job_token::JobTokens;
use super::live_keys::LiveKeys;
use super::live_view::LiveView;
use super::receiving::Receiving;
use super::sending::Sending;
use super::sessions::Sessions;
use super::wrong_keys::WrongKeys;
use crate::config::Settings;
use crate::handler::{AttemptTokens, Handler};

/// One for all requests of a process.
pub(super) struct Api {
    /// The settings that the process was started with.
    pub(super) settings: Arc<Settings>,
    /// Notifies workers.
    pub(super) database: Database,
    /// Connections that all requests share.
    pub(super) pool: ConnectionPool,
    /// Limits the memory of submissions.
    pub(super) receiving: Receiving,
    /// Limits the memory of large answers.
    pub(super) sending: Sending,
    /// Applies changes of one holder in separate transactions.
    pub(super) changes: Changes,
    /// Admits submissions.
    pub(super) reserver: Reserver,
    /// Settles cancelled jobs.
    pub(super) settler: Settler,
    /// Checks submissions' arguments, by River's job kind.
    pub(super) handlers: HashMap<String, Arc<dyn Handler>>,
    /// The keys of valid assertions.
    pub(super) keys: Vec<AssertionKey>,
    /// Slows down repeated attempts with wrong service keys.
    pub(super) wrong_keys: WrongKeys,
    /// The edge's reports that were counted recently.
    pub(super) reports: RecentReports,
    /// Converts addresses to holders.
    pub(super) holders: Holders,
    /// River's client, which runs no jobs here.
    pub(super) river: riverqueue::Client,
    /// Notifies event streams of changed jobs.
    pub(super) feed: Feed,
    /// The tokens with which anonymous callers read their jobs.
    pub(super) job_tokens: JobTokens,
    /// The console's sessions.
    pub(super) sessions: Sessions,
    /// The tokens of endpoints that answer later.
    pub(super) attempt_tokens: AttemptTokens,
    /// Ends event streams of service keys.
    pub(super) live_keys: LiveKeys,
    /// The lanes, for all clients.
    pub(super) live_view: LiveView,
    /// The console's charts.
    pub(super) history: History,
    /// Cancelled when the process starts to stop.
    pub(super) stopping: CancellationToken,
}
