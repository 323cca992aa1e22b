//! What the pods of cache nodes and of loads have in common: security, volumes, mounts.

use super::{Blueprint, config};
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapVolumeSource, PodSecurityContext, SeccompProfile, SecretVolumeSource,
    SecurityContext, Volume, VolumeMount,
};

/// User and group of the image.
pub const USER: i64 = 65_532;
const CONFIG: &str = "config";
const TLS: &str = "tls";
const BACKEND: &str = "backend";

pub fn pod_security() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(USER),
        run_as_group: Some(USER),
        fs_group: Some(USER),
        fs_group_change_policy: Some("OnRootMismatch".to_owned()),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            localhost_profile: None,
        }),
        ..PodSecurityContext::default()
    }
}

pub fn container_security() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
        ..SecurityContext::default()
    }
}

/// Configuration, backend credentials, and the certificate of a role.
pub fn volumes(blueprint: &Blueprint<'_>, role: &str) -> Vec<Volume> {
    let secret = |name: &str, secret_name: String| Volume {
        name: name.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret_name),
            // the pod's group reads it, nobody else
            default_mode: Some(0o440),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    };
    vec![
        Volume {
            name: CONFIG.to_owned(),
            config_map: Some(ConfigMapVolumeSource {
                name: blueprint.names.config_map(),
                ..ConfigMapVolumeSource::default()
            }),
            ..Volume::default()
        },
        secret(BACKEND, blueprint.group.spec.backend.postgres.secret_ref.name.clone()),
        secret(TLS, blueprint.names.certificate_secret(role)),
    ]
}

/// Directories, not single files: those would not follow a changed Secret.
pub fn mounts() -> Vec<VolumeMount> {
    [
        (CONFIG, config::CONFIG_DIRECTORY),
        (BACKEND, config::BACKEND_DIRECTORY),
        (TLS, config::TLS_DIRECTORY),
    ]
    .into_iter()
    .map(|(name, path)| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(true),
        ..VolumeMount::default()
    })
    .collect()
}

pub fn config_path() -> String {
    format!("{}/{}", config::CONFIG_DIRECTORY, config::FILE)
}
