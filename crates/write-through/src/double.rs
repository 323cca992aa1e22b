//! In-memory backend for tests.
