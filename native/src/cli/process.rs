//! `weir serve`, `work`, `schedule` and `up`: a process from its start to its stop.

use std::error::Error;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::connection::{of_sessions, ready};
use super::output::CommandResult;
use super::signals::StopSignals;
use crate::Handlers;
use crate::api::probes::{self, Probes};
use crate::api::serve;
use crate::config::service::{HandlerSpec, Service};
use crate::config::{ConfigError, Environment, Settings};
use crate::context::Context;
use crate::handler::watch_programs;
use crate::telemetry::{logs, metrics, traces};
use crate::work::{Role, Working, reconcile};

/// The maximum duration of a shutdown after the drain time: programs have 10 s after SIGTERM, and their results are
/// recorded.
const STOP_MARGIN: Duration = Duration::from_secs(20);

/// The minimum time that the start and reconciliation get to end, however short the drain time is.
const MIN_DRAIN: Duration = Duration::from_secs(1);

/// The exit status after a second stop signal, as a shell's after SIGINT.
const SIGNALLED: u8 = 130;

/// The parts that one process runs.
pub(super) struct Process {
    serve: bool,
    role: Option<Role>,
    services: Vec<Service>,
}

/// Tasks that run until the process stops.
type Tasks = JoinSet<Result<(), Box<dyn Error + Send + Sync>>>;

/// A start, which a signal may interrupt.
enum Started {
    Running(Option<Working>),
    Stopped(ExitCode),
}

impl Process {
    /// Serves the API.
    pub(super) const fn serve() -> Self {
        Self {
            serve: true,
            role: None,
            services: Vec::new(),
        }
    }

    /// Runs jobs or leads.
    pub(super) const fn work(role: Role, services: Vec<Service>) -> Self {
        Self {
            serve: false,
            role: Some(role),
            services,
        }
    }

    /// Runs everything.
    pub(super) const fn up(services: Vec<Service>) -> Self {
        Self {
            serve: true,
            role: Some(Role::Both),
            services,
        }
    }

    pub(super) async fn run(self, settings: Settings, handlers: Handlers<'_>) -> CommandResult {
        // The API calls every handler to check arguments.
        let used = if self.serve {
            &settings.services
        } else {
            &self.services
        };
        registered(used, handlers)?;
        logs::start(settings.access_log);
        let mut signals = StopSignals::listen()?;
        self.prepare(&settings)?;
        let metrics = metrics::start(&settings)?;
        let export = settings.traces.as_ref().map(traces::start).transpose()?;
        let reached = async {
            let database = of_sessions(&settings).await?;
            ready(&settings, &database).await?;
            Ok::<_, Box<dyn Error>>(database)
        };
        let database = tokio::select! {
            reached = reached => reached?,
            signal = signals.next() => {
                tracing::info!(signal, "stopping before startup");
                return Ok(ExitCode::SUCCESS);
            }
        };
        let context = with_handlers(Context::at(database, settings), handlers);
        let mut working = match self.start(&context, &mut signals).await? {
            Started::Running(working) => working,
            Started::Stopped(code) => return Ok(code),
        };
        let stopping = CancellationToken::new();
        // `/readyz` reports it before the listener closes.
        let unready = CancellationToken::new();
        let mut tasks = self.tasks(&context, metrics, &unready, &stopping);
        let early = until_stopped(&mut signals, working.as_mut(), &mut tasks).await;
        unready.cancel();
        // A failed part needs no delay.
        let delay = if self.serve && early.is_none() {
            context.settings.stop_delay
        } else {
            Duration::ZERO
        };
        let stopped = async {
            let close = async {
                tokio::time::sleep(delay).await;
                stopping.cancel();
            };
            let drain = async {
                if let Some(working) = working {
                    working.stop().await;
                }
            };
            tokio::join!(close, drain);
            while tasks.join_next().await.is_some() {}
            if let Some(export) = export {
                export.finish().await;
            }
        };
        let limit = delay + context.settings.drain_timeout + STOP_MARGIN;
        let stopped = async {
            if tokio::time::timeout(limit, stopped).await.is_err() {
                tracing::warn!(
                    "not everything stopped in time: another process takes over the unfinished jobs"
                );
            }
        };
        tokio::select! {
            () = stopped => early.map_or(Ok(ExitCode::SUCCESS), Err),
            signal = signals.next() => {
                tracing::warn!(signal, "second stop signal: another process takes over the unfinished jobs");
                Ok(ExitCode::from(SIGNALLED))
            }
        }
    }

    /// Protects the process, and warns about missing capabilities.
    fn prepare(&self, settings: &Settings) -> Result<(), Box<dyn Error>> {
        if settings.environment == Environment::Production {
            // Programs of handlers run as the same user, and must not read this process's memory or environment.
            #[cfg(target_os = "linux")]
            if let Err(error) = nix::sys::prctl::set_dumpable(false) {
                tracing::warn!(%error, "other processes of this user can read this one's secrets");
            }
        }
        let runs_programs = |service: &Service| matches!(service.handler, HandlerSpec::Exec { .. });
        if self.services.iter().any(runs_programs)
            && let Err(error) = watch_programs()
        {
            tracing::warn!(%error, "handler programs will outlive this process if it is killed");
        }
        if let Some(warning) = settings.database()?.warning() {
            tracing::warn!("{warning}");
        }
        Ok(())
    }

    /// Starts to work, unless a signal arrives first.
    async fn start(&self, context: &Context, signals: &mut StopSignals) -> Result<Started, Box<dyn Error>> {
        let mut starting = pin!(async {
            match self.role {
                Some(role) => Working::start(context, role, &self.services).await.map(Some),
                None => Ok(None),
            }
        });
        tokio::select! {
            started = &mut starting => Ok(Started::Running(started?)),
            signal = signals.next() => {
                tracing::info!(signal, "stopping during startup");
                let limit = context.settings.drain_timeout.max(MIN_DRAIN);
                // The client may already run jobs, so it is not dropped.
                let stopped = async {
                    if let Ok(Ok(Some(working))) = tokio::time::timeout(limit, starting).await {
                        working.stop().await;
                    }
                };
                Ok(Started::Stopped(tokio::select! {
                    () = stopped => ExitCode::SUCCESS,
                    _ = signals.next() => ExitCode::from(SIGNALLED),
                }))
            }
        }
    }

    /// Starts reconciliation, and the API or the probes.
    fn tasks(
        &self,
        context: &Context,
        metrics: PrometheusHandle,
        unready: &CancellationToken,
        stopping: &CancellationToken,
    ) -> Tasks {
        let mut tasks = Tasks::new();
        if matches!(self.role, Some(Role::Lead | Role::Both)) {
            let reconciliation = reconcile::run(context.clone(), stopping.clone());
            let stopping = stopping.clone();
            let limit = context.settings.drain_timeout.max(MIN_DRAIN);
            tasks.spawn(async move {
                // A round may wait for a database that does not respond.
                let given_up = async {
                    stopping.cancelled().await;
                    tokio::time::sleep(limit).await;
                };
                tokio::select! {
                    () = reconciliation => {}
                    () = given_up => tracing::warn!("stopped during a reconciliation round"),
                }
                Ok(())
            });
        }
        if self.serve {
            let serving = serve::run(context.clone(), metrics, unready.clone(), stopping.clone());
            tasks.spawn(async { Ok(serving.await?) });
        } else if let Some(address) = context.settings.probes {
            let probes = Probes::new(context, metrics, unready.clone());
            let stopping = stopping.clone();
            tasks.spawn(async move { Ok(probes::run(probes, address, stopping).await?) });
        }
        tasks
    }
}

/// Checks that the program registers every handler that these services name.
pub(super) fn registered(services: &[Service], handlers: Handlers<'_>) -> Result<(), ConfigError> {
    let known: Vec<&str> = handlers.iter().map(|(name, _)| *name).collect();
    let faults: Vec<String> = builtin(services)
        .filter(|(_, name)| !known.contains(name))
        .map(|(service, name)| {
            format!(
                "service {:?}: this binary has no handler {name:?}; use exec, http or external, or a binary that registers \
                 it, such as examples/specvital",
                service.name
            )
        })
        .collect();
    match faults.is_empty() {
        true => Ok(()),
        false => Err(ConfigError { faults }),
    }
}

fn with_handlers(mut context: Context, handlers: Handlers<'_>) -> Context {
    let settings = Arc::clone(&context.settings);
    for (service, name) in builtin(&settings.services) {
        if let Some((_, make)) = handlers.iter().find(|(known, _)| *known == name) {
            let handler = make(&context);
            context = context.with_handler(&service.kind, handler);
        }
    }
    context
}

/// The services with a handler of the program, and its name.
fn builtin(services: &[Service]) -> impl Iterator<Item = (&Service, &str)> {
    services.iter().filter_map(|service| match &service.handler {
        HandlerSpec::Builtin { name, .. } => Some((service, name.as_str())),
        _ => None,
    })
}

/// Waits for a signal, or for a part that ends early, which is an error.
async fn until_stopped(
    signals: &mut StopSignals,
    working: Option<&mut Working>,
    tasks: &mut Tasks,
) -> Option<Box<dyn Error>> {
    let river_ended = async {
        match working {
            Some(working) => working.ended().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        signal = signals.next() => {
            tracing::info!(signal, "stopping");
            None
        }
        () = river_ended => Some("River's client stopped unexpectedly".into()),
        Some(ended) = tasks.join_next() => match ended {
            Ok(Ok(())) => Some("a task of the process ended unexpectedly".into()),
            Ok(Err(error)) => Some(error as Box<dyn Error>),
            Err(error) => Some(error.into()),
        },
    }
}
