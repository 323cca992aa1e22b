//! Entry point of the cache node; see the library.

use clap::Parser;
use std::process::ExitCode;
use std::time::Duration;

/// How long the process waits for calls that cannot be cancelled, such as a name lookup.
const BLOCKING_GRACE: Duration = Duration::from_secs(1);

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<ExitCode> {
    let args = cache_node::Args::parse();
    let runtime = tokio::runtime::Runtime::new()?;
    let exit = runtime.block_on(cache_node::run(args));
    // a dropped runtime would wait for them without end, and the kubelet would kill the process
    runtime.shutdown_timeout(BLOCKING_GRACE);
    exit
}
