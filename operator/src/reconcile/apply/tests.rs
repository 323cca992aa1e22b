//! Secrets that change under a pass, before an API server of a few lines.

use super::super::Disposition;
use super::super::status::tests::resting;
use super::*;
use crate::build::Installation;
use crate::metrics::Metrics;
use crate::nodes::grpc::GrpcNodes;
use crate::plan::plan;
use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const NODE: &str = "hlr-node-tls";

/// Stored Secrets by name. An apply is held to the UID and the version it carries, as by the real
/// server.
#[derive(Clone, Default)]
struct Server {
    stored: Arc<Mutex<BTreeMap<String, Json>>>,
}

impl Server {
    fn context(&self) -> Context {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        let installation = Installation {
            image: "image".to_owned(),
            image_pull_policy: "Never".to_owned(),
            cluster_domain: "cluster.local".to_owned(),
        };
        Context::new(
            kube::Client::new(service, "telecom"),
            Arc::new(GrpcNodes::default()),
            installation,
            Metrics::default(),
            Duration::from_secs(10),
        )
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let method = request.method().clone();
        let body = request.into_body().collect_bytes().await.unwrap();
        let mut stored = self.stored.lock().unwrap();
        let (code, answer) = match (method, stored.get(&name)) {
            (Method::GET, None) => status(StatusCode::NOT_FOUND),
            (Method::GET, Some(found)) => (StatusCode::OK, found.clone()),
            (Method::PATCH, found) => {
                let mut applied: Json = serde_json::from_slice(&body).unwrap();
                let fits = ["uid", "resourceVersion"].iter().all(|field| {
                    let wanted = &applied["metadata"][field];
                    wanted.is_null() || found.is_some_and(|f| f["metadata"][field] == *wanted)
                });
                if fits {
                    let version = found.map_or(1, |f| version(f) + 1);
                    applied["metadata"]["resourceVersion"] = version.to_string().into();
                    let uid = found.map_or("made".into(), |f| f["metadata"]["uid"].clone());
                    applied["metadata"]["uid"] = uid;
                    stored.insert(name, applied.clone());
                    (StatusCode::OK, applied)
                } else {
                    status(StatusCode::CONFLICT)
                }
            }
            (method, _) => panic!("{method} {name}"),
        };
        let body = Body::from(serde_json::to_vec(&answer).unwrap());
        Response::builder().status(code).body(body).unwrap()
    }

    fn secrets(&self) -> BTreeMap<String, Secret> {
        let stored = self.stored.lock().unwrap();
        let typed = |json: &Json| serde_json::from_value(json.clone()).unwrap();
        stored.iter().map(|(name, json)| (name.clone(), typed(json))).collect()
    }
}

fn version(stored: &Json) -> u64 {
    stored["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

fn status(code: StatusCode) -> (StatusCode, Json) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code.as_u16(), "reason": code.canonical_reason().unwrap().replace(" ", ""), "message": "no",
    });
    (code, status)
}

/// What a pass over `observed` does to the Secrets.
async fn write(context: &Context, observed: &Observed) -> Result<(), ReconcileError> {
    let plan = plan(observed);
    let secrets = certificates(context, observed, &blueprint(context, observed, &plan))?;
    let writer = Writer { context, observed };
    for secret in secrets {
        writer.secret(secret).await?;
    }
    Ok(())
}

/// A group whose certificates are in force, and a pass that has read them.
async fn read_by_a_pass() -> (Server, Context, Observed) {
    let server = Server::default();
    let context = server.context();
    let mut observed = resting(1);
    write(&context, &observed).await.unwrap();
    observed.certificates = server.secrets();
    assert_eq!(observed.certificates.len(), 5);
    (server, context, observed)
}

#[tokio::test]
async fn a_certificate_deleted_under_a_pass_is_not_put_back_but_issued_again_by_the_next() {
    let (server, context, mut observed) = read_by_a_pass().await;
    let old = server.stored.lock().unwrap().remove(NODE).unwrap();
    let error = write(&context, &observed).await.unwrap_err();
    assert_eq!(error.disposition(), Disposition::Again, "{error:?}");
    assert!(!server.secrets().contains_key(NODE), "the old certificate is back");
    observed.certificates = server.secrets();
    write(&context, &observed).await.unwrap();
    let new = server.stored.lock().unwrap().get(NODE).cloned().unwrap();
    assert_ne!(new["data"]["tls.crt"], old["data"]["tls.crt"]);
    assert_eq!(new["data"]["ca.crt"], old["data"]["ca.crt"]);
}

#[tokio::test]
async fn a_certificate_changed_under_a_pass_keeps_the_change_until_the_next_judges_it() {
    let (server, context, observed) = read_by_a_pass().await;
    {
        let mut stored = server.stored.lock().unwrap();
        let secret = stored.get_mut(NODE).unwrap();
        secret["data"]["tls.crt"] = "bm9uZQ==".into();
        secret["metadata"]["resourceVersion"] = "7".into();
    }
    let error = write(&context, &observed).await.unwrap_err();
    assert_eq!(error.disposition(), Disposition::Again, "{error:?}");
    assert_eq!(server.stored.lock().unwrap()[NODE]["data"]["tls.crt"], "bm9uZQ==");
}

#[tokio::test]
async fn a_certificate_that_appears_under_a_pass_is_left_to_the_next() {
    let (server, context, mut observed) = read_by_a_pass().await;
    observed.certificates.remove(NODE);
    let stored = server.secrets();
    let error = write(&context, &observed).await.unwrap_err();
    assert!(matches!(error, ReconcileError::Changed { .. }), "{error:?}");
    assert_eq!(error.disposition(), Disposition::Again);
    assert_eq!(server.secrets().get(NODE), stored.get(NODE));
}

#[tokio::test]
async fn certificates_that_nobody_touched_are_written_once() {
    let (server, context, observed) = read_by_a_pass().await;
    let before = server.secrets();
    write(&context, &observed).await.unwrap();
    assert_eq!(server.secrets(), before);
}
