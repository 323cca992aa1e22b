//! The `CacheGroup` resource: what a user writes, what the operator reports back, the names of
//! everything derived from it, and the vocabulary of its conditions.
//!
//! Owns the types of the Kubernetes API and their validation rules, so that a value that passed the
//! API server parses here. Must never talk to a cluster. Data comes from manifests and goes to the
//! operator, the generated resource definition and the command-line tool.

pub mod condition;
pub mod cpu;
pub mod crd;
mod kept_text;
pub mod names;
pub mod quantity;
pub mod time_span;
pub mod v1alpha1;

pub use cpu::CpuAmount;
pub use quantity::ByteSize;
pub use time_span::TimeSpan;
