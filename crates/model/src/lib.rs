//! Domain types of a cache group: schema, values, keys, slots, transactions, topology and node
//! configuration.
//!
//! Owns the vocabulary that every other crate speaks. Must never do IO, spawn tasks, or know
//! Kubernetes, gRPC or SQL drivers; each of those converts to these types once, at its own edge.

pub mod codec;
pub mod instance;
pub mod key;
pub mod node_config;
pub mod schema;
pub mod slot;
pub mod topology;
pub mod transaction;
pub mod value;

pub use instance::{Instance, Row};
pub use key::{LookupKey, RootKey};
pub use schema::{Column, ColumnId, GroupSchema, LookupId, TableId, TableSchema};
pub use slot::{SLOT_COUNT, SlotId, SlotSet};
pub use topology::{Epoch, NodeEntry, Topology};
pub use transaction::{
    ChangeKind, Comparison, Condition, Guard, IdempotencyKey, IdempotencyKeyError, Operation,
    ReadPlan, RowChange, TableRead, Transaction,
};
pub use value::{ColumnType, Comparability, Value, ValueError, ValueRef};
