//! Flags whose values are words, each with its help.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

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
