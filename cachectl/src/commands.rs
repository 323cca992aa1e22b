//! The commands, one file each.

mod accept_loss;
mod compare;
mod ddl;
mod drain;
mod get;
mod load;
mod pause;
mod refresh;
mod rejects;
mod status;
mod topology;
mod tx;
mod tx_file;

use crate::arguments::{Arguments, Command, RejectsCommand};
use crate::exit::{Exit, misuse};
use crate::output;
use crate::reach::Reach;
use anyhow::Result;
use clap::CommandFactory;

pub async fn run(arguments: Arguments) -> Result<Exit> {
    let Arguments { reach, output: format, command } = arguments;
    // Commands that need no group.
    let command = match command {
        Command::Ddl(arguments) => {
            ddl::print(&arguments);
            return Ok(Exit::Done);
        }
        Command::Completion { shell } => {
            let mut line = Arguments::command();
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut line, "cachectl", &mut script);
            output::whole(&script);
            return Ok(Exit::Done);
        }
        other => other,
    };
    reach.check().map_err(misuse)?;
    match &command {
        Command::Get(arguments) => arguments.check().map_err(misuse)?,
        Command::Tx(arguments) => arguments.check().map_err(misuse)?,
        Command::Rejects(RejectsCommand::Replay(chosen) | RejectsCommand::Discard(chosen)) => {
            chosen.check().map_err(misuse)?;
        }
        _ => {}
    }
    let reach = Reach::open(&reach).await?;
    match command {
        Command::Get(arguments) => get::run(&reach, &arguments, format).await,
        Command::Tx(arguments) => tx::run(&reach, &arguments, format).await,
        Command::Status => status::run(&reach, format).await,
        Command::Compare(arguments) => compare::run(&reach, &arguments, format).await,
        Command::Refresh(arguments) => refresh::run(&reach, &arguments, format).await,
        Command::Load(arguments) => load::run(&reach, &arguments, format).await,
        Command::Drain(arguments) => drain::run(&reach, &arguments, format).await,
        Command::Pause => pause::run(&reach, true, format).await,
        Command::Resume => pause::run(&reach, false, format).await,
        Command::AcceptLoss(arguments) => accept_loss::run(&reach, &arguments, format).await,
        Command::Rejects(command) => rejects::run(&reach, &command, format).await,
        Command::Topology => topology::run(&reach, format).await,
        Command::Ddl(_) | Command::Completion { .. } => Ok(Exit::Done),
    }
}
