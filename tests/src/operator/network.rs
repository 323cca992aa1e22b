//! The operator's way to the API server, which a test can slow down, cut, and listen to.

use anyhow::{Context as _, Result};
use futures::FutureExt;
use http::Request;
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tower::buffer::BufferLayer;
use tower::filter::AsyncFilterLayer;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone, Debug, Default)]
pub struct Network {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    delay_ms: AtomicU64,
    cut: AtomicBool,
    /// Method and path of every request.
    requests: Mutex<Vec<String>>,
}

impl Network {
    /// Every request takes this much longer.
    pub fn slow_down(&self, delay: Duration) {
        let delay = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.inner.delay_ms.store(delay, Ordering::Relaxed);
    }

    /// Requests fail, or pass again.
    pub fn cut(&self, cut: bool) {
        self.inner.cut.store(cut, Ordering::Relaxed);
    }

    pub fn requests(&self) -> Vec<String> {
        self.inner.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A client whose requests go this way.
    pub async fn client(&self) -> Result<Client> {
        let config = Config::infer().await.context("reading KUBECONFIG")?;
        let inner = self.inner.clone();
        let layer = AsyncFilterLayer::new(move |request: Request<Body>| {
            let inner = inner.clone();
            async move {
                let line = format!("{} {}", request.method(), request.uri().path());
                inner.requests.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                let delay = inner.delay_ms.load(Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(delay)).await;
                if inner.cut.load(Ordering::Relaxed) {
                    return Err(BoxError::from("the network is cut"));
                }
                Ok(request)
            }
            .boxed()
        });
        // the filter needs a service that can be cloned
        let shared = BufferLayer::new(1_024);
        Ok(ClientBuilder::try_from(config)?.with_layer(&shared).with_layer(&layer).build())
    }
}
