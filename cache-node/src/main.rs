//! Entry point of the cache node; see the library.

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<()> {
    let args = cache_node::Args::parse();
    tokio::runtime::Runtime::new()?.block_on(cache_node::run(args))
}
