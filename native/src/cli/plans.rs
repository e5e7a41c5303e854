//! `weir plans`, and the catalogue step of `weir migrate`.

use std::process::ExitCode;

use serde::Serialize;
use weir_ledger::catalogue::{self, Catalogue, PlanLimits};
use weir_policy::span::Span;

use super::connection::connected;
use super::output::{CommandResult, counted, plain_table, print, print_json, table_text};
use crate::config::Settings;

/// The database's catalogue, and what `weir.toml` would change.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    catalogue: Catalogue,
    differs: Vec<String>,
}

/// Shows the database's catalogue, and its differences from the file.
pub(super) async fn show(settings: &Settings, json: bool) -> CommandResult {
    let client = connected(settings).await?;
    let catalogue = catalogue::load(&client).await?;
    let differs = catalogue.changes_to(&settings.catalogue);
    if json {
        let shown = Shown { catalogue, differs };
        print_json(&shown)?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&table(&catalogue))?;
    let plans = &settings.fairness.limits.of_plans;
    for (plan, slots) in plans
        .iter()
        .filter(|(plan, _)| catalogue.plans.contains_key(*plan))
    {
        print(&format!(
            "the environment overrides plan {plan}: {}\n",
            counted(*slots, "slot", "slots")
        ))?;
    }
    if differs.is_empty() {
        print("weir.toml has the same catalogue\n")?;
    } else {
        print("weir.toml differs; `weir migrate` applies:\n")?;
        for change in differs {
            print(&format!("  {change}\n"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn table(catalogue: &Catalogue) -> String {
    let spans = Span::ALL.map(|span| format!("per {}", span.as_str()));
    let heads = ["plan", "lane", "meter", "slots", "burst"].map(str::to_owned);
    let mut table = plain_table(heads.into_iter().chain(spans));
    for (name, plan) in &catalogue.plans {
        for (meter, limits) in &plan.meters {
            let default = if plan.is_default { " (default)" } else { "" };
            let unit = catalogue.meters.get(meter).map_or("", String::as_str);
            let cells = [
                format!("{name}{default}"),
                plan.lane.as_str().to_owned(),
                format!("{meter}, in {unit}"),
                limits.slots.to_string(),
                limits.burst.map_or_else(String::new, |burst| burst.to_string()),
            ];
            table.add_row(cells.into_iter().chain(amounts(limits)));
        }
    }
    table_text(&table)
}

/// The limit of each span. Only a month without a limit is printed as unlimited.
fn amounts(limits: &PlanLimits) -> [String; 4] {
    Span::ALL.map(
        |span| match (limits.limits.get(&span), limits.ceilings.get(&span), span) {
            (Some(limit), None, _) => limit.to_string(),
            (Some(limit), Some(ceiling), _) => format!("{limit} up to {ceiling}"),
            (None, _, Span::Month) => "unlimited".to_owned(),
            (None, _, _) => String::new(),
        },
    )
}
