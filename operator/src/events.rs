//! Kubernetes Events about groups: what changed, once per change.
//!
//! Never carries subscriber data or secrets. A failure to write one is logged and forgotten.

use cachetier_api::condition::{kind, reason};
use cachetier_api::names::FIELD_MANAGER;
use cachetier_api::v1alpha1::CacheGroup;
use dashmap::DashMap;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::Resource;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

/// The API server's bound of a note.
const NOTE_BYTES_MAX: usize = 1_000;

pub struct Events {
    recorder: Recorder,
    /// Resource versions of invalid objects that were told about, by UID.
    told: DashMap<String, String>,
}

impl Events {
    pub fn new(client: kube::Client) -> Self {
        let reporter = Reporter { controller: FIELD_MANAGER.to_owned(), instance: None };
        Self { recorder: Recorder::new(client, reporter), told: DashMap::new() }
    }

    /// One Event per condition that changed its status or reason and is worth one. What turns several
    /// conditions is told once.
    pub async fn transitions(&self, group: &CacheGroup, old: &[Condition], new: &[Condition]) {
        let mut told: Vec<&str> = Vec::new();
        for condition in new {
            let before = old.iter().find(|c| c.type_ == condition.type_);
            let changed =
                before.is_none_or(|b| b.status != condition.status || b.reason != condition.reason);
            if !changed || told.contains(&condition.reason.as_str()) {
                continue;
            }
            if let Some(type_) = worth(condition) {
                told.push(&condition.reason);
                self.send(group, type_, &condition.reason, &condition.type_, &condition.message)
                    .await;
            }
        }
    }

    pub async fn normal(&self, group: &CacheGroup, reason: &str, action: &str, note: &str) {
        self.send(group, EventType::Normal, reason, action, note).await;
    }

    /// Tells the object's user once per version that it does not parse.
    pub async fn invalid_object(&self, invalid: &InvalidObject) {
        let uid = invalid.metadata.uid.clone().unwrap_or_default();
        let version = invalid.metadata.resource_version.clone().unwrap_or_default();
        if self.told.insert(uid, version.clone()) == Some(version) {
            return;
        }
        let note = format!(
            "the stored object cannot be read and is left alone: {}; fix the field",
            invalid.error
        );
        let reference = reference(&invalid.metadata);
        self.publish(&reference, EventType::Warning, reason::INVALID_OBJECT, "Read", &note).await;
    }

    async fn send(
        &self,
        group: &CacheGroup,
        type_: EventType,
        reason: &str,
        action: &str,
        note: &str,
    ) {
        self.publish(&reference(group.meta()), type_, reason, action, note).await;
    }

    async fn publish(
        &self,
        object: &ObjectReference,
        type_: EventType,
        reason: &str,
        action: &str,
        note: &str,
    ) {
        let mut note = note.to_owned();
        let end = (0..=NOTE_BYTES_MAX.min(note.len())).rev().find(|n| note.is_char_boundary(*n));
        note.truncate(end.unwrap_or(0));
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note),
            action: action.to_owned(),
            secondary: None,
        };
        if let Err(error) = self.recorder.publish(&event, object).await {
            tracing::debug!(%error, "event not written");
        }
    }
}

/// Type of the Event for a condition's new state, if it is worth one.
fn worth(condition: &Condition) -> Option<EventType> {
    let good = condition.status == "True";
    match condition.type_.as_str() {
        kind::READY if good => Some(EventType::Normal),
        kind::CONFIG_VALID | kind::BACKEND_REACHABLE | kind::PRELOADED | kind::AVAILABLE => {
            let waiting = [reason::LOADING, reason::STARTING, reason::UNKNOWN];
            match (good, waiting.contains(&condition.reason.as_str())) {
                (true, _) => Some(EventType::Normal),
                (false, true) => None,
                (false, false) => Some(EventType::Warning),
            }
        }
        kind::DEGRADED if good => Some(EventType::Warning),
        kind::PROGRESSING if good => Some(EventType::Normal),
        kind::PAUSED if good => Some(EventType::Normal),
        _ => None,
    }
}

fn reference(metadata: &ObjectMeta) -> ObjectReference {
    ObjectReference {
        api_version: Some(CacheGroup::api_version(&()).into_owned()),
        kind: Some(CacheGroup::kind(&()).into_owned()),
        name: metadata.name.clone(),
        namespace: metadata.namespace.clone(),
        uid: metadata.uid.clone(),
        ..ObjectReference::default()
    }
}
