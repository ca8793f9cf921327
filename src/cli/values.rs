//! The values of flags and arguments: words, each with its help, and the pairs of an operation. Also which flags are given.

use std::fmt;
use std::str::FromStr;

use anyhow::ensure;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, FromArgMatches};
use serde_json::{Map, Value};

/// The words that a flag may be, with their help and their values.
pub type Choices<T> = &'static [(&'static str, &'static str, T)];

/// Parses one of these words.
pub fn choice<T: Copy + Send + Sync>(choices: Choices<T>) -> impl TypedValueParser<Value = T> {
    let words = choices.iter().map(|(word, help, _)| PossibleValue::new(*word).help(*help));
    PossibleValuesParser::new(words).try_map(move |given| {
        let known = choices.iter().find(|(word, _, _)| *word == given);
        known.map(|(_, _, value)| *value).ok_or("unknown value")
    })
}

/// The flags of a subcommand that have a value other than their default. In a type of arguments it comes first, because the
/// others take their values.
#[derive(Debug, Clone)]
pub struct GivenFlags(Vec<(String, ValueSource)>);

impl GivenFlags {
    /// Returns whether the command line or the environment has the flag.
    pub fn has(&self, id: &str) -> bool {
        self.0.iter().any(|(given, _)| given == id)
    }

    /// Returns whether the command line has the flag.
    pub fn is_typed(&self, id: &str) -> bool {
        self.0.iter().any(|(given, source)| given == id && *source == ValueSource::CommandLine)
    }
}

impl FromArgMatches for GivenFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |id: &clap::Id| Some((id.to_string(), matches.value_source(id.as_str())?));
        let given = matches.ids().filter_map(given).filter(|(_, source)| *source != ValueSource::DefaultValue);
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Declares no flags of its own.
impl clap::Args for GivenFlags {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
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
