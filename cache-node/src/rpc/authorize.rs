//! Who may do what: the role is the common name of the client's certificate.
//!
//! The certificate was verified against the group's CA by TLS before anything here runs.

use super::errors;
use cachetier_client::Reason;
use tonic::{Code, Request, Status};
use x509_parser::prelude::{FromDer, X509Certificate};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Node,
    Operator,
    Loader,
    Client,
    Admin,
    /// A connection without TLS.
    Trusted,
}

impl Role {
    /// The role a certificate (DER) gives; `None` for an unknown name.
    pub fn of_certificate(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let name = certificate.subject().iter_common_name().next()?.as_str().ok()?;
        match name {
            "node" => Some(Self::Node),
            "operator" => Some(Self::Operator),
            "loader" => Some(Self::Loader),
            "client" => Some(Self::Client),
            "admin" => Some(Self::Admin),
            _ => None,
        }
    }
}

/// The other end of a connection, determined once when it was accepted.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub role: Option<Role>,
}

/// Groups of calls with the same rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Reads and writes of rows.
    Cache,
    /// What a preload needs of the admin service.
    Load,
    /// Everything else of the admin service.
    Admin,
    /// Node to node.
    Peer,
}

impl Act {
    fn allows(self, role: Role) -> bool {
        match (self, role) {
            (_, Role::Trusted) | (Self::Cache, _) => true,
            (Self::Load, role) => role != Role::Client,
            (Self::Admin, role) => matches!(role, Role::Operator | Role::Admin | Role::Node),
            (Self::Peer, role) => role == Role::Node,
        }
    }
}

/// Refuses callers whose role may not do this.
pub fn authorize<T>(request: &Request<T>, act: Act) -> Result<(), Status> {
    let role = request.extensions().get::<Caller>().and_then(|c| c.role);
    if role.is_some_and(|role| act.allows(role)) {
        return Ok(());
    }
    let role = role.map_or("unknown".to_owned(), |r| format!("{r:?}").to_lowercase());
    let message = format!("a certificate of role {role} may not call this");
    Err(errors::refuse(Code::PermissionDenied, Reason::Role, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_reaches_only_its_services() {
        let reach =
            |role| [Act::Cache, Act::Load, Act::Admin, Act::Peer].map(|act: Act| act.allows(role));
        assert_eq!(reach(Role::Client), [true, false, false, false]);
        assert_eq!(reach(Role::Loader), [true, true, false, false]);
        assert_eq!(reach(Role::Operator), [true, true, true, false]);
        assert_eq!(reach(Role::Admin), [true, true, true, false]);
        assert_eq!(reach(Role::Node), [true, true, true, true]);
    }

    #[test]
    fn the_role_is_the_common_name_and_other_names_give_none() {
        let certificate = |name: &str| {
            let mut parameters = rcgen::CertificateParams::default();
            parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
            let key = rcgen::KeyPair::generate().unwrap();
            parameters.self_signed(&key).unwrap().der().to_vec()
        };
        assert_eq!(Role::of_certificate(&certificate("loader")), Some(Role::Loader));
        assert_eq!(Role::of_certificate(&certificate("root")), None);
        assert_eq!(Role::of_certificate(b"nonsense"), None);
    }

    #[test]
    fn a_call_without_a_known_caller_is_refused() {
        let refused = authorize(&Request::new(()), Act::Cache).unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
    }
}
