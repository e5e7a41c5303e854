//! The `OTEL_` variables. The exporter reads them itself, but treats an invalid one as absent; here it is an error.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use reqwest::Url;

use super::variables::Reader;

/// OpenTelemetry's default.
const TIMEOUT: u64 = 10_000;

/// How traces are exported, in addition to the exporter's own variables.
#[derive(Clone, Debug)]
pub struct Traces {
    /// Whether `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` names the service.
    pub is_named: bool,
    /// `OTEL_EXPORTER_OTLP_TIMEOUT`: how long one export may take.
    pub timeout: Duration,
}

/// The settings in the variables; `None` without an endpoint.
pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Traces> {
    let mut endpoints = Vec::new();
    for name in [
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    ] {
        let wants = "a URL such as http://127.0.0.1:4318";
        endpoints.push(reader.parsed(name, None, wants, |text| {
            let url = Url::parse(text).ok()?;
            (matches!(url.scheme(), "http" | "https") && url.has_host()).then_some(Some(url))
        }));
    }
    for name in [
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    ] {
        reader.parsed(name, (), "http/protobuf, the only supported protocol", |text| {
            (text == "http/protobuf").then_some(())
        });
    }
    for name in [
        "OTEL_EXPORTER_OTLP_COMPRESSION",
        "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
    ] {
        reader.parsed(name, (), "none, because compression is not supported", |text| {
            (text == "none").then_some(())
        });
    }
    for name in ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"] {
        // The message omits the value, because headers contain keys.
        if reader.text(name).is_some_and(|text| !are_headers(text)) {
            reader.fault(format!("{name} is not a list such as api-key=secret,tenant=weir"));
        }
    }
    let milliseconds = |text: &str| text.parse().ok().filter(|number| *number > 0);
    let wants = "a whole number of milliseconds of at least 1";
    let timeout = reader.parsed("OTEL_EXPORTER_OTLP_TIMEOUT", TIMEOUT, wants, milliseconds);
    let timeout = reader.parsed("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", timeout, wants, milliseconds);
    for name in [
        "SCHEDULE_DELAY",
        "EXPORT_TIMEOUT",
        "MAX_QUEUE_SIZE",
        "MAX_EXPORT_BATCH_SIZE",
    ] {
        reader.positive(&format!("OTEL_BSP_{name}"), 1, u32::MAX);
    }
    sampler(reader);
    let is_disabled = reader.parsed("OTEL_SDK_DISABLED", false, "true or false", |text| {
        text.to_ascii_lowercase().parse().ok()
    });
    let attributes = reader.parsed(
        "OTEL_RESOURCE_ATTRIBUTES",
        String::new(),
        "a list such as host.name=a,tenant=b",
        |text| {
            let is_pair = |pair: &str| {
                pair.split_once('=')
                    .is_some_and(|(name, _)| !name.trim().is_empty())
            };
            text.split_terminator(',').all(is_pair).then_some(text.to_owned())
        },
    );
    let is_named = reader.text("OTEL_SERVICE_NAME").is_some()
        || attributes
            .split(',')
            .any(|attribute| attribute.trim().starts_with("service.name="));
    let has_endpoint = endpoints.iter().any(Option::is_some);
    (has_endpoint && !is_disabled).then(|| Traces {
        is_named,
        timeout: Duration::from_millis(timeout),
    })
}

fn are_headers(text: &str) -> bool {
    text.split_terminator(',').all(|header| {
        header.split_once('=').is_some_and(|(name, value)| {
            HeaderName::try_from(name.trim()).is_ok()
                && HeaderValue::try_from(value.trim()).is_ok_and(|value| !value.is_empty())
        })
    })
}

fn sampler(reader: &mut Reader<'_>) {
    const NAMES: [&str; 6] = [
        "always_on",
        "always_off",
        "traceidratio",
        "parentbased_always_on",
        "parentbased_always_off",
        "parentbased_traceidratio",
    ];
    let wants = format!("one of {}", NAMES.join(", "));
    let sampler = reader.parsed("OTEL_TRACES_SAMPLER", NAMES[3], &wants, |text| {
        NAMES.into_iter().find(|name| *name == text)
    });
    let ratio = reader.parsed("OTEL_TRACES_SAMPLER_ARG", None, "a number from 0 to 1", |text| {
        text.parse::<f64>()
            .ok()
            .filter(|ratio| (0.0..=1.0).contains(ratio))
            .map(Some)
    });
    if sampler.ends_with("traceidratio") && ratio.is_none() {
        reader.fault(format!(
            "OTEL_TRACES_SAMPLER is {sampler:?}, so OTEL_TRACES_SAMPLER_ARG must be a number from 0 to 1"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::variables::Variables;

    fn read_from(pairs: &[(&str, &str)]) -> (Option<Traces>, Vec<String>) {
        let variables: Variables = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let mut reader = Reader::new(&variables);
        let traces = read(&mut reader);
        (traces, reader.into_faults())
    }

    #[test]
    fn traces_are_not_exported_without_an_endpoint() {
        let (traces, faults) = read_from(&[
            ("OTEL_SERVICE_NAME", "weir"),
            ("OTEL_TRACES_SAMPLER", "always_on"),
        ]);
        assert!(traces.is_none() && faults.is_empty(), "{faults:?}");
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");
        assert!(read_from(&[endpoint]).0.is_some());
        assert!(read_from(&[endpoint, ("OTEL_SDK_DISABLED", "true")]).0.is_none());
    }

    #[test]
    fn invalid_settings_are_errors_that_omit_secrets() {
        let wrong = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "hunter2"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
            ("OTEL_BSP_SCHEDULE_DELAY", "5s"),
            ("OTEL_RESOURCE_ATTRIBUTES", "tenant"),
            ("OTEL_TRACES_SAMPLER", "sometimes"),
            ("OTEL_TRACES_SAMPLER_ARG", "2"),
            ("OTEL_SDK_DISABLED", "maybe"),
        ];
        let (_, faults) = read_from(&wrong);
        assert_eq!(faults.len(), wrong.len(), "{faults:?}");
        for (name, _) in wrong {
            assert!(
                faults.iter().any(|fault| fault.starts_with(name)),
                "{name}: {faults:?}"
            );
        }
        assert!(!faults.concat().contains("hunter2"));
    }

    #[test]
    fn a_ratio_needs_a_number() {
        let ratio = ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio");
        assert_eq!(read_from(&[ratio]).1.len(), 1);
        assert!(
            read_from(&[ratio, ("OTEL_TRACES_SAMPLER_ARG", "0.1")])
                .1
                .is_empty()
        );
    }
}
