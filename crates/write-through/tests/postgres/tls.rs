//! TLS towards the backend.

use crate::support::server::Server;
use crate::support::{backend_options, hlr};
use cachetier_write_through::{Backend, PostgresBackend, Reason};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ca_in_the_secret_means_a_verified_server_and_none_means_what_the_uri_says() {
    let ca = authority("ca");
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &ca).unwrap();
    let server = Server::start_with_tls(&certificate.pem(), &key.serialize_pem());
    let db = server.database().await;
    hlr::create(&db).await;
    let file = |name: &str, text: &str| {
        std::fs::write(db.credentials.path().join(name), text).unwrap();
    };
    let identify = async || {
        let backend = PostgresBackend::new(backend_options(&db)).unwrap();
        backend.identify().await.map(|_| ()).map_err(|e| e.reason)
    };
    let encrypted = async || {
        let text = "SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) \
                    WHERE s.ssl AND a.application_name = 'cachetier'";
        let backend = PostgresBackend::new(backend_options(&db)).unwrap();
        backend.identify().await.unwrap();
        db.number(text).await > 0
    };
    assert!(encrypted().await, "without a word about it TLS is used where the server offers it");
    file("ca.crt", &ca.pem());
    assert!(encrypted().await);
    file("ca.crt", &authority("other").pem());
    assert_eq!(identify().await, Err(Reason::TlsFailed), "another CA");
    file("ca.crt", &ca.pem());
    file("host", "localhost");
    assert_eq!(identify().await, Err(Reason::TlsFailed), "another name than the certificate's");
    file("host", "127.0.0.1");
    file("ca.crt", "no certificate");
    assert_eq!(identify().await, Err(Reason::TlsFailed));
    std::fs::remove_file(db.credentials.path().join("ca.crt")).unwrap();
    std::fs::remove_file(db.credentials.path().join("host")).unwrap();
    let uri = format!("postgresql://127.0.0.1:{}/{}?sslmode=verify-full", server.port, db.name);
    file("uri", &uri);
    assert_eq!(identify().await, Err(Reason::TlsFailed), "verification without a CA");
    file("ca.crt", &ca.pem());
    assert_eq!(identify().await, Ok(()));
    server.crash();
}
