//! Progress on a program's standard error: lines such as `weir:progress 0.4 page 4 of 10`.

use weir_ledger::attempts::Progress;

/// The prefix of such a line.
const MARK: &[u8] = b"weir:progress ";

/// A longer line is not about progress.
const MAX_LINE: usize = MARK.len() + 32 + Progress::MAX_MESSAGE;

/// Extracts the lines about progress from a stream that arrives in pieces.
#[derive(Default)]
pub(super) struct ProgressLines {
    /// The start of a line that may be about progress.
    line: Vec<u8>,
    /// Whether the current line is not about progress.
    passes: bool,
}

impl ProgressLines {
    /// Appends the next piece to `rest` without its lines about progress. Returns the last progress in it.
    pub(super) fn take(&mut self, piece: &[u8], rest: &mut Vec<u8>) -> Option<Progress> {
        let mut last = None;
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            let ends = part.ends_with(b"\n");
            if self.passes {
                rest.extend_from_slice(part);
            } else {
                self.line.extend_from_slice(part);
                let common = self.line.len().min(MARK.len());
                if self.line[..common] != MARK[..common] || self.line.len() > MAX_LINE {
                    rest.append(&mut self.line);
                    self.passes = true;
                } else if ends {
                    match progress(&self.line) {
                        Some(progress) => last = Some(progress),
                        None => rest.extend_from_slice(&self.line),
                    }
                    self.line.clear();
                }
            }
            if ends {
                self.passes = false;
            }
        }
        last
    }

    /// Ends the stream: an incomplete line is not about progress.
    pub(super) fn end(mut self, rest: &mut Vec<u8>) {
        rest.append(&mut self.line);
    }
}

fn progress(line: &[u8]) -> Option<Progress> {
    let text = std::str::from_utf8(line.strip_prefix(MARK)?).ok()?.trim();
    let (fraction, message) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let progress = Progress {
        fraction: fraction.parse().ok()?,
        message: Some(message.trim().to_owned()).filter(|message| !message.is_empty()),
    };
    // PostgreSQL cannot store this character.
    let is_storable = !text.contains('\0');
    (is_storable && progress.check().is_ok()).then_some(progress)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rest of a text read in pieces of this size, and the progress in it.
    fn of(text: &str, size: usize) -> (String, Vec<(f64, Option<String>)>) {
        let (mut lines, mut rest, mut reported) = (ProgressLines::default(), Vec::new(), Vec::new());
        for piece in text.as_bytes().chunks(size) {
            reported.extend(lines.take(piece, &mut rest));
        }
        lines.end(&mut rest);
        let reported = reported
            .into_iter()
            .map(|reported| (reported.fraction, reported.message));
        (String::from_utf8(rest).unwrap(), reported.collect())
    }

    #[test]
    fn progress_lines_are_removed_for_any_chunking() {
        let text =
            "warning: slow\nweir:progress 0.25 2 of 8 장\nweir:progress 1\r\nerror: weir:progress 0.5\nend";
        for size in [1, 2, 7, 14] {
            let (rest, reported) = of(text, size);
            assert_eq!(rest, "warning: slow\nerror: weir:progress 0.5\nend", "{size}");
            assert_eq!(
                reported,
                [(0.25, Some("2 of 8 장".to_owned())), (1.0, None)],
                "{size}"
            );
        }
        assert_eq!(of(text, 1000).1, [(1.0, None)], "the last of a piece");
    }

    #[test]
    fn other_lines_are_kept() {
        for line in [
            "weir:progress",
            "weir:progress x\n",
            "weir:progress 2\n",
            "weir:progress -1\n",
        ] {
            assert_eq!(of(line, 3), (line.to_owned(), vec![]));
        }
        for line in [
            "weir:progress NaN\n",
            "weir:progress inf\n",
            "weir:progress 0.5 a\0b\n",
            "weir:progress 0.5",
        ] {
            assert_eq!(of(line, 3), (line.to_owned(), vec![]));
        }
        let long = format!("weir:progress 0.5 {}\nweir:progress 0.75\n", "x".repeat(5000));
        let (rest, reported) = of(&long, 64);
        assert_eq!((rest.len(), reported), (5000 + 19, vec![(0.75, None)]));
    }
}
