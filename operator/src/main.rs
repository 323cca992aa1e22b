//! Entry point of the operator.

use clap::Parser;
use operator::args::{Args, Command};
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    match act() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // a closed standard error has nobody to tell
            let causes = cachetier_client::causes(error.as_ref());
            let _ = writeln!(std::io::stderr(), "error: {causes}");
            ExitCode::FAILURE
        }
    }
}

fn act() -> anyhow::Result<()> {
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
