//! The arguments of operators' subcommands, as the table of operations has them, and the pairs of an operation.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::ensure;
use clap::builder::PossibleValue;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Args, Command, Error, FromArgMatches, Subcommand, value_parser};
use serde_json::{Map, Value};

use crate::cli::client::ServerArgs;
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
    pub(super) given: Vec<(&'static Field, Given)>,
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

/// A value.
#[derive(Debug)]
pub enum Given {
    Text(String),
    Number(u64),
    Pairs(Vec<Pair>),
}

impl OperationArgs {
    pub(super) fn has(&self, name: &str) -> bool {
        self.given.iter().any(|(field, _)| field.name == name)
    }

    /// Returns the pairs of the operation, the actor or the rule.
    pub(super) fn pairs(&self) -> &[Pair] {
        let pairs = self.given.iter().find_map(|(_, given)| given.as_pairs());
        pairs.unwrap_or_default()
    }

    /// Returns the rule as the operator named it.
    pub(super) fn rule(&self) -> String {
        let name = self.given.iter().find_map(|(_, given)| given.as_text());
        let pairs = || self.pairs().iter().map(Pair::to_string).collect::<Vec<_>>().join(" ");
        name.map_or_else(|| format!("the rule [{}]", pairs()), |name| format!("the rule {name}"))
    }

    fn read(endpoint: &'static Endpoint, matches: &ArgMatches) -> Result<Self, Error> {
        let fields = fields(endpoint).filter_map(|field| Some((field, Given::read(field, matches)?)));
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

impl Given {
    fn as_pairs(&self) -> Option<&[Pair]> {
        match self {
            Self::Pairs(pairs) => Some(pairs),
            _ => None,
        }
    }

    fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    fn read(field: &Field, matches: &ArgMatches) -> Option<Self> {
        match field.kind {
            Kind::Pairs => Self::read_pairs(field.name, matches),
            Kind::Number { .. } => matches.get_one(field.name).copied().map(Self::Number),
            Kind::Seconds => matches.get_one(field.name).copied().map(Time::whole_seconds).map(Self::Number),
            // The name may be a default.
            Kind::Rule => {
                Self::read_pairs(OPERATION, matches).or_else(|| matches.get_one(field.name).cloned().map(Self::Text))
            }
            Kind::Choice(words) => {
                let given: &String = matches.get_one(field.name)?;
                let word = words.iter().find(|word| choice(word).matches(given, false))?;
                Some(Self::Text((*word).to_owned()))
            }
            Kind::Text | Kind::Owner => matches.get_one(field.name).cloned().map(Self::Text),
            Kind::List { .. } => None,
        }
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
            command.arg(Arg::new("file").long("file").value_name("FILE").value_parser(parser).help(help))
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
    text.parse().map_err(|error: String| match text.ends_with(".ini") || text.ends_with(".json") {
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
    let rows = ENDPOINTS.iter().filter_map(|endpoint| Some((endpoint.line?, *endpoint)));
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
            .filter_map(|endpoint| endpoint.line.map(|(name, subcommand)| (name, subcommand, *endpoint)));
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

/// A `key=value` argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    key: String,
    value: String,
}

impl Pair {
    pub fn as_strs(&self) -> (&str, &str) {
        (&self.key, &self.value)
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(argument: &str) -> Result<Self, Self::Err> {
        match argument.split_once('=') {
            Some((key, value)) => Ok(Self { key: key.to_owned(), value: value.to_owned() }),
            None => Err("expected key=value".to_owned()),
        }
    }
}

/// Returns the operation with these pairs, as a JSON object.
///
/// # Errors
/// A field is given twice.
pub fn operation_of(pairs: &[Pair]) -> anyhow::Result<Map<String, Value>> {
    let mut operation = Map::new();
    for (field, value) in pairs.iter().map(Pair::as_strs) {
        ensure!(operation.insert(field.to_owned(), value.into()).is_none(), "the field '{field}' is given twice");
    }
    Ok(operation)
}
