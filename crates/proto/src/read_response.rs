//! `cachetier.v1.ReadResponse` with its tables left encoded.
//!
//! The same bytes on the wire as the message in `cache.proto`. A node writes rows into them straight
//! from its store, a node that forwards hands them on unread, and a client decodes them once.

use crate::v1;
use bytes::Bytes;
use prost::{DecodeError, Message};

#[derive(Clone, PartialEq, Message)]
pub struct ReadResponse {
    #[prost(bool, tag = "1")]
    pub found: bool,
    /// Encoded [`v1::TableRows`].
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub tables: Vec<Bytes>,
    #[prost(enumeration = "v1::Source", tag = "3")]
    pub source: i32,
    #[prost(message, optional, tag = "4")]
    pub confirmed: Option<v1::Position>,
}

impl ReadResponse {
    /// The tables, decoded.
    pub fn decode_tables(&self) -> Result<Vec<v1::TableRows>, DecodeError> {
        self.tables.iter().map(|table| v1::TableRows::decode(table.clone())).collect()
    }
}
