//! A table of the services file. Its members are read one by one, so that all its errors are reported together, each
//! with its line.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::{Spanned, Value};
use weir_policy::misspelling::suggestion;

use super::variables::Reader;
use super::wording::reword;

/// The members as written in the file.
pub(super) type Members = BTreeMap<Spanned<String>, Spanned<Value>>;

/// The text of a file, for finding the line of a member.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) path: &'a std::path::Path,
    pub(super) text: &'a str,
}

impl Source<'_> {
    fn line(self, span: &Range<usize>) -> usize {
        let before = self.text.as_bytes().iter().take(span.start);
        1 + before.filter(|byte| **byte == b'\n').count()
    }

    /// Such as `weir.toml, line 12`.
    pub(super) fn place(self, span: Option<Range<usize>>) -> String {
        let path = self.path.display();
        span.map_or_else(
            || path.to_string(),
            |span| format!("{path}, line {}", self.line(&span)),
        )
    }
}

/// One `[[service]]` or `[[periodic]]`.
pub(super) struct Table<'a> {
    source: Source<'a>,
    /// The table's kind in the file.
    kind: &'static str,
    /// The table's name, if it is known.
    name: Option<String>,
    span: Range<usize>,
    members: Members,
    /// The members read so far, with their positions.
    read: Vec<(&'static str, Option<Range<usize>>)>,
}

impl<'a> Table<'a> {
    /// `naming` is the member that holds the table's name.
    pub(super) fn new(
        source: Source<'a>,
        kind: &'static str,
        naming: &str,
        members: Spanned<Members>,
    ) -> Self {
        let span = members.span();
        let members = members.into_inner();
        let name = members
            .get(naming)
            .and_then(|name| name.get_ref().as_str())
            .map(str::to_owned);
        Self {
            source,
            kind,
            name,
            span,
            members,
            read: Vec::new(),
        }
    }

    /// Reports an error at a member, or at the table if it lacks that member.
    pub(super) fn fault(&self, reader: &mut Reader<'_>, member: &str, fault: &str) {
        let span = self
            .read
            .iter()
            .find_map(|(name, span)| (*name == member).then(|| span.clone()).flatten());
        self.fault_at(reader, span.unwrap_or_else(|| self.span.clone()), fault);
    }

    fn fault_at(&self, reader: &mut Reader<'_>, span: Range<usize>, fault: &str) {
        let name = self
            .name
            .as_ref()
            .map_or(String::new(), |name| format!(" {name:?}"));
        let place = self.source.place(Some(span));
        reader.fault(format!("{place}, {}{name}: {fault}", self.kind));
    }

    /// Whether the table has a member that was not read yet.
    pub(super) fn has(&self, member: &str) -> bool {
        self.members.contains_key(member)
    }

    /// Reads an optional member. Returns `None` and reports an error if the member is invalid.
    pub(super) fn take<T: DeserializeOwned>(
        &mut self,
        reader: &mut Reader<'_>,
        member: &'static str,
    ) -> Option<T> {
        let value = self.members.remove(member);
        let span = value.as_ref().map(Spanned::span);
        self.read.push((member, span.clone()));
        if value.as_ref().is_some_and(|value| has_nul(value.get_ref())) {
            let fault = format!("{member}: it must not contain a NUL character");
            self.fault(reader, member, &fault);
            return None;
        }
        T::deserialize(value?.into_inner())
            .map_err(|error| {
                let fault = format!("{member}: {}", reword(error.message()));
                self.fault(reader, member, &fault);
            })
            .ok()
    }

    /// Reads a required member.
    pub(super) fn need<T: DeserializeOwned>(
        &mut self,
        reader: &mut Reader<'_>,
        member: &'static str,
    ) -> Option<T> {
        if !self.has(member) {
            self.read.push((member, None));
            self.fault(reader, member, &format!("missing member {member}"));
            return None;
        }
        self.take(reader, member)
    }

    /// Reads a member that is required unless `is_optional`.
    pub(super) fn need_unless<T: DeserializeOwned>(
        &mut self,
        reader: &mut Reader<'_>,
        member: &'static str,
        is_optional: bool,
    ) -> Option<T> {
        if is_optional {
            self.take(reader, member)
        } else {
            self.need(reader, member)
        }
    }

    /// Reports the remaining members as unknown.
    pub(super) fn rest(&self, reader: &mut Reader<'_>) {
        let known: Vec<&str> = self.read.iter().map(|(name, _)| *name).collect();
        for member in self.members.keys() {
            let name = member.get_ref();
            let instead = match suggestion(name, known.iter().copied()) {
                Some(meant) => format!("did you mean {meant}?"),
                None => format!("expected one of {}", known.join(", ")),
            };
            self.fault_at(
                reader,
                member.span(),
                &format!("unknown member {name}; {instead}"),
            );
        }
    }
}

fn has_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(values) => values.iter().any(has_nul),
        Value::Table(members) => members
            .iter()
            .any(|(name, value)| name.contains('\0') || has_nul(value)),
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_) => false,
    }
}
