//! The ConfigMap that is the record of the topology. Written by compare-and-set, not applied: its
//! version must never be set back by somebody who looked earlier.

use cachetier_api::names::{ANNOTATION_SERVED, GroupNames};
use cachetier_model::Topology;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::collections::BTreeMap;

use super::labels;

pub const KEY: &str = "topology.json";
const ANNOTATION_STOPPING: &str = "cachetier.dev/stopping";
const ANNOTATION_OWNERS_BEFORE: &str = "cachetier.dev/owners-before";

/// The record's content.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub topology: Topology,
    /// Some node was given a topology and may have served, so journals may hold writes.
    pub served: bool,
    /// The operator stopped writes because the spec asks for zero nodes.
    pub stopping: bool,
    /// Owners in the version before this one.
    pub owners_before: u32,
}

/// What was found in the cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    Missing,
    /// It is there and cannot be read; it is treated as lost and overwritten.
    Unreadable {
        resource_version: String,
        message: String,
    },
    Read {
        record: Record,
        resource_version: String,
    },
}

impl Found {
    pub fn record(&self) -> Option<&Record> {
        match self {
            Self::Read { record, .. } => Some(record),
            _ => None,
        }
    }

    pub fn resource_version(&self) -> Option<&str> {
        match self {
            Self::Missing => None,
            Self::Unreadable { resource_version, .. } | Self::Read { resource_version, .. } => {
                Some(resource_version)
            }
        }
    }
}

pub fn read(config_map: &ConfigMap, uid: &str) -> Found {
    let resource_version = config_map.metadata.resource_version.clone().unwrap_or_default();
    let unreadable =
        |message: String| Found::Unreadable { resource_version: resource_version.clone(), message };
    let Some(text) = config_map.data.as_ref().and_then(|data| data.get(KEY)) else {
        return unreadable(format!("{KEY} is missing"));
    };
    let topology: Topology = match serde_json::from_str(text) {
        Ok(topology) => topology,
        Err(error) => return unreadable(error.to_string()),
    };
    if topology.group != uid {
        return unreadable("it belongs to an earlier group of this name".to_owned());
    }
    let annotation = |key: &str| {
        config_map.metadata.annotations.as_ref().and_then(|all| all.get(key)).map(String::as_str)
    };
    Found::Read {
        record: Record {
            topology,
            served: annotation(ANNOTATION_SERVED) == Some("true"),
            stopping: annotation(ANNOTATION_STOPPING) == Some("true"),
            owners_before: annotation(ANNOTATION_OWNERS_BEFORE)
                .and_then(|text| text.parse().ok())
                .unwrap_or(0),
        },
        resource_version,
    }
}

/// The object to create, or to replace the one of this resource version.
pub fn render(
    names: &GroupNames,
    owner: &OwnerReference,
    record: &Record,
    resource_version: Option<&str>,
) -> Result<ConfigMap, serde_json::Error> {
    let flag = |value: bool| value.to_string();
    let annotations: BTreeMap<String, String> = [
        (ANNOTATION_SERVED, flag(record.served)),
        (ANNOTATION_STOPPING, flag(record.stopping)),
        (ANNOTATION_OWNERS_BEFORE, record.owners_before.to_string()),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect();
    let text = serde_json::to_string_pretty(&record.topology)?;
    Ok(ConfigMap {
        metadata: ObjectMeta {
            name: Some(names.topology_record()),
            namespace: Some(names.namespace().to_owned()),
            labels: Some(labels::of_group(&names.stateful_set())),
            annotations: Some(annotations),
            owner_references: Some(vec![owner.clone()]),
            resource_version: resource_version.map(str::to_owned),
            ..ObjectMeta::default()
        },
        data: Some([(KEY.to_owned(), text)].into()),
        ..ConfigMap::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::entries;
    use cachetier_model::Epoch;

    #[test]
    fn a_record_reads_back_as_written_and_another_group_s_is_not_ours() {
        let names = GroupNames::new("telecom", "hlr");
        let record = Record {
            topology: Topology::initial("uid", Epoch(4), entries(&names, 2)).unwrap(),
            served: true,
            stopping: false,
            owners_before: 3,
        };
        let owner = OwnerReference::default();
        let object = render(&names, &owner, &record, Some("7")).unwrap();
        let found = read(&object, "uid");
        assert_eq!((found.record(), found.resource_version()), (Some(&record), Some("7")));
        assert!(matches!(read(&object, "other"), Found::Unreadable { .. }));
    }
}
