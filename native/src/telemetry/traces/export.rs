//! Sends spans to a collector, by OTLP over HTTP, from a separate thread.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use reqwest::Client;
use tokio::runtime::Handle;

use super::span::TRACER;
use crate::config::ConfigError;
use crate::config::traces::Traces;
use crate::http_client;

/// Time limit for sending the last spans at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Exports until [`Export::finish`].
#[derive(Debug)]
pub struct Export(SdkTracerProvider);

/// Starts the export. Must be called in a Tokio runtime, once per process.
///
/// # Errors
///
/// When the exporter rejects the environment's settings.
pub fn start(traces: &Traces) -> Result<Export, ConfigError> {
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Sender::new(traces.timeout))
        .with_timeout(traces.timeout)
        .build()
        .map_err(|error| ConfigError {
            faults: vec![format!("traces cannot be exported: {error}")],
        })?;
    let mut resource =
        Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    if !traces.is_named {
        resource = resource.with_service_name("weir");
    }
    // `OTEL_TRACES_SAMPLER` selects the sampler.
    let provider = SdkTracerProvider::builder()
        .with_resource(resource.build())
        .with_batch_exporter(exporter)
        .build();
    // A second start keeps the first tracer.
    let _ = TRACER.set(provider.tracer("weir"));
    tracing::info!("exporting traces");
    Ok(Export(provider))
}

impl Export {
    /// Sends the remaining spans.
    pub async fn finish(self) {
        // It blocks until the exporter's thread is done, and that thread needs this runtime to send.
        let finished = tokio::task::spawn_blocking(move || self.0.shutdown_with_timeout(SHUTDOWN_TIMEOUT));
        if let Ok(Err(error)) = finished.await {
            tracing::warn!(%error, "the last traces could not be exported");
        }
    }
}

/// The exporter's thread has no runtime, which `reqwest` needs. So the sender uses the process's runtime.
struct Sender {
    client: Client,
    runtime: Handle,
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

impl Sender {
    fn new(timeout: Duration) -> Self {
        Self {
            client: http_client::build(|builder| builder.timeout(timeout)),
            runtime: Handle::current(),
        }
    }
}

#[async_trait]
impl HttpClient for Sender {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let sent = self.runtime.spawn(async move {
            let mut answer = client.execute(request.try_into()?).await?;
            let mut response = Response::builder().status(answer.status());
            if let Some(headers) = response.headers_mut() {
                std::mem::swap(headers, answer.headers_mut());
            }
            Ok::<_, HttpError>(response.body(answer.bytes().await?)?)
        });
        let answer = sent.await.map_err(HttpError::from).flatten();
        // The exporter itself does not log this. An unavailable collector costs only the traces.
        match &answer {
            Ok(response) if response.status().is_success() => {}
            Ok(response) => tracing::warn!(
                status = response.status().as_u16(),
                "the collector rejected traces"
            ),
            Err(error) => tracing::warn!(%error, "traces could not be exported"),
        }
        answer
    }
}
