//! Byte streams to pods through the API server's port-forward.

use cachetier_client::{BoxedStream, Transport};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use std::io;

/// Opens a port-forward per connection. The pod is the first label of the address's host.
pub struct PodForward {
    pods: Api<Pod>,
}

impl PodForward {
    pub fn new(pods: Api<Pod>) -> Self {
        Self { pods }
    }
}

impl Transport for PodForward {
    fn open<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<BoxedStream>> {
        Box::pin(async move {
            let (pod, port) = pod_and_port(address).ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidInput, "not the address of a pod")
            })?;
            let mut forward =
                self.pods.portforward(pod, &[port]).await.map_err(io::Error::other)?;
            let stream = forward
                .take_stream(port)
                .ok_or_else(|| io::Error::other("the port-forward gave no stream"))?;
            // The forwarder copies until the stream ends; its end is seen on the stream.
            tokio::spawn(async move {
                let _ = forward.join().await;
            });
            Ok(Box::new(stream) as BoxedStream)
        })
    }
}

fn pod_and_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    Some((host.split('.').next()?, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pod_is_the_first_label_of_its_name() {
        let address = "hlr-0.hlr-nodes.telecom.svc:7070";
        assert_eq!(pod_and_port(address), Some(("hlr-0", 7070)));
        assert_eq!(pod_and_port("hlr-0"), None);
    }
}
