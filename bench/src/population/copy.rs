//! Rows in PostgreSQL's binary COPY format.
//!
//! A file is a header, tuples (field count, then length and bytes of each field, all big-endian)
//! and a trailer; see the COPY page of the PostgreSQL manual.

use super::Subscriber;
use bytes::{BufMut, Bytes, BytesMut};

/// Signature, flags and the length of the (empty) header extension.
const HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";

/// A growing binary COPY stream of one table.
#[derive(Debug)]
pub struct CopyBuffer {
    bytes: BytesMut,
    pub rows: u64,
}

impl Default for CopyBuffer {
    fn default() -> Self {
        Self { bytes: BytesMut::from(HEADER), rows: 0 }
    }
}

impl CopyBuffer {
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What has been written since the last take.
    pub fn take(&mut self) -> Bytes {
        self.bytes.split().freeze()
    }

    /// Ends the stream.
    pub fn end(&mut self) {
        self.bytes.put_i16(-1);
    }

    fn row(&mut self, fields: i16) -> &mut Self {
        self.rows += 1;
        self.bytes.put_i16(fields);
        self
    }

    fn int2(&mut self, value: i16) -> &mut Self {
        self.bytes.put_i32(2);
        self.bytes.put_i16(value);
        self
    }

    fn int8(&mut self, value: i64) -> &mut Self {
        self.bytes.put_i32(8);
        self.bytes.put_i64(value);
        self
    }

    fn text(&mut self, value: &str) -> &mut Self {
        self.bytes.put_i32(value.len() as i32);
        self.bytes.put_slice(value.as_bytes());
        self
    }
}

/// The streams of the four tables, in the order of `tables::TABLES`.
#[derive(Debug, Default)]
pub struct CopyBuffers {
    pub tables: [CopyBuffer; 4],
}

impl CopyBuffers {
    pub fn add(&mut self, s: &Subscriber) {
        let [subscriber, access_info, special_facility, call_forwarding] = &mut self.tables;
        subscriber.row(34).int8(s.s_id).text(&s.sub_nbr);
        for value in s.bits.iter().chain(&s.hexes).chain(&s.bytes) {
            subscriber.int2(*value);
        }
        subscriber.int8(s.msc_location).int8(s.vlr_location);
        for a in &s.access {
            access_info
                .row(6)
                .int8(s.s_id)
                .int2(a.ai_type)
                .int2(a.data1)
                .int2(a.data2)
                .text(&a.data3)
                .text(&a.data4);
        }
        for f in &s.facilities {
            special_facility
                .row(6)
                .int8(s.s_id)
                .int2(f.sf_type)
                .int2(i16::from(f.is_active))
                .int2(f.error_cntrl)
                .int2(f.data_a)
                .text(&f.data_b);
            for c in &f.forwardings {
                call_forwarding
                    .row(5)
                    .int8(s.s_id)
                    .int2(f.sf_type)
                    .int2(c.start_time)
                    .int2(c.end_time)
                    .text(&c.numberx);
            }
        }
    }
}
