//! The binary COPY format, read row by row from the chunks in which it arrives.
//!
//! Pure: fed with bytes, gives fields.

use bytes::{Buf, BytesMut};

const SIGNATURE: &[u8] = b"PGCOPY\n\xff\r\n\0";

#[derive(Debug, PartialEq, Eq)]
pub(super) struct CopyDamaged;

/// Accumulates bytes and cuts rows off their front.
#[derive(Default)]
pub(super) struct CopyReader {
    buffer: BytesMut,
    header_read: bool,
    ended: bool,
}

impl CopyReader {
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole row as its fields, or `None` when more bytes are needed or none follow.
    pub(super) fn next_row<T>(
        &mut self,
        decode: impl FnMut(usize, Option<&[u8]>) -> Result<T, CopyDamaged>,
    ) -> Result<Option<Vec<T>>, CopyDamaged> {
        if self.ended || !self.read_header()? {
            return Ok(None);
        }
        let Some(length) = self.row_length()? else { return Ok(None) };
        if self.ended {
            return Ok(None);
        }
        let mut row = self.buffer.split_to(length);
        fields(&mut row, decode).map(Some)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.ended
    }

    fn read_header(&mut self) -> Result<bool, CopyDamaged> {
        if self.header_read {
            return Ok(true);
        }
        let fixed = SIGNATURE.len() + 8;
        if self.buffer.len() < fixed {
            return Ok(false);
        }
        if !self.buffer.starts_with(SIGNATURE) {
            return Err(CopyDamaged);
        }
        let extension = self.number(SIGNATURE.len() + 4).ok_or(CopyDamaged)?;
        let extension = usize::try_from(extension).map_err(|_| CopyDamaged)?;
        if self.buffer.len() < fixed + extension {
            return Ok(false);
        }
        self.buffer.advance(fixed + extension);
        self.header_read = true;
        Ok(true)
    }

    /// Bytes of the row at the front, if it is there whole.
    fn row_length(&mut self) -> Result<Option<usize>, CopyDamaged> {
        let Some(count) = self.buffer.get(..2).and_then(|b| <[u8; 2]>::try_from(b).ok()) else {
            return Ok(None);
        };
        let count = i16::from_be_bytes(count);
        if count == -1 {
            self.ended = true;
            return Ok(Some(2));
        }
        let mut at = 2;
        for _ in 0..count {
            let Some(length) = self.number(at) else { return Ok(None) };
            at += 4 + usize::try_from(length.max(0)).map_err(|_| CopyDamaged)?;
        }
        Ok((self.buffer.len() >= at).then_some(at))
    }

    fn number(&self, at: usize) -> Option<i32> {
        let bytes = self.buffer.get(at..at.checked_add(4)?)?;
        Some(i32::from_be_bytes(bytes.try_into().ok()?))
    }
}

fn fields<T>(
    row: &mut BytesMut,
    mut decode: impl FnMut(usize, Option<&[u8]>) -> Result<T, CopyDamaged>,
) -> Result<Vec<T>, CopyDamaged> {
    let count = usize::try_from(row.get_i16()).map_err(|_| CopyDamaged)?;
    let mut out = Vec::with_capacity(count);
    for place in 0..count {
        let length = row.get_i32();
        let field = match usize::try_from(length) {
            Ok(length) => {
                let field = row.split_to(length.min(row.len()));
                decode(place, Some(&field))?
            }
            Err(_) => decode(place, None)?,
        };
        out.push(field);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> Vec<u8> {
        let mut bytes = SIGNATURE.to_vec();
        bytes.extend([0; 8]);
        for text in ["ab", ""] {
            bytes.extend(2_i16.to_be_bytes());
            bytes.extend((text.len() as i32).to_be_bytes());
            bytes.extend(text.as_bytes());
            bytes.extend((-1_i32).to_be_bytes());
        }
        bytes.extend((-1_i16).to_be_bytes());
        bytes
    }

    #[test]
    fn rows_come_out_whole_however_the_stream_is_cut() {
        for step in 1..stream().len() {
            let mut reader = CopyReader::default();
            let mut rows = Vec::new();
            for chunk in stream().chunks(step) {
                reader.feed(chunk);
                while let Some(row) = reader.next_row(|_, f| Ok(f.map(<[u8]>::to_vec))).unwrap() {
                    rows.push(row);
                }
            }
            assert!(reader.is_complete());
            assert_eq!(rows, vec![vec![Some(b"ab".to_vec()), None], vec![Some(vec![]), None]]);
        }
    }

    #[test]
    fn another_stream_is_refused() {
        let mut reader = CopyReader::default();
        reader.feed(b"this is no binary copy at all");
        assert_eq!(reader.next_row(|_, _| Ok(())), Err(CopyDamaged));
    }
}
