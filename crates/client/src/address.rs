//! Addresses as people write them.
//!
//! Pure. Nothing is looked up here: a mistake is told from an address before anything is dialled.

use crate::options::Endpoint;
use std::str::FromStr;

const FORM: &str = "write HOST:PORT, such as hlr-0.hlr-nodes:7070 or [::1]:7070";

/// Text that is no address of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("it is empty; {FORM}")]
    Empty,
    #[error("a URL is no address; {FORM}")]
    Url,
    #[error("there is no port; {FORM}")]
    NoPort,
    #[error("there is no host before the port; {FORM}")]
    NoHost,
    #[error("the port is not a number from 1 to 65535; {FORM}")]
    Port,
    #[error("an IPv6 address stands in brackets; {FORM}")]
    Brackets,
    #[error("the host has a character that no host has; {FORM}")]
    Host,
}

impl FromStr for Endpoint {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.is_empty() {
            return Err(AddressError::Empty);
        }
        if text.contains("://") || text.contains('/') {
            return Err(AddressError::Url);
        }
        let (host, port) = match text.rsplit_once(':') {
            // the last part of an IPv6 address looks like a port
            Some((_, port)) if port.ends_with(']') => return Err(AddressError::NoPort),
            Some(parts) => parts,
            None => return Err(AddressError::NoPort),
        };
        check_host(host)?;
        let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
        match port.parse::<u16>() {
            Ok(1..) if digits => Ok(Self::new(text)),
            _ => Err(AddressError::Port),
        }
    }
}

fn check_host(host: &str) -> Result<(), AddressError> {
    if host.is_empty() {
        return Err(AddressError::NoHost);
    }
    if let Some(inner) = host.strip_prefix('[') {
        // a zone may follow, as in fe80::1%eth0
        let address = inner.strip_suffix(']').unwrap_or_default().split('%').next();
        let known = address.is_some_and(|a| a.parse::<std::net::Ipv6Addr>().is_ok());
        return if known { Ok(()) } else { Err(AddressError::Brackets) };
    }
    if host.contains(':') {
        return Err(AddressError::Brackets);
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if host.chars().all(allowed) { Ok(()) } else { Err(AddressError::Host) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port_and_every_other_text_is_told_what_it_lacks() {
        for good in ["hlr-0.hlr-nodes:7070", "127.0.0.1:1", "[::1]:7070", "[fe80::1%eth0]:7070"] {
            assert_eq!(good.parse::<Endpoint>(), Ok(Endpoint::new(good)));
        }
        for (bad, why) in [
            ("", AddressError::Empty),
            ("abc", AddressError::NoPort),
            ("http://abc:7070", AddressError::Url),
            ("abc:7070/x", AddressError::Url),
            (":99999", AddressError::NoHost),
            (":7070", AddressError::NoHost),
            ("abc:99999", AddressError::Port),
            ("abc:0", AddressError::Port),
            ("abc:", AddressError::Port),
            ("abc:+1", AddressError::Port),
            ("::1:7070", AddressError::Brackets),
            ("[abc]:7070", AddressError::Brackets),
            ("[::1]", AddressError::NoPort),
            ("a b:7070", AddressError::Host),
        ] {
            assert_eq!(bad.parse::<Endpoint>(), Err(why), "{bad}");
            assert!(why.to_string().contains("HOST:PORT"));
        }
    }
}
