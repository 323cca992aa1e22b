//! Ending in order when told to end.

use anyhow::{Result, bail};
use std::future::Future;
use tokio::signal::unix::{SignalKind, signal};

/// Does the work, or lets go of it when a person or a supervisor says so: its servers and folders
/// then end with it. Work that does not wait for anything is not interrupted.
pub async fn unless_told_to_end<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let name = tokio::select! {
        done = work => return done,
        _ = interrupt.recv() => "SIGINT",
        _ = terminate.recv() => "SIGTERM",
        _ = hang_up.recv() => "SIGHUP",
    };
    bail!("ended by {name}, and its servers with it")
}
