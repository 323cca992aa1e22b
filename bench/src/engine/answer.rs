//! The answer of a read as bytes, the way a server or an application would write it: every value
//! is unpacked and encoded, nothing is kept between.

use cachetier_engine::RowSink;
use cachetier_model::{TableId, ValueRef};

/// Encoded rows. Reused from read to read, so that the figures hold no allocation of ours.
#[derive(Debug, Default)]
pub(super) struct Answer {
    bytes: Vec<u8>,
    pub(super) rows: u64,
}

impl Answer {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.rows = 0;
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    #[inline]
    fn integer(&mut self, tag: u8, value: i64) {
        let mut rest = ((value << 1) ^ (value >> 63)) as u64;
        if rest < 0x80 {
            self.bytes.extend_from_slice(&[tag, rest as u8]);
            return;
        }
        self.bytes.push(tag);
        while rest >= 0x80 {
            self.bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.bytes.push(rest as u8);
    }

    fn sized(&mut self, tag: u8, bytes: &[u8]) {
        self.integer(tag, bytes.len() as i64);
        self.bytes.extend_from_slice(bytes);
    }
}

impl RowSink for Answer {
    fn table(&mut self, table: TableId) {
        self.integer(0, table as i64);
    }

    fn row(&mut self, values: usize) {
        self.rows += 1;
        self.integer(1, values as i64);
    }

    #[inline]
    fn value(&mut self, value: ValueRef<'_>) {
        match value {
            ValueRef::Int(v) => self.integer(2, v),
            ValueRef::Text(v) => self.sized(3, v.as_bytes()),
            ValueRef::Null => self.integer(4, 0),
            ValueRef::Bool(v) => self.integer(5, i64::from(v)),
            ValueRef::Bytes(v) => self.sized(6, v),
            ValueRef::Uuid(v) => self.sized(7, &v),
            ValueRef::Date(v) => self.integer(8, i64::from(v)),
            ValueRef::Time(v) => self.integer(9, v),
            ValueRef::Timestamp(v) => self.integer(10, v),
            ValueRef::TimestampTz(v) => self.integer(11, v),
            ValueRef::Float4(v) => self.sized(12, &v.to_le_bytes()),
            ValueRef::Float8(v) => self.sized(13, &v.to_le_bytes()),
        }
    }
}
