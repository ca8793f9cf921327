//! The values of flags and arguments: words, each with its help, and the pairs of an operation. Also which flags are given.

use anyhow::ensure;
use clap::ArgMatches;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::parser::ValueSource;
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

/// Returns whether the command line or the environment has the flag.
pub fn is_given(matches: &ArgMatches, id: &str) -> bool {
    matches.value_source(id).is_some_and(|source| source != ValueSource::DefaultValue)
}

/// The key and the value of a `key=value` argument.
pub type Pair = (String, String);

/// Parses a `key=value` argument.
pub fn pair(argument: &str) -> Result<Pair, String> {
    let (key, value) = argument.split_once('=').ok_or("expected key=value")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Returns the operation with these pairs, as a JSON object.
///
/// # Errors
/// A field is given twice.
pub fn operation_of(pairs: &[Pair]) -> anyhow::Result<Map<String, Value>> {
    let mut operation = Map::new();
    for (field, value) in pairs {
        ensure!(operation.insert(field.clone(), value.as_str().into()).is_none(), "the field '{field}' is given twice");
    }
    Ok(operation)
}
