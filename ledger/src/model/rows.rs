//! The committed rows, and the writes of the transactions. The rules are those of the specification.

use weir_policy::admission::{Account, Allowance, Decision, charge, promotions};

/// The possible plans of the holder: limit and slots.
pub(super) const PLANS: [(i64, u32); 2] = [(4, 1), (8, 2)];

/// How many of a holder's jobs may run at once on workers that would be idle.
pub(super) const BURST: i32 = 2;

/// The amount of every submission, and the usage that its handler reports.
pub(super) const AMOUNT: i64 = 2;
pub(super) const USED: i64 = 1;

pub(super) const MAX_ATTEMPTS: u8 = 2;

/// River's states of a job.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum State {
    Pending,
    Available,
    Running,
    Retryable,
    Completed,
    Cancelled,
    Discarded,
}

impl State {
    pub(super) fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Cancelled | Self::Discarded)
    }
}

/// The client that runs an attempt.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Runner {
    Worker(usize),
    Foreign,
}

/// A row of `quota_reservations`.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) struct Reservation {
    pub(super) amount: i64,
    pub(super) admitted: bool,
    pub(super) parked: bool,
    /// It released its slot, and asks for one when its retry is due.
    pub(super) due: bool,
}

/// A row of `river_job`, with its reservation and its usage events.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) state: State,
    pub(super) attempt: u8,
    pub(super) by: Option<Runner>,
    /// The client that submitted it with its key.
    pub(super) key: usize,
    pub(super) reservation: Option<Reservation>,
    pub(super) events: u8,
    pub(super) charged: i64,
    /// Its cancellation was requested.
    pub(super) cancelled: bool,
}

/// All committed rows of one holder. Invariants are per holder, and no transaction needs two holders.
#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) slots_in_use: i32,
    pub(super) parked: i32,
    pub(super) used: i64,
    pub(super) reserved: i64,
    /// The index in [`PLANS`].
    pub(super) plan: usize,
    pub(super) jobs: Vec<Job>,
}

/// A reservation that ends, or that frees its slot for a retry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Released {
    id: usize,
    pub(super) held_slot: bool,
    was_parked: bool,
    ended: bool,
    reserved: i64,
    charge: i64,
}

/// The answer to a client.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Answer {
    Accepted(usize),
    Refused,
}

fn unsigned(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

impl Rows {
    pub(super) fn limit(&self) -> i64 {
        PLANS[self.plan].0
    }

    pub(super) fn slots(&self) -> i32 {
        i32::try_from(PLANS[self.plan].1).unwrap_or(i32::MAX)
    }

    fn account(&self) -> Account {
        Account {
            allowances: vec![Allowance {
                limit: Some(self.limit()),
                used: self.used,
                reserved: self.reserved,
                ..Allowance::default()
            }],
            slot_limit: Some(PLANS[self.plan].1),
            slots_in_use: unsigned(self.slots_in_use),
            parked: unsigned(self.parked),
            ..Account::default()
        }
    }

    pub(super) fn job_of_key(&self, key: usize) -> Option<usize> {
        self.jobs.iter().position(|job| job.key == key)
    }

    /// Writes the decision on a submission, based on the rows `seen`.
    pub(super) fn admit(&mut self, seen: &Self, key: usize) -> Answer {
        if let Some(id) = seen.job_of_key(key) {
            return Answer::Accepted(id);
        }
        let admitted = match seen.account().decide(AMOUNT) {
            Decision::Admitted => true,
            Decision::Parked => false,
            _ => return Answer::Refused,
        };
        self.reserved += AMOUNT;
        self.slots_in_use += i32::from(admitted);
        self.parked += i32::from(!admitted);
        self.jobs.push(Job {
            state: if admitted {
                State::Available
            } else {
                State::Pending
            },
            attempt: 0,
            by: None,
            key,
            reservation: Some(Reservation {
                amount: AMOUNT,
                admitted,
                parked: !admitted,
                due: false,
            }),
            events: 0,
            charged: 0,
            cancelled: false,
        });
        Answer::Accepted(self.jobs.len() - 1)
    }

    /// Asks for more quota for a running job. Without room, the job continues with what it has.
    pub(super) fn extend(&mut self, id: usize, checks_room: bool) {
        let has_room = self.account().has_room_for(1);
        if let Some(reservation) = &mut self.jobs[id].reservation
            && (has_room || !checks_room)
        {
            reservation.amount += 1;
            self.reserved += 1;
        }
    }

    /// Releases the job's reservation, or only its slot, as `settle_many()` does.
    pub(super) fn release(&mut self, id: usize, used: Option<i64>, deletes: bool) -> Option<Released> {
        let job = &mut self.jobs[id];
        let reservation = job.reservation.as_mut()?;
        let ended = job.state.is_final();
        let released = Released {
            id,
            held_slot: reservation.admitted,
            was_parked: reservation.parked,
            ended,
            reserved: reservation.amount,
            charge: match job.state {
                State::Completed => charge(reservation.amount, used),
                _ => 0,
            },
        };
        if ended && deletes {
            job.reservation = None;
        } else if !ended {
            *reservation = Reservation {
                admitted: false,
                due: true,
                ..*reservation
            };
        }
        Some(released)
    }

    /// Writes the settlement and the promotions, based on the rows `seen`. Returns the number of promotions.
    pub(super) fn settle(&mut self, seen: &Self, released: &[Released]) -> usize {
        let (mut freed, mut unparked) = (0, 0);
        for one in released {
            freed += i32::from(one.held_slot);
            unparked += i32::from(one.was_parked);
            if !one.ended {
                continue;
            }
            self.reserved -= one.reserved;
            let job = &mut self.jobs[one.id];
            // The unique key of usage events.
            if one.charge > 0 && job.events == 0 {
                job.events += 1;
                job.charged += one.charge;
                self.used += one.charge;
            }
        }
        self.slots_in_use -= freed;
        self.parked -= unparked;
        let (slots, parked) = (
            unsigned(seen.slots_in_use - freed),
            unsigned(seen.parked - unparked),
        );
        let count = promotions(Some(PLANS[seen.plan].1), slots, parked);
        let mut promoted = 0;
        for job in &mut self.jobs {
            if let Some(reservation) = &mut job.reservation
                && promoted < count
                && reservation.parked
                && job.state == State::Pending
            {
                (reservation.parked, reservation.admitted) = (false, true);
                job.state = State::Available;
                promoted += 1;
            }
        }
        let n = i32::try_from(promoted).unwrap_or(0);
        self.slots_in_use += n;
        self.parked -= n;
        usize::try_from(promoted).unwrap_or(0)
    }

    /// Starts a parked job on a lent worker, as `lend_jobs()` does. Returns it.
    pub(super) fn lend(&mut self, w: usize) -> Option<usize> {
        let is_parked = |job: &Job| job.reservation.is_some_and(|reservation| reservation.parked);
        let id = self
            .jobs
            .iter()
            .position(|job| job.state == State::Pending && is_parked(job))?;
        let job = &mut self.jobs[id];
        if let Some(reservation) = &mut job.reservation {
            (reservation.parked, reservation.admitted) = (false, true);
        }
        (job.state, job.by) = (State::Running, Some(Runner::Worker(w)));
        job.attempt += 1;
        self.slots_in_use += 1;
        self.parked -= 1;
        Some(id)
    }

    /// Parks a due retry, as `park_due.sql` does.
    pub(super) fn park_due(&mut self, id: usize) {
        let job = &mut self.jobs[id];
        if let Some(reservation) = &mut job.reservation {
            reservation.due = false;
            if job.state == State::Retryable {
                job.state = State::Pending;
                reservation.parked = true;
                self.parked += 1;
            }
        }
    }

    /// The write of a River client after a worker has returned. It checks the state but not the attempt.
    pub(super) fn write_as_river(&mut self, id: usize, state: State) {
        let job = &mut self.jobs[id];
        if job.state == State::Running {
            job.state = state;
        }
    }
}
