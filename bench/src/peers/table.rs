//! A table with a column for each program. Each cell has the number and its ratio to Weir's.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};

use super::super::report::Line;
use super::measure::Number;

/// A measurement of all programs, as a row.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) unit: &'static str,
    /// In the order of the programs, Weir first. `None` if there is nothing to measure.
    pub(super) numbers: Vec<Option<Number>>,
}

/// A row of these numbers.
pub(super) fn row(name: impl Into<String>, unit: &'static str, numbers: Vec<Option<Number>>) -> Row {
    Row {
        name: name.into(),
        unit,
        numbers,
    }
}

/// The conditions and the results.
pub(crate) struct Field {
    pub(super) conditions: Vec<String>,
    pub(super) programs: Vec<String>,
    pub(super) rows: Vec<Row>,
}

impl Field {
    /// As a table for people.
    #[must_use]
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        for condition in &self.conditions {
            let _ = writeln!(text, "{condition}");
        }
        let mut table = Table::new();
        table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
        let mut header = vec![String::new(), "unit".to_owned()];
        header.extend(self.programs.iter().cloned());
        table.set_header(header);
        for row in &self.rows {
            let mut cells = vec![row.name.clone(), row.unit.to_owned()];
            cells.extend((0..self.programs.len()).map(|place| row.cell(place)));
            table.add_row(cells);
        }
        for column in 2..self.programs.len() + 2 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let _ = writeln!(
            text,
            "{table}\nIn brackets: how many times Weir's number; > where patience ended before."
        );
        text
    }

    /// Weir against each of the others, in a machine-readable form.
    #[must_use]
    pub(crate) fn lines(&self) -> Vec<Line> {
        let mut lines = Vec::new();
        for row in &self.rows {
            let Some(Some(weir)) = row.numbers.first() else {
                continue;
            };
            for (program, number) in self.programs.iter().zip(&row.numbers).skip(1) {
                let Some(number) = number else { continue };
                let least = if matches!(number, Number::Above(_)) {
                    ", at least"
                } else {
                    ""
                };
                let name = format!("{}, against {program}{least}", row.name);
                lines.push(Line::compared(name, weir.value(), number.value(), row.unit));
            }
        }
        lines
    }
}

impl Row {
    fn cell(&self, place: usize) -> String {
        let Some(Some(number)) = self.numbers.get(place) else {
            return "–".to_owned();
        };
        let more = if matches!(number, Number::Above(_)) {
            "> "
        } else {
            ""
        };
        let value = rounded(number.value());
        match self.numbers.first() {
            Some(Some(weir)) if place > 0 && weir.value() > 0.0 => {
                format!("{more}{value} ({})", rounded(number.value() / weir.value()))
            }
            _ => format!("{more}{value}"),
        }
    }
}

/// Rounded to three digits.
fn rounded(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 0.1 || value == 0.0 => format!("{value:.2}"),
        value => format!("{value:.4}"),
    }
}
