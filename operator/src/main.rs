//! Entry point of the operator.

use clap::Parser;
use operator::args::{Args, Command};
use std::io::Write;

fn main() -> anyhow::Result<()> {
    match Args::parse().command {
        Command::Crd => {
            let yaml = serde_saphyr::to_string(&cachetier_api::crd::cache_group())?;
            Ok(std::io::stdout().write_all(yaml.as_bytes())?)
        }
        Command::Run(args) => tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?
            .block_on(operator::run::run(args)),
    }
}
