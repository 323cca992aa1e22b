//! Names and labels of everything derived from a group. They are checked together, here: the
//! longest of them fits for the longest group name that the resource definition lets through.

/// Longest name of a group. The resource definition refuses longer ones.
pub const GROUP_NAME_LENGTH_MAX: usize = 40;
/// What labels, Service names and pod host names may have.
pub const DNS_LABEL_LENGTH_MAX: usize = 63;
/// Kubernetes appends `-` and this many characters to a StatefulSet's name in a pod label.
pub const REVISION_HASH_LENGTH: usize = 10;

pub const API_GROUP: &str = "cachetier.dev";
pub const FIELD_MANAGER: &str = "cachetier-operator";
pub const FINALIZER: &str = "cachetier.dev/drain";

pub const LABEL_NAME: &str = "app.kubernetes.io/name";
pub const LABEL_INSTANCE: &str = "app.kubernetes.io/instance";
pub const LABEL_COMPONENT: &str = "app.kubernetes.io/component";
pub const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Name of the group an object belongs to.
pub const LABEL_GROUP: &str = "cachetier.dev/group";

pub const APP_NAME: &str = "cachetier";
pub const COMPONENT_NODE: &str = "cache-node";
pub const COMPONENT_PRELOAD: &str = "preload";

/// Digest of the node configuration, on the pod template.
pub const ANNOTATION_CONFIG: &str = "cachetier.dev/config-digest";
/// On journal claims: UID of the group whose journal is on the volume.
pub const LABEL_INCARNATION: &str = "cachetier.dev/group-uid";
/// On journal claims: nothing on the volume waits for the backend. Written when the group was let go,
/// or by a person who gives the content up.
pub const ANNOTATION_DRAINED: &str = "cachetier.dev/drained";
/// On the topology record: some node has served slots under it, so journals may hold writes.
pub const ANNOTATION_SERVED: &str = "cachetier.dev/served";

/// Label that node-feature-discovery puts on hosts whose persistent memory can be mapped.
pub const NODE_LABEL_DAX: &str = "feature.node.kubernetes.io/memory-nv.dax";
/// Label that node-feature-discovery puts on hosts with persistent memory, set up or not.
pub const NODE_LABEL_PMEM: &str = "feature.node.kubernetes.io/memory-nv.present";

pub const GRPC_PORT: u16 = 7070;
pub const ADMIN_PORT: u16 = 7071;

/// Derived names of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupNames {
    group: String,
    namespace: String,
}

impl GroupNames {
    pub fn new(namespace: &str, group: &str) -> Self {
        Self { group: group.to_owned(), namespace: namespace.to_owned() }
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn stateful_set(&self) -> String {
        self.group.clone()
    }

    /// Pod of an ordinal; also the name of the cache node.
    pub fn pod(&self, ordinal: u32) -> String {
        format!("{}-{ordinal}", self.group)
    }

    /// Ordinal of a pod of this group.
    pub fn ordinal(&self, pod: &str) -> Option<u32> {
        pod.strip_prefix(&self.group)?.strip_prefix('-')?.parse().ok()
    }

    pub fn client_service(&self) -> String {
        self.group.clone()
    }

    pub fn headless_service(&self) -> String {
        format!("{}-nodes", self.group)
    }

    pub fn config_map(&self) -> String {
        format!("{}-config", self.group)
    }

    pub fn topology_record(&self) -> String {
        format!("{}-topology", self.group)
    }

    pub fn disruption_budget(&self) -> String {
        self.group.clone()
    }

    pub fn service_account(&self) -> String {
        format!("{}-node", self.group)
    }

    pub fn ca_secret(&self) -> String {
        format!("{}-ca", self.group)
    }

    /// Secret with `tls.crt`, `tls.key`, `ca.crt` of a role: node, loader, client or admin.
    pub fn certificate_secret(&self, role: &str) -> String {
        format!("{}-{role}-tls", self.group)
    }

    pub fn preload_job(&self, digest: &str) -> String {
        format!("{}-preload-{digest}", self.group)
    }

    /// Host name of a node, which is also its TLS server name.
    pub fn node_host(&self, pod: &str) -> String {
        format!("{pod}.{}.{}.svc", self.headless_service(), self.namespace)
    }

    /// `host:port` of a node's gRPC endpoint.
    pub fn node_address(&self, pod: &str) -> String {
        format!("{}:{GRPC_PORT}", self.node_host(pod))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn o27_every_derived_name_of_the_longest_group_name_fits() {
        let names = GroupNames::new("telecom", &"g".repeat(GROUP_NAME_LENGTH_MAX));
        let revision_label =
            format!("{}-{}", names.stateful_set(), "x".repeat(REVISION_HASH_LENGTH));
        // an Indexed Job names its pods' hosts `<job>-<index>`
        let job_host = format!("{}-999", names.preload_job("0123456789"));
        for name in [
            names.pod(199),
            names.client_service(),
            names.headless_service(),
            names.config_map(),
            names.topology_record(),
            names.disruption_budget(),
            names.service_account(),
            names.ca_secret(),
            names.certificate_secret("operator"),
            revision_label,
            job_host,
        ] {
            assert!(name.len() <= DNS_LABEL_LENGTH_MAX, "{name} has {} characters", name.len());
        }
    }

    #[test]
    fn a_pod_name_gives_its_ordinal_back() {
        let names = GroupNames::new("telecom", "hlr");
        assert_eq!(names.ordinal(&names.pod(12)), Some(12));
        assert_eq!(names.ordinal("hlr-preload-abc-x"), None);
        assert_eq!(names.node_address("hlr-0"), "hlr-0.hlr-nodes.telecom.svc:7070");
    }
}
