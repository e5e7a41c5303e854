//! A model of one holder's jobs, for a model checker (Stateright).
//!
//! The rules are the specification of [`weir_policy::admission`], which a test compares with the database's functions. The
//! model adds the boundaries of the real transactions (lock, commit, answer) and the actors. These are clients that retry,
//! two worker processes that crash, freeze and wake, maintenance, another River client, and people who cancel jobs and
//! change plans. The checker explores every order of these steps.
//!
//! The model leaves out:
//!
//! - SQL. The tests on PostgreSQL cover it, and one of them compares it with the specification.
//! - Time. A lease may expire whenever a process is frozen.
//! - Several holders. No transaction needs two.
//! - River's own step that makes due retries available. Weir parks them before that.

mod broken_rule;
mod rows;
mod steps;
mod world;

use stateright::{Checker, Model, Property};

use broken_rule::BrokenRule;
use rows::{Answer, Rows, State};
use steps::Step;
use world::{Budget, Maintenance, Request, Stage, Violation, Worker, World};

/// The parameters of a check: the numbers of clients and workers, how often each fault may occur, and the broken rule.
#[derive(Clone, Copy, Debug)]
struct Weir {
    clients: usize,
    workers: usize,
    budget: Budget,
    broken: Option<BrokenRule>,
}

impl Model for Weir {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let worker = Worker {
            stage: Stage::Idle,
            job: 0,
            attempt: 0,
            is_frozen: false,
            was_frozen: false,
        };
        vec![World {
            rows: Rows::default(),
            lock: None,
            clients: vec![[Request::NotSent, Request::NotSent]; self.clients],
            workers: vec![worker; self.workers],
            maintenance: Maintenance::None,
            budget: self.budget,
            violation: None,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        world.steps(self.broken, steps);
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        Some(world.after(step, self.broken))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let (always, sometimes) = (Property::<Self>::always, Property::<Self>::sometimes);
        vec![
            always("I1: nothing is admitted over a limit", |_, world| {
                world.violation != Some(Violation::OverLimit)
            }),
            always("I2: no slot is assigned over the plan's limit", |_, world| {
                world.violation != Some(Violation::OverSlotLimit)
            }),
            always("I2: no worker is lent over the plan's burst", |_, world| {
                world.violation != Some(Violation::OverBurst)
            }),
            always("I2: running jobs hold a slot", |_, world| {
                let jobs = world.rows.jobs.iter().filter(|job| job.state == State::Running);
                jobs.into_iter()
                    .all(|job| job.reservation.is_some_and(|reservation| reservation.admitted))
            }),
            always(
                "I3: completed jobs are charged once, and others never",
                |_, world| {
                    let mut jobs = world.rows.jobs.iter();
                    jobs.all(|job| job.events == 0 || job.events == 1 && job.state == State::Completed)
                },
            ),
            always("I4: accepted jobs exist", |_, world| {
                let jobs = world.rows.jobs.len();
                world.answers().all(|answer| match answer {
                    Answer::Accepted(id) => id < jobs,
                    Answer::Refused => true,
                })
            }),
            always("one key creates one job", |model, world| {
                (0..model.clients).all(|key| world.rows.jobs.iter().filter(|job| job.key == key).count() <= 1)
            }),
            always("I6: counters equal their rows", |_, world| {
                let rows = &world.rows;
                let reservation = || rows.jobs.iter().filter_map(|job| job.reservation);
                let count = |is: fn(&rows::Reservation) -> bool| {
                    i32::try_from(reservation().filter(is).count()).unwrap_or(-1)
                };
                rows.slots_in_use == count(|reservation| reservation.admitted)
                    && rows.parked == count(|reservation| reservation.parked)
                    && rows.reserved == reservation().map(|reservation| reservation.amount).sum::<i64>()
                    && rows.used == rows.jobs.iter().map(|job| job.charged).sum::<i64>()
            }),
            always("no finished work is dropped", |_, world| {
                world.violation != Some(Violation::FencedOutWithoutReason)
            }),
            always("I5: every job ends", |model, world| {
                let mut steps = Vec::new();
                world.steps(model.broken, &mut steps);
                let is_quiet = steps.iter().all(Step::is_optional);
                let has_live_worker = world.workers.iter().any(|worker| worker.stage != Stage::Dead);
                let is_done = |job: &rows::Job| job.state.is_final() && job.reservation.is_none();
                !is_quiet || !has_live_worker || world.rows.jobs.iter().all(is_done)
            }),
            // Without these, the properties above could hold in a model in which nothing happens.
            sometimes("some order: several jobs are all completed", |_, world| {
                world.rows.jobs.len() > 1 && world.rows.jobs.iter().all(|job| job.state == State::Completed)
            }),
            sometimes("some order: a submission is refused", |_, world| {
                world.answers().any(|answer| answer == Answer::Refused)
            }),
        ]
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::panic,
        clippy::print_stderr,
        reason = "a test panics when it fails, and prints the path"
    )]

    use std::time::Instant;

    use stateright::Path;

    use super::*;

    /// Each fault and each request once.
    const ONE: Budget = Budget {
        timeouts: 1,
        disconnects: 1,
        crashes: 1,
        freezes: 1,
        failures: 1,
        cancels: 1,
        plans: 1,
        foreign: 1,
        extensions: 1,
        lends: 1,
    };

    const NONE: Budget = Budget {
        timeouts: 0,
        disconnects: 0,
        crashes: 0,
        freezes: 0,
        failures: 0,
        cancels: 0,
        plans: 0,
        foreign: 0,
        extensions: 0,
        lends: 0,
    };

    fn with(clients: usize, workers: usize, budget: Budget) -> Weir {
        Weir {
            clients,
            workers,
            budget,
            broken: None,
        }
    }

    /// Explores the model, to a depth if there is one.
    fn run(model: Weir, depth: Option<usize>) -> impl Checker<Weir> {
        let mut builder = model.checker().threads(2);
        if let Some(depth) = depth {
            builder = builder.target_max_depth(depth);
        }
        builder.spawn_bfs().join()
    }

    /// A path to a violation.
    fn found(checker: &impl Checker<Weir>) -> Option<(&'static str, Path<World, Step>)> {
        let mut found = checker.discoveries().into_iter();
        found.find(|(property, _)| !property.starts_with("some order: "))
    }

    fn holds(name: &str, model: Weir, depth: Option<usize>) {
        let started = Instant::now();
        let checker = run(model, depth);
        if let Some((property, path)) = found(&checker) {
            let steps = path.clone().into_actions();
            panic!("{name}: {property}\n{steps:#?}\n{:#?}", path.last_state());
        }
        if depth.is_none() && model.clients > 1 {
            let wanted = "some order: several jobs are all completed";
            assert!(
                checker.discovery(wanted).is_some(),
                "{name}: no run completes several jobs"
            );
        }
        eprintln!(
            "model: {name}: {} states, depth {}, {:.1} s",
            checker.unique_state_count(),
            checker.max_depth(),
            started.elapsed().as_secs_f64()
        );
    }

    /// `MODEL_DEPTH=24 cargo test --release -p weir-ledger --lib invariants_hold -- --nocapture` goes deeper.
    #[test]
    fn invariants_hold_in_every_order_of_events() {
        holds(
            "submissions",
            with(
                3,
                1,
                Budget {
                    timeouts: 1,
                    disconnects: 1,
                    extensions: 1,
                    plans: 1,
                    ..NONE
                },
            ),
            None,
        );
        holds(
            "attempts",
            with(
                2,
                2,
                Budget {
                    crashes: 1,
                    freezes: 1,
                    failures: 1,
                    extensions: 1,
                    ..NONE
                },
            ),
            None,
        );
        holds(
            "others",
            with(
                2,
                2,
                Budget {
                    cancels: 1,
                    plans: 1,
                    foreign: 1,
                    disconnects: 1,
                    failures: 1,
                    ..NONE
                },
            ),
            None,
        );
        holds(
            "lent workers",
            with(
                3,
                2,
                Budget {
                    lends: 2,
                    crashes: 1,
                    failures: 1,
                    plans: 1,
                    ..NONE
                },
            ),
            None,
        );
        let depth = std::env::var("MODEL_DEPTH")
            .ok()
            .and_then(|depth| depth.parse().ok());
        holds("everything at once", with(2, 2, ONE), Some(depth.unwrap_or(18)));
    }

    /// The smallest world in which the rule matters.
    fn without(broken: BrokenRule) -> Weir {
        let world = match broken {
            BrokenRule::LockAfterRead => with(2, 1, NONE),
            BrokenRule::ReadKeyBeforeLock => with(1, 1, Budget { timeouts: 1, ..NONE }),
            BrokenRule::AnswerBeforeCommit
            | BrokenRule::ReleaseTwice
            | BrokenRule::ReleaseInTwoTransactions => with(1, 1, NONE),
            BrokenRule::SettleAnyAttempt => with(1, 2, Budget { freezes: 1, ..NONE }),
            BrokenRule::PromoteWithoutRecount => with(4, 1, Budget { plans: 1, ..NONE }),
            BrokenRule::PromoteByPreviousPlan => with(2, 1, Budget { plans: 2, ..NONE }),
            BrokenRule::RetryWithoutSlot => with(1, 1, Budget { failures: 1, ..NONE }),
            BrokenRule::ExtendWithoutRoom => with(
                2,
                1,
                Budget {
                    extensions: 1,
                    ..NONE
                },
            ),
            BrokenRule::TakeOverFromLiveProcess => with(1, 2, NONE),
            BrokenRule::NoSweep => with(1, 1, Budget { foreign: 1, ..NONE }),
            BrokenRule::LendOverBurst => with(
                3,
                3,
                Budget {
                    lends: 1,
                    plans: 1,
                    ..NONE
                },
            ),
            BrokenRule::PromoteAboveSlots => with(3, 1, Budget { plans: 2, ..NONE }),
            BrokenRule::FailAnyAttempt => with(
                1,
                2,
                Budget {
                    freezes: 1,
                    failures: 1,
                    ..NONE
                },
            ),
        };
        Weir {
            broken: Some(broken),
            ..world
        }
    }

    #[test]
    fn the_model_detects_every_broken_rule() {
        for broken in BrokenRule::ALL {
            let model = without(broken);
            let name = format!("{broken:?}");
            // Increase the depth step by step, so that the path found is the shortest.
            let found = (2..40).find_map(|depth| found(&run(model, Some(depth))));
            let Some((property, path)) = found else {
                panic!("the model does not detect {name}");
            };
            let steps = path.into_actions().len();
            eprintln!("model: {name}: caught after {steps} steps: {property}");
            holds(
                &format!("{name} with its rule"),
                Weir {
                    broken: None,
                    ..model
                },
                None,
            );
        }
    }
}
