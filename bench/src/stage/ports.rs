//! Free ports of 127.0.0.1.

use anyhow::{Result, bail};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the range the kernel gives to outgoing connections, so that nothing else takes one between
/// its choice and its use.
const FIRST: u16 = 21_000;
const COUNT: u16 = 8_000;
static NEXT: AtomicU16 = AtomicU16::new(0);

/// A port nobody listens on now, another at each call; test processes start at different places.
pub fn free() -> Result<u16> {
    let start = (std::process::id() % u32::from(COUNT)) as u16;
    for _ in 0..COUNT {
        let turn = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + start.wrapping_add(turn) % COUNT;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port between {FIRST} and {}", FIRST + COUNT)
}
