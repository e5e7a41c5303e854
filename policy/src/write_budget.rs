//! When a counting object writes its snapshot.
//!
//! Counts that are not written are lost when the object's process is killed. Written rows are the cost of an object, so
//! it cannot write at every request. It need not, because a snapshot holds all counts.
//!
//! The object has a budget of rows. Under low load, time earns rows: each request is written before it is answered, and
//! nothing can be lost. Under high load, each request earns a fraction of a row, and one write soon afterwards covers
//! all requests until then. When the budget is spent, an alarm writes at most [`ALARM_DELAY_MS`] after a request,
//! regardless of the cost. Cloudflare evicts an object only after ten seconds without requests. Such a write leaves the
//! budget in debt.

/// The longest time from a request to the write of its count, in milliseconds.
pub const ALARM_DELAY_MS: u64 = 8_000;

/// The time from a request to a batched write of its count, in milliseconds.
pub const BATCH_DELAY_MS: u32 = 250;

/// A request arrives under low load if at least this long has passed since the previous one, in milliseconds.
const LOW_LOAD_GAP_MS: u64 = 250;

/// The time that earns a row under low load, in milliseconds.
const ROW_INTERVAL_MS: u64 = 2_000;

/// The fraction of a row that a request earns under high load, in thousandths.
const REQUEST_CREDIT: i64 = 6;

/// The largest budget, in thousandths of a row. A new object starts with it, because it had no requests before.
const MAX_BUDGET: i64 = 3_000;

/// The budget that batched writes leave for the next request under low load, in thousandths of a row.
const RESERVE: i64 = 1_000;

/// The largest debt, in thousandths of a row.
const MIN_BUDGET: i64 = -2_000;

const ROW: i64 = 1_000;

/// Large snapshots are written less often: for every this many bytes, writes pause for another [`BATCH_DELAY_MS`].
const SMALL_SNAPSHOT_BYTES: usize = 64 * 1024;

/// When the count of a request is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Before the request is answered.
    Now,
    /// After [`BATCH_DELAY_MS`], together with others.
    Batched,
    /// By an alarm, at most [`ALARM_DELAY_MS`] later.
    ByAlarm,
}

/// The rows that an object may write.
#[derive(Clone, Debug)]
pub struct WriteBudget {
    /// In thousandths of a row.
    rows: i64,
    last_request_ms: Option<u64>,
    paused_until: u64,
}

impl Default for WriteBudget {
    fn default() -> Self {
        Self {
            rows: MAX_BUDGET,
            last_request_ms: None,
            paused_until: 0,
        }
    }
}

impl WriteBudget {
    /// Adds the credit of a request at `now_ms` (milliseconds since the Unix epoch), decides when its count is written,
    /// and spends the row for that. Pass `scheduled` while a batched write is pending: it covers this request too.
    pub fn request(&mut self, now_ms: u64, scheduled: bool) -> Write {
        let gap = self
            .last_request_ms
            .replace(now_ms)
            .map(|last| now_ms.saturating_sub(last));
        let low_load = gap.is_none_or(|gap| gap >= LOW_LOAD_GAP_MS);
        let earned = match gap {
            // A minute fills the budget. The cap keeps the multiplication from overflowing.
            Some(gap) if low_load => (gap.min(60_000) * ROW as u64 / ROW_INTERVAL_MS) as i64,
            Some(_) => REQUEST_CREDIT,
            None => 0,
        };
        self.rows = (self.rows + earned).min(MAX_BUDGET);
        if scheduled {
            return Write::Batched;
        }
        let price = if low_load { ROW } else { ROW + RESERVE };
        if self.rows < price || now_ms < self.paused_until {
            return Write::ByAlarm;
        }
        self.spend(1);
        if low_load { Write::Now } else { Write::Batched }
    }

    /// Deducts rows that had to be written.
    pub fn spend(&mut self, rows: u32) {
        self.rows = (self.rows - i64::from(rows) * ROW).max(MIN_BUDGET);
    }

    /// Pauses writes according to the size of the snapshot that was just written.
    pub fn snapshot_written(&mut self, bytes: usize, now_ms: u64) {
        self.paused_until = now_ms + (bytes / SMALL_SNAPSHOT_BYTES) as u64 * u64::from(BATCH_DELAY_MS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: u64 = 1_800_000_000_000;

    /// The writes of an object that follows the decisions.
    #[derive(Default)]
    struct Written {
        /// The decision on each request.
        decisions: Vec<Write>,
        /// Rows that the budget allowed.
        early: i64,
        /// Rows for alarms and their writes.
        forced: i64,
    }

    /// Simulates requests with these gaps before them, in milliseconds.
    fn simulate(gaps: impl IntoIterator<Item = u64>) -> Written {
        let mut budget = WriteBudget::default();
        let (mut now, mut scheduled_until, mut alarm) = (START, 0, None);
        let mut written = Written::default();
        let force = |budget: &mut WriteBudget, rows: u32, written: &mut Written| {
            budget.spend(rows);
            written.forced += i64::from(rows);
        };
        for gap in gaps {
            now += gap;
            if alarm.is_some_and(|alarm| alarm <= now) {
                alarm = None;
                force(&mut budget, 1, &mut written);
            }
            let scheduled = now < scheduled_until;
            let write = budget.request(now, scheduled);
            match write {
                Write::Batched if scheduled => {}
                Write::Now | Write::Batched => {
                    written.early += 1;
                    scheduled_until = now
                        + if write == Write::Batched {
                            u64::from(BATCH_DELAY_MS)
                        } else {
                            0
                        };
                }
                Write::ByAlarm if alarm.is_none() => {
                    alarm = Some(now + ALARM_DELAY_MS);
                    force(&mut budget, 1, &mut written);
                }
                Write::ByAlarm => {}
            }
            written.decisions.push(write);
        }
        // The last alarm's write.
        written.forced += i64::from(alarm.is_some());
        written
    }

    #[test]
    fn requests_two_seconds_apart_are_written_before_their_responses() {
        assert!(
            simulate(vec![2_000; 1000])
                .decisions
                .iter()
                .all(|write| *write == Write::Now)
        );
    }

    #[test]
    fn a_burst_of_ten_is_written_immediately_and_then_in_batches() {
        let mut ten = [10; 10];
        ten[0] = 60_000;
        let minutes = simulate(ten.repeat(20)).decisions;
        for minute in minutes.chunks(10) {
            assert_eq!(minute[0], Write::Now);
            assert!(
                minute[1..].iter().all(|write| *write == Write::Batched),
                "{minute:?}"
            );
        }
    }

    #[test]
    fn ten_requests_in_five_seconds_are_mostly_written_before_their_responses() {
        // Ten in five seconds, every minute.
        let mut ten = [500; 10];
        ten[0] = 55_500;
        let minutes = simulate(ten.repeat(20)).decisions;
        assert!(
            minutes
                .chunks(10)
                .all(|minute| minute.iter().filter(|write| **write == Write::Now).count() >= 4)
        );
    }

    #[test]
    fn large_snapshots_are_written_less_often() {
        let mut budget = WriteBudget::default();
        assert_eq!(budget.request(START, false), Write::Now);
        budget.snapshot_written(1_800_000, START);
        assert_eq!(
            budget.request(START + 6_749, false),
            Write::ByAlarm,
            "27 times 250 ms"
        );
        let mut budget = WriteBudget::default();
        budget.snapshot_written(1_800_000, START);
        assert_eq!(budget.request(START + 6_750, false), Write::Now);
    }

    #[test]
    fn a_write_needs_one_row_of_budget_and_two_under_high_load() {
        let with_rows = |thousandths: i64| WriteBudget {
            rows: thousandths,
            ..WriteBudget::default()
        };
        assert_eq!(with_rows(ROW).request(START, false), Write::Now);
        assert_eq!(with_rows(ROW - 1).request(START, false), Write::ByAlarm);
        let under_high_load = |thousandths| {
            let mut budget = WriteBudget {
                last_request_ms: Some(START),
                ..with_rows(thousandths - REQUEST_CREDIT)
            };
            budget.request(START + 1, false)
        };
        assert_eq!(under_high_load(2 * ROW), Write::Batched);
        assert_eq!(under_high_load(2 * ROW - 1), Write::ByAlarm);
    }

    #[test]
    fn clock_jumps_back_do_not_add_budget_or_block_writes() {
        let mut budget = WriteBudget::default();
        for _ in 0..3 {
            budget.spend(1);
        }
        assert_eq!(budget.request(START, false), Write::ByAlarm);
        assert_eq!(budget.request(START - 3_600_000, false), Write::ByAlarm);
        assert_eq!(budget.request(START - 3_598_000, false), Write::Now);
    }

    proptest! {
        #[test]
        fn early_writes_never_exceed_the_initial_and_earned_budget(
            gaps in proptest::collection::vec(prop_oneof![0u64..20, 0u64..400, 0u64..5_000], 1..500),
        ) {
            let high_load = gaps.iter().filter(|gap| **gap < LOW_LOAD_GAP_MS).count() as i64;
            let low_load_ms: u64 = gaps.iter().filter(|gap| **gap >= LOW_LOAD_GAP_MS).sum();
            let spent = simulate(gaps).early * ROW;
            let earned = high_load * REQUEST_CREDIT + (low_load_ms * ROW as u64 / ROW_INTERVAL_MS) as i64;
            prop_assert!(spent <= MAX_BUDGET + earned);
        }

        /// The most expensive load: high enough to empty the budget, and low enough that the two rows of each alarm
        /// cover few requests.
        #[test]
        fn a_thousand_requests_in_a_minute_write_at_most_twenty_rows(
            jitter in proptest::collection::vec(0u64..40, 1_000),
        ) {
            let written = simulate(jitter.iter().map(|jitter| 40 + jitter));
            prop_assert!(written.early + written.forced <= 20, "{} early, {} forced", written.early, written.forced);
        }
    }
}
