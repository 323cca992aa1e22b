//! Container images without a container engine.

pub mod archive;
