//! Between the wire's messages and the domain's types, for both ends.
//!
//! Owns every such conversion. Pure: schema and message in, plain values out. Names are resolved
//! to ids here and nowhere else.

mod error;
mod names;
mod reads;
mod requests;
mod topologies;
mod transactions;
mod values;

pub use error::ConvertError;
pub use reads::{instance_from_wire, instance_to_wire, read_plan, tables_to_wire};
pub use requests::{
    position_to_wire, read_answer_from_wire, read_to_wire, transact_answer_from_wire,
    transact_to_wire,
};
pub use topologies::{topology_from_wire, topology_to_wire};
pub use transactions::transaction;
pub use values::{key_values_from_wire, lookup_from_wire, value_from_wire, value_to_wire};
