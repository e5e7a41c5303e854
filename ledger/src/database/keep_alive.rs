//! Sessions that are ended when they are idle for too long.

use std::pin::pin;
use std::time::Duration;

use tokio_postgres::Client;

/// Does some work during which the session may have nothing to do, and says something on it every now and then, so that
/// `idle_session_timeout` ends it only when this process stands still. The work may use the session, too.
pub async fn keep_alive<T>(client: &Client, interval: Duration, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        let said = async {
            tokio::time::sleep(interval).await;
            // Whoever uses the session next learns what is wrong with it.
            let _ = client.batch_execute("").await;
        };
        tokio::select! {
            done = &mut work => return done,
            () = said => {}
        }
    }
}
