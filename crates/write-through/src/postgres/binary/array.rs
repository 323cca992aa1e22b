//! Arrays as the server sends them: dimensions, then elements in their own binary format.

use super::{BinaryError, decode as decode_element};
use cachetier_model::value::Array;
use cachetier_model::{ColumnType, Value};

/// The server's own limit.
const DIMENSIONS_MAX: u32 = 6;

pub(super) fn decode(element: &ColumnType, raw: &[u8]) -> Result<Value, BinaryError> {
    const MALFORMED: BinaryError = BinaryError::Malformed("array");
    let mut rest = raw;
    let dimensions = word(&mut rest).filter(|n| *n <= DIMENSIONS_MAX).ok_or(MALFORMED)?;
    // whether there are NULLs, and the element's type: both are told again
    word(&mut rest).and(word(&mut rest)).ok_or(MALFORMED)?;
    let mut array = Array::default();
    let mut count = u64::from(dimensions > 0);
    for _ in 0..dimensions {
        let (length, lower) = word(&mut rest).zip(word(&mut rest)).ok_or(MALFORMED)?;
        count = count.saturating_mul(u64::from(length));
        array.dimensions.push((length, lower as i32));
    }
    for _ in 0..count {
        let length = word(&mut rest).ok_or(MALFORMED)?;
        if length == u32::MAX {
            array.elements.push(Value::Null);
            continue;
        }
        let (value, after) = rest.split_at_checked(length as usize).ok_or(MALFORMED)?;
        array.elements.push(decode_element(element, Some(value))?);
        rest = after;
    }
    if rest.is_empty() { Ok(Value::Text(array.format(element).into())) } else { Err(MALFORMED) }
}

fn word(rest: &mut &[u8]) -> Option<u32> {
    let (word, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(u32::from_be_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_read_with_their_shape_and_damaged_ones_refused() {
        let mut raw = Vec::new();
        for n in [1_u32, 1, 23, 2, 0, 4, 7, u32::MAX] {
            raw.extend(n.to_be_bytes());
        }
        let read = |raw: &[u8]| decode(&ColumnType::Int4, raw);
        assert_eq!(read(&raw), Ok(Value::Text("[0:1]={7,NULL}".into())));
        for end in 0..raw.len() {
            assert!(read(&raw[..end]).is_err(), "{end}");
        }
        let empty: Vec<u8> = [0_u32, 0, 23].iter().flat_map(|n| n.to_be_bytes()).collect();
        assert_eq!(read(&empty), Ok(Value::Text("{}".into())));
    }
}
