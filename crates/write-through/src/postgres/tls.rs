//! TLS towards the backend: verified against `ca.crt` where one is given, else as `require` means
//! it in PostgreSQL's own clients: encrypted, not verified.

use super::credentials::TlsMaterial;
use crate::error::{BackendError, Reason};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::sync::Arc;
use tokio_postgres_rustls::MakeRustlsConnect;

pub(super) fn connector(material: &TlsMaterial) -> Result<MakeRustlsConnect, BackendError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(format!("no TLS protocol version: {error}")))?;
    let builder = match &material.ca {
        Some(pem) => builder.with_root_certificates(roots(pem)?),
        None if material.verify => {
            return Err(failed(
                "the uri asks for a verified server but there is no file `ca.crt`".to_owned(),
            ));
        }
        None => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Unverified { provider }))
        }
    };
    let config = match &material.client {
        Some((cert, key)) => {
            let chain = certificates(cert, "tls.crt")?;
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|_| failed("file `tls.key` holds no private key".to_owned()))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| failed(format!("the client certificate is unusable: {error}")))?
        }
        None => builder.with_no_client_auth(),
    };
    Ok(MakeRustlsConnect::new(config))
}

fn roots(pem: &[u8]) -> Result<RootCertStore, BackendError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem, "ca.crt")? {
        roots
            .add(certificate)
            .map_err(|error| failed(format!("file `ca.crt` holds no usable CA: {error}")))?;
    }
    Ok(roots)
}

fn certificates(pem: &[u8], file: &str) -> Result<Vec<CertificateDer<'static>>, BackendError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        _ => Err(failed(format!("file `{file}` holds no certificate"))),
    }
}

fn failed(message: String) -> BackendError {
    BackendError::new("prepare TLS to the backend", Reason::TlsFailed, message)
}

/// Accepts any server certificate, but still checks that the server owns its key.
#[derive(Debug)]
struct Unverified {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
