//! Turns SIGTERM and SIGINT into a cancellation token.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that is cancelled by the first SIGTERM or SIGINT. A SIGINT after that ends the process
/// at once, for a person who does not want to wait for a drain; the journal makes that safe. A
/// further SIGTERM changes nothing: container runtimes repeat it, and the stop is on its way.
///
/// Must be called inside a tokio runtime.
pub fn on_signals() -> std::io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        loop {
            let (name, person) = tokio::select! {
                _ = terminate.recv() => ("SIGTERM", false),
                _ = interrupt.recv() => ("SIGINT", true),
            };
            match (cancelled.is_cancelled(), person) {
                (true, true) => {
                    tracing::warn!(signal = name, "second signal, exiting at once");
                    std::process::exit(130);
                }
                (true, false) => tracing::info!(signal = name, "shutting down already"),
                (false, _) => tracing::info!(signal = name, "shutting down"),
            }
            cancelled.cancel();
        }
    });
    Ok(token)
}
