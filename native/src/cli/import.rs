//! `weir import`: imports an existing product's users, subscriptions, usage and reservations.

use std::process::ExitCode;

use clap::Args;
use comfy_table::CellAlignment;
use jiff::Timestamp;
use weir_ledger::control::{self, ImportSource, ImportTotal, Imported};

use super::connection::connected;
use super::output::{
    CommandResult, actor, counted, plain_table, print, print_error, print_json, table_text, with_progress,
};
use crate::config::Settings;

#[derive(Args)]
pub(crate) struct Import {
    /// The schema with the product's tables, or with views of them.
    #[arg(long = "from", value_name = "SCHEMA")]
    schema: String,
    /// The time up to which the product has billed its usage, such as 2027-01-31T00:00:00Z. The usage feed delivers
    /// later usage [default: all usage is billed].
    #[arg(long)]
    billed_until: Option<Timestamp>,
    /// Check everything and print the totals without changing anything.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Import {
    pub(crate) async fn run(self, settings: &Settings) -> CommandResult {
        let mut client = connected(settings).await?;
        let source = ImportSource {
            schema: &self.schema,
            billed_until: self.billed_until,
            is_dry_run: self.dry_run,
        };
        let actor = actor();
        let imported = with_progress("importing", control::import(&mut client, &actor, source)).await?;
        let totals = match imported {
            Imported::Done(totals) => totals,
            Imported::Refused(faults) => {
                if self.json {
                    print_json(&faults)?;
                } else {
                    for fault in &faults {
                        print_error(&format!(
                            "{}, {}: {}; {}",
                            fault.relation, fault.row, fault.problem, fault.remedy
                        ));
                    }
                }
                let problems = counted(faults.len() as i128, "problem", "problems");
                return Err(format!("{problems} in the schema {}; nothing was imported", self.schema).into());
            }
        };
        if self.json {
            print_json(&totals)?;
        } else {
            print(&text(&totals))?;
        }
        if self.dry_run {
            print_error("dry run: nothing was changed");
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn text(totals: &[ImportTotal]) -> String {
    let mut table = plain_table(["", "SOURCE", "WEIR BEFORE", "WEIR AFTER"]);
    for total in totals {
        table.add_row([
            total.what.clone(),
            total.source.to_string(),
            total.before.to_string(),
            total.after.to_string(),
        ]);
    }
    for column in 1..4 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table_text(&table)
}
