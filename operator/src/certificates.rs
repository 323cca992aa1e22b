//! The certificate authority of one group and the certificates it issues (`tls.mode: Managed`).
//!
//! Owns what a certificate of a role looks like and when it is issued again. Must never write
//! anything: Secrets are built from what this returns. Keys never appear in logs or errors.

use crate::nodes::Identity;
use cachetier_api::names::GroupNames;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use std::collections::BTreeSet;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;

const CA_DAYS: i64 = 3_650;
const LEAF_DAYS: i64 = 365;
/// A certificate is issued again when less than this is left of it.
const RENEW_DAYS: i64 = 120;
const DAY_SECONDS: i64 = 86_400;
/// Clocks of hosts may differ by this much.
const BACKDATE_SECONDS: i64 = 3_600;

/// Roles, which are the common names of certificates.
pub mod role {
    pub const NODE: &str = "node";
    pub const OPERATOR: &str = "operator";
    pub const LOADER: &str = "loader";
    pub const CLIENT: &str = "client";
    pub const ADMIN: &str = "admin";

    /// Roles whose certificates are kept in Secrets. The operator's own is never stored.
    pub const STORED: [&str; 4] = [NODE, LOADER, CLIENT, ADMIN];
}

#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("issuing a certificate")]
    Issue(#[from] rcgen::Error),
    #[error("a validity date cannot be expressed")]
    Date,
}

/// A certificate authority with its key.
#[derive(Clone, PartialEq, Eq)]
pub struct Authority {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn create(group: &str, now: jiff::Timestamp) -> Result<Self, CertificateError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::<String>::new())?;
        params.distinguished_name = common_name(&format!("cachetier {group}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        valid(&mut params, now, CA_DAYS)?;
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { certificate, key: key.serialize_pem() })
    }

    /// A new key and certificate for a role. Only nodes have host names.
    pub fn issue(
        &self,
        role: &str,
        hosts: &[String],
        now: jiff::Timestamp,
    ) -> Result<Identity, CertificateError> {
        let issuer = Issuer::from_ca_cert_pem(&self.certificate, KeyPair::from_pem(&self.key)?)?;
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(hosts.to_vec())?;
        params.distinguished_name = common_name(role);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if !hosts.is_empty() {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        params.use_authority_key_identifier_extension = true;
        valid(&mut params, now, LEAF_DAYS)?;
        let certificate = params.signed_by(&key, &issuer)?.pem();
        Ok(Identity { certificate, key: key.serialize_pem(), ca: self.certificate.clone() })
    }

    /// Whether the pair can be used at all.
    pub fn usable(&self) -> bool {
        KeyPair::from_pem(&self.key)
            .ok()
            .and_then(|key| Issuer::from_ca_cert_pem(&self.certificate, key).ok())
            .is_some()
    }
}

/// Names in a node's certificate: its own, those of the Services, and the local host.
pub fn node_hosts(names: &GroupNames, cluster_domain: &str) -> Vec<String> {
    let namespace = names.namespace();
    let mut hosts = Vec::new();
    for base in [format!("*.{}", names.headless_service()), names.client_service()] {
        hosts.push(format!("{base}.{namespace}.svc"));
        hosts.push(format!("{base}.{namespace}.svc.{cluster_domain}"));
    }
    hosts.push(names.client_service());
    hosts.push("localhost".to_owned());
    hosts.push("127.0.0.1".to_owned());
    hosts
}

/// A stored certificate can go on being used: of this authority, for these hosts, and not soon over.
pub fn still_good(
    stored: &Identity,
    authority: &Authority,
    hosts: &[String],
    now: jiff::Timestamp,
) -> bool {
    if stored.ca != authority.certificate || KeyPair::from_pem(&stored.key).is_err() {
        return false;
    }
    let Ok((_, pem)) = parse_x509_pem(stored.certificate.as_bytes()) else { return false };
    let Ok(certificate) = pem.parse_x509() else { return false };
    let left = certificate.validity().not_after.timestamp() - now.as_second();
    let names: BTreeSet<String> = certificate
        .subject_alternative_name()
        .ok()
        .flatten()
        .into_iter()
        .flat_map(|extension| &extension.value.general_names)
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress([a, b, c, d]) => Some(format!("{a}.{b}.{c}.{d}")),
            _ => None,
        })
        .collect();
    left > RENEW_DAYS * DAY_SECONDS && names == hosts.iter().cloned().collect()
}

fn common_name(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

fn valid(
    params: &mut CertificateParams,
    now: jiff::Timestamp,
    days: i64,
) -> Result<(), CertificateError> {
    let from = now.as_second() - BACKDATE_SECONDS;
    let date = |second: i64| {
        let timestamp = jiff::Timestamp::from_second(second).ok()?;
        let date = timestamp.to_zoned(jiff::tz::TimeZone::UTC).date();
        let (month, day) = (u8::try_from(date.month()).ok()?, u8::try_from(date.day()).ok()?);
        Some(rcgen::date_time_ymd(i32::from(date.year()), month, day))
    };
    // whole days: from the start of today, until the start of a later day
    params.not_before = date(from).ok_or(CertificateError::Date)?;
    params.not_after = date(from + days * DAY_SECONDS).ok_or(CertificateError::Date)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn later(days: i64) -> jiff::Timestamp {
        jiff::Timestamp::from_second(1_800_000_000 + days * DAY_SECONDS).unwrap()
    }

    #[test]
    fn a_certificate_is_kept_until_its_time_its_names_or_its_authority_change() {
        let names = GroupNames::new("telecom", "hlr");
        let hosts = node_hosts(&names, "cluster.local");
        let authority = Authority::create("telecom/hlr", later(0)).unwrap();
        assert!(authority.usable());
        let node = authority.issue(role::NODE, &hosts, later(0)).unwrap();
        assert!(still_good(&node, &authority, &hosts, later(100)));
        assert!(!still_good(&node, &authority, &hosts, later(300)));
        assert!(!still_good(&node, &authority, &node_hosts(&names, "other"), later(0)));
        let other = Authority::create("telecom/hlr", later(0)).unwrap();
        assert!(!still_good(&node, &other, &hosts, later(0)));
    }

    #[test]
    fn the_common_name_is_the_role_and_only_nodes_can_be_servers() {
        let authority = Authority::create("telecom/hlr", later(0)).unwrap();
        let admin = authority.issue(role::ADMIN, &[], later(0)).unwrap();
        let (_, pem) = parse_x509_pem(admin.certificate.as_bytes()).unwrap();
        let certificate = pem.parse_x509().unwrap();
        let name = certificate.subject().iter_common_name().next().unwrap().as_str().unwrap();
        assert_eq!(name, "admin");
        let usage = certificate.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.client_auth && !usage.server_auth);
    }
}
