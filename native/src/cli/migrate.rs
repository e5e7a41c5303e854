//! `weir migrate`.

use std::process::ExitCode;

use clap::Args;
use weir_ledger::catalogue;
use weir_ledger::migrate::{self, River};

use super::connection::needs_sessions;
use super::output::{CommandResult, counted, print, with_progress};
use crate::config::Settings;

/// The options of `weir migrate`.
#[derive(Args)]
pub(super) struct Migrate {
    /// Do not create or change River's tables; fail if they are missing or too old.
    #[arg(long, conflicts_with = "upgrade_river")]
    skip_river: bool,
    /// Upgrade existing River tables to the latest version, even if Weir did not create them.
    #[arg(long)]
    upgrade_river: bool,
    /// Print the SQL script that would run, without changing anything.
    #[arg(long)]
    print: bool,
}

impl Migrate {
    pub(super) async fn run(self, settings: &Settings) -> CommandResult {
        let database = settings.database()?;
        needs_sessions(&database).await?;
        let river = match (self.skip_river, self.upgrade_river) {
            (true, _) => River::Skip,
            (_, true) => River::Upgrade,
            _ => River::Create,
        };
        if self.print {
            let script = migrate::script(&database, river).await?;
            let nothing = "-- nothing to do: the database is up to date\n";
            print(if script.is_empty() { nothing } else { &script })?;
            if !script.is_empty() {
                print("-- then the catalogue of weir.toml is applied\n")?;
                return Ok(ExitCode::SUCCESS);
            }
            let now = catalogue::load(&database.connect().await?).await?;
            for change in now.changes_to(&settings.catalogue) {
                print(&format!("-- the catalogue would change: {change}\n"))?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        let applied =
            with_progress("migrating the database", migrate::migrate_with(&database, river)).await?;
        let is_new = applied.is_new();
        let is_current = applied.river.is_empty()
            && applied.weir.is_empty()
            && applied.revoked.is_empty()
            && applied.newer_release.is_none();
        // Printed before the catalogue is checked, because these migrations stay even if the catalogue is refused.
        for version in applied.river {
            print(&format!("applied River's {version}\n"))?;
        }
        // A new database gets all files, which are one step to the reader, and so is its catalogue.
        if is_new {
            let files = counted(applied.weir.len() as i128, "file", "files");
            print(&format!("created Weir's schema: {files}\n"))?;
        } else {
            for path in applied.weir {
                print(&format!("applied {path}\n"))?;
            }
        }
        for rights in applied.revoked {
            print(&format!("revoked {rights}\n"))?;
        }
        for advice in applied.advice {
            print(&format!("note: {advice}\n"))?;
        }
        let mut client = database.connect().await?;
        let mut changes = catalogue::apply(&mut client, &settings.catalogue).await?;
        let services = settings.service_entries();
        changes.extend(catalogue::services::apply(&mut client, &services, &settings.rules()).await?);
        if is_current && changes.is_empty() {
            print("nothing to do: the database is up to date\n")?;
        }
        if is_new {
            let plans = counted(settings.catalogue.plans.len() as i128, "plan", "plans");
            let meters = counted(settings.catalogue.meters.len() as i128, "meter", "meters");
            print(&format!("created the catalogue: {plans}, {meters}\n"))?;
        } else {
            for change in changes {
                print(&format!("changed the catalogue: {change}\n"))?;
            }
        }
        if let Some(release) = applied.newer_release {
            print(&format!(
                "Weir {release} migrated this database; its schema also works with this release, and does not change\n"
            ))?;
        }
        if let Some(version) = applied.kept_river {
            print(&format!(
                "River's tables stay at version {version}, which is new enough; --upgrade-river upgrades them\n"
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
