//! The backend's credentials, read from their directory at every connect so that a rotated
//! Secret needs no restart.
//!
//! Owns the meaning of the files. Never logs them; errors name the file, not its content.

use crate::error::{BackendError, Reason};
use std::path::Path;
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

const ACT: &str = "read the backend's credentials";

/// What a connect needs.
pub(super) struct Credentials {
    pub config: Config,
    pub tls: TlsMaterial,
}

/// How the server proves itself, and we to it.
#[derive(Default)]
pub(super) struct TlsMaterial {
    /// PEM of the CA that the server's certificate must be of; its name is verified too.
    pub ca: Option<Vec<u8>>,
    /// PEM of a client certificate and its key.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
    /// The uri demanded verification.
    pub verify: bool,
}

pub(super) fn read(directory: &Path) -> Result<Credentials, BackendError> {
    if !directory.is_dir() {
        return Err(missing(format!("there is no directory {}", directory.display())));
    }
    let mut tls = TlsMaterial { ca: bytes(directory, "ca.crt")?, ..TlsMaterial::default() };
    if let (Some(cert), Some(key)) = (bytes(directory, "tls.crt")?, bytes(directory, "tls.key")?) {
        tls.client = Some((cert, key));
    }
    let mut config = match text(directory, "uri")? {
        Some(uri) => {
            let (uri, verify) = without_verification(&uri);
            tls.verify = verify;
            uri.parse::<Config>().map_err(|_| {
                let message = "file `uri` is not a PostgreSQL connection URI";
                BackendError::new(ACT, Reason::Configuration, message)
            })?
        }
        // the uri names its hosts and ports itself; these files would add to them
        None => from_parts(directory)?,
    };
    if let Some(dbname) = text(directory, "dbname")? {
        config.dbname(dbname);
    }
    if let Some(user) = text(directory, "username")? {
        config.user(user);
    }
    if let Some(password) = text(directory, "password")? {
        config.password(password);
    }
    if config.get_hosts().is_empty() {
        return Err(missing("neither `uri` nor `host` is there".to_owned()));
    }
    if config.get_user().is_none() {
        return Err(missing("neither `uri` nor `username` names a user".to_owned()));
    }
    if tls.ca.is_some() || tls.verify {
        config.ssl_mode(SslMode::Require);
    }
    Ok(Credentials { config, tls })
}

fn from_parts(directory: &Path) -> Result<Config, BackendError> {
    let mut config = Config::new();
    if let Some(host) = text(directory, "host")? {
        host.split(',').for_each(|h| {
            config.host(h.trim());
        });
    }
    if let Some(port) = text(directory, "port")? {
        let port = port.parse::<u16>().map_err(|_| {
            BackendError::new(ACT, Reason::Configuration, "file `port` is not a port number")
        })?;
        config.port(port);
    }
    Ok(config)
}

/// The driver knows no verifying modes; they are ours. Also drops the parameters that name files.
fn without_verification(uri: &str) -> (String, bool) {
    let Some((base, query)) = uri.split_once('?') else { return (uri.to_owned(), false) };
    let mut verify = false;
    let mut kept = Vec::new();
    for parameter in query.split('&') {
        match parameter.split_once('=') {
            Some(("sslmode", "verify-full" | "verify-ca")) => {
                verify = true;
                kept.push("sslmode=require");
            }
            Some(("sslrootcert" | "sslcert" | "sslkey", _)) => {}
            _ => kept.push(parameter),
        }
    }
    if kept.is_empty() {
        return (base.to_owned(), verify);
    }
    (format!("{base}?{}", kept.join("&")), verify)
}

fn missing(message: String) -> BackendError {
    BackendError::new(
        ACT,
        Reason::CredentialsMissing,
        format!("{message}; the backend's Secret needs `uri`, or `host`, `username`, `password`"),
    )
}

fn bytes(directory: &Path, name: &str) -> Result<Option<Vec<u8>>, BackendError> {
    match std::fs::read(directory.join(name)) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(missing(format!("file `{name}` cannot be read: {error}"))),
    }
}

fn text(directory: &Path, name: &str) -> Result<Option<String>, BackendError> {
    let Some(bytes) = bytes(directory, name)? else { return Ok(None) };
    let text = String::from_utf8(bytes)
        .map_err(|_| missing(format!("file `{name}` is not UTF-8 text")))?;
    let text = text.trim_end_matches(['\n', '\r']);
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_password_win_over_the_uri_and_trailing_newlines_do_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let uri = "postgresql://u@db.example:6432/hlr?sslmode=verify-full\n";
        std::fs::write(dir.path().join("uri"), uri).unwrap();
        std::fs::write(dir.path().join("password"), "se cret\n").unwrap();
        std::fs::write(dir.path().join("port"), "1").unwrap();
        let credentials = read(dir.path()).unwrap();
        assert_eq!(credentials.config.get_password(), Some(&b"se cret"[..]));
        assert_eq!(credentials.config.get_dbname(), Some("hlr"));
        assert_eq!(credentials.config.get_ports(), [6432]);
        assert!(credentials.tls.verify);
        assert_eq!(credentials.config.get_ssl_mode(), SslMode::Require);
    }

    #[test]
    fn what_is_missing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let Err(error) = read(dir.path()) else { panic!("must fail") };
        assert_eq!(error.reason, Reason::CredentialsMissing);
        std::fs::write(dir.path().join("host"), "db").unwrap();
        let Err(error) = read(dir.path()) else { panic!("must fail") };
        assert!(error.message.contains("username"), "{}", error.message);
    }
}
