//! The arguments of operators' subcommands, as the table of operations has them.

use std::path::PathBuf;

use clap::builder::PossibleValue;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Args, Command, Error, FromArgMatches, Subcommand, value_parser};
use serde_json::Value;

use crate::cli::client::ServerArgs;
use crate::cli::values::{Pair, pair};
use divvy_api::{ENDPOINTS, Edit, Endpoint, Field, Inspection, Kind, Place, Shape, Task};
use divvy_core::rules::MAX_RESET_SECONDS;
use divvy_core::units::{self, Time};
use divvy_limiter::ALL_RULES;

/// Commands with subcommands, and what these are about.
const GROUPS: [(&str, &str); 3] = [
    ("limit", "Set, get, delete or list limits of single actors on a running server"),
    ("block", "Set, get, delete or list blocks of single actors on a running server: blocked actors are always denied"),
    ("allow", "Set, get, delete or list allows of single actors on a running server: allowed actors are never denied"),
];
/// Maximum time between two tables (seconds).
const MAX_INTERVAL: u64 = 3_600;
/// Name of the argument with the operation of a rule.
const OPERATION: &str = "operation";

/// An operation with its arguments.
pub struct OperationArgs {
    pub(super) endpoint: &'static Endpoint,
    pub(super) given: Vec<(&'static Field, Argument)>,
    /// Whether to print JSON.
    pub(super) json: bool,
    /// The rules file to explain instead of a server's rules.
    pub(super) file: Option<PathBuf>,
    /// The time between two tables.
    pub(super) watch: Option<Time>,
    /// Whether to proceed without a question.
    pub(super) yes: bool,
    pub(super) server: ServerArgs,
}

/// A value, or the pairs of an operation.
#[derive(Debug)]
pub enum Argument {
    Value(Value),
    Pairs(Vec<Pair>),
}

impl OperationArgs {
    pub(super) fn has(&self, name: &str) -> bool {
        self.given.iter().any(|(field, _)| field.name == name)
    }

    /// Returns the pairs of the operation, the actor or the rule.
    pub(super) fn pairs(&self) -> &[Pair] {
        let pairs = self.given.iter().find_map(|(_, given)| match given {
            Argument::Pairs(pairs) => Some(pairs.as_slice()),
            Argument::Value(_) => None,
        });
        pairs.unwrap_or_default()
    }

    /// Returns the rule as the operator named it.
    pub(super) fn rule(&self) -> String {
        let name = self.given.iter().find_map(|(_, given)| match given {
            Argument::Value(value) => value.as_str(),
            Argument::Pairs(_) => None,
        });
        let text = |(field, value): &Pair| format!("{field}={value}");
        let pairs = || self.pairs().iter().map(text).collect::<Vec<_>>().join(" ");
        name.map_or_else(|| format!("the rule [{}]", pairs()), |name| format!("the rule {name}"))
    }

    fn read(endpoint: &'static Endpoint, matches: &ArgMatches) -> Result<Self, Error> {
        let fields = fields(endpoint).filter_map(|field| Some((field, Argument::read(field, matches)?)));
        Ok(Self {
            endpoint,
            given: fields.collect(),
            json: matches.get_flag("json"),
            file: matches.try_get_one("file").ok().flatten().cloned(),
            watch: matches.try_get_one("watch").ok().flatten().copied(),
            yes: matches.try_get_one("yes").ok().flatten().copied().unwrap_or_default(),
            server: ServerArgs::from_arg_matches(matches)?,
        })
    }
}

impl Argument {
    fn read(field: &Field, matches: &ArgMatches) -> Option<Self> {
        let text = || matches.get_one::<String>(field.name);
        let value: Value = match field.kind {
            Kind::Pairs => return Self::read_pairs(field.name, matches),
            Kind::Number { .. } => matches.get_one::<u64>(field.name).copied()?.into(),
            Kind::Seconds => matches.get_one::<Time>(field.name)?.whole_seconds().into(),
            // The name may be a default.
            Kind::Rule if matches.contains_id(OPERATION) => return Self::read_pairs(OPERATION, matches),
            Kind::Choice(words) => {
                let given = text()?;
                (*words.iter().find(|word| choice(word).matches(given, false))?).into()
            }
            Kind::Text | Kind::Owner | Kind::Rule => text()?.as_str().into(),
            Kind::List { .. } => return None,
        };
        Some(Self::Value(value))
    }

    fn read_pairs(name: &str, matches: &ArgMatches) -> Option<Self> {
        let pairs = matches.get_many(name)?;
        Some(Self::Pairs(pairs.cloned().collect()))
    }
}

/// Returns the fields on the command line: all but those of pages, which are asked for one after the other, and of changes since
/// an earlier page.
fn fields(endpoint: &'static Endpoint) -> impl Iterator<Item = &'static Field> {
    let is_page = matches!(endpoint.reply, Shape::Page { .. });
    endpoint
        .fields
        .iter()
        .copied()
        .filter(move |field| !(is_page && matches!(field.name, "cursor" | "count" | "since")))
}

fn command(endpoint: &'static Endpoint, name: &'static str) -> Command {
    let mut command = Command::new(name).about(sentence(endpoint.summary));
    for field in fields(endpoint) {
        command = command.arg(argument(field));
        if field.kind == Kind::Rule {
            let help =
                "Operation of the rule in place of its name, as in the rules file: --operation method=GET 'ip=*'";
            let arg = Arg::new(OPERATION).long(OPERATION).num_args(1..).value_name("KEY=VALUE").help(help);
            let named = ArgGroup::new("named").args([field.name, OPERATION]);
            command = command.arg(arg.value_parser(parse_pair));
            command = match endpoint.task {
                Task::Read(Inspection::Ranking) => {
                    command.group(named).mut_arg(field.name, |rule| rule.default_value(ALL_RULES))
                }
                _ => command.group(named.required(true)),
            };
        }
    }
    let json = "Print the reply as JSON: one line for each entry of a list";
    command = command.arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help(json));
    command = match endpoint.task {
        Task::Read(Inspection::Ranking) => {
            let help = "Keep printing, with this time between two tables. On a terminal, each replaces the one before";
            let parser = units::seconds(1..=MAX_INTERVAL);
            command.arg(Arg::new("watch").long("watch").value_name("SECONDS").value_parser(parser).help(help))
        }
        Task::Change(Edit::ForgetCounters, _) => {
            let help = "Do not ask before forgetting all counters of a rule";
            command.arg(Arg::new("yes").long("yes").short('y').action(ArgAction::SetTrue).help(help))
        }
        Task::Read(Inspection::Explanation) => {
            let help = "Rules file to read, instead of asking a server (.ini or .json)";
            let parser = value_parser!(PathBuf);
            let arg = Arg::new("file").long("file").value_name("FILE").value_parser(parser).help(help);
            // The answer for a file is made from its rules, and is text.
            command.arg(arg.conflicts_with("json"))
        }
        _ => command,
    };
    ServerArgs::augment_args(command)
}

fn argument(field: &'static Field) -> Arg {
    let arg = Arg::new(field.name).help(sentence(field.about));
    let arg = match (field.place, field.kind) {
        (_, Kind::Rule) => arg.long(field.name).value_name("NAME"),
        (Place::Position, Kind::Pairs) => arg.required(field.is_required).value_name("KEY=VALUE"),
        (Place::Position, _) => arg.required(field.is_required).value_name(field.name.to_uppercase()),
        _ => arg.long(flag(field.name)),
    };
    match field.kind {
        Kind::Pairs => arg.num_args(1..).value_parser(parse_pair),
        Kind::Number { min, max } => arg.value_parser(units::count::<u64>(min..=max)),
        Kind::Seconds => arg.value_name("SECONDS").value_parser(units::seconds(1..=MAX_RESET_SECONDS)),
        Kind::Choice(words) => arg.value_parser(words.iter().map(|word| choice(word)).collect::<Vec<_>>()),
        Kind::Text | Kind::Rule | Kind::Owner | Kind::List { .. } => arg,
    }
}

/// Returns a word that a field may be. The times of rankings have units, too.
fn choice(word: &'static str) -> PossibleValue {
    match word {
        "60" => PossibleValue::new(word).alias("1m"),
        "3600" => PossibleValue::new(word).alias("1h"),
        _ => PossibleValue::new(word),
    }
}

/// Returns the flag of a field.
fn flag(name: &'static str) -> &'static str {
    match name {
        "expiresIn" => "expires",
        name => name,
    }
}

/// Parses a pair.
fn parse_pair(text: &str) -> Result<Pair, String> {
    pair(text).map_err(|error| match text.ends_with(".ini") || text.ends_with(".json") {
        true => format!("it is not a pair; to read a rules file in place of asking a server, write --file {text}"),
        false => error,
    })
}

/// Returns a text without its last period, as the help has it.
fn sentence(text: &'static str) -> &'static str {
    text.strip_suffix('.').unwrap_or(text)
}

/// Returns the rows of a command, with the name of their subcommand.
fn rows(name: &str) -> impl Iterator<Item = (&'static str, &'static Endpoint)> {
    let rows = ENDPOINTS.iter().filter_map(|endpoint| Some((endpoint.line()?, *endpoint)));
    rows.filter(move |((command, _), _)| *command == name).map(|((_, subcommand), endpoint)| (subcommand, endpoint))
}

impl Subcommand for OperationArgs {
    fn augment_subcommands(mut parent: Command) -> Command {
        for (name, about) in GROUPS {
            let group = Command::new(name).about(about).subcommand_required(true).arg_required_else_help(true);
            parent = parent.subcommand(group.subcommands(rows(name).map(|(name, endpoint)| command(endpoint, name))));
        }
        let alone = ENDPOINTS
            .iter()
            .filter_map(|endpoint| endpoint.line().map(|(name, subcommand)| (name, subcommand, *endpoint)));
        let alone = alone.filter(|(_, subcommand, _)| subcommand.is_empty());
        parent.subcommands(alone.map(|(name, _, endpoint)| command(endpoint, name)))
    }

    fn augment_subcommands_for_update(parent: Command) -> Command {
        Self::augment_subcommands(parent)
    }

    fn has_subcommand(name: &str) -> bool {
        rows(name).next().is_some()
    }
}

impl FromArgMatches for OperationArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let missing = || Error::new(ErrorKind::MissingSubcommand);
        let (name, matches) = matches.subcommand().ok_or_else(missing)?;
        let (subcommand, matches) = matches.subcommand().unwrap_or(("", matches));
        let row = rows(name).find(|(known, _)| *known == subcommand).ok_or_else(missing)?;
        Self::read(row.1, matches)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
