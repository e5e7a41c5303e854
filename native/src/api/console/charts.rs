//! Small charts of the last hour, as SVG.

use maud::{Markup, html};

use super::super::history::{SAMPLES, Sample};
use crate::status::{duration, number};

/// The drawing's size, in its own units: a minute is four wide.
const MINUTE: usize = 4;
const HEIGHT: i64 = 40;

/// What a chart shows.
struct Chart {
    name: &'static str,
    value: fn(&Sample) -> Option<i64>,
    text: fn(i64) -> String,
}

const CHARTS: [Chart; 4] = [
    Chart {
        name: "done a minute",
        value: |of| Some(of.completed),
        text: number,
    },
    Chart {
        name: "failed a minute",
        value: |of| Some(of.failed),
        text: number,
    },
    Chart {
        name: "waiting",
        value: |of| Some(of.waiting),
        text: number,
    },
    Chart {
        name: "p99 to start",
        value: |of| of.start_p99_ms,
        text: duration,
    },
];

/// The charts of these minutes, the oldest first.
pub(super) fn charts(samples: &[Option<Sample>]) -> Markup {
    html! {
        div.charts {
            @for Chart { name, value, text } in CHARTS {
                @let values: Vec<Option<i64>> = samples.iter().map(|of| of.as_ref().and_then(value)).collect();
                (chart(name, &values, text))
            }
        }
        @if samples.len() < SAMPLES {
            p.soft { "The charts start with this process: " (samples.len()) " of " (SAMPLES) " minutes." }
        }
    }
}

fn chart(name: &str, values: &[Option<i64>], text: fn(i64) -> String) -> Markup {
    let last = values
        .last()
        .copied()
        .flatten()
        .map_or_else(|| "–".to_owned(), text);
    let most = values.iter().flatten().copied().max().unwrap_or(0);
    let label = format!("{name}: now {last}, at most {} within the last hour", text(most));
    html! {
        figure {
            figcaption { (name) " " strong { (last) } span.soft { " at most " (text(most)) } }
            svg viewBox={ "0 0 " (SAMPLES * MINUTE) " " (HEIGHT) } preserveAspectRatio="none" role="img" aria-label=(label) {
                @for (at, value) in values.iter().enumerate() {
                    // The newest minute is at the right.
                    @let x = (SAMPLES - values.len() + at) * MINUTE;
                    @if let Some(value) = value.filter(|value| *value > 0) {
                        @let height = (value * HEIGHT / most).max(1);
                        rect x=(x) y=(HEIGHT - height) width=(MINUTE - 1) height=(height) {}
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_minute_is_at_the_right_and_gaps_stay_empty() {
        let minute = |completed| {
            Some(Sample {
                completed,
                failed: 0,
                waiting: 0,
                start_p99_ms: None,
            })
        };
        let drawn = charts(&[minute(10), None, minute(20)]).into_string();
        let bars: Vec<&str> = drawn
            .match_indices("<rect")
            .map(|(at, _)| &drawn[at..at + 48])
            .collect();
        assert_eq!(bars.len(), 2, "{drawn}");
        assert!(
            bars[0].starts_with("<rect x=\"228\" y=\"20\" width=\"3\" height=\"20\""),
            "{bars:?}"
        );
        assert!(
            bars[1].starts_with("<rect x=\"236\" y=\"0\" width=\"3\" height=\"40\""),
            "{bars:?}"
        );
        assert!(drawn.contains("done a minute <strong>20</strong>"), "{drawn}");
        assert!(drawn.contains("p99 to start <strong>–</strong>"), "{drawn}");
    }
}
