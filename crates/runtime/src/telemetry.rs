//! Log output of a process.
//!
//! Owns the global subscriber. Must never be called by a library: only `main` decides where logs go.

use std::panic::PanicHookInfo;
use std::str::FromStr;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::TryInitError;
use tracing_subscriber::{fmt, layer::SubscriberExt, util::SubscriberInitExt};

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object per line, for log collectors.
    #[default]
    Json,
    /// For people at a terminal.
    Pretty,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "json" => Ok(Self::Json),
            "pretty" => Ok(Self::Pretty),
            other => Err(format!("log format {other:?} is unknown; use json or pretty")),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("the log filter cannot be parsed; write it like `info,cachetier_group=debug`")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    #[error("a log subscriber is installed already")]
    Installed(#[from] TryInitError),
}

/// Sends log lines to standard error, filtered by `filter` (e.g. `info,cachetier_group=debug`). A
/// panic becomes a line among the others, whatever thread or task it ends.
pub fn init(format: LogFormat, filter: &str) -> Result<(), TelemetryError> {
    let filter = EnvFilter::try_new(filter)?;
    let registry = tracing_subscriber::registry().with(filter);
    match format {
        LogFormat::Json => {
            let lines = fmt::layer().json().flatten_event(true).with_writer(std::io::stderr);
            registry.with(lines).try_init()?;
        }
        LogFormat::Pretty => {
            let lines = fmt::layer().with_target(false).with_writer(std::io::stderr);
            registry.with(lines).try_init()?;
        }
    }
    std::panic::set_hook(Box::new(log_panic));
    Ok(())
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let said = panic.payload_as_str().unwrap_or_default();
    let thread = std::thread::current();
    tracing::error!(thread = thread.name().unwrap_or_default(), place, said, "panic");
}
