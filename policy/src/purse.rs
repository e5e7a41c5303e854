//! When a counting object writes down what it has counted.
//!
//! What is not written is lost when the object's process is killed. Written rows are what an object costs, so it cannot
//! write at every request; but a snapshot holds all counts, so it need not. It has a purse of rows. While requests are
//! few, time fills it: then each is written before it is answered, and nothing at all can be lost. While they are many,
//! they fill it, a little each, and what is written is soon, for all that came until then. When the purse is empty, an
//! alarm writes, at the latest [`LATEST_MS`] after a request, whatever that costs: in any case sooner than the ten seconds
//! without requests after which Cloudflare takes an object out of memory. What such a write costs is owed.

/// At the latest so long after a request it is written, in milliseconds.
pub const LATEST_MS: u64 = 8_000;

/// So long after a request it is written when that is to be soon, in milliseconds.
pub const SOON_MS: u32 = 250;

/// A request that comes at least so long after the one before comes in quiet times, in milliseconds.
const QUIET_MS: u64 = 250;

/// In quiet times, a row is earned in so many milliseconds.
const QUIET_ROW_MS: u64 = 2_000;

/// In thousandths of a row: what a request earns in busy times.
const BUSY_REQUEST: i64 = 6;

/// In thousandths of a row: what fits into the purse. It is full at first, since a new object comes out of quiet times.
const MOST: i64 = 3_000;

/// In thousandths of a row: what is left in the purse in busy times, for the first request after them.
const RESERVE: i64 = 1_000;

/// In thousandths of a row: what can be owed.
const LEAST: i64 = -2_000;

const ROW: i64 = 1_000;

/// Larger snapshots are written less often: for each so many bytes, nothing is written for another [`SOON_MS`].
const SMALL_BYTES: usize = 64 * 1024;

/// When a request's count is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Before it is answered.
    Now,
    /// In [`SOON_MS`].
    Soon,
    /// In [`LATEST_MS`] at the latest.
    Later,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Purse {
    /// In thousandths of a row.
    rows: i64,
    latest_ms: Option<u64>,
    rests_until: u64,
}

impl Default for Purse {
    fn default() -> Self {
        Self {
            rows: MOST,
            latest_ms: None,
            rests_until: 0,
        }
    }
}

impl Purse {
    /// Takes in what a request at `now_ms` (milliseconds since the Unix epoch) earns and says when it is to be written,
    /// which is paid for then. With `planned`, a write is on its way already.
    pub fn request(&mut self, now_ms: u64, planned: bool) -> Write {
        let since = self
            .latest_ms
            .replace(now_ms)
            .map(|latest| now_ms.saturating_sub(latest));
        let quiet = since.is_none_or(|since| since >= QUIET_MS);
        let earned = match since {
            // More than fits is not worth a multiplication that could overflow.
            Some(since) if quiet => (since.min(60_000) * ROW as u64 / QUIET_ROW_MS) as i64,
            Some(_) => BUSY_REQUEST,
            None => 0,
        };
        self.rows = (self.rows + earned).min(MOST);
        if planned {
            return Write::Soon;
        }
        let price = if quiet { ROW } else { ROW + RESERVE };
        if self.rows < price || now_ms < self.rests_until {
            return Write::Later;
        }
        self.pay(1);
        if quiet { Write::Now } else { Write::Soon }
    }

    /// So many rows were written that had to be.
    pub fn pay(&mut self, rows: u32) {
        self.rows = (self.rows - i64::from(rows) * ROW).max(LEAST);
    }

    /// A snapshot of so many bytes was written.
    pub fn wrote(&mut self, bytes: usize, now_ms: u64) {
        self.rests_until = now_ms + (bytes / SMALL_BYTES) as u64 * u64::from(SOON_MS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: u64 = 1_800_000_000_000;

    /// What an object writes that does as it is told.
    #[derive(Default)]
    struct Written {
        /// For each request.
        how: Vec<Write>,
        /// Rows that the purse had.
        early: i64,
        /// Rows for alarms and what they wrote.
        forced: i64,
    }

    /// For requests that come after these pauses, in milliseconds.
    fn written(pauses: impl IntoIterator<Item = u64>) -> Written {
        let mut purse = Purse::default();
        let (mut now, mut soon_until, mut alarm) = (START, 0, None);
        let mut written = Written::default();
        let force = |purse: &mut Purse, rows: u32, written: &mut Written| {
            purse.pay(rows);
            written.forced += i64::from(rows);
        };
        for pause in pauses {
            now += pause;
            if alarm.is_some_and(|alarm| alarm <= now) {
                alarm = None;
                force(&mut purse, 1, &mut written);
            }
            let planned = now < soon_until;
            let write = purse.request(now, planned);
            match write {
                Write::Soon if planned => {}
                Write::Now | Write::Soon => {
                    written.early += 1;
                    soon_until = now
                        + if write == Write::Soon {
                            u64::from(SOON_MS)
                        } else {
                            0
                        };
                }
                Write::Later if alarm.is_none() => {
                    alarm = Some(now + LATEST_MS);
                    force(&mut purse, 1, &mut written);
                }
                Write::Later => {}
            }
            written.how.push(write);
        }
        // The last of them.
        written.forced += i64::from(alarm.is_some());
        written
    }

    #[test]
    fn at_a_pace_of_two_seconds_every_request_is_written_before_its_answer() {
        assert!(
            written(vec![2_000; 1000])
                .how
                .iter()
                .all(|write| *write == Write::Now)
        );
    }

    #[test]
    fn ten_requests_at_once_are_written_at_once_and_soon() {
        let mut ten = [10; 10];
        ten[0] = 60_000;
        let minutes = written(ten.repeat(20)).how;
        for minute in minutes.chunks(10) {
            assert_eq!(minute[0], Write::Now);
            assert!(
                minute[1..].iter().all(|write| *write == Write::Soon),
                "{minute:?}"
            );
        }
    }

    #[test]
    fn a_person_in_a_hurry_is_written_at_once_or_soon_but_for_a_few() {
        // Ten in five seconds, every minute.
        let mut ten = [500; 10];
        ten[0] = 55_500;
        let minutes = written(ten.repeat(20)).how;
        assert!(
            minutes
                .chunks(10)
                .all(|minute| minute.iter().filter(|write| **write == Write::Now).count() >= 4)
        );
    }

    #[test]
    fn large_snapshots_are_written_less_often() {
        let mut purse = Purse::default();
        assert_eq!(purse.request(START, false), Write::Now);
        purse.wrote(1_800_000, START);
        assert_eq!(purse.request(START + 6_000, false), Write::Later);
        assert_eq!(purse.request(START + 7_000, false), Write::Now);
    }

    #[test]
    fn a_clock_that_jumps_back_earns_nothing_and_ends_nothing() {
        let mut purse = Purse::default();
        for _ in 0..3 {
            purse.pay(1);
        }
        assert_eq!(purse.request(START, false), Write::Later);
        assert_eq!(purse.request(START - 3_600_000, false), Write::Later);
        assert_eq!(purse.request(START - 3_598_000, false), Write::Now);
    }

    proptest! {
        /// What is written early costs at most what was in the purse and what was earned, whatever comes when.
        #[test]
        fn no_more_is_spent_than_earned(
            pauses in proptest::collection::vec(prop_oneof![0u64..20, 0u64..400, 0u64..5_000], 1..2_000),
        ) {
            let busy = pauses.iter().filter(|pause| **pause < QUIET_MS).count() as i64;
            let quiet_ms: u64 = pauses.iter().filter(|pause| **pause >= QUIET_MS).sum();
            let spent = written(pauses).early * ROW;
            prop_assert!(spent <= MOST + busy * BUSY_REQUEST + (quiet_ms * ROW as u64 / QUIET_ROW_MS) as i64);
        }

        /// The dear case: so many that the purse is empty, so few that each alarm's two rows are for few of them. With
        /// the alarm's own rows it is still within twenty.
        #[test]
        fn a_thousand_evenly_over_a_minute_stay_within_twenty_rows(
            jitter in proptest::collection::vec(0u64..40, 1_000),
        ) {
            let written = written(jitter.iter().map(|jitter| 40 + jitter));
            prop_assert!(written.early + written.forced <= 20, "{} early, {} forced", written.early, written.forced);
        }
    }
}
