//! The controller.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    stageset::app::main()
}
