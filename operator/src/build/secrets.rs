//! Secrets with the group's authority and certificates, and how they are read back.

use super::{Blueprint, labels};
use crate::certificates::Authority;
use crate::nodes::Identity;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use std::collections::BTreeMap;

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const CA: &str = "ca.crt";

pub fn authority(blueprint: &Blueprint<'_>, authority: &Authority) -> Secret {
    let data = [(CERTIFICATE, &authority.certificate), (KEY, &authority.key)];
    secret(blueprint, blueprint.names.ca_secret(), &data)
}

pub fn certificate(blueprint: &Blueprint<'_>, role: &str, identity: &Identity) -> Secret {
    let data = [(CERTIFICATE, &identity.certificate), (KEY, &identity.key), (CA, &identity.ca)];
    secret(blueprint, blueprint.names.certificate_secret(role), &data)
}

pub fn read_authority(secret: &Secret) -> Option<Authority> {
    Some(Authority { certificate: text(secret, CERTIFICATE)?, key: text(secret, KEY)? })
}

pub fn read_identity(secret: &Secret) -> Option<Identity> {
    Some(Identity {
        certificate: text(secret, CERTIFICATE)?,
        key: text(secret, KEY)?,
        ca: text(secret, CA)?,
    })
}

fn text(secret: &Secret, key: &str) -> Option<String> {
    let bytes = secret.data.as_ref()?.get(key)?;
    String::from_utf8(bytes.0.clone()).ok()
}

fn secret(blueprint: &Blueprint<'_>, name: String, data: &[(&str, &String)]) -> Secret {
    let data: BTreeMap<String, ByteString> = data
        .iter()
        .map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())))
        .collect();
    Secret {
        metadata: labels::metadata(blueprint, name),
        type_: Some("kubernetes.io/tls".to_owned()),
        data: Some(data),
        ..Secret::default()
    }
}
