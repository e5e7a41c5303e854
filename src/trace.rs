//! The trace context of a request (W3C Trace Context).

/// The trace context that is forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    /// The `traceparent` header for the origin: the client's trace, if it sent one, with the edge as parent.
    pub(crate) traceparent: String,
    /// Whether the trace is the client's, so that its `tracestate` is forwarded too.
    pub(crate) continued: bool,
}

impl Trace {
    /// The trace context of the request with this id, a UUID, from which the ids of trace and span are taken.
    pub(crate) fn new(uuid: &str, incoming: Option<&str>) -> Self {
        let digits: String = uuid.chars().filter(char::is_ascii_hexdigit).collect();
        let span = digits.get(16..32).unwrap_or("00f067aa0ba902b7");
        let (traceparent, continued) = match incoming.and_then(parse) {
            Some((trace, flags)) => (format!("00-{trace}-{span}-{flags}"), true),
            None => (format!("00-{digits}-{span}-01"), false),
        };
        Self {
            traceparent,
            continued,
        }
    }
}

/// The trace id and the flags of a valid `traceparent`.
fn parse(header: &str) -> Option<(&str, &str)> {
    let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_set = |text: &str| text.bytes().any(|byte| byte != b'0');
    let mut parts = header.split('-');
    let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    // Only a later version may have more parts.
    let known = version.len() == 2
        && is_hex(version)
        && version != "ff"
        && (version != "00" || parts.next().is_none());
    let valid = trace.len() == 32 && parent.len() == 16 && flags.len() == 2;
    let hex = is_hex(trace) && is_hex(parent) && is_hex(flags);
    (known && valid && hex && is_set(trace) && is_set(parent)).then_some((trace, flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "0af76519-16cd-43dd-8448-eb211c80319c";

    fn traceparent(incoming: Option<&str>) -> String {
        Trace::new(UUID, incoming).traceparent
    }

    #[test]
    fn a_request_without_a_trace_starts_one() {
        assert_eq!(
            traceparent(None),
            "00-0af7651916cd43dd8448eb211c80319c-8448eb211c80319c-01"
        );
    }

    #[test]
    fn a_valid_trace_is_continued_with_the_edge_as_parent() {
        let incoming = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        assert_eq!(
            traceparent(Some(incoming)),
            "00-4bf92f3577b34da6a3ce929d0e0e4736-8448eb211c80319c-00"
        );
    }

    #[test]
    fn an_invalid_trace_is_replaced() {
        for incoming in [
            "",
            "00",
            "00-xyz",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-more",
        ] {
            assert!(!Trace::new(UUID, Some(incoming)).continued, "{incoming}");
        }
    }
}
