//! Parsers for commands about many counters: `DIVVY.COUNTERS`, `DIVVY.FORGET`,
//! `DIVVY.BACKUP`.

use super::ask::{CountersAsk, NamedRule, START};
use super::error::CommandError;
use super::integer::integer;
use super::kinds::Command;
use super::pairs::Pairs;
use crate::protocol::resp::Arguments;
use crate::rules::MAX_RESET_SECONDS;

pub(super) fn list(arguments: Arguments<'_>) -> Result<Command<'_>, CommandError> {
    ask(arguments).map(Command::Counters)
}

pub(super) fn forget(arguments: Arguments<'_>) -> Result<Command<'_>, CommandError> {
    ask(arguments).map(Command::ForgetCounters)
}

pub(super) fn backup(arguments: Arguments<'_>) -> Result<Command<'_>, CommandError> {
    text(arguments.get(0).unwrap_or_default()).map(Command::Backup)
}

fn ask(arguments: Arguments<'_>) -> Result<CountersAsk<'_>, CommandError> {
    let (rule, named_by) = named_rule(arguments)?;
    let options = Options { filter: Some(b"ACTOR"), unknown: CommandError::not_an_option };
    let ListOptions { filter: actor, cursor, count } = options.read(arguments.skip(named_by))?;
    Ok(CountersAsk { rule, actor, cursor, count })
}

/// Reads the rule that the arguments begin with. Returns it, and the number of its arguments.
pub(super) fn named_rule(arguments: Arguments<'_>) -> Result<(NamedRule<'_>, usize), CommandError> {
    let pairs = arguments.iter().take_while(|argument| argument.contains(&b'=')).count();
    Ok(match pairs {
        0 => (NamedRule::Name(text(arguments.get(0).unwrap_or_default())?), 1),
        _ => (NamedRule::Operation(Pairs(arguments.first(pairs))), pairs),
    })
}

/// The options of commands that list: a filter, a cursor, and a count.
pub(super) struct Options {
    /// Name of the filter's option, if there is one.
    pub filter: Option<&'static [u8]>,
    /// Returns the error for an unknown option.
    pub unknown: fn(&[u8]) -> CommandError,
}

/// The given options.
#[derive(Default)]
pub(super) struct ListOptions<'a> {
    pub filter: Option<&'a str>,
    /// `None` for the cursor of the start, too.
    pub cursor: Option<&'a str>,
    pub count: Option<usize>,
}

impl Options {
    /// Reads the options. Each has a value, and may be given once, in any order. A cursor of [`START`] counts as none.
    pub(super) fn read<'a>(&self, arguments: Arguments<'a>) -> Result<ListOptions<'a>, CommandError> {
        let mut given = ListOptions::default();
        let mut words = arguments.iter();
        while let Some(option) = words.next() {
            let unknown = || (self.unknown)(option);
            let value = words.next().ok_or_else(unknown)?;
            let is = |name: &[u8]| option.eq_ignore_ascii_case(name);
            if self.filter.is_some_and(is) && given.filter.is_none() {
                given.filter = Some(text(value)?);
            } else if is(b"CURSOR") && given.cursor.is_none() {
                given.cursor = Some(text(value)?);
            } else if is(b"COUNT") && given.count.is_none() {
                given.count = Some(usize::try_from(positive("COUNT", value)?).unwrap_or(usize::MAX));
            } else {
                return Err(unknown());
            }
        }
        given.cursor = given.cursor.filter(|cursor| *cursor != START);
        Ok(given)
    }
}

pub(super) fn text(argument: &[u8]) -> Result<&str, CommandError> {
    std::str::from_utf8(argument).map_err(|_| CommandError::not_utf8(argument))
}

/// Parses a whole number from 1. `what` is the option's name.
pub(super) fn positive(what: &'static str, value: &[u8]) -> Result<u64, CommandError> {
    let number = integer(value).and_then(|number| u64::try_from(number).ok()).filter(|number| *number > 0);
    number.ok_or_else(|| CommandError::not_positive(what, value))
}

/// Parses the value of `EX`: a number of seconds from 1 to 100 years.
pub(super) fn lifetime(value: &[u8]) -> Result<u64, CommandError> {
    let seconds = integer(value).and_then(|seconds| u64::try_from(seconds).ok());
    let is_valid = |seconds: &u64| (1..=MAX_RESET_SECONDS).contains(seconds);
    seconds.filter(is_valid).ok_or_else(|| CommandError::not_a_lifetime(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::command::tests::with_command;

    fn parsed(request: &str) -> Result<String, String> {
        with_command(&request.split(' ').collect::<Vec<_>>(), |command| match command {
            Ok(Command::Counters(CountersAsk { rule, actor, cursor, count })) => {
                let rule = match rule {
                    NamedRule::Name(name) => name.to_owned(),
                    NamedRule::Operation(pairs) => format!("{} pairs", pairs.0.len()),
                };
                Ok(format!("{rule} {actor:?} {cursor:?} {count:?}"))
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        })
    }

    #[test]
    fn rule_is_a_name_or_pairs_and_options_follow_in_any_order() {
        let rows = [
            ("DIVVY.COUNTERS uploads", "uploads None None None"),
            ("divvy.counters uploads COUNT 10 actor a=b", "uploads Some(\"a=b\") None Some(10)"),
            ("DIVVY.COUNTERS a=* b= cursor =x", "2 pairs None Some(\"=x\") None"),
            ("DIVVY.COUNTERS actor ACTOR actor CURSOR 0", "actor Some(\"actor\") None None"),
        ];
        for (request, expected) in rows {
            assert_eq!(parsed(request).as_deref(), Ok(expected), "{request}");
        }
    }

    #[test]
    fn unknown_options_are_refused() {
        for request in ["DIVVY.COUNTERS a b=c", "DIVVY.COUNTERS a COUNT", "DIVVY.COUNTERS a COUNT 1 COUNT 2"] {
            assert!(parsed(request).unwrap_err().contains("is not an option here"), "{request}");
        }
        for count in ["0", "-1", "x"] {
            let error = parsed(&format!("DIVVY.COUNTERS a COUNT {count}")).unwrap_err();
            assert!(
                error.starts_with(&format!("ERR COUNT is '{count}', but must be a whole number from 1 to ")),
                "{error}"
            );
        }
    }
}
