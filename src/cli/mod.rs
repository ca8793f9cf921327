//! The command line: [`hits`] has the subcommands about one operation, [`operations`] those that follow from the table of
//! operations, and each other file one or two subcommands.
//!
//! This module turns command lines into calls, and errors into messages and exit codes. It makes no decisions about
//! limits.

mod check;
mod client;
mod convert;
mod hints;
mod hits;
mod operations;
#[cfg(feature = "packaging")]
mod packaging;
mod restore;
mod serve;
mod terminal;
mod test;
mod users;
mod values;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// Last paragraph of the help of subcommands with sizes and times.
const UNITS: &str = "\
BYTES accepts the units K, M, G (powers of 1000) and Ki, Mi, Gi (powers of 1024), as in 64Ki. SECONDS and MS accept \
ms, s, m, h, d and w, as in 250ms or 1h30m. A number without a unit is in the unit that the placeholder names.";

/// Quotas and rate limits as a service.
#[derive(Parser)]
#[command(name = "divvy", version, about, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Lets the parser of each value see negative numbers. clap would take them for unknown flags, and the parser's error names
/// the range.
fn accept_negative_numbers(command: clap::Command) -> clap::Command {
    let command =
        command.mut_args(|arg| if arg.get_action().takes_values() { arg.allow_negative_numbers(true) } else { arg });
    command.mut_subcommands(accept_negative_numbers)
}

/// Lets a variable set a flag of `serve`, such as DIVVY_MAX_BODY for --max-body, unless the flag names another one.
fn with_variable(flag: clap::Arg) -> clap::Arg {
    match flag.get_long().filter(|_| flag.get_env().is_none()) {
        Some(name) => {
            let variable = format!("DIVVY_{}", name.to_uppercase().replace('-', "_"));
            flag.env(variable)
        }
        None => flag,
    }
}

/// Puts the usage of the subcommand that `words` begin with into the error. clap's own usage shows every option that the
/// environment sets as if it was required.
fn with_plain_usage(mut error: clap::Error, mut command: clap::Command, words: &[String]) -> clap::Error {
    if error.get(ContextKind::Usage).is_none() {
        return error;
    }
    command.build();
    let mut command = &mut command;
    for word in words.iter().take_while(|word| !word.starts_with('-')) {
        if !command.has_subcommands() {
            break;
        }
        let Some(subcommand) = command.find_subcommand_mut(word) else { return error };
        command = subcommand;
    }
    error.insert(ContextKind::Usage, ContextValue::StyledStr(command.render_usage()));
    error
}

#[derive(Subcommand)]
enum Command {
    /// Serve limits over the line protocol, RESP, HTTP and gRPC
    #[command(args_override_self = true, after_help = UNITS, mut_args(with_variable))]
    Serve(Box<serve::ServeArgs>),
    Init(convert::InitArgs),
    /// Validate a rules file and report every problem in it
    Check(check::CheckArgs),
    /// Check an access file, or hash a password for it
    Access(users::AccessArgs),
    /// Make a token for the status of one actor, or a key for such tokens
    Token(users::TokenArgs),
    Test(test::TestArgs),
    #[command(flatten)]
    Hit(hits::HitCommand),
    Convert(convert::ConvertArgs),
    #[command(flatten)]
    Operation(operations::OperationArgs),
    /// Create a data directory from a backup
    Restore(restore::RestoreArgs),
    #[cfg(feature = "packaging")]
    /// Print a script that completes divvy's commands and flags in a shell
    Completions(packaging::CompletionsArgs),
    #[cfg(feature = "packaging")]
    /// Print the manual page
    Man(packaging::ManArgs),
}

impl Cli {
    /// Parses the command line of this process. Ends the process if the command line is invalid, or asks for help.
    pub fn from_command_line() -> Self {
        Self::parse_line(std::env::args_os().collect()).unwrap_or_else(|error| error.exit())
    }

    /// Parses a command line, which begins with the program's name.
    fn parse_line(line: Vec<OsString>) -> Result<Self, clap::Error> {
        let words: Vec<_> = line.iter().skip(1).map_while(|word| word.to_str()).map(str::to_owned).collect();
        let matches = accept_negative_numbers(Self::command()).try_get_matches_from(line);
        let parsed = matches.and_then(|matches| Self::from_arg_matches(&matches));
        parsed.map_err(|error| {
            let error = with_plain_usage(error.format(&mut Self::command()), Self::command(), &words);
            hints::add_tip(error, words.first().map(String::as_str))
        })
    }

    /// Runs the subcommand.
    ///
    /// # Errors
    /// The error explains to the operator why the subcommand failed.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let unknown_settings = hints::unknown_settings(&Self::command());
        // `serve` logs the warnings itself.
        if !matches!(self.command, Command::Serve(_)) {
            let mut err = io::stderr().lock();
            for line in &unknown_settings {
                // A failure to print the warning must not stop the command.
                let _ = writeln!(err, "divvy: warning: {line}");
            }
        }
        match self.command {
            Command::Serve(args) => serve::run(*args, &unknown_settings),
            Command::Init(args) => convert::init(args),
            Command::Check(args) => check::check(args),
            Command::Access(args) => users::access(&args),
            Command::Token(args) => users::token(args),
            Command::Test(args) => test::run(args),
            Command::Hit(command) => command.run(),
            Command::Convert(args) => convert::convert(args),
            Command::Operation(args) => args.run(),
            Command::Restore(args) => restore::run(args),
            #[cfg(feature = "packaging")]
            Command::Completions(args) => packaging::print_completions(args, Self::command()),
            #[cfg(feature = "packaging")]
            Command::Man(args) => packaging::print_man(args, Self::command()),
        }
    }
}
