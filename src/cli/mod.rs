//! The command line: [`hits`] has the subcommands about one operation, [`operations`] those that follow from the table of
//! operations, and each other file one or two subcommands.
//!
//! This module turns command lines into calls, and errors into messages and exit codes. It makes no decisions about
//! limits.

mod check;
mod client;
mod convert;
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

use clap::error::{ContextKind, ErrorKind};
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

use self::serve::environment::{RatelimitEnvironment, serve_if_called_ratelimit};
use divvy_core::suggestion::nearest;

/// Common prefix of all flags' variables.
const PREFIX: &str = "DIVVY_";
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
    /// The arguments of the subcommand, which also say where each value comes from.
    #[arg(skip)]
    given: ArgMatches,
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
    let Some(name) = flag.get_long().filter(|_| flag.get_env().is_none()) else { return flag };
    let variable = format!("{PREFIX}{}", name.to_uppercase().replace('-', "_"));
    flag.env(variable)
}

/// Returns a warning for each environment variable that starts with the prefix and belongs to no flag of `divvy`, in
/// the order of their names.
fn unknown_settings(divvy: &clap::Command) -> Vec<String> {
    let known = variables(divvy);
    let variables = std::env::vars_os();
    let warning =
        |(name, value): (OsString, OsString)| warn_if_unknown(&known, name.to_str()?, &value.to_string_lossy());
    let mut lines: Vec<_> = variables.filter_map(warning).collect();
    lines.sort();
    lines
}

/// Returns the variables of a command's flags, and of its subcommands'.
fn variables(command: &clap::Command) -> Vec<String> {
    let own = command.get_arguments().filter_map(|arg| Some(arg.get_env()?.to_str()?.to_owned()));
    own.chain(command.get_subcommands().flat_map(variables)).collect()
}

fn warn_if_unknown(known: &[String], name: &str, value: &str) -> Option<String> {
    let rest = name.strip_prefix(PREFIX)?;
    if known.iter().any(|known| known == name) || is_of_a_service(name, value) {
        return None;
    }
    let names: Vec<_> = known.iter().filter_map(|known| known.strip_prefix(PREFIX)).collect();
    // Other programs name the parts of an address.
    let front = ["PORT", "HOST", "ADDRESS", "ADDR"].iter().find_map(|end| rest.strip_suffix(end));
    let listen = front.map(|front| format!("{front}LISTEN")).filter(|listen| names.contains(&listen.as_str()));
    let hint = match listen.as_deref().or_else(|| nearest(rest, &names)) {
        Some(meant) => format!("did you mean {PREFIX}{meant}?"),
        None => "see `divvy help` and the --help of its subcommands".to_owned(),
    };
    Some(format!("{name} is not a setting and has no effect: {hint}"))
}

/// Returns whether Kubernetes sets the variable in pods that run next to a Service called `divvy` or `divvy-…`, such as
/// `DIVVY_SERVICE_HOST`, `DIVVY_PORT` and `DIVVY_GRPC_PORT_8323_TCP`
/// (<https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables>).
fn is_of_a_service(name: &str, value: &str) -> bool {
    name.contains("_SERVICE_") || name.contains("_PORT_") || name.ends_with("_PORT") && value.contains("://")
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
    fn parse_line(mut line: Vec<OsString>) -> Result<Self, clap::Error> {
        serve_if_called_ratelimit(&mut line);
        let cli = Self::parse_with(Self::command(), &line)?;
        match &cli.command {
            Command::Serve(args) if args.ratelimit_env => cli.with_ratelimit_environment(line),
            _ => Ok(cli),
        }
    }

    /// Parses the command line again, with the variables of ratelimit. The rules of DIVVY_CONFIG, which an image may set, are no part
    /// of ratelimit's configuration.
    fn with_ratelimit_environment(self, mut line: Vec<OsString>) -> Result<Self, clap::Error> {
        let environment = RatelimitEnvironment::read(|name| std::env::var(name).ok()).map_err(|problems| {
            let text = format!("these variables are not valid (--ratelimit-env):\n  {}\n", problems.join("\n  "));
            clap::Error::raw(ErrorKind::ValueValidation, text)
        })?;
        environment.insert(&mut line, &self.given);
        let without_rules = |serve: clap::Command| serve.mut_arg("config", |config| config.env(None));
        let mut cli = Self::parse_with(Self::command().mut_subcommand("serve", without_rules), &line)?;
        if let Command::Serve(args) = &mut cli.command {
            args.environment = environment;
        }
        Ok(cli)
    }

    fn parse_with(command: clap::Command, line: &[OsString]) -> Result<Self, clap::Error> {
        let matches = accept_negative_numbers(command).try_get_matches_from(line);
        let parsed = matches.and_then(|matches| {
            let given = matches.subcommand().map(|(_, given)| given.clone()).unwrap_or_default();
            Ok(Self { given, ..Self::from_arg_matches(&matches)? })
        });
        parsed.map_err(|error| {
            let mut error = error.format(&mut Self::command());
            // It shows every option that the environment sets as if it was required.
            error.remove(ContextKind::Usage);
            error
        })
    }

    /// Runs the subcommand.
    ///
    /// # Errors
    /// The error explains to the operator why the subcommand failed.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let unknown_settings = unknown_settings(&Self::command());
        // `serve` logs the warnings itself.
        if !matches!(self.command, Command::Serve(_)) {
            let mut err = io::stderr().lock();
            for line in &unknown_settings {
                // A failure to print the warning must not stop the command.
                let _ = writeln!(err, "divvy: warning: {line}");
            }
        }
        match self.command {
            Command::Serve(args) => serve::run(*args, &self.given, &unknown_settings),
            Command::Init(args) => convert::init(args),
            Command::Check(args) => check::check(args),
            Command::Access(args) => users::access(&args),
            Command::Token(args) => users::token(args),
            Command::Test(args) => test::run(args),
            Command::Hit(command) => command.run(&self.given),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_that_is_no_setting_causes_a_suggestion() {
        let known = variables(&Cli::command());
        let of_kubernetes = "";
        for (name, value, expected) in [
            // Settings of all subcommands, and other variables.
            ("DIVVY_CONFIG", "x", ""),
            ("DIVVY_DURABILITY", "x", ""),
            ("DIVVY_SERVER", "x", ""),
            ("DIVVY_ADDR", "x", ""),
            ("PATH", "x", ""),
            ("DIVVY_DURABILTY", "x", "did you mean DIVVY_DURABILITY?"),
            ("DIVVY_data_dir", "x", "did you mean DIVVY_DATA_DIR?"),
            ("DIVVY_QQQ", "x", "see `divvy help` and the --help of its subcommands"),
            ("DIVVY_PORT", "8321", "did you mean DIVVY_LISTEN?"),
            ("DIVVY_RESP_PORT", "9049", "did you mean DIVVY_RESP_LISTEN?"),
            ("DIVVY_SERVICE_HOST", "10.0.0.11", of_kubernetes),
            ("DIVVY_PORT", "tcp://10.0.0.11:9049", of_kubernetes),
            ("DIVVY_PORT_9049_TCP_ADDR", "10.0.0.11", of_kubernetes),
            ("DIVVY_GRPC_SERVICE_PORT", "8323", of_kubernetes),
            ("DIVVY_GRPC_PORT_8323_TCP_PROTO", "tcp", of_kubernetes),
        ] {
            let warning = warn_if_unknown(&known, name, value).unwrap_or_default();
            assert_eq!(warning.is_empty(), expected.is_empty(), "{name}: {warning}");
            assert!(warning.ends_with(expected) && (warning.is_empty() || warning.starts_with(name)), "{warning}");
        }
    }

    #[test]
    fn negative_number_is_out_of_range() {
        for (line, expected) in [
            ("hit --cost -1 a=b", "must be a whole number from 0 to 9223372036854775807"),
            ("limit set free ann -5", "must be a whole number from 0 to"),
            ("serve --reload-interval -1", "is not a time"),
            ("hit -1", "expected key=value"),
        ] {
            let words = ["divvy"].into_iter().chain(line.split_whitespace());
            let message = Cli::parse_line(words.map(Into::into).collect()).err().unwrap().to_string();
            assert!(message.contains(expected), "{line}: {message}");
        }
    }
}
