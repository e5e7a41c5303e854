//! River's notifications.

use std::future::poll_fn;

use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client};

use super::connect::{CONNECT_TIMEOUT, Database};
use super::error::DatabaseError;

/// The topic of new jobs.
pub const INSERT: &str = "river_insert";

/// The topic of cancelled jobs, and of paused and resumed queues.
pub const CONTROL: &str = "river_control";

/// A connection that receives notifications.
pub struct Listener {
    received: mpsc::UnboundedReceiver<String>,
    /// The connection ends with it.
    _client: Client,
}

impl Listener {
    /// The text of the next notification. `None` after the connection has ended.
    pub async fn next(&mut self) -> Option<String> {
        self.received.recv().await
    }
}

impl Database {
    /// Listens to River's notifications of these topics.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached in time.
    pub async fn listen(&self, topics: &[&str]) -> Result<Listener, DatabaseError> {
        let (client, mut connection) = self.open().await?;
        let (sender, received) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
                match message {
                    Ok(AsyncMessage::Notification(notification)) => {
                        let _ = sender.send(notification.payload().to_owned());
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::debug!(%error, "the connection for notifications ended");
                        return;
                    }
                }
            }
        });
        let listening = async {
            client.batch_execute(&self.session_setup(&[])).await?;
            for topic in topics {
                let channel = client
                    .query_one("SELECT quote_ident(river_channel($1))", &[topic])
                    .await?;
                client
                    .batch_execute(&format!("LISTEN {}", channel.get::<_, &str>(0)))
                    .await?;
            }
            Ok::<_, DatabaseError>(())
        };
        tokio::time::timeout(CONNECT_TIMEOUT, listening)
            .await
            .map_err(|_| DatabaseError::Timeout(CONNECT_TIMEOUT))??;
        Ok(Listener {
            received,
            _client: client,
        })
    }
}
