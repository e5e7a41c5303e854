//! The status as text of at most 60 columns, with colors that the output removes where they are not wanted.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use comfy_table::{Cell, CellAlignment, Table, presets};
use jiff::Timestamp;
use weir_policy::lane::Lane;

use super::held_back::HeldBack;
use super::lanes::{LaneState, ServiceLanes};
use super::overview::{Failures, Overview, TopHolder, WaitingDeliveries};
use super::short::{duration, number, per_second, slots};

/// Fits half of a laptop's screen, and a phone's whole screen.
const WIDTH: usize = 60;

/// The width of the labels at the start of lines.
const LABEL: usize = 13;

/// The overview: a few lines in total, and a table for each service. `leads_river`: whether Weir may lead River.
#[must_use]
pub fn overview_text(status: &Overview, leads_river: bool) -> String {
    let minute = status.last_minute;
    let waiting = match status.lanes.parked {
        0 => String::from("no jobs waiting"),
        parked => format!(
            "{} waiting, the oldest {}",
            number(parked),
            duration(status.lanes.oldest_turn_ms)
        ),
    };
    let mut text = format!(
        "{}\n\
         leader       {}\n\
         maintenance  {}\n\
         finished     {} in the last minute, {} a second\n\
         failed       {} in the last minute, {} waiting to retry\n\
         slots        {} in use, {waiting}\n",
        status.lanes.at.strftime("%Y-%m-%d %H:%M:%S UTC"),
        leader(status, leads_river),
        maintenance(status),
        number(minute.finished()),
        per_second(minute.finished()),
        number(minute.failed),
        number(status.retrying),
        number(status.lanes.slots_in_use),
    );
    add_lines(&mut text, "reasons", status.failures.iter().map(failures));
    let top = |top: &TopHolder| format!("{} {}", number(top.waiting), top.holder);
    add_lines(&mut text, "top waiting", status.top_waiting.iter().map(top));
    add_lines(&mut text, "deliveries", deliveries(status.deliveries));
    add_lines(&mut text, "vacuum", status.vacuum.lines());
    if let Some(failover) = status.failover {
        let _ = writeln!(
            text,
            "failover     to timeline {}, {}",
            failover.timeline,
            failover.seen_at.strftime("%Y-%m-%d %H:%M:%S UTC")
        );
    }
    for difference in &status.differences {
        let warning = wrapped(&format!("warning: {difference}; `weir migrate` applies it"));
        let _ = writeln!(text, "\n{}", colored(&warning, AnsiColor::Yellow));
    }
    let mut idle = Vec::new();
    for (name, service) in &status.lanes.services {
        let held_back = status.held_back.get(name);
        if is_idle(service, held_back) {
            idle.push(format!("{} ({})", cut(name, WIDTH / 2), all_workers(service)));
        } else {
            text.push_str(&service_text(name, service, held_back));
        }
    }
    if !idle.is_empty() {
        let list = format!("idle: {}", idle.join(",\n"));
        let _ = writeln!(text, "\n{}", wrapped_parts(list.split('\n')));
    }
    text.truncate(text.trim_end().len());
    text
}

/// Lines with a label before the first one, cut where they are too long.
fn add_lines(text: &mut String, label: &str, lines: impl IntoIterator<Item = String>) {
    for (index, line) in lines.into_iter().enumerate() {
        let label = if index == 0 { label } else { "" };
        let _ = writeln!(text, "{label:LABEL$}{}", cut(&line, WIDTH - LABEL));
    }
}

fn failures(failed: &Failures) -> String {
    let reason = match failed.reason.as_str() {
        "" => "no reason given",
        reason => reason,
    };
    format!("{} {}: {reason}", number(failed.jobs), failed.service)
}

/// A line if deliveries wait.
fn deliveries(of: WaitingDeliveries) -> Option<String> {
    let waiting = number(of.waiting);
    match of.undelivered_ms {
        _ if of.waiting == 0 => None,
        ..60_000 => Some(format!("{waiting} waiting")),
        time => Some(format!(
            "{waiting} waiting, one webhook got none for {}",
            duration(time)
        )),
    }
}

fn colored(text: &str, color: AnsiColor) -> String {
    let style = Style::new().bold().fg_color(Some(color.into()));
    format!("{style}{text}{style:#}")
}

/// A number of workers, in words.
pub(crate) fn workers_text(workers: i64) -> String {
    format!(
        "{} {}",
        number(workers),
        if workers == 1 { "worker" } else { "workers" }
    )
}

/// The number of a service's workers, in words.
pub(crate) fn all_workers(service: &ServiceLanes) -> String {
    workers_text(Lane::ALL.iter().map(|lane| service.lane(*lane).workers).sum())
}

type WhyHeldBack<'a> = Option<&'a BTreeMap<&'static str, HeldBack>>;

/// Whether a service has no unfinished jobs, and nothing that an operator should see. An external service does: whether
/// a worker is registered.
pub(crate) fn is_idle(service: &ServiceLanes, held_back: WhyHeldBack<'_>) -> bool {
    !service.external
        && service.slots_in_use == 0
        && service.parked == 0
        && Lane::ALL
            .iter()
            .all(|lane| is_idle_lane(*lane, service, held_back))
}

fn is_idle_lane(lane: Lane, service: &ServiceLanes, held_back: WhyHeldBack<'_>) -> bool {
    let state = service.lane(lane);
    let held_back = held_back.and_then(|lanes| lanes.get(lane.as_str()));
    state.queued == 0 && state.running == 0 && matches!(held_back, None | Some(HeldBack::NothingWaits))
}

/// The reason why a lane's jobs wait. Those that an operator should end stand out, without colors too.
fn held_back_text(why: HeldBack) -> String {
    match why {
        HeldBack::Paused => colored("PAUSED", AnsiColor::Yellow),
        HeldBack::NoWorkers => colored(why.label(), AnsiColor::Red),
        _ => why.label().to_owned(),
    }
}

const NO_PROCESS: &str = "none; start `weir schedule`";
const NO_LEADER: &str =
    "none; start a River client that may lead,\n             or set RIVER_LEADER=true for `weir schedule`";

/// River's leader, and for how long it has led.
fn leader(status: &Overview, leads_river: bool) -> String {
    match &status.leader {
        Some(leader) => {
            let foreign = if leader.foreign { ", not Weir's" } else { "" };
            let end = format!("{foreign}{}", for_how_long(status, leader.elected_at));
            format!("{}{end}", cut(&leader.id, WIDTH - LABEL - end.len()))
        }
        None if leads_river => colored(NO_PROCESS, AnsiColor::Red),
        None => colored(NO_LEADER, AnsiColor::Red),
    }
}

/// The process that runs maintenance, and for how long.
fn maintenance(status: &Overview) -> String {
    let Some(maintenance) = &status.maintenance else {
        return colored(NO_PROCESS, AnsiColor::Red);
    };
    let end = for_how_long(status, maintenance.since);
    format!("{}{end}", cut(&maintenance.process, WIDTH - LABEL - end.len()))
}

fn for_how_long(status: &Overview, since: Timestamp) -> String {
    let led = status.lanes.at.duration_since(since).as_millis();
    format!(", for {}", duration(i64::try_from(led).unwrap_or(i64::MAX)))
}

/// The slots of a service and its lanes.
fn service_text(name: &str, service: &ServiceLanes, held_back: WhyHeldBack<'_>) -> String {
    let use_of_slots = format!(
        ": {} in use, {} waiting for a slot",
        slots(service.slots_in_use),
        number(service.parked)
    );
    let bold = Style::new().bold();
    let name = cut(name, WIDTH - use_of_slots.len());
    let mut text = format!("\n{bold}{name}{bold:#}{use_of_slots}\n");
    if let Some(workers) = service.external_workers() {
        let _ = writeln!(text, "{workers}");
    }
    for lane in Lane::ALL.into_iter().filter(|lane| service.lane(*lane).lent > 0) {
        let lent = number(service.lane(lane).lent);
        let _ = writeln!(text, "lent workers of {}: {lent}", lane.as_str());
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    table.set_header([
        Cell::new("lane"),
        right("queued".to_owned()),
        right("running".to_owned()),
        right("oldest".to_owned()),
        Cell::new("held back by"),
    ]);
    let (idle, shown): (Vec<_>, Vec<_>) = Lane::ALL
        .into_iter()
        .partition(|lane| is_idle_lane(*lane, service, held_back));
    for lane in &shown {
        let state = service.lane(*lane);
        let held_back = held_back.and_then(|lanes| lanes.get(lane.as_str()));
        table.add_row([
            Cell::new(lane.as_str()),
            right(number(state.queued)),
            right(if service.external {
                number(state.running)
            } else {
                busy(state)
            }),
            right(match state.oldest_wait_ms {
                ..=0 => "–".to_owned(),
                wait => duration(wait),
            }),
            Cell::new(held_back.map_or(String::new(), |why| held_back_text(*why))),
        ]);
    }
    if !shown.is_empty() {
        for line in table.lines() {
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }
    let lanes = idle.iter().map(|lane| match service.external {
        true => lane.as_str().to_owned(),
        false => format!("{} ({})", lane.as_str(), number(service.lane(*lane).workers)),
    });
    let lanes = lanes.collect::<Vec<_>>().join(", ");
    if !lanes.is_empty() {
        let _ = writeln!(text, " idle: {lanes}");
    }
    text
}

/// Busy workers out of all, and attempts that run without one.
fn busy(lane: &LaneState) -> String {
    let busy = format!("{}/{}", number(lane.busy()), number(lane.workers));
    match lane.outstanding {
        0 => busy,
        outstanding => format!("{busy} +{}", number(outstanding)),
    }
}

/// A sentence broken into lines that fit, as far as its words allow.
#[must_use]
pub fn wrapped(sentence: &str) -> String {
    wrapped_parts(sentence.split_whitespace())
}

fn wrapped_parts<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::new();
    let mut width = 0;
    for word in parts {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > WIDTH {
            text.push('\n');
            width = 0;
        } else if width > 0 {
            text.push(' ');
            width += 1;
        }
        text.push_str(word);
        width += length;
    }
    text
}

/// The start of a name that may be too long.
fn cut(name: &str, width: usize) -> String {
    if name.chars().count() <= width {
        return name.to_owned();
    }
    let kept: String = name.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use weir_ledger::read::horizon::Snapshot;

    use super::super::{
        Failures, HeldBack, Lanes, LastMinute, Leader, Maintenance, ServiceLanes, TopHolder, Vacuum,
        WaitingDeliveries,
    };
    use super::*;

    fn overview(name: &str, big: i64) -> Overview {
        let busy = LaneState {
            queued: big.max(12),
            running: big.max(3),
            outstanding: 0,
            lent: big,
            workers: big.max(3),
            paused: false,
            oldest_wait_ms: big.max(61_500),
        };
        let paused = LaneState {
            queued: 7,
            paused: true,
            ..LaneState::default()
        };
        let service = ServiceLanes {
            external: false,
            priority: LaneState::default(),
            default: busy,
            scheduled: paused,
            parked: big.max(1234),
            slots_in_use: big.max(15),
        };
        let at: Timestamp = "2026-11-22T08:52:31Z".parse().unwrap();
        let held_back = [
            ("priority", HeldBack::NothingWaits),
            ("default", HeldBack::WorkersBusy),
            ("scheduled", HeldBack::Paused),
        ];
        Overview {
            lanes: Lanes {
                at,
                services: BTreeMap::from([(name.to_owned(), service)]),
                parked: big.max(1234),
                slots_in_use: big.max(15),
                oldest_wait_ms: 61_500,
                oldest_turn_ms: big.max(192_000),
            },
            leader: Some(Leader {
                id: format!("weir_{}", name.repeat(3)),
                foreign: big > 0,
                elected_at: "2026-11-21T03:12:00Z".parse().unwrap(),
            }),
            failover: None,
            vacuum: Vacuum {
                sees_all: big == 0,
                snapshots: vec![Snapshot {
                    kind: "session".to_owned(),
                    pid: Some(4711),
                    name: Some(name.repeat(2)),
                    application: Some("pg_dump".to_owned()),
                    state: Some("active".to_owned()),
                    query: Some(
                        "COPY public.river_job (id, state, attempt, max_attempts) TO stdout".to_owned(),
                    ),
                    seconds: Some(7380.0 + big as f64),
                    transactions: big.max(1_250_000),
                }],
                wraparound: big,
                dead_rows: BTreeMap::from([
                    ("holders".to_owned(), 12_000),
                    ("river_job".to_owned(), 1_200_000),
                ]),
                replication_lag: Some(big as f64),
                retained_bytes: big as f64,
            },
            maintenance: Some(Maintenance {
                process: format!("{}:4711", name.repeat(3)),
                since: "2026-11-21T03:12:00Z".parse().unwrap(),
            }),
            last_minute: LastMinute {
                completed: big.max(1230),
                cancelled: 1,
                failed: 3,
            },
            retrying: big.max(2),
            top_waiting: vec![
                TopHolder {
                    holder: name.repeat(5),
                    waiting: big.max(1100),
                },
                TopHolder {
                    holder: "bob".to_owned(),
                    waiting: 3,
                },
            ],
            failures: vec![Failures {
                service: name.to_owned(),
                reason: "connection refused".to_owned(),
                jobs: big.max(412),
            }],
            deliveries: WaitingDeliveries {
                waiting: big.max(11_000),
                undelivered_ms: big.max(1_200_000),
            },
            held_back: BTreeMap::from([(name.to_owned(), BTreeMap::from(held_back))]),
            differences: Vec::new(),
        }
    }

    fn fits(text: &str) {
        let text = anstream::adapter::strip_str(text).to_string();
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }

    #[test]
    fn the_overview_shows_leaders_throughput_and_blocked_lanes() {
        let mut overview = overview("analysis", 0);
        let idle = ServiceLanes {
            default: LaneState {
                workers: 3,
                ..LaneState::default()
            },
            ..ServiceLanes::default()
        };
        for name in ["mail", "render"] {
            overview.lanes.services.insert(name.to_owned(), idle.clone());
        }
        let text = overview_text(&overview, true);
        fits(&text);
        assert!(text.contains("\u{1b}[1m\u{1b}[33mPAUSED"), "{text:?}");
        insta::assert_snapshot!(anstream::adapter::strip_str(&text));
    }

    #[test]
    fn the_overview_fits_with_any_numbers_and_names() {
        for big in [99_999, 100_000, 86_399_999, 999_999_999, i64::MAX / 4] {
            fits(&overview_text(&overview(&"renders".repeat(10), big), true));
        }
    }

    #[test]
    fn a_sentence_is_wrapped_between_its_words() {
        let sentence = "the database does not answer; start it, or correct DATABASE_URL ".repeat(4);
        let text = wrapped(&sentence);
        fits(&text);
        assert_eq!(text.replace('\n', " "), sentence.trim());
    }
}
