//! The Services: one name per node for nodes and loaders, one name for all ready nodes for clients.

use super::{Blueprint, labels};
use cachetier_api::names::{ADMIN_PORT, GRPC_PORT};
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Publishes nodes before they are ready: loading and taking slots happen before that.
pub fn headless(blueprint: &Blueprint<'_>) -> Service {
    Service {
        metadata: labels::metadata(blueprint, blueprint.names.headless_service()),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some(labels::node_selector(&blueprint.names.stateful_set())),
            ports: Some(vec![port("grpc", GRPC_PORT), port("admin", ADMIN_PORT)]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

pub fn client(blueprint: &Blueprint<'_>) -> Service {
    Service {
        metadata: labels::metadata(blueprint, blueprint.names.client_service()),
        spec: Some(ServiceSpec {
            selector: Some(labels::node_selector(&blueprint.names.stateful_set())),
            ports: Some(vec![port("grpc", GRPC_PORT)]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn port(name: &str, number: u16) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port: i32::from(number),
        target_port: Some(IntOrString::String(name.to_owned())),
        protocol: Some("TCP".to_owned()),
        ..ServicePort::default()
    }
}
