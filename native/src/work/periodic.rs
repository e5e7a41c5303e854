//! Hands the periodic jobs to River, whose leader enqueues them.

use std::sync::Arc;
use std::time::Duration;

use riverqueue::{
    BoxError, ClientBuilder, Hook, InsertContext, InsertOpts, JobArgs, PeriodicJob, PeriodicJobOpts,
    UniqueOpts,
};
use weir_policy::lane::Lane;

use super::worker::AnyArgs;
use crate::config::Settings;

/// Ticks are whole seconds, so one job a second is one job a tick.
const TICK: Duration = Duration::from_secs(1);

pub(super) fn register(mut builder: ClientBuilder, settings: &Arc<Settings>) -> ClientBuilder {
    if settings.periodic.is_empty() {
        return builder;
    }
    for periodic in &settings.periodic {
        let Some(service) = settings.service(&periodic.service) else {
            continue;
        };
        let opts = InsertOpts::default()
            .with_queue(service.queue(Lane::Scheduled))
            .with_max_attempts(service.max_attempts.into())
            .with_unique(
                UniqueOpts::new()
                    .with_by_args(true)
                    .with_by_queue(true)
                    .with_by_period(TICK),
            );
        let args = periodic.args.clone();
        builder = builder.periodic_job(PeriodicJob::conditional_with_options(
            periodic.schedule.clone(),
            move || Some((AnyArgs(args.clone()), opts.clone())),
            PeriodicJobOpts::new().with_id(&periodic.id),
        ));
    }
    builder.hook(NameKinds(Arc::clone(settings)))
}

/// River ties a Rust type to one kind; the arguments here are those of any service, whose kind is known by its queue.
struct NameKinds(Arc<Settings>);

impl Hook for NameKinds {
    async fn insert_begin(&self, insert: &mut InsertContext) -> Result<(), BoxError> {
        if insert.kind == AnyArgs::KIND {
            let mut services = self.0.services.iter();
            if let Some(service) =
                services.find(|service| service.queue(Lane::Scheduled) == insert.opts.queue)
            {
                insert.kind.clone_from(&service.kind);
            }
        }
        Ok(())
    }
}
