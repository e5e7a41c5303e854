//! Services that programs outside of Weir work. Weir accepts their jobs and never claims them.

use async_trait::async_trait;
use serde_json::{Map, Value};
use weir_ledger::holder::Holder;

use super::attempt::{Attempt, Handler, HandlerError, Refusal, Worked};
use crate::config::service::Amount;

pub(super) struct External(pub(super) Amount);

#[async_trait]
impl Handler for External {
    async fn reserve(&self, _holder: Holder, args: &Map<String, Value>) -> Result<i64, Refusal> {
        self.0.of(args).map_err(Refusal::Arguments)
    }

    async fn work(&self, _attempt: Attempt) -> Result<Worked, HandlerError> {
        Err(HandlerError::Failed(
            "another program works this service".to_owned(),
        ))
    }
}
