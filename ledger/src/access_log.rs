//! The access log: lines about single requests, attempts and jobs. Each job writes several, so the `ACCESS_LOG` setting
//! decides which lines are written, independent of the log level.

/// Writes a line of the access log: as a warning if `$is_notable`, else as an ordinary line. Each job or request writes
/// one ordinary line.
#[macro_export]
macro_rules! access_log {
    ($is_notable:expr, $($fields:tt)+) => {
        if $is_notable {
            ::tracing::warn!(target: "access_log", $($fields)+);
        } else {
            ::tracing::info!(target: "access_log", $($fields)+);
        }
    };
}
