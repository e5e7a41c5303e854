//! Files with an unknown member.

use toml::{Table, Value};

/// No name in a services file has a space.
const STRANGER: &str = "a stranger";

/// Copies of the table with an unknown member, one in the table and one in each nested table. `args` allows any member.
pub fn with_one(table: &Table) -> Vec<Table> {
    let others = table.iter().filter(|(name, _)| *name != "args");
    let deeper = others.flat_map(|(name, value)| {
        inside(value).into_iter().map(move |value| {
            let mut table = table.clone();
            table.insert(name.clone(), value);
            table
        })
    });
    let mut itself = table.clone();
    itself.insert(STRANGER.to_owned(), Value::Integer(1));
    deeper.chain([itself]).collect()
}

fn inside(value: &Value) -> Vec<Value> {
    match value {
        Value::Table(table) => with_one(table).into_iter().map(Value::Table).collect(),
        Value::Array(values) => {
            let changed = values.iter().enumerate().flat_map(|(at, value)| {
                inside(value).into_iter().map(move |value| {
                    let mut values = values.clone();
                    values[at] = value;
                    Value::Array(values)
                })
            });
            changed.collect()
        }
        _ => Vec::new(),
    }
}
