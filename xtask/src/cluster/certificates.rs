//! Keys and certificates of the local cluster: one authority that signs everything, made once per
//! run folder. Throw-away material for a cluster that listens on this machine only.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde_json::json;

use super::layout::{BRIDGE_ADDRESS, KUBERNETES_SERVICE, NODES, Ports, RunDir};

/// Who a certificate is for: file name, common name, group, and names or addresses it serves.
struct Subject<'a> {
    file: &'a str,
    name: &'a str,
    group: Option<&'a str>,
    serves: Vec<String>,
}

/// Makes all keys, certificates and kubeconfigs that are missing from the run folder.
pub fn ensure(run: &RunDir, ports: Ports, host: &str) -> Result<()> {
    let pki = run.join("pki");
    if pki.join("complete").exists() {
        return Ok(());
    }
    fs::create_dir_all(&pki)?;
    let authority = authority(&pki)?;
    let node_names: Vec<String> = NODES.iter().map(|node| node.name()).collect();
    for subject in subjects() {
        issue(&pki, &authority, &subject)?;
    }
    for (node, name) in NODES.iter().zip(&node_names) {
        let common_name = format!("system:node:{name}");
        issue(
            &pki,
            &authority,
            &Subject {
                file: name,
                name: &common_name,
                group: Some("system:nodes"),
                serves: vec![node.address(), name.clone()],
            },
        )?;
        kubeconfig(run, ports, BRIDGE_ADDRESS, name)?;
    }
    let key = KeyPair::generate()?;
    secret(&pki.join("service-account.key"), &key.serialize_pem())?;
    fs::write(pki.join("service-account.pub"), key.public_key_pem())?;
    for client in ["admin", "controller-manager", "scheduler", "dns"] {
        kubeconfig(run, ports, host, client)?;
    }
    kubeconfig(run, ports, BRIDGE_ADDRESS, "proxy")?;
    fs::write(pki.join("complete"), "")?;
    Ok(())
}

fn subjects() -> Vec<Subject<'static>> {
    let serves = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "localhost",
        "127.0.0.1",
        BRIDGE_ADDRESS,
        KUBERNETES_SERVICE,
    ];
    let client = |file, name, group| Subject { file, name, group, serves: Vec::new() };
    vec![
        Subject {
            file: "api-server",
            name: "kube-apiserver",
            group: None,
            serves: serves.map(String::from).to_vec(),
        },
        Subject {
            file: "postgres",
            name: "postgres",
            group: None,
            serves: ["localhost", "127.0.0.1", BRIDGE_ADDRESS].map(String::from).to_vec(),
        },
        client("kubelet-client", "kube-apiserver-kubelet-client", Some("system:masters")),
        client("admin", "admin", Some("system:masters")),
        client("controller-manager", "system:kube-controller-manager", None),
        client("scheduler", "system:kube-scheduler", None),
        client("proxy", "system:kube-proxy", None),
        client("dns", "system:coredns", None),
    ]
}

fn authority(pki: &Path) -> Result<Issuer<'static, KeyPair>> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.distinguished_name.push(DnType::CommonName, "cachetier local cluster");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    let certificate = params.self_signed(&key)?;
    fs::write(pki.join("ca.crt"), certificate.pem())?;
    secret(&pki.join("ca.key"), &key.serialize_pem())?;
    Ok(Issuer::new(params, key))
}

fn issue(pki: &Path, authority: &Issuer<'static, KeyPair>, subject: &Subject<'_>) -> Result<()> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(subject.serves.clone())?;
    params.distinguished_name.push(DnType::CommonName, subject.name);
    if let Some(group) = subject.group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, authority)?;
    fs::write(pki.join(format!("{}.crt", subject.file)), certificate.pem())?;
    secret(&pki.join(format!("{}.key", subject.file)), &key.serialize_pem())
}

/// Writes a kubeconfig that names the certificate files; JSON is YAML.
fn kubeconfig(run: &RunDir, ports: Ports, host: &str, client: &str) -> Result<()> {
    let text = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "local",
        "clusters": [{"name": "local", "cluster": {
            "server": format!("https://{host}:{}", ports.api_server()),
            "certificate-authority": run.certificate("ca"),
        }}],
        "users": [{"name": client, "user": {
            "client-certificate": run.certificate(client),
            "client-key": run.key(client),
        }}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": client}}],
    });
    secret(Path::new(&run.kubeconfig(client)), &serde_json::to_string_pretty(&text)?)
}

/// Writes a file that only root may read.
pub fn secret(path: &Path, text: &str) -> Result<()> {
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(file.write_all(text.as_bytes())?)
}
