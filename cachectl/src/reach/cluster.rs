//! Through a cluster: the resource, its pods, its admin certificate, a port-forward.

use super::forward::PodForward;
use super::{Node, Reach, options};
use crate::arguments::ReachArguments;
use crate::exit::misuse;
use anyhow::{Context, Result, anyhow, bail};
use cachetier_api::names::{COMPONENT_NODE, GroupNames, LABEL_COMPONENT, LABEL_GROUP};
use cachetier_api::v1alpha1::CacheGroup;
use cachetier_client::tls::PemIdentity;
use cachetier_client::{Channels, Endpoint, Routing, TlsIdentity, Transport};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::ListParams;
use kube::config::KubeConfigOptions;
use kube::{Api, Config, ResourceExt};
use std::sync::Arc;

/// Role of the certificate this tool uses.
const ROLE: &str = "admin";

pub async fn open(arguments: &ReachArguments) -> Result<Reach> {
    let config = config(arguments).await?;
    let namespace = arguments.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let kube = kube::Client::try_from(config).context("cannot use the kubeconfig")?;
    let group = find_group(&kube, &namespace, arguments.group.as_deref()).await?;
    let names = GroupNames::new(&namespace, &group.name_any());
    let nodes = nodes(&kube, &names, arguments.node.as_deref()).await?;
    let tls = TlsIdentity::Pem(Arc::new(certificate(&kube, &names).await?));
    // A named node is asked itself; it forwards what it does not own.
    let routing = if arguments.node.is_some() { Routing::Seeds } else { Routing::Owner };
    let transport: Arc<dyn Transport> =
        Arc::new(PodForward::new(Api::namespaced(kube, &namespace)));
    let channels = Channels::with_transport(options(Some(tls), routing), transport.clone());
    let (name, resource) = (group.name_any(), Some(Box::new(group)));
    let hint = format!(
        "see `kubectl -n {namespace} describe cg {name}` and `kubectl -n {namespace} get pods`"
    );
    let name = format!("{namespace}/{name}");
    let seeds = nodes.iter().map(|n| n.endpoint.clone()).collect();
    Ok(Reach { name, resource, channels, transport, nodes, seeds, hint })
}

async fn config(arguments: &ReachArguments) -> Result<Config> {
    match &arguments.context {
        Some(context) => {
            let options = KubeConfigOptions {
                context: Some(context.clone()),
                ..KubeConfigOptions::default()
            };
            Config::from_kubeconfig(&options)
                .await
                .with_context(|| format!("the kubeconfig has no usable context {context}"))
                .map_err(misuse)
        }
        None => Config::infer()
            .await
            .context(
                "no cluster is configured: set KUBECONFIG, or go straight to a node with --server",
            )
            .map_err(misuse),
    }
}

/// What came of a call to the API server. Its refusals are said in its own words, which the error's
/// text would repeat together with the whole answer.
#[derive(Debug)]
pub struct ApiServerError(kube::Error);

impl ApiServerError {
    pub fn cause(&self) -> &kube::Error {
        &self.0
    }
}

impl std::fmt::Display for ApiServerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            kube::Error::Api(answer) => write!(f, "the API server says: {}", answer.message),
            other => other.fmt(f),
        }
    }
}

impl std::error::Error for ApiServerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0 {
            kube::Error::Api(_) => None,
            other => other.source(),
        }
    }
}

/// The named group, or the only one of the namespace.
async fn find_group(
    kube: &kube::Client,
    namespace: &str,
    name: Option<&str>,
) -> Result<CacheGroup> {
    let groups: Api<CacheGroup> = Api::namespaced(kube.clone(), namespace);
    if let Some(name) = name {
        let found = groups.get_opt(name).await.map_err(ApiServerError);
        return found
            .with_context(|| format!("cannot read group {namespace}/{name}"))?
            .with_context(|| format!("namespace {namespace} has no cache group {name}"));
    }
    let found = groups.list(&ListParams::default()).await.map_err(ApiServerError);
    let mut found = found.with_context(|| format!("cannot list groups of {namespace}"))?.items;
    match (found.pop(), found.as_slice()) {
        (Some(only), []) => Ok(only),
        (None, _) => bail!("namespace {namespace} has no cache group; name another with -n"),
        (Some(last), rest) => {
            let names: Vec<String> =
                rest.iter().chain([&last]).map(ResourceExt::name_any).collect();
            Err(misuse(anyhow!(
                "namespace {namespace} has several groups ({}); choose with -g",
                names.join(", ")
            )))
        }
    }
}

async fn nodes(kube: &kube::Client, names: &GroupNames, wanted: Option<&str>) -> Result<Vec<Node>> {
    let pods: Api<Pod> = Api::namespaced(kube.clone(), names.namespace());
    let group = names.stateful_set();
    let labels = format!("{LABEL_GROUP}={group},{LABEL_COMPONENT}={COMPONENT_NODE}");
    let found = pods.list(&ListParams::default().labels(&labels)).await;
    let found = found.map_err(ApiServerError).context("cannot list pods")?;
    let mut nodes: Vec<Node> = found
        .iter()
        .filter(|p| p.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running"))
        .map(ResourceExt::name_any)
        .map(|name| Node { endpoint: Endpoint::from(names.node_address(&name)), name })
        .collect();
    nodes.sort_by_key(|n| names.ordinal(&n.name));
    if let Some(wanted) = wanted {
        nodes.retain(|n| n.name == wanted);
        if nodes.is_empty() {
            bail!("no running pod of group {group} is called {wanted}");
        }
    }
    if nodes.is_empty() {
        bail!(
            "group {group} has no running pod; see `kubectl -n {} describe cg {group}`",
            names.namespace()
        );
    }
    Ok(nodes)
}

/// The group's admin certificate. Its content goes to the TLS layer only.
async fn certificate(kube: &kube::Client, names: &GroupNames) -> Result<PemIdentity> {
    let name = names.certificate_secret(ROLE);
    let secrets: Api<Secret> = Api::namespaced(kube.clone(), names.namespace());
    let secret = secrets
        .get_opt(&name)
        .await
        .map_err(ApiServerError)
        .with_context(|| format!("you may not read Secret {name}, which holds the certificate"))?
        .with_context(|| format!("Secret {name} is missing; has the operator seen the group?"))?;
    let mut data = secret.data.unwrap_or_default();
    let mut part = |key: &str| {
        let bytes = data.remove(key).with_context(|| format!("Secret {name} has no {key}"))?;
        Ok::<_, anyhow::Error>(bytes.0)
    };
    Ok(PemIdentity { certificate: part("tls.crt")?, key: part("tls.key")?, ca: part("ca.crt")? })
}
