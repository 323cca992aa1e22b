//! Turns SIGTERM and SIGINT into a cancellation token.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that is cancelled by the first SIGTERM or SIGINT. A second signal ends the process at
/// once, for a person who does not want to wait for a drain; the journal makes that safe.
///
/// Must be called inside a tokio runtime.
pub fn on_signals() -> std::io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        for attempt in 1_u32.. {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            if attempt > 1 {
                tracing::warn!(signal = name, "second signal, exiting at once");
                std::process::exit(130);
            }
            tracing::info!(signal = name, "shutting down");
            cancelled.cancel();
        }
    });
    Ok(token)
}
