//! The command line.

use cachetier_runtime::LogFormat;
use clap::{Parser, Subcommand};

/// Operator of cache groups on Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "operator", version)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "made once per process")]
pub enum Command {
    /// Reconcile CacheGroups until stopped.
    Run(RunArgs),
    /// Print the resource definition as YAML.
    Crd,
}

#[derive(Clone, Debug, Parser)]
pub struct RunArgs {
    /// Image of cache nodes and preload Jobs.
    #[arg(long, env = "CACHETIER_IMAGE", default_value = "cachetier.dev/cachetier:dev")]
    pub image: String,
    /// Pull policy of that image.
    #[arg(long, env = "CACHETIER_IMAGE_PULL_POLICY", default_value = "IfNotPresent")]
    pub image_pull_policy: String,
    /// Only groups of this namespace; absent: the whole cluster.
    #[arg(long, env = "CACHETIER_NAMESPACE")]
    pub namespace: Option<String>,
    /// The cluster's DNS domain, which goes into certificates.
    #[arg(long, env = "CACHETIER_CLUSTER_DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Address of metrics and probes.
    #[arg(long, env = "CACHETIER_ADMIN_LISTEN", default_value = "0.0.0.0:8080")]
    pub admin_listen: String,
    /// Seconds between two looks at a group that is at rest.
    #[arg(long, env = "CACHETIER_POLL_SECONDS", default_value_t = 10)]
    pub poll_seconds: u64,
    /// Namespace of the Lease that elects the acting replica; absent: no election.
    #[arg(long, env = "CACHETIER_LEASE_NAMESPACE")]
    pub lease_namespace: Option<String>,
    /// Name of this replica in the Lease.
    #[arg(long, env = "CACHETIER_REPLICA_NAME", default_value = "operator")]
    pub replica_name: String,
    /// json or pretty.
    #[arg(long, env = "CACHETIER_LOG_FORMAT", default_value = "json")]
    pub log_format: LogFormat,
    /// Log filter, e.g. `info,operator=debug`.
    #[arg(long, env = "CACHETIER_LOG", default_value = "info,kube=warn")]
    pub log_filter: String,
}
