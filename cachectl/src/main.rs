//! The command-line tool of cache groups; also installed as the kubectl plugin
//! `kubectl-cachegroup`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

/// `println!` that survives a closed pipe.
macro_rules! say {
    ($($text:tt)*) => { crate::output::line(format_args!($($text)*)) };
}

mod arguments;
mod commands;
mod exit;
mod output;
mod reach;
mod values;

use arguments::Arguments;
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    // The one provider of the whole product; a second installation would be an error to ignore.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let arguments = match Arguments::parse_as_called(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(error) => error.exit(),
    };
    match commands::run(arguments).await {
        Ok(exit) => exit.into(),
        Err(error) => {
            output::complain(format_args!("{}", cachetier_client::causes(error.as_ref())));
            exit::Exit::of_error(&error).into()
        }
    }
}
