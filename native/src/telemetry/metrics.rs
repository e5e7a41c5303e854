//! Metrics: every counter and histogram with its help, registered before the first scrape.

use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use weir_policy::counts::{Counts, Event, RequestOutcome};

use crate::config::Settings;

/// Upper bounds of buckets in seconds: from a single transaction to an outage.
const SECONDS: [f64; 14] = [
    0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0,
];

/// The same for durations of up to a job's length.
const LONG_SECONDS: [f64; 14] = [
    0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 900.0, 1800.0, 5400.0,
];

/// Upper bounds of buckets in submissions.
const SUBMISSIONS: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

/// The interval at which recorded durations are sorted into their buckets. Without this, a process that is never
/// scraped would keep all of them.
const UPKEEP: Duration = Duration::from_secs(5);

/// Starts collecting metrics, and returns the handle that renders them. Must be called in a Tokio runtime.
///
/// # Errors
///
/// When the process already collects metrics.
pub fn start(settings: &Settings) -> Result<PrometheusHandle, BuildError> {
    let long = |name: &str| Matcher::Full(name.to_owned());
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)?
        .set_buckets_for_metric(long("weir_job_wait_seconds"), &LONG_SECONDS)?
        .set_buckets_for_metric(long("weir_attempt_duration_seconds"), &LONG_SECONDS)?
        .set_buckets_for_metric(long("weir_admission_group_size"), &SUBMISSIONS)?
        .install_recorder()?;
    describe();
    register(settings);
    let upkept = handle.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            upkept.run_upkeep();
        }
    });
    Ok(handle)
}

/// Every metric: its type, its name and its help.
pub fn reference() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let of = |kind: &'static str| move |(name, help): (&'static str, &'static str)| (kind, name, help);
    COUNTERS
        .into_iter()
        .map(of("counter"))
        .chain(HISTOGRAMS.into_iter().map(of("histogram")))
        .chain(GAUGES.into_iter().map(of("gauge")))
}

fn describe() {
    for (name, help) in COUNTERS {
        metrics::describe_counter!(name, help);
    }
    for (name, help) in HISTOGRAMS {
        metrics::describe_histogram!(name, help);
    }
    for (name, help) in GAUGES {
        metrics::describe_gauge!(name, help);
    }
}

const COUNTERS: [(&str, &str); 20] = [
    (
        "weir_edge_requests_total",
        "Requests to the edge, as it reports them, by outcome (anonymous, user: forwarded; denied, denied_read, \
         denied_user, bad_token, unverifiable, unknown_key, uncountable, failed, other: answered by the edge)",
    ),
    (
        "weir_edge_events_total",
        "Failures reported by the edge, by event. counter_unavailable: the native limiter decided instead",
    ),
    (
        "weir_http_requests_total",
        "Requests to the API, by method, route and status",
    ),
    (
        "weir_reservations_total",
        "Accepted submissions, by meter and decision (admitted, parked, scheduled)",
    ),
    (
        "weir_rejections_total",
        "Refused submissions, by meter and reason (over_quota, too_large, too_many_waiting, key_reused)",
    ),
    (
        "weir_settlements_total",
        "Reservations that ended, by meter and outcome (the job's last state, or deleted)",
    ),
    ("weir_promotions_total", "Parked jobs that were promoted"),
    (
        "weir_starts_total",
        "Attempts that started with a slot, by slot (own, or lent: on a worker that would be idle)",
    ),
    (
        "weir_snoozes_total",
        "Attempts snoozed because no slot was free, by plan",
    ),
    (
        "weir_attempts_total",
        "Attempts that ended, by service and outcome (completed, failed, discarded, cancelled, timed_out, fenced_out, aborted; outstanding: the handler answers later)",
    ),
    (
        "weir_orphans_total",
        "Reservations released because their job was deleted",
    ),
    (
        "weir_reclaimed_total",
        "Jobs taken over from dead processes, and from handlers that stopped reporting",
    ),
    (
        "weir_fenced_attempts_total",
        "Results dropped because another attempt had taken over the job",
    ),
    (
        "weir_blocked_holders_total",
        "Holders put into quarantine because another transaction held their lock",
    ),
    (
        "weir_blocked_seconds_total",
        "Seconds that submissions and settlements of holders in quarantine waited for another transaction's lock; one second per second for each holder",
    ),
    (
        "weir_service_key_refusals_total",
        "Requests with an invalid service key, by reason (unknown, expired, revoked, scope, ambiguous)",
    ),
    (
        "weir_webhook_deliveries_total",
        "Attempts to deliver to a webhook, by outcome (delivered; failed: it is retried; given_up; gone: the receiver returned 410)",
    ),
    (
        "weir_skipped_ticks_total",
        "Skipped ticks of periodic jobs, by periodic job: no scheduler was running for more than a minute",
    ),
    (
        "weir_counter_repairs_total",
        "Holders with counters that had drifted from their rows and were rebuilt",
    ),
    (
        "weir_reconciliation_failures_total",
        "Steps of reconciliation that failed, by step (begin, take_over, silent, ended, just_ended, sweep, adopt, due, plans, promote, renewals, clean, maintenance)",
    ),
];

/// The steps of reconciliation that may fail.
const RECONCILIATION: [&str; 13] = [
    "begin",
    "take_over",
    "silent",
    "ended",
    "just_ended",
    "sweep",
    "adopt",
    "due",
    "plans",
    "promote",
    "renewals",
    "clean",
    "maintenance",
];

const HISTOGRAMS: [(&str, &str); 7] = [
    (
        "weir_http_request_duration_seconds",
        "Time from a request to the start of its answer",
    ),
    (
        "weir_settlement_duration_seconds",
        "Duration of a settlement transaction",
    ),
    (
        "weir_commit_seconds",
        "Duration of a COMMIT: the flush on the server and on its synchronous standby. The transaction keeps its locks \
         for as long",
    ),
    (
        "weir_wake_duration_seconds",
        "Time from a freed slot to the first attempt of the parked job that got it",
    ),
    (
        "weir_job_wait_seconds",
        "Time from when a job is ready until its attempt starts, by service and lane; excludes the time it was parked",
    ),
    (
        "weir_attempt_duration_seconds",
        "Duration of an attempt, including its settlement, by service",
    ),
    (
        "weir_admission_group_size",
        "Submissions admitted in one transaction",
    ),
];

/// The exporter does not have it: see `busy_holders`.
pub(super) const HOLDER_WAITING_JOBS: (&str, &str) = (
    "weir_holder_waiting_jobs",
    "Jobs that do not run, of the three holders with the most of them, by holder (the user's subject, or else the id)",
);

const GAUGES: [(&str, &str); 29] = [
    HOLDER_WAITING_JOBS,
    (
        "weir_build_info",
        "1, with the version and the process (serve, work, schedule, up) as labels",
    ),
    ("weir_database_up", "1 while the database answers, else 0"),
    (
        "weir_jobs_counted",
        "1 while the unfinished jobs can be counted in time, else 0",
    ),
    (
        "weir_leader_known",
        "1 while River has a leader, Weir's or another client, else 0; NaN while the database does not answer",
    ),
    (
        "weir_foreign_leader",
        "1 while River's leader is another client than Weir's, else 0; NaN while the database does not answer",
    ),
    (
        "weir_maintenance_known",
        "1 while a process runs Weir's maintenance (reconciliation, expiry, cleaning), else 0; NaN while the database does not answer",
    ),
    ("weir_worker_processes", "Live processes that run jobs"),
    ("weir_enabled_webhooks", "Webhooks that are not disabled"),
    (
        "weir_webhook_workers",
        "Workers of all live processes that deliver to each webhook",
    ),
    (
        "weir_disabled_webhooks",
        "Webhooks that are disabled; their events wait for up to a week",
    ),
    (
        "weir_waiting_deliveries",
        "Deliveries to enabled webhooks that wait for an attempt",
    ),
    (
        "weir_undelivered_seconds",
        "The longest time that an enabled webhook has received no event although one waits; 0 if none waits",
    ),
    (
        "weir_lane_paused",
        "1 while the lane is paused, else 0, by service, lane and queue",
    ),
    (
        "weir_lane_jobs",
        "Jobs that are not parked, by service, lane, plan of the owner and state (queued, running, outstanding: the handler answers later)",
    ),
    (
        "weir_lane_workers",
        "Workers in the pools of all live processes, by service and lane. For an external service: the live programs that work the lane, or may work it",
    ),
    (
        "weir_lent_workers",
        "Workers that run jobs over their holder's slots, by service, lane and plan",
    ),
    (
        "weir_oldest_wait_seconds",
        "Time that the oldest runnable job has waited for a worker, by service, lane and plan",
    ),
    (
        "weir_oldest_parked_seconds",
        "Time that the oldest parked job has waited for a slot, by service, lane and plan; a holder counts in the lane \
         of its oldest parked job",
    ),
    (
        "weir_parked_jobs",
        "Jobs that wait for one of their holder's slots, by meter and plan",
    ),
    ("weir_slots_in_use", "Slots in use, by meter and plan"),
    (
        "weir_snapshots_visible",
        "1 if Weir's role can see the snapshots of all sessions and standbys (pg_monitor), else 0, and older snapshots \
         may exist",
    ),
    (
        "weir_oldest_snapshot_seconds",
        "Age of the oldest transaction that keeps vacuum from removing dead rows, by holder (session, prepared); 0 for \
         slots and standbys, because their start time is unknown",
    ),
    (
        "weir_oldest_snapshot_transactions",
        "Transactions that have started since the oldest snapshot that keeps vacuum from removing dead rows, by holder (session, prepared, slot, standby)",
    ),
    (
        "weir_wraparound_transactions",
        "Age of the database's oldest unfrozen row, in transactions or multixacts; PostgreSQL stops at two billion",
    ),
    (
        "weir_dead_rows",
        "Rows that vacuum has not removed yet, by table, as PostgreSQL estimates them",
    ),
    (
        "weir_replication_lag_seconds",
        "Lag of the slowest connected standby; 0 without one, NaN if Weir's role may not see it",
    ),
    (
        "weir_replication_retained_bytes",
        "Bytes of WAL that PostgreSQL retains for the slowest replication slot",
    ),
    (
        "weir_open_reservations",
        "Reservations, by meter and state (admitted, parked, between_attempts)",
    ),
];

/// Registers every metric with zero, so that it exists from the first scrape on. A rate over a metric that appears late
/// misses its first event. Dashboards and alerts on a missing metric fail silently. The gauges register themselves.
fn register(settings: &Settings) {
    use metrics::{counter, gauge, histogram};
    let (services, catalogue) = (&settings.services, &settings.catalogue);
    let process = settings.application_name.trim_start_matches("weir ");
    gauge!("weir_build_info", "version" => env!("CARGO_PKG_VERSION"), "process" => process).set(1.0);
    let zero = |name: &'static str, labels: &[(&'static str, String)]| counter!(name, labels).absolute(0);
    for name in [
        "weir_promotions_total",
        "weir_orphans_total",
        "weir_reclaimed_total",
        "weir_fenced_attempts_total",
        "weir_blocked_holders_total",
        "weir_blocked_seconds_total",
        "weir_counter_repairs_total",
    ] {
        zero(name, &[]);
    }
    for reason in ["unknown", "expired", "revoked", "scope", "ambiguous"] {
        zero(
            "weir_service_key_refusals_total",
            &[("reason", reason.to_owned())],
        );
    }
    for outcome in ["delivered", "failed", "given_up", "gone"] {
        zero(
            "weir_webhook_deliveries_total",
            &[("outcome", outcome.to_owned())],
        );
    }
    for step in RECONCILIATION {
        zero("weir_reconciliation_failures_total", &[("step", step.to_owned())]);
    }
    for status in [200, 202, 429, 500, 503] {
        zero(
            "weir_http_requests_total",
            &[
                ("method", if status == 200 { "GET" } else { "POST" }.to_owned()),
                ("route", "/api/jobs/{id}".to_owned()),
                ("status", status.to_string()),
            ],
        );
    }
    add_edge_counts(&Counts::default());
    for slot in ["own", "lent"] {
        zero("weir_starts_total", &[("slot", slot.to_owned())]);
    }
    for plan in catalogue.plans.keys() {
        zero("weir_snoozes_total", &[("plan", plan.clone())]);
    }
    for meter in catalogue.meters.keys() {
        for (name, label, values) in [
            (
                "weir_reservations_total",
                "decision",
                &["admitted", "parked", "scheduled"][..],
            ),
            (
                "weir_rejections_total",
                "reason",
                &["over_quota", "too_large", "too_many_waiting", "key_reused"][..],
            ),
            (
                "weir_settlements_total",
                "outcome",
                &["completed", "cancelled", "discarded", "deleted"][..],
            ),
        ] {
            for value in values {
                zero(name, &[("meter", meter.clone()), (label, (*value).to_owned())]);
            }
        }
    }
    for periodic in &settings.periodic {
        zero("weir_skipped_ticks_total", &[("periodic", periodic.id.clone())]);
    }
    for service in services {
        for outcome in OUTCOMES {
            zero(
                "weir_attempts_total",
                &[("service", service.name.clone()), ("outcome", outcome.to_owned())],
            );
        }
        drop(histogram!("weir_attempt_duration_seconds", "service" => service.name.clone()));
        for (lane, _, _) in service.queues() {
            drop(
                histogram!("weir_job_wait_seconds", "service" => service.name.clone(), "lane" => lane.as_str()),
            );
        }
    }
    for name in [
        "weir_http_request_duration_seconds",
        "weir_settlement_duration_seconds",
        "weir_commit_seconds",
        "weir_wake_duration_seconds",
        "weir_admission_group_size",
    ] {
        drop(histogram!(name));
    }
}

/// How an attempt can end.
pub(crate) const OUTCOMES: [&str; 8] = [
    "completed",
    "outstanding",
    "failed",
    "discarded",
    "cancelled",
    "fenced_out",
    "timed_out",
    "aborted",
];

/// Adds the edge's counts. An empty report makes the counters start at zero.
pub(crate) fn add_edge_counts(counts: &Counts) {
    for outcome in RequestOutcome::ALL {
        metrics::counter!("weir_edge_requests_total", "outcome" => outcome.name())
            .increment(counts.of(*outcome));
    }
    for event in Event::ALL {
        metrics::counter!("weir_edge_events_total", "event" => event.name())
            .increment(counts.event_count(*event));
    }
}
