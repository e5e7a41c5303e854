//! Handlers, which do the work of services.

mod analysis;
mod attempt;
mod attempt_token;
mod exec;
mod external;
mod http;
mod progress_lines;
mod specview;
mod watcher;

use std::sync::Arc;

use weir_ledger::database::ConnectionPool;

use crate::config::service::{Builtin, HandlerSpec, Service};
use crate::outbound::Secret;

pub use attempt::{Attempt, Handler, HandlerError, MAX_OUTPUT, Outcome, Refusal, Reporter, Worked};
pub use attempt_token::AttemptTokens;
pub use exec::kill_programs;
pub use watcher::{watch, watch_programs};

/// The handler in a service's configuration.
#[must_use]
pub fn of(service: &Service, pool: &ConnectionPool, secrets: &[Secret]) -> Arc<dyn Handler> {
    match &service.handler {
        HandlerSpec::Builtin { name } => match name {
            Builtin::Analyze => Arc::new(analysis::Analysis),
            Builtin::Specview => Arc::new(specview::Specview::new(pool.clone())),
        },
        HandlerSpec::Http { url, private, amount } => Arc::new(http::Http::new(
            url.0.clone(),
            *private,
            secrets.to_vec(),
            amount.clone(),
        )),
        HandlerSpec::Exec { command, env, amount } => {
            Arc::new(exec::Exec::new(command.clone(), env.clone(), amount.clone()))
        }
        HandlerSpec::External { amount } => Arc::new(external::External(amount.clone())),
    }
}
