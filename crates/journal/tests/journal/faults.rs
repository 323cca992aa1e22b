//! Disks that fail.
