//! `inet`: an address with the length of its network.

use std::cmp::Ordering;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A host or network address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    pub address: IpAddr,
    /// Leading bits that name the network; all of them for a host.
    pub bits: u8,
}

impl Network {
    pub fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.trim().split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text.trim(), None),
        };
        let address: IpAddr = address.parse().ok()?;
        let all = width(address);
        let bits = match bits {
            Some(b) if !b.is_empty() && b.bytes().all(|c| c.is_ascii_digit()) => b.parse().ok()?,
            Some(_) => return None,
            None => all,
        };
        (bits <= all).then_some(Self { address, bits })
    }

    /// The backend's output: a host without its length.
    pub fn format(self) -> String {
        let address = match self.address {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format_v6(address),
        };
        if self.bits == width(self.address) { address } else { format!("{address}/{}", self.bits) }
    }

    /// IPv4 first, then by the common part of the networks, then shorter networks first, then by
    /// the whole address: the backend's order.
    pub fn compare(self, other: Self) -> Ordering {
        let (a, b) = (number(self.address), number(other.address));
        let common = self.bits.min(other.bits);
        let head = |n: u128| if common == 0 { 0 } else { n >> (128 - u32::from(common)) };
        self.address
            .is_ipv6()
            .cmp(&other.address.is_ipv6())
            .then_with(|| head(a).cmp(&head(b)))
            .then_with(|| self.bits.cmp(&other.bits))
            .then_with(|| a.cmp(&b))
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The address in the topmost bits.
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
        IpAddr::V6(address) => u128::from(address),
    }
}

/// The backend also writes IPv4-compatible addresses with dots.
fn format_v6(address: Ipv6Addr) -> String {
    let bits = u128::from(address);
    if bits >> 32 == 0 && bits >> 16 != 0 {
        return format!("::{}", Ipv4Addr::from(bits as u32));
    }
    address.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_print_as_the_backend_prints_them() {
        for (given, printed) in [
            ("10.0.0.1", "10.0.0.1"),
            ("10.0.0.1/32", "10.0.0.1"),
            ("192.168.0.0/16", "192.168.0.0/16"),
            ("2001:DB8:0:0:1:0:0:1/64", "2001:db8::1:0:0:1/64"),
            ("::ffff:1.2.3.4", "::ffff:1.2.3.4"),
            ("::1.2.3.4", "::1.2.3.4"),
            ("::1", "::1"),
            ("::/0", "::/0"),
        ] {
            assert_eq!(Network::parse(given).unwrap().format(), printed);
        }
        for wrong in ["", "10.0.0", "10.0.0.1/33", "::1/129", "10.0.0.1/", "10.0.0.1/+8", "x"] {
            assert_eq!(Network::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn networks_stand_before_their_hosts() {
        let of = |text| Network::parse(text).unwrap();
        let ordered = ["10.0.0.0/8", "10.0.0.0/16", "10.0.0.0", "10.0.0.1", "11.0.0.0/8", "::"];
        for (a, b) in ordered.iter().zip(ordered.iter().skip(1)) {
            assert_eq!(of(a).compare(of(b)), Ordering::Less, "{a} {b}");
        }
    }
}
