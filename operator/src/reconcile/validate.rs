//! What stands in the way, in the order in which a person should hear it. Pure.

use crate::build::stateful_set::CLAIM;
use crate::observed::{BackendSecret, Observed, PodView, Storage};
use cachetier_api::condition::reason;
use cachetier_api::names::{ANNOTATION_DRAINED, NODE_LABEL_DAX, NODE_LABEL_PMEM};
use cachetier_api::v1alpha1::Medium;

/// Time in which a running container that does not answer is merely starting.
const START_SECONDS: i64 = 10;

/// What a finding is about; decides which conditions it turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// The spec, or what it refers to.
    Config,
    /// Hosts, volumes, images: what keeps pods from running.
    Pods,
    /// The way from the nodes to the backend.
    Backend,
    /// The nodes themselves.
    Nodes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub about: About,
    pub reason: String,
    pub message: String,
    /// Serving is impaired, or will not begin by itself.
    pub degraded: bool,
}

impl Finding {
    fn new(about: About, reason: &str, message: String) -> Self {
        Self { about, reason: reason.to_owned(), message, degraded: true }
    }
}

pub fn findings(observed: &Observed) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(secret(observed));
    found.extend(tables(observed));
    found.extend(storage(observed));
    found.extend(volumes(observed));
    found.extend(pods(observed));
    found.extend(problems(observed));
    found.extend(unreachable(observed));
    found
}

fn secret(observed: &Observed) -> Option<Finding> {
    let name = &observed.group.spec.backend.postgres.secret_ref.name;
    let namespace = observed.names.namespace();
    match &observed.secret {
        BackendSecret::Missing => Some(Finding::new(
            About::Config,
            reason::SECRET_NOT_FOUND,
            format!(
                "Secret {name} (spec.backend.postgres.secretRef) does not exist in namespace \
                 {namespace}; create it with the key uri, or with host, dbname, username and \
                 password"
            ),
        )),
        BackendSecret::Found { keys } if !keys.contains("uri") => {
            let missing: Vec<&str> = ["host", "dbname", "username", "password"]
                .into_iter()
                .filter(|key| !keys.contains(*key))
                .collect();
            (!missing.is_empty()).then(|| {
                Finding::new(
                    About::Config,
                    reason::SECRET_INCOMPLETE,
                    format!(
                        "Secret {name} has neither the key uri nor all of host, dbname, username \
                         and password: {} missing",
                        missing.join(", ")
                    ),
                )
            })
        }
        BackendSecret::Found { .. } => None,
    }
}

/// Parents that lead back to themselves; everything else about tables is checked on admission.
fn tables(observed: &Observed) -> Option<Finding> {
    let tables = &observed.group.spec.tables;
    let reaches_root = |name: &str| {
        let mut at = name;
        // a path without a loop is shorter than the list
        for _ in 0..=tables.len() {
            match tables.iter().find(|table| table.name == at).map(|table| &table.parent) {
                Some(Some(parent)) => at = parent,
                Some(None) => return true,
                None => return false,
            }
        }
        false
    };
    let lost = tables.iter().find(|table| !reaches_root(&table.name))?;
    Some(Finding::new(
        About::Config,
        reason::TABLES_INVALID,
        format!("spec.tables: {} does not lead to the root table by its parents", lost.name),
    ))
}

fn storage(observed: &Observed) -> Option<Finding> {
    match &observed.storage {
        Storage::Fine => None,
        Storage::ClassMissing(name) => Some(Finding::new(
            About::Config,
            reason::STORAGE_CLASS_NOT_FOUND,
            format!(
                "StorageClass {name} (spec.journal.volume.storageClassName) does not exist; create \
                 it, or delete the group and name one of `kubectl get storageclass`"
            ),
        )),
        Storage::NoDefaultClass => Some(Finding::new(
            About::Config,
            reason::NO_DEFAULT_STORAGE_CLASS,
            "spec.journal.volume.storageClassName is not set and the cluster has no default \
             StorageClass; mark one as default, or delete the group and name one"
                .to_owned(),
        )),
    }
}

/// A volume with writes of an earlier group of this name.
fn volumes(observed: &Observed) -> Option<Finding> {
    let claim = observed.foreign_claims().find(|claim| !claim.drained)?;
    let name = &claim.name;
    Some(Finding::new(
        About::Pods,
        reason::VOLUME_OF_EARLIER_GROUP,
        format!(
            "claim {name} is of an earlier group of this name and may hold writes that never reached \
             the backend; give them up by `kubectl annotate pvc {name} {ANNOTATION_DRAINED}=true`, or \
             keep them and use another name for this group"
        ),
    ))
}

/// The first pod that cannot run, and why.
fn pods(observed: &Observed) -> Option<Finding> {
    observed.pods.values().find_map(|pod| {
        if let Some(words) = &pod.unschedulable {
            return Some(unschedulable(observed, pod, words));
        }
        let (why, words) = pod.waiting.as_ref()?;
        let reason = match why.as_str() {
            "ErrImagePull" | "ImagePullBackOff" | "ErrImageNeverPull" | "InvalidImageName" => {
                reason::IMAGE_PULL_FAILED
            }
            "CrashLoopBackOff" => reason::CRASH_LOOP,
            "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => why,
            _ => return None,
        };
        let look = if reason == reason::CRASH_LOOP {
            format!("; look at `kubectl logs {} --previous`", pod.name)
        } else {
            String::new()
        };
        Some(Finding::new(About::Pods, reason, format!("pod {}: {words}{look}", pod.name)))
    })
}

fn unschedulable(observed: &Observed, pod: &PodView, words: &str) -> Finding {
    let name = &pod.name;
    if words.contains("didn't find available persistent volumes") {
        let volume = &observed.group.spec.journal.volume;
        let class = match &volume.storage_class_name {
            Some(class) => format!("StorageClass {class}"),
            None => "the default StorageClass".to_owned(),
        };
        let message = format!(
            "no free volume for the journal of {name}; add a volume of at least {} for {class}. \
             Scheduler: {words}",
            volume.size
        );
        return Finding::new(About::Pods, reason::NO_VOLUME, message);
    }
    if words.contains("volume node affinity conflict") {
        let message = format!(
            "the host that has the journal of {name} is away or full; its slots wait. Bring the host \
             back. If it is lost for good: `kubectl delete pvc/{CLAIM}-{name} pod/{name}` gives up \
             the writes in that journal and starts an empty one, which then asks for \
             `cachectl accept-loss`. Scheduler: {words}"
        );
        return Finding::new(About::Pods, reason::JOURNAL_HOST_AWAY, message);
    }
    let lacking = lacking(words);
    if !lacking.is_empty() {
        let message = format!(
            "no host that may run {name} has enough free {}; free some, add such a host, or change \
             spec.cpu or spec.memory.capacity. Scheduler: {words}",
            lacking.join(" and ")
        );
        return Finding::new(About::Pods, reason::UNSCHEDULABLE, message);
    }
    if !words.contains("node affinity/selector") {
        let message = format!("no host takes {name}. Scheduler: {words}");
        return Finding::new(About::Pods, reason::UNSCHEDULABLE, message);
    }
    let mut wanted: Vec<String> = observed
        .group
        .spec
        .placement
        .node_selector
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let by_medium = match observed.group.spec.memory.medium {
        Medium::MemoryMode => Some(NODE_LABEL_PMEM),
        Medium::AppDirect => Some(NODE_LABEL_DAX),
        Medium::Auto | Medium::Dram | Medium::Cxl => None,
    };
    wanted.extend(by_medium.map(|label| format!("{label}=true")));
    let ways = if by_medium.is_some() {
        "spec.memory.medium or spec.placement.nodeSelector"
    } else {
        "spec.placement.nodeSelector"
    };
    let labels = wanted.join(" ");
    let message = format!(
        "no host that could take {name} has the labels {labels}; label one (kubectl label node NAME \
         {labels}) or change {ways}. Scheduler: {words}"
    );
    Finding::new(About::Pods, reason::NO_MATCHING_NODE, message)
}

/// The resources that the scheduler calls insufficient on hosts that fit otherwise.
fn lacking(words: &str) -> Vec<&str> {
    let after = words.split("Insufficient ").skip(1);
    let mut names: Vec<&str> = after
        .filter_map(|rest| rest.split(|c: char| c == ',' || c == '.' || c.is_whitespace()).next())
        .filter(|name| !name.is_empty())
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// What nodes say about themselves, each reason once.
fn problems(observed: &Observed) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    for (ordinal, view) in observed.answers.iter().filter_map(|(n, a)| Some((n, a.as_ref().ok()?)))
    {
        for problem in &view.problems {
            if found.iter().any(|finding| finding.reason == problem.reason) {
                continue;
            }
            found.push(Finding {
                about: about(&problem.reason),
                reason: reason_text(&problem.reason),
                message: format!("{}: {}", observed.names.pod(*ordinal), problem.message),
                degraded: problem.degraded,
            });
        }
        if !view.backend_reachable && !found.iter().any(|finding| finding.about == About::Backend) {
            let cause_is_config = found.iter().any(|finding| finding.about == About::Config);
            if !cause_is_config && view.phase != "Starting" {
                found.push(Finding {
                    about: About::Backend,
                    reason: "BackendUnreachable".to_owned(),
                    message: format!(
                        "{}: the backend does not answer; cached data is served and writes are \
                         kept until it does",
                        observed.names.pod(*ordinal)
                    ),
                    degraded: false,
                });
            }
        }
    }
    found
}

/// Condition reasons must be words; a node's are, and an odd one does not break the status.
fn reason_text(reason: &str) -> String {
    let word: String = reason.chars().filter(char::is_ascii_alphanumeric).collect();
    if word.starts_with(|c: char| c.is_ascii_alphabetic()) {
        word
    } else {
        "NodeProblem".to_owned()
    }
}

fn about(reason: &str) -> About {
    match reason {
        "BackendUnreachable"
        | "BackendBusy"
        | "BackendNotReady"
        | "BackendOverloaded"
        | "AuthenticationFailed"
        | "TlsFailed"
        | "DatabaseMissing"
        | "CredentialsMissing" => About::Backend,
        "TableMissing" | "ColumnMissing" | "SchemaDrift" | "SchemaRefused" | "TablesClaimed"
        | "PrivilegeMissing" | "BookkeepingMissing" | "Configuration" => About::Config,
        _ => About::Nodes,
    }
}

/// Nodes whose process runs and that do not answer.
fn unreachable(observed: &Observed) -> Option<Finding> {
    let silent: Vec<String> = observed
        .pods
        .iter()
        .filter(|(_, pod)| !pod.deleting && should_answer(pod, observed.now))
        .filter_map(|(ordinal, pod)| {
            let error = observed.answers.get(ordinal)?.as_ref().err()?;
            Some(format!("{} ({error})", pod.name))
        })
        .collect();
    (!silent.is_empty()).then(|| {
        Finding::new(
            About::Nodes,
            reason::NODE_UNREACHABLE,
            format!("no answer from {}; their slots wait for them", silent.join(", ")),
        )
    })
}

/// A process needs a moment before it listens.
fn should_answer(pod: &PodView, now: jiff::Timestamp) -> bool {
    let seconds = pod.running_since.map_or(i64::MAX, |since| now.as_second() - since.as_second());
    pod.running && seconds >= START_SECONDS
}
