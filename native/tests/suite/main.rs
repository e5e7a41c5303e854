//! The tests of the whole: the real API, real workers and real processes against PostgreSQL. They form one program,
//! because linking one per file takes longer than running it.

#![allow(unreachable_pub, reason = "it has no dependents")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a failed test panics"
)]

mod common;

mod adopters;
mod alerts;
mod audit;
mod batch;
mod beside;
mod billing_story;
mod burst;
mod catalogue;
mod claims;
mod client_packages;
mod client_versions;
mod clients;
mod commands;
mod conformance;
mod connecting;
mod console;
mod control;
mod crash;
mod cut_connections;
mod deploy;
mod edge_counts;
mod endpoint;
mod events;
mod expiry;
mod external;
mod failure;
mod fairness;
mod first_start;
mod fit_server;
mod fleet;
mod function_headers;
mod generated_requests;
mod generators;
mod go_drivers;
mod grants;
mod groups;
mod guard;
mod handlers;
mod identities;
mod later;
mod later_races;
mod layers;
mod leaders;
mod life;
mod metrics;
mod middleware;
mod migrate;
mod numbers;
mod odd_defaults;
mod openapi;
mod operator;
mod other_clients;
mod own_transaction;
mod paid_periods;
mod periodic;
mod plans;
mod pooler;
mod pools;
mod present_schema;
mod privileges;
mod processes;
mod python_drivers;
mod python_workers;
mod quota;
mod reconciliation;
mod reference;
mod retention;
mod retries;
mod reverse_proxies;
mod river_ui;
mod same_rules;
mod schemas;
mod soft_limits;
mod specification;
mod sql;
mod status;
mod strange_json;
mod stranger;
mod take_over;
mod test_helpers;
mod timelines;
mod tls;
mod traces;
mod typescript_drivers;
mod uninstall;
mod usage_archive;
mod webhook_crash;
mod webhook_events;
mod webhooks;
mod whole_life;
