//! A certificate authority of one stage and a directory per role, as the operator issues them.

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use std::path::{Path, PathBuf};

pub struct Certificates {
    issuer: Issuer<'static, KeyPair>,
    authority_pem: String,
    directory: PathBuf,
}

impl Certificates {
    /// A new authority that writes below `directory`.
    pub fn new(directory: &Path) -> Result<Self> {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.distinguished_name.push(DnType::CommonName, "stage authority");
        let key = KeyPair::generate()?;
        let authority_pem = parameters.self_signed(&key)?.pem();
        let issuer = Issuer::new(parameters, key);
        Ok(Self { issuer, authority_pem, directory: directory.to_owned() })
    }

    /// The directory of a role, with `tls.crt`, `tls.key` and `ca.crt`; issued at the first call.
    pub fn role(&self, role: &str) -> Result<PathBuf> {
        let directory = self.directory.join(role);
        if !directory.exists() {
            std::fs::create_dir_all(&directory)?;
            self.issue(role, &directory)?;
        }
        Ok(directory)
    }

    /// Writes a fresh certificate whose common name is the role, as a rotation does.
    pub fn issue(&self, role: &str, directory: &Path) -> Result<()> {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut parameters = CertificateParams::new(names)?;
        parameters.distinguished_name.push(DnType::CommonName, role);
        parameters.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let certificate = parameters.signed_by(&key, &self.issuer)?;
        replace(&directory.join("tls.key"), &key.serialize_pem())?;
        replace(&directory.join("tls.crt"), &certificate.pem())?;
        replace(&directory.join("ca.crt"), &self.authority_pem)
    }
}

fn replace(path: &Path, content: &str) -> Result<()> {
    let fresh = path.with_extension("new");
    std::fs::write(&fresh, content)?;
    Ok(std::fs::rename(fresh, path)?)
}
