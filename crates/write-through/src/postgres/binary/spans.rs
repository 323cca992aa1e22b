//! `interval` and `inet` in the server's binary format.

use bytes::{BufMut, BytesMut};
use cachetier_model::Value;
use cachetier_model::value::{Interval, Network};
use std::net::IpAddr;

pub(super) fn encode_interval(text: &str, out: &mut BytesMut) -> Option<()> {
    let Interval { months, days, micros } = Interval::parse(text)?;
    out.put_i64(micros);
    out.put_i32(days);
    out.put_i32(months);
    Some(())
}

pub(super) fn decode_interval(raw: &[u8]) -> Option<Value> {
    let (micros, rest) = raw.split_first_chunk()?;
    let (days, rest) = rest.split_first_chunk()?;
    let (months, rest) = rest.split_first_chunk()?;
    let interval = Interval {
        months: i32::from_be_bytes(*months),
        days: i32::from_be_bytes(*days),
        micros: i64::from_be_bytes(*micros),
    };
    rest.is_empty().then(|| Value::Text(interval.format().into()))
}

/// The server's numbers of the two families; its own, whatever the machine's are.
const FAMILY_V4: u8 = 2;
const FAMILY_V6: u8 = 3;

pub(super) fn encode_inet(text: &str, out: &mut BytesMut) -> Option<()> {
    let Network { address, bits } = Network::parse(text)?;
    match address {
        IpAddr::V4(address) => {
            out.put_slice(&[FAMILY_V4, bits, 0, 4]);
            out.put_slice(&address.octets());
        }
        IpAddr::V6(address) => {
            out.put_slice(&[FAMILY_V6, bits, 0, 16]);
            out.put_slice(&address.octets());
        }
    }
    Some(())
}

pub(super) fn decode_inet(raw: &[u8]) -> Option<Value> {
    let ([family, bits, _, length], octets) = raw.split_first_chunk::<4>()?;
    let address = match (*family, *length) {
        (FAMILY_V4, 4) => IpAddr::from(<[u8; 4]>::try_from(octets).ok()?),
        (FAMILY_V6, 16) => IpAddr::from(<[u8; 16]>::try_from(octets).ok()?),
        _ => return None,
    };
    Some(Value::Text(Network { address, bits: *bits }.format().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_addresses_round_trip() {
        for text in ["1 year 2 mons -3 days +04:05:06.789", "00:00:00", "-1 days"] {
            let mut out = BytesMut::new();
            encode_interval(text, &mut out).unwrap();
            assert_eq!(decode_interval(&out), Some(Value::Text(text.into())));
            assert_eq!(decode_interval(&out[1..]), None);
        }
        for text in ["10.0.0.1", "10.0.0.0/8", "2001:db8::1/64"] {
            let mut out = BytesMut::new();
            encode_inet(text, &mut out).unwrap();
            assert_eq!(decode_inet(&out), Some(Value::Text(text.into())));
            assert_eq!(decode_inet(&out[1..]), None);
        }
    }
}
