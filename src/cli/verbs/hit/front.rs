//! Chooses between a server's listeners for a hit.

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, FromArgMatches};

/// The listener chosen by `--server` and `--addr`. A flag takes precedence over a variable. Of the variables,
/// DIVVY_ADDR takes precedence, because it is older. The default is RESP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Front {
    Resp,
    Line,
}

impl FromArgMatches for Front {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_from = |flag: &str, source| matches.value_source(flag) == Some(source);
        let is_typed = |flag| is_from(flag, ValueSource::CommandLine);
        match (is_typed("server"), is_typed("addr")) {
            (true, true) => Err(clap::Error::raw(
                ErrorKind::ArgumentConflict,
                "--server (RESP) and --addr (the line protocol) exclude each other: give one of them\n",
            )),
            (true, false) => Ok(Self::Resp),
            (false, true) => Ok(Self::Line),
            (false, false) if is_from("addr", ValueSource::EnvVariable) => Ok(Self::Line),
            (false, false) => Ok(Self::Resp),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Declares no flags of its own.
impl clap::Args for Front {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}
