//! Handlers, which do the work of services.

mod attempt;
mod attempt_token;
mod exec;
mod external;
mod http;
mod progress_lines;
mod watcher;

use std::sync::Arc;

use crate::config::service::{HandlerSpec, Service};
use crate::outbound::Secret;

pub use attempt::{Attempt, Handler, HandlerError, MAX_OUTPUT, Outcome, Refusal, Reporter, Worked};
pub use attempt_token::AttemptTokens;
pub use exec::kill_programs;
pub use watcher::{watch, watch_programs};

/// The handler in a service's configuration; `None` if the program registers it.
#[must_use]
pub fn of(service: &Service, secrets: &[Secret]) -> Option<Arc<dyn Handler>> {
    Some(match &service.handler {
        HandlerSpec::Builtin { .. } => return None,
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
    })
}
