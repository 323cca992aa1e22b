//! The admin endpoint: `/metrics`, `/livez` and `/readyz` over plain HTTP.
//!
//! Must never carry subscriber data or change anything: it is readable by
//! everybody who reaches the port. The figures come from the binary's registry and its two probes.

use crate::port::{Port, PortError};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::get};
use prometheus_client::registry::Registry;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// `Ok`, or one sentence that says what is missing.
type Probe = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    #[error(transparent)]
    Port(#[from] PortError),
    #[error("the admin endpoint stopped")]
    Serve(#[source] std::io::Error),
}

/// What the endpoint answers with.
#[derive(Clone)]
pub struct AdminEndpoint {
    registry: Arc<Registry>,
    live: Probe,
    ready: Probe,
}

impl AdminEndpoint {
    pub fn new(registry: Arc<Registry>) -> Self {
        Self { registry, live: Arc::new(|| Ok(())), ready: Arc::new(|| Ok(())) }
    }

    /// `/livez`: an error makes the kubelet replace the process.
    #[must_use]
    pub fn live(mut self, probe: impl Fn() -> Result<(), String> + Send + Sync + 'static) -> Self {
        self.live = Arc::new(probe);
        self
    }

    /// `/readyz`: an error takes the process out of its Service.
    #[must_use]
    pub fn ready(mut self, probe: impl Fn() -> Result<(), String> + Send + Sync + 'static) -> Self {
        self.ready = Arc::new(probe);
        self
    }

    /// Opens the port and answers until `shutdown` is cancelled. Connections are not waited for.
    pub async fn serve(self, port: Port, shutdown: CancellationToken) -> Result<(), AdminError> {
        let listener = port.open()?;
        let router = Router::new()
            .route("/metrics", get(metrics))
            .route("/livez", get(livez))
            .route("/readyz", get(readyz))
            .with_state(self);
        tokio::select! {
            served = async { axum::serve(listener, router).await } => {
                served.map_err(AdminError::Serve)
            }
            () = shutdown.cancelled() => Ok(()),
        }
    }
}

async fn metrics(State(endpoint): State<AdminEndpoint>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &endpoint.registry) {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn livez(State(endpoint): State<AdminEndpoint>) -> Response {
    answer((endpoint.live)())
}

async fn readyz(State(endpoint): State<AdminEndpoint>) -> Response {
    answer((endpoint.ready)())
}

fn answer(probe: Result<(), String>) -> Response {
    match probe {
        Ok(()) => "ok\n".into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::metrics::counter::Counter;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn probes_and_metrics_answer_over_http() {
        let mut registry = Registry::default();
        let counter: Counter = Counter::default();
        registry.register("things", "Things counted", counter.clone());
        counter.inc();
        let token = CancellationToken::new();
        let endpoint = AdminEndpoint::new(Arc::new(registry))
            .ready(|| Err("slots are being taken over".to_owned()));
        let port = Port::take("127.0.0.1:0").await.unwrap();
        let address = port.address();
        let served = tokio::spawn(endpoint.serve(port, token.clone()));
        while tokio::net::TcpStream::connect(address).await.is_err() {
            tokio::task::yield_now().await;
        }
        assert!(get(address, "/livez").await.starts_with("HTTP/1.1 200"));
        let ready = get(address, "/readyz").await;
        assert!(ready.starts_with("HTTP/1.1 503") && ready.contains("taken over"), "{ready}");
        assert!(get(address, "/metrics").await.contains("things_total 1"));
        token.cancel();
        served.await.unwrap().unwrap();
    }
}
