//! Command line companion of the controller.

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    stageset::cli::run(stageset::cli::Cli::parse())
}
