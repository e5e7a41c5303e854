//! The access log: lines about single requests, attempts and jobs. There are several for each job, so the setting
//! `ACCESS_LOG` decides which of them are written, apart from the level of the rest of the log.

/// Writes a line of the access log: as a warning if `$is_notable`, else as an ordinary line, of which there is one for
/// each job or request.
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
