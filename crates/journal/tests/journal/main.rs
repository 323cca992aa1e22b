//! What the journal promises, checked from outside.

mod basics;
mod faults;
mod file_system;
mod fixtures;
mod killed;
mod model;
mod offline;
mod support;
