//! TLS material of a client, read again at each connect so that rotated files need no restart.
//!
//! Owns the translation from PEM to a rustls configuration. Must never log or print key material.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Certificate, key and CA of this side.
#[derive(Clone)]
pub enum TlsIdentity {
    /// A directory with `tls.crt`, `tls.key` and `ca.crt`.
    Directory(PathBuf),
    /// The same three in memory, e.g. from a Secret.
    Pem(Arc<PemIdentity>),
}

impl std::fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Directory(path) => f.debug_tuple("Directory").field(path).finish(),
            Self::Pem(_) => f.write_str("Pem(..)"),
        }
    }
}

pub struct PemIdentity {
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
    pub ca: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {path}; the TLS directory must hold tls.crt, tls.key and ca.crt")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{what} is not valid PEM")]
    Pem { what: &'static str, source: rustls::pki_types::pem::Error },
    #[error("{what} holds no certificate")]
    Empty { what: &'static str },
    #[error("the certificate, the key and the CA do not fit together")]
    Rejected(#[source] rustls::Error),
    #[error("{0:?} is not a name a certificate can carry")]
    ServerName(String),
}

impl TlsIdentity {
    /// The current material as PEM; a directory is read now.
    pub async fn load(&self) -> Result<Arc<PemIdentity>, TlsError> {
        match self {
            Self::Pem(pem) => Ok(pem.clone()),
            Self::Directory(directory) => Ok(Arc::new(PemIdentity {
                certificate: read(directory, "tls.crt").await?,
                key: read(directory, "tls.key").await?,
                ca: read(directory, "ca.crt").await?,
            })),
        }
    }
}

async fn read(directory: &Path, file: &str) -> Result<Vec<u8>, TlsError> {
    let path = directory.join(file);
    tokio::fs::read(&path).await.map_err(|source| TlsError::Read { path, source })
}

impl PemIdentity {
    pub fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        certificates(&self.certificate, "tls.crt")
    }

    pub fn private_key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|source| TlsError::Pem { what: "tls.key", source })
    }

    /// The CA's certificates as trust anchors.
    pub fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.ca, "ca.crt")? {
            roots.add(certificate).map_err(TlsError::Rejected)?;
        }
        Ok(roots)
    }

    pub fn client_config(&self) -> Result<ClientConfig, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Rejected)?
            .with_root_certificates(self.roots()?)
            .with_client_auth_cert(self.certificates()?, self.private_key()?)
            .map_err(TlsError::Rejected)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }
}

fn certificates(pem: &[u8], what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|source| TlsError::Pem { what, source })?;
    if found.is_empty() {
        return Err(TlsError::Empty { what });
    }
    Ok(found)
}
