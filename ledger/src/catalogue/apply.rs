//! The catalogue in the database.

use std::collections::BTreeMap;

use postgres_types::ToSql;
use tokio_postgres::{Client, GenericClient, Row, Transaction};
use weir_policy::lane::Lane;
use weir_policy::span::Span;

use super::definition::{Catalogue, PLAN_ATTRIBUTES, PlanEntry, PlanLimits};
use crate::database::DatabaseError;
use crate::meter::Meter;

/// Why the catalogue was not applied to the database.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// The database could not be used.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// A removed plan or meter is still in use.
    #[error("the catalogue in weir.toml conflicts with the database; nothing was changed:\n  {}", .0.join("\n  "))]
    InUse(Vec<String>),
}

impl From<tokio_postgres::Error> for CatalogueError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error.into())
    }
}

/// The catalogue in the database.
///
/// # Errors
///
/// When the database cannot be queried.
pub async fn load<C: GenericClient + Sync>(client: &C) -> Result<Catalogue, tokio_postgres::Error> {
    let meters = client.query("SELECT name, unit FROM meters", &[]).await?;
    let plans = format!(
        "SELECT tier::text AS tier, lane, is_default, {} FROM subscription_plans",
        PLAN_ATTRIBUTES.map(|attribute| attribute.name).join(", ")
    );
    let plans = client.query(&plans, &[]).await?;
    let limits = client.query(include_str!("sql/limits.sql"), &[]).await?;
    let mut catalogue = Catalogue {
        meters: meters
            .iter()
            .map(|row| (row.get("name"), row.get("unit")))
            .collect(),
        plans: plans.iter().map(|row| (row.get("tier"), entry(row))).collect(),
    };
    for row in &limits {
        if let Some(plan) = catalogue.plans.get_mut(row.get::<_, &str>("tier")) {
            plan.meters.insert(row.get("meter"), plan_limits(row));
        }
    }
    Ok(catalogue)
}

fn entry(row: &Row) -> PlanEntry {
    PlanEntry {
        lane: Lane::select(Lane::parse(row.get("lane")), false),
        is_default: row.get("is_default"),
        attributes: PLAN_ATTRIBUTES
            .into_iter()
            .map(|attribute| (attribute.name, row.get(attribute.name)))
            .collect(),
        meters: BTreeMap::new(),
    }
}

fn plan_limits(row: &Row) -> PlanLimits {
    let limit = |span: Span| Some((span, row.get::<_, Option<i64>>(span.as_str())?));
    let ceiling = |span: Span| {
        Some((
            span,
            row.get::<_, Option<i64>>(&*format!("{}_ceiling", span.as_str()))?,
        ))
    };
    PlanLimits {
        limits: Span::ALL.into_iter().filter_map(limit).collect(),
        ceilings: Span::ALL.into_iter().filter_map(ceiling).collect(),
        slots: row.get::<_, i32>("slots").unsigned_abs(),
        burst: row.get::<_, Option<i32>>("burst").map(i32::unsigned_abs),
    }
}

/// Replaces the database's catalogue with this one, in one transaction, and returns the changes, one per line. A
/// removed plan or meter must not be in use.
///
/// # Errors
///
/// When the database cannot be used, or a removed plan or meter is still in use.
pub async fn apply(client: &mut Client, wanted: &Catalogue) -> Result<Vec<String>, CatalogueError> {
    let transaction = client.transaction().await?;
    // Readers continue. Other changes of the catalogue wait. Locks the limits first, as manual changes do.
    transaction
        .batch_execute("LOCK TABLE plan_limits, meters IN EXCLUSIVE MODE")
        .await?;
    let now = load(&transaction).await?;
    let changes = now.changes_to(wanted);
    if changes.is_empty() {
        return Ok(changes);
    }
    let mut in_use = in_use(&transaction, &now, wanted).await?;
    in_use.extend(own_limits(&transaction, &now, wanted).await?);
    if !in_use.is_empty() {
        return Err(CatalogueError::InUse(in_use));
    }
    write(&transaction, wanted).await?;
    transaction
        .execute(
            "INSERT INTO catalogue_changes (change) SELECT * FROM unnest($1::text[])",
            &[&changes],
        )
        .await?;
    transaction.commit().await?;
    Ok(changes)
}

/// The removed plans and meters that are still in use, and their users.
async fn in_use(
    transaction: &Transaction<'_>,
    now: &Catalogue,
    wanted: &Catalogue,
) -> Result<Vec<String>, tokio_postgres::Error> {
    let plans: Vec<&String> = now
        .plans
        .keys()
        .filter(|name| !wanted.plans.contains_key(*name))
        .collect();
    let meters: Vec<&String> = now
        .meters
        .keys()
        .filter(|name| !wanted.meters.contains_key(*name))
        .collect();
    let plans = transaction
        .query(include_str!("sql/plans_in_use.sql"), &[&plans])
        .await?;
    let meters = transaction
        .query(include_str!("sql/meters_in_use.sql"), &[&meters])
        .await?;
    let plans = plans.iter().map(|row| {
        format!(
            "plan {}: it is not in weir.toml, but {} subscription(s) use it, {} of them active, such as that of user \
             {}; keep it until they have another plan",
            row.get::<_, &str>("tier"),
            row.get::<_, i64>("subscriptions"),
            row.get::<_, i64>("active"),
            row.get::<_, &str>("example"),
        )
    });
    let meters = meters.iter().map(|row| {
        format!(
            "meter {}: it is not in weir.toml, but {} holder(s) have used it, such as {}; keep it, even if no service \
             uses it",
            row.get::<_, &str>("meter"),
            row.get::<_, i64>("holders"),
            row.get::<_, &str>("example"),
        )
    });
    Ok(plans.chain(meters).collect())
}

/// Windows that no plan limits any longer, although a user has an override in them. They would not be counted.
async fn own_limits(
    transaction: &Transaction<'_>,
    now: &Catalogue,
    wanted: &Catalogue,
) -> Result<Vec<String>, tokio_postgres::Error> {
    let mut gone = Vec::new();
    for meter in wanted.meters.keys() {
        for span in Span::ALL.into_iter().filter(|span| *span != Span::Month) {
            if !now.limits(meter, span) || wanted.limits(meter, span) {
                continue;
            }
            let window = span.as_str();
            let row = transaction
                .query_one(include_str!("sql/own_limits.sql"), &[&Meter::of(meter), &window])
                .await?;
            let holders: i64 = row.get("holders");
            if holders > 0 {
                gone.push(format!(
                    "meter {meter}: {holders} user(s), such as {}, override its limit per {window}, but no plan has \
                     that limit any more; keep it in one plan, or delete the overrides",
                    row.get::<_, &str>("example"),
                ));
            }
        }
    }
    Ok(gone)
}

/// `sql/write_plans.sql` with the columns, the parameters and the updates of the attributes.
fn write_plans() -> String {
    let each = |form: &dyn Fn(usize, &str) -> String| {
        let parts = PLAN_ATTRIBUTES.iter().enumerate();
        let parts = parts.map(|(n, attribute)| form(n, attribute.name));
        parts.collect::<Vec<_>>().join(", ")
    };
    include_str!("sql/write_plans.sql")
        .replace("$columns", &each(&|_, name| name.to_owned()))
        .replace("$parameters", &each(&|n, _| format!("${}::int[]", n + 4)))
        .replace("$updates", &each(&|_, name| format!("{name} = excluded.{name}")))
}

async fn write(transaction: &Transaction<'_>, wanted: &Catalogue) -> Result<(), tokio_postgres::Error> {
    let (meters, units): (Vec<&String>, Vec<&String>) = wanted.meters.iter().unzip();
    let meter_params: [&(dyn ToSql + Sync); 2] = [&meters, &units];
    transaction
        .execute(include_str!("sql/write_meters.sql"), &meter_params)
        .await?;
    // At any moment, at most one plan may be the default.
    transaction
        .execute(
            "UPDATE subscription_plans SET is_default = false WHERE is_default AND tier IS DISTINCT FROM $1::text",
            &[&wanted.default_plan()],
        )
        .await?;
    let plans: Vec<&String> = wanted.plans.keys().collect();
    let lanes: Vec<&str> = wanted.plans.values().map(|plan| plan.lane.as_str()).collect();
    let default = wanted.default_plan();
    let attributes = PLAN_ATTRIBUTES.map(|attribute| {
        let value = |plan: &PlanEntry| plan.attributes.get(attribute.name).copied().flatten();
        wanted.plans.values().map(value).collect::<Vec<_>>()
    });
    let mut plan_params: Vec<&(dyn ToSql + Sync)> = vec![&plans, &lanes, &default];
    plan_params.extend(attributes.iter().map(|values| values as &(dyn ToSql + Sync)));
    transaction.execute(&write_plans(), &plan_params).await?;
    let mut rows = LimitRows::default();
    for (name, plan) in &wanted.plans {
        for (meter, limits) in &plan.meters {
            rows.plans.push(name);
            rows.meters.push(Meter::of(meter));
            for (column, span) in rows.amounts.iter_mut().zip(Span::ALL) {
                column.push(limits.limits.get(&span).copied());
            }
            for (column, span) in rows.ceilings.iter_mut().zip(Span::ALL) {
                column.push(limits.ceilings.get(&span).copied());
            }
            rows.slots.push(limits.slots.cast_signed());
            rows.bursts.push(limits.burst.map(u32::cast_signed));
        }
    }
    let [months, days, hours, minutes] = &rows.amounts;
    let [month_ceilings, day_ceilings, hour_ceilings, minute_ceilings] = &rows.ceilings;
    let params: [&(dyn ToSql + Sync); 12] = [
        &rows.plans,
        &rows.meters,
        months,
        days,
        hours,
        minutes,
        &rows.slots,
        month_ceilings,
        day_ceilings,
        hour_ceilings,
        minute_ceilings,
        &rows.bursts,
    ];
    transaction
        .execute(include_str!("sql/write_limits.sql"), &params)
        .await?;
    transaction
        .execute(
            "DELETE FROM subscription_plans WHERE tier <> ALL ($1::text[])",
            &[&plans],
        )
        .await?;
    transaction
        .execute("DELETE FROM meters WHERE name <> ALL ($1::text[])", &[&meters])
        .await?;
    Ok(())
}

/// The rows of `plan_limits`, by column.
#[derive(Default)]
struct LimitRows<'a> {
    plans: Vec<&'a str>,
    meters: Vec<Meter>,
    /// In the order of [`Span::ALL`].
    amounts: [Vec<Option<i64>>; 4],
    ceilings: [Vec<Option<i64>>; 4],
    slots: Vec<i32>,
    bursts: Vec<Option<i32>>,
}
