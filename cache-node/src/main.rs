//! Entry point of the cache node; see the library.

use clap::Parser;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<ExitCode> {
    let args = cache_node::Args::parse();
    tokio::runtime::Runtime::new()?.block_on(cache_node::run(args))
}
