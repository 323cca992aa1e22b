//! One test's stage: a namespace, the operator, the played controllers.

use super::controllers::{self, Play};
use super::network::Network;
use super::scripted::ScriptedNodes;
use crate::local::eventually;
use anyhow::{Context as _, Result, ensure};
use cachetier_api::crd;
use cachetier_api::v1alpha1::CacheGroup;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Config, ResourceExt};
use operator::build::Installation;
use operator::controller::{self, Scope};
use operator::metrics::Metrics;
use operator::reconcile::Context;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Longest wait for anything here; a machine that builds beside the tests is slow.
pub const LIMIT: Duration = Duration::from_secs(60);
/// How long nothing may change for a group to count as quiet.
pub const QUIET: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_secs(1);
/// Kinds of children whose changes are looked for.
const KINDS: [(&str, &str, &str); 8] = [
    ("apps", "v1", "StatefulSet"),
    ("", "v1", "Service"),
    ("", "v1", "ConfigMap"),
    ("", "v1", "Secret"),
    ("", "v1", "ServiceAccount"),
    ("policy", "v1", "PodDisruptionBudget"),
    ("batch", "v1", "Job"),
    ("cachetier.dev", "v1alpha1", "CacheGroup"),
];

pub struct Stage {
    pub client: Client,
    pub namespace: String,
    pub nodes: ScriptedNodes,
    pub metrics: Metrics,
    /// The operator's way to the API server.
    pub network: Network,
    /// Image that the operator gives to pods.
    pub image: String,
    /// Time between two looks at a group that is at rest.
    pub poll: Duration,
    play: watch::Sender<Play>,
    player: JoinHandle<()>,
    operator: Option<(CancellationToken, JoinHandle<()>)>,
}

/// The shortest valid group.
pub fn minimal_group(replicas: u32) -> Value {
    json!({
        "apiVersion": "cachetier.dev/v1alpha1",
        "kind": "CacheGroup",
        "metadata": {"name": "hlr"},
        "spec": {
            "replicas": replicas,
            "backend": {"postgres": {"secretRef": {"name": "hlr-backend"}}},
            "tables": [{"name": "subscriber", "lookupKeys": [["sub_nbr"]]}],
            "journal": {"volume": {"storageClassName": "local"}},
        },
    })
}

impl Stage {
    /// A namespace with a backend Secret, the played controllers, and the operator.
    pub async fn start(name: &str) -> Result<Self> {
        let mut stage = Self::without_operator(name).await?;
        stage.create_secret().await?;
        stage.start_operator().await?;
        Ok(stage)
    }

    pub async fn without_operator(name: &str) -> Result<Self> {
        let client = client().await?;
        install_definition(&client).await?;
        let unique = uuid::Uuid::new_v4().simple().to_string();
        let namespace = format!("opr-{name}-{}", unique.get(..8).unwrap_or_default());
        let object: Namespace = serde_json::from_value(json!({"metadata": {"name": namespace}}))?;
        Api::all(client.clone()).create(&PostParams::default(), &object).await?;
        let nodes = ScriptedNodes::default();
        let (play, settings) = watch::channel(Play::default());
        let player = tokio::spawn(controllers::play(
            client.clone(),
            namespace.clone(),
            nodes.clone(),
            settings,
        ));
        Ok(Self {
            client,
            namespace,
            nodes,
            metrics: Metrics::default(),
            network: Network::default(),
            image: "cachetier.dev/cachetier:dev".to_owned(),
            poll: POLL,
            play,
            player,
            operator: None,
        })
    }

    pub fn play(&self, change: impl FnOnce(&mut Play)) {
        self.play.send_modify(change);
    }

    pub async fn start_operator(&mut self) -> Result<()> {
        let installation = Installation {
            image: self.image.clone(),
            image_pull_policy: "IfNotPresent".to_owned(),
            cluster_domain: "cluster.local".to_owned(),
        };
        let nodes = Arc::new(self.nodes.clone());
        let client = self.network.client().await?;
        let context = Context::new(client, nodes, installation, self.metrics.clone(), self.poll);
        let scope = Scope { namespace: Some(self.namespace.clone()) };
        let token = CancellationToken::new();
        let task = tokio::spawn(controller::run(Arc::new(context), scope, token.clone()));
        self.operator = Some((token, task));
        Ok(())
    }

    /// Kills the operator where it stands.
    pub fn kill_operator(&mut self) {
        if let Some((_, task)) = self.operator.take() {
            task.abort();
        }
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub async fn create_secret(&self) -> Result<()> {
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": "hlr-backend"},
            "stringData": {"uri": "postgres://cachetier:secret@127.0.0.1:1/hlr"},
        }))?;
        self.api().create(&PostParams::default(), &secret).await?;
        Ok(())
    }

    /// `kubectl apply --server-side` by a person.
    pub async fn apply(&self, group: &Value) -> Result<CacheGroup, kube::Error> {
        let name = group["metadata"]["name"].as_str().unwrap_or_default();
        let parameters = PatchParams::apply("a-person").force();
        self.api::<CacheGroup>().patch(name, &parameters, &Patch::Apply(group)).await
    }

    pub async fn merge(&self, patch: Value) -> Result<CacheGroup, kube::Error> {
        let api = self.api::<CacheGroup>();
        api.patch("hlr", &PatchParams::default(), &Patch::Merge(&patch)).await
    }

    pub async fn group(&self) -> Result<CacheGroup> {
        Ok(self.api::<CacheGroup>().get("hlr").await?)
    }

    /// Waits until the group satisfies `check`.
    pub async fn until(
        &self,
        what: &str,
        check: impl Fn(&CacheGroup) -> bool,
    ) -> Result<CacheGroup> {
        eventually(what, LIMIT, || async {
            let group = self.group().await?;
            if check(&group) {
                return Ok(Some(group));
            }
            let status = serde_json::to_string(&group.status)?;
            anyhow::bail!("status is {status}")
        })
        .await
    }

    /// Waits for Ready with this generation; answers the group.
    pub async fn until_ready(&self) -> Result<CacheGroup> {
        self.until("Ready", |group| {
            let status = group.status.as_ref();
            let current = status.and_then(|s| s.observed_generation) == group.metadata.generation;
            current && condition(group, "Ready").0 == "True"
        })
        .await
    }

    /// Waits until a condition has this status; answers its reason and message.
    pub async fn until_condition(&self, kind: &str, status: &str) -> Result<(String, String)> {
        let group = self
            .until(&format!("{kind}={status}"), |group| condition(group, kind).0 == status)
            .await?;
        let (_, reason, message) = condition(&group, kind);
        Ok((reason, message))
    }

    pub async fn object(&self, kind: &str, name: &str) -> Result<Option<DynamicObject>> {
        Ok(self.dynamic(kind)?.get_opt(name).await?)
    }

    pub fn dynamic(&self, kind: &str) -> Result<Api<DynamicObject>> {
        let (group, version, kind) =
            KINDS.iter().find(|known| known.2 == kind).context("unknown kind")?;
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Ok(Api::namespaced_with(self.client.clone(), &self.namespace, &resource))
    }

    /// UID and resource version of the group and all children, by kind and name.
    pub async fn versions(&self) -> Result<BTreeMap<String, (String, String)>> {
        let mut versions = BTreeMap::new();
        for (_, _, kind) in KINDS {
            for object in self.dynamic(kind)?.list(&Default::default()).await? {
                let name = object.metadata.name.unwrap_or_default();
                versions.insert(
                    format!("{kind}/{name}"),
                    (
                        object.metadata.uid.unwrap_or_default(),
                        object.metadata.resource_version.unwrap_or_default(),
                    ),
                );
            }
        }
        Ok(versions)
    }

    /// What the garbage collector would do after a group is gone: its children go, claims stay.
    pub async fn collect_garbage(&self) -> Result<()> {
        for (_, _, kind) in KINDS.iter().filter(|known| known.2 != "CacheGroup") {
            let api = self.dynamic(kind)?;
            for object in api.list(&Default::default()).await? {
                if !object.owner_references().is_empty() {
                    api.delete(&object.name_any(), &DeleteParams::background()).await?;
                }
            }
        }
        let pods = self.api::<Pod>();
        for pod in pods.list(&Default::default()).await? {
            pods.delete(&pod.name_any(), &DeleteParams::default()).await?;
        }
        Ok(())
    }

    /// Waits until the operator has looked several times and so would have acted if it wanted to.
    pub async fn several_passes(&self) -> Result<()> {
        let before = self.metrics.passes.get();
        eventually("several passes", LIMIT, || async {
            Ok((self.metrics.passes.get() >= before + 4).then_some(()))
        })
        .await
    }

    /// How many requests other than reads the operator has made.
    pub fn writes(&self) -> usize {
        self.network.requests().iter().filter(|request| !request.starts_with("GET ")).count()
    }

    /// Waits until nothing has changed for two seconds: what a change set in motion has ended.
    pub async fn settle(&self) -> Result<()> {
        eventually("the group settles", LIMIT, || async {
            self.assert_quiet_for(Duration::from_secs(2)).await?;
            Ok(Some(()))
        })
        .await
    }

    /// Nothing changes for a minute.
    pub async fn assert_quiet(&self) -> Result<()> {
        self.assert_quiet_for(QUIET).await
    }

    pub async fn assert_quiet_for(&self, span: Duration) -> Result<()> {
        let before = self.versions().await?;
        let end = tokio::time::Instant::now() + span;
        while tokio::time::Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let now = self.versions().await?;
            ensure!(now == before, "not quiet: {}", difference(&before, &now));
        }
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.player.abort();
        self.kill_operator();
    }
}

fn difference(
    before: &BTreeMap<String, (String, String)>,
    now: &BTreeMap<String, (String, String)>,
) -> String {
    let changed: Vec<&String> = now
        .iter()
        .filter(|(key, value)| before.get(*key) != Some(value))
        .map(|(key, _)| key)
        .chain(before.keys().filter(|key| !now.contains_key(*key)))
        .collect();
    format!("{changed:?}")
}

/// Status, reason and message of a condition; empty when it is not there.
pub fn condition(group: &CacheGroup, kind: &str) -> (String, String, String) {
    let conditions = group.status.as_ref().map_or(&[][..], |status| &status.conditions);
    conditions
        .iter()
        .find(|condition| condition.type_ == kind)
        .map_or_else(Default::default, |condition| {
            (condition.status.clone(), condition.reason.clone(), condition.message.clone())
        })
}

pub async fn client() -> Result<Client> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    ensure!(
        std::env::var_os("KUBECONFIG").is_some(),
        "KUBECONFIG is not set; run these tests by `cargo xtask test --level operator`"
    );
    let config = Config::infer().await.context("reading KUBECONFIG")?;
    Ok(Client::try_from(config)?)
}

/// Applies the resource definition and the storage class that groups here name, and waits until the
/// server serves it.
pub async fn install_definition(client: &Client) -> Result<()> {
    let parameters = PatchParams::apply("tests").force();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let definition = crd::cache_group();
    let name = definition.metadata.name.clone().unwrap_or_default();
    definitions.patch(&name, &parameters, &Patch::Apply(&definition)).await?;
    let classes: Api<k8s_openapi::api::storage::v1::StorageClass> = Api::all(client.clone());
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner",
    });
    classes.patch("local", &parameters, &Patch::Apply(&class)).await?;
    eventually("the resource definition is served", LIMIT, || async {
        Api::<CacheGroup>::all(client.clone()).list_metadata(&Default::default()).await?;
        Ok(Some(()))
    })
    .await
}
