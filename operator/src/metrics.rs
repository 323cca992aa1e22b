//! All metrics of the operator. Prefix `cachetier_operator_`, base units.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct GroupLabels {
    pub namespace: String,
    pub group: String,
}

/// Handles; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    pub passes: Counter,
    pub failed_passes: Counter,
    pub status_writes: Counter,
    pub topologies_published: Counter,
    pub ready: Family<GroupLabels, Gauge>,
    pub nodes_unreachable: Family<GroupLabels, Gauge>,
    pub leader: Gauge,
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("cachetier_operator");
        registry.register("passes", "Passes over groups", self.passes.clone());
        registry.register(
            "failed_passes",
            "Passes that ended in an error",
            self.failed_passes.clone(),
        );
        registry.register(
            "status_writes",
            "Writes of a group's status",
            self.status_writes.clone(),
        );
        registry.register(
            "topologies_published",
            "New topology versions recorded",
            self.topologies_published.clone(),
        );
        registry.register("group_ready", "1 when the group is Ready", self.ready.clone());
        registry.register(
            "nodes_unreachable",
            "Running nodes that do not answer the operator",
            self.nodes_unreachable.clone(),
        );
        registry.register("leader", "1 while this process acts", self.leader.clone());
    }
}
