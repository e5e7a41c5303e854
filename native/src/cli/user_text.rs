//! A user as text, from the same JSON as `/admin` returns.

use std::fmt::Write as _;

use serde_json::Value;

use super::output::{bold, counted, plain_table, table_text};

/// A user: the plan, each meter, and the newest jobs.
pub(super) fn holder(view: &Value) -> String {
    let mut text = format!(
        "{}, plan {}{}\n",
        bold(&format!("user {}", word(&view["subject"]))),
        word(&view["plan"]),
        match &view["next_plan"] {
            Value::Null => String::new(),
            next => format!(", {} from {}", word(&next["plan"]), moment(&next["at"])),
        }
    );
    for (name, meter) in view["meters"].as_object().into_iter().flatten() {
        let _ = writeln!(text, "\n{}", self::meter(&bold(name), &word(&meter["unit"])));
        for window in items(&meter["windows"]) {
            let limit = match &window["limit"] {
                Value::Null => "unlimited".to_owned(),
                limit => format!("of {limit}"),
            };
            let _ = writeln!(
                text,
                "  {:<7}{} used, {} reserved, {limit}, until {}",
                word(&window["window"]),
                window["used"],
                window["reserved"],
                moment(&window["reset_at"])
            );
        }
        let slots = &meter["slots"];
        let limit = match &slots["limit"] {
            Value::Null => String::new(),
            limit => format!(" of {limit}"),
        };
        let burst = match &slots["burst"] {
            Value::Null => String::new(),
            burst => format!(", up to {burst} on idle workers"),
        };
        let _ = writeln!(
            text,
            "  slots  {}{limit} in use{burst}, {} waiting",
            slots["in_use"], meter["parked"]
        );
        for grant in items(&meter["grants"]) {
            let expires = match &grant["expires_at"] {
                Value::Null => "never expires".to_owned(),
                at => format!("expires {}", moment(at)),
            };
            let _ = writeln!(
                text,
                "  grant  {} of {} left, {expires}: {} ({})",
                grant["left"],
                grant["amount"],
                word(&grant["reason"]),
                word(&grant["id"])
            );
        }
        if let Value::Object(own) = &meter["overrides"] {
            let limits = own["limits"].as_object().into_iter().flatten();
            let mut own_limits: Vec<String> = limits
                .map(|(window, limit)| match limit {
                    Value::Null => format!("{window} unlimited"),
                    limit => format!("{window} {limit}"),
                })
                .collect();
            if let Some(slots) = own["slots"].as_i64() {
                own_limits.push(counted(slots, "slot", "slots"));
            }
            if let Some(burst) = own["burst"].as_i64() {
                own_limits.push(format!("burst {burst}"));
            }
            let _ = writeln!(text, "  own    {}", own_limits.join(", "));
        }
    }
    let jobs: Vec<&Value> = items(&view["jobs"]).collect();
    if jobs.is_empty() {
        text.push_str("\nno jobs\n");
        return text;
    }
    let mut table = plain_table(["job", "service", "status", "created", "charged"]);
    for job in jobs {
        let waiting = job["waiting_for"].as_str();
        let status = match waiting {
            Some(reason) => format!("waiting for {}", if reason == "slot" { "a slot" } else { reason }),
            None => word(&job["status"]),
        };
        table.add_row([
            job["id"].to_string(),
            word(&job["service"]),
            status,
            moment(&job["created_at"]),
            job["charged"].to_string(),
        ]);
    }
    text.push('\n');
    text.push_str(&table_text(&table));
    text
}

/// A meter with its unit.
pub(super) fn meter(name: &str, unit: &str) -> String {
    format!("{name}, in {unit}")
}

/// A user's usage, one line per period and meter.
pub(super) fn usage(rows: &Value) -> String {
    let rows: Vec<&Value> = items(rows).collect();
    if rows.is_empty() {
        return "no usage\n".to_owned();
    }
    let names = ["start", "end", "meter", "used", "reserved", "from_grants"];
    let mut table = plain_table(names.map(|name| name.trim_start_matches("from_")));
    for row in rows {
        table.add_row(names.iter().map(|name| match &row[*name] {
            text @ Value::String(at) if at.ends_with('Z') => moment(text),
            other => word(other),
        }));
    }
    table_text(&table)
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "–".to_owned(),
        other => other.to_string(),
    }
}

/// A time, to the minute.
fn moment(value: &Value) -> String {
    let at: Option<jiff::Timestamp> = value.as_str().and_then(|text| text.parse().ok());
    at.map_or_else(|| word(value), |at| at.strftime("%Y-%m-%d %H:%M UTC").to_string())
}
