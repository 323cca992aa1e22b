//! A scene: one namespace with one database, one backend Secret and one `CacheGroup`.

use super::command::{apply, cachectl, kubectl, kubectl_json, setting};
use super::database::Database;
use super::wait::wait_until;
use anyhow::{Context, Result};
use serde_json::Value;
use std::time::Duration;

/// Longest wait for a group to become ready or to settle after a change.
pub const SETTLE: Duration = Duration::from_secs(180);

/// What differs between the groups of the tests.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    pub replicas: u32,
    /// Further lines of the spec, indented by two spaces.
    pub spec: String,
    pub secret: bool,
}

impl Default for GroupOptions {
    fn default() -> Self {
        Self { replicas: 1, spec: String::new(), secret: true }
    }
}

pub struct Scene {
    pub namespace: String,
    pub database: Database,
    keep: bool,
}

impl Scene {
    /// A namespace and a database of `subscribers`, without a group yet.
    pub fn empty(name: &str, subscribers: u64) -> Result<Self> {
        let namespace = format!("e2e-{name}");
        let database = Database::create(&format!("e2e_{}", name.replace('-', "_")), subscribers)?;
        kubectl(&["delete", "namespace", &namespace, "--ignore-not-found", "--timeout=120s"])?;
        kubectl(&["create", "namespace", &namespace])?;
        kubectl(&[
            "label",
            "namespace",
            &namespace,
            "pod-security.kubernetes.io/enforce=restricted",
            "cachetier.dev/e2e=true",
        ])?;
        let keep = std::env::var_os("CACHETIER_E2E_KEEP").is_some();
        Ok(Self { namespace, database, keep })
    }

    /// The same with a group `hlr` applied.
    pub fn with_group(name: &str, subscribers: u64, options: &GroupOptions) -> Result<Self> {
        let scene = Self::empty(name, subscribers)?;
        if options.secret {
            scene.create_secret(&scene.database.uri)?;
        }
        scene.apply_group(options)?;
        Ok(scene)
    }

    /// The same, waited for until it is ready with its preload complete.
    pub fn ready(name: &str, subscribers: u64, options: &GroupOptions) -> Result<Self> {
        let scene = Self::with_group(name, subscribers, options)?;
        scene.wait_ready(options.replicas)?;
        Ok(scene)
    }

    pub fn create_secret(&self, uri: &str) -> Result<()> {
        let manifest = format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: hlr-backend, namespace: {}}}\n\
             stringData: {{uri: \"{uri}\"}}\n",
            self.namespace
        );
        apply(&manifest).map(drop)
    }

    pub fn apply_group(&self, options: &GroupOptions) -> Result<()> {
        apply(&self.manifest(options)).map(drop)
    }

    pub fn manifest(&self, options: &GroupOptions) -> String {
        format!(
            "apiVersion: cachetier.dev/v1alpha1
kind: CacheGroup
metadata: {{name: hlr, namespace: {}}}
spec:
  replicas: {}
  backend: {{postgres: {{secretRef: {{name: hlr-backend}}}}}}
  tables:
  - {{name: subscriber, lookupKeys: [[sub_nbr]]}}
  - {{name: access_info, parent: subscriber}}
  - {{name: special_facility, parent: subscriber}}
  - {{name: call_forwarding, parent: special_facility}}
  memory: {{capacity: 256Mi}}
  preload: {{mode: BeforeReady, parallelism: 1}}
{}{}",
            self.namespace,
            options.replicas,
            if options.spec.contains("journal:") {
                ""
            } else {
                "  journal: {volume: {storageClassName: local, size: 512Mi}}\n"
            },
            options.spec
        )
    }

    pub fn group(&self) -> Result<Value> {
        kubectl_json(&["-n", &self.namespace, "get", "cachegroup", "hlr"])
    }

    pub fn pods(&self) -> Result<Vec<Value>> {
        let list = kubectl_json(&[
            "-n",
            &self.namespace,
            "get",
            "pods",
            "-l",
            "app.kubernetes.io/component=cache-node",
        ])?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    pub fn scale(&self, replicas: u32) -> Result<()> {
        let replicas = format!("--replicas={replicas}");
        kubectl(&["-n", &self.namespace, "scale", "cg/hlr", &replicas]).map(drop)
    }

    /// The status of a condition and its message.
    pub fn condition(&self, kind: &str) -> Result<Option<(String, String, String)>> {
        let group = self.group()?;
        let conditions = group["status"]["conditions"].as_array().cloned().unwrap_or_default();
        Ok(conditions.iter().find(|c| c["type"] == kind).map(|c| {
            let text = |key: &str| c[key].as_str().unwrap_or_default().to_owned();
            (text("status"), text("reason"), text("message"))
        }))
    }

    /// Waits until a condition has this status; answers its reason and message.
    pub fn wait_condition(&self, kind: &str, status: &str) -> Result<(String, String)> {
        wait_until(&format!("condition {kind}={status}"), SETTLE, || {
            Ok(self.condition(kind)?.filter(|c| c.0 == status).map(|c| (c.1, c.2)))
        })
        .with_context(|| self.describe())
    }

    /// Ready for the current generation, with all replicas, everything preloaded, no slot moving.
    pub fn wait_ready(&self, replicas: u32) -> Result<()> {
        wait_until(&format!("group ready with {replicas} nodes"), SETTLE, || {
            let group = self.group()?;
            let status = &group["status"];
            let is = |kind: &str| {
                status["conditions"].as_array().is_some_and(|all| {
                    all.iter().any(|c| c["type"] == kind && c["status"] == "True")
                })
            };
            let ready = status["readyReplicas"].as_u64() == Some(u64::from(replicas))
                && status["replicas"].as_u64() == Some(u64::from(replicas))
                && status["observedGeneration"] == group["metadata"]["generation"]
                && is("Ready")
                && is("Preloaded");
            if ready { Ok(Some(())) } else { anyhow::bail!("status is {status}") }
        })
        .with_context(|| self.describe())
    }

    /// `cachectl` against this group, through the API server.
    pub fn cachectl(&self, arguments: &[&str]) -> Result<String> {
        let mut all = vec!["-n", &self.namespace, "-g", "hlr"];
        all.extend_from_slice(arguments);
        cachectl(&all)
    }

    /// Proves that cache and backend hold the same rows; answers how many were compared.
    pub fn compare(&self) -> Result<u64> {
        let text = self.cachectl(&["compare", "-o", "json"])?;
        let report: Value = serde_json::from_str(&text)?;
        anyhow::ensure!(report["differences"] == 0, "cache and backend differ: {report}");
        report["rows"].as_u64().context("the report has no rows")
    }

    fn describe(&self) -> String {
        let pods = kubectl(&["-n", &self.namespace, "get", "pods,jobs,pvc", "-o", "wide"]);
        let group = kubectl(&["-n", &self.namespace, "describe", "cachegroup", "hlr"]);
        format!("{}\n{}", pods.unwrap_or_default(), group.unwrap_or_default())
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if self.keep || std::thread::panicking() && setting("CACHETIER_E2E_KEEP").is_ok() {
            return;
        }
        let removed =
            kubectl(&["delete", "namespace", &self.namespace, "--timeout=120s"]).map(drop);
        if let Err(error) = removed {
            eprintln!("namespace {} was left behind: {error:#}", self.namespace);
        }
    }
}
