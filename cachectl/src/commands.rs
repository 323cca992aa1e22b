//! The commands, one file each.

mod compare;
mod ddl;
mod drain;
mod get;
mod load;
mod rejects;
mod status;
mod topology;
mod tx;
mod tx_file;

use crate::arguments::{Arguments, Command};
use crate::exit::Exit;
use crate::reach::Reach;
use anyhow::Result;
use clap::CommandFactory;

pub async fn run(arguments: Arguments) -> Result<Exit> {
    let Arguments { reach, output, command } = arguments;
    // Commands that need no group.
    let command = match command {
        Command::Ddl(arguments) => {
            ddl::print(&arguments);
            return Ok(Exit::Done);
        }
        Command::Completion { shell } => {
            let mut line = Arguments::command();
            clap_complete::generate(shell, &mut line, "cachectl", &mut std::io::stdout());
            return Ok(Exit::Done);
        }
        other => other,
    };
    let reach = Reach::open(&reach).await?;
    match command {
        Command::Get(arguments) => get::run(&reach, &arguments, output).await,
        Command::Tx(arguments) => tx::run(&reach, &arguments, output).await,
        Command::Status => status::run(&reach, output).await,
        Command::Compare(arguments) => compare::run(&reach, &arguments, output).await,
        Command::Load(arguments) => load::run(&reach, &arguments, output).await,
        Command::Drain(arguments) => drain::run(&reach, &arguments, output).await,
        Command::Rejects(command) => rejects::run(&reach, &command, output).await,
        Command::Topology => topology::run(&reach, output).await,
        Command::Ddl(_) | Command::Completion { .. } => Ok(Exit::Done),
    }
}
