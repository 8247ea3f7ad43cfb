//! The `stagesetctl` commands.

mod kustomize;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Looks at StageSets and at what a stage builds.
#[derive(Debug, Parser)]
#[command(name = "stagesetctl", version, about)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the objects a folder with a kustomization builds to.
    Kustomize(kustomize::Args),
}

/// Runs the command; errors go to stderr and give exit code 1.
pub fn run(cli: Cli) -> ExitCode {
    let result = match cli.command {
        Command::Kustomize(args) => kustomize::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("Error: {message}");
            ExitCode::FAILURE
        }
    }
}
