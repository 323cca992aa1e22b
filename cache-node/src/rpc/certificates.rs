//! The server's TLS configuration, renewed when its files change.
//!
//! Owns the current configuration; new connections use the newest, open ones stay as they are. A
//! broken set of files is said once and the last good one stays in use.

use arc_swap::ArcSwap;
use cachetier_client::tls::PemIdentity;
use cachetier_client::{TlsError, TlsIdentity};
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const CHECK_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error(transparent)]
    Files(#[from] TlsError),
    #[error("tls.crt, tls.key and ca.crt do not make a server identity")]
    Rejected(#[source] rustls::Error),
    #[error("ca.crt cannot verify clients")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
}

/// The newest configuration.
pub struct Certificates {
    identity: TlsIdentity,
    current: ArcSwap<ServerConfig>,
}

impl Certificates {
    pub async fn load(directory: &Path) -> Result<(Arc<Self>, Arc<PemIdentity>), CertificateError> {
        let identity = TlsIdentity::Directory(directory.to_owned());
        let pem = identity.load().await?;
        let current = ArcSwap::from_pointee(server_config(&pem)?);
        Ok((Arc::new(Self { identity, current }), pem))
    }

    pub fn current(&self) -> Arc<ServerConfig> {
        self.current.load_full()
    }

    /// Looks at the files until `stop`; `seen` is what [`Certificates::load`] read.
    pub async fn follow(self: Arc<Self>, seen: Arc<PemIdentity>, stop: CancellationToken) {
        let mut seen = seen;
        let mut complained = false;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
            }
            match self.renew(&seen).await {
                Ok(None) => complained = false,
                Ok(Some(pem)) => {
                    tracing::info!("certificates renewed");
                    seen = pem;
                    complained = false;
                }
                Err(error) if !complained => {
                    tracing::error!(%error, "certificates cannot be renewed, the last stay in use");
                    complained = true;
                }
                Err(_) => {}
            }
        }
    }

    async fn renew(
        &self,
        seen: &PemIdentity,
    ) -> Result<Option<Arc<PemIdentity>>, CertificateError> {
        let pem = self.identity.load().await?;
        if pem.certificate == seen.certificate && pem.key == seen.key && pem.ca == seen.ca {
            return Ok(None);
        }
        self.current.store(Arc::new(server_config(&pem)?));
        Ok(Some(pem))
    }
}

/// Clients must present a certificate of the group's CA.
fn server_config(pem: &PemIdentity) -> Result<ServerConfig, CertificateError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = Arc::new(pem.roots()?);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
        .build()
        .map_err(CertificateError::Verifier)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(CertificateError::Rejected)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(pem.certificates()?, pem.private_key()?)
        .map_err(CertificateError::Rejected)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}
