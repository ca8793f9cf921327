//! The arguments of `DIVVY.LIMIT` and its subcommands: limits of single actors.

use super::ask::{LimitAsk, LimitsAsk};
use super::counters::{ListOptions, Options, lifetime, text};
use super::error::CommandError;
use super::integer::integer;
use super::kinds::Command;
use crate::protocol::resp::Arguments;

/// Parses `rule actor credits [EX seconds]`.
pub(super) fn set(arguments: Arguments<'_>) -> Result<Command<'_>, CommandError> {
    let word = |place| arguments.get(place).unwrap_or_default();
    let seconds = match (arguments.get(3), arguments.len()) {
        (None, _) => None,
        (Some(option), 5) if option.eq_ignore_ascii_case(b"EX") => Some(lifetime(word(4))?),
        (Some(option), _) => return Err(CommandError::not_a_limit_option(option)),
    };
    let credits = whole(word(2)).ok_or_else(|| CommandError::not_credits(word(2)))?;
    Ok(Command::SetLimit { of: of(arguments)?, credits, seconds })
}

fn whole(argument: &[u8]) -> Option<u64> {
    integer(argument).and_then(|number| u64::try_from(number).ok())
}

/// Parses `rule actor`.
pub(super) fn get(arguments: Arguments<'_>) -> Result<Command<'_>, CommandError> {
    of(arguments).map(Command::GetLimit)
}

/// Parses `rule actor`.
pub(super) fn remove(arguments: Arguments<'_>) -> Result<Command<'_>, CommandError> {
    of(arguments).map(Command::RemoveLimit)
}

fn of(arguments: Arguments<'_>) -> Result<LimitAsk<'_>, CommandError> {
    let word = |place| text(arguments.get(place).unwrap_or_default());
    Ok(LimitAsk { rule: word(0)?, actor: word(1)? })
}

/// Parses `[RULE rule] [CURSOR cursor] [COUNT count]`.
pub(super) fn list(arguments: Arguments<'_>) -> Result<Command<'_>, CommandError> {
    let options = Options { filter: Some(b"RULE"), unknown: CommandError::not_a_limit_option };
    let ListOptions { filter: rule, cursor, count } = options.read(arguments)?;
    Ok(Command::ListLimits(LimitsAsk { rule, cursor, count }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::command::tests::with_command;

    fn parsed(request: &str) -> String {
        let words: Vec<_> = request.split(' ').collect();
        with_command(&words, |command| match command {
            Ok(Command::SetLimit { of, credits, seconds }) => format!("{of:?} {credits} {seconds:?}"),
            Ok(Command::GetLimit(of) | Command::RemoveLimit(of)) => format!("{of:?}"),
            Ok(Command::ListLimits(ask)) => format!("{ask:?}"),
            Ok(other) => panic!("{other:?}"),
            Err(error) => error.to_string(),
        })
    }

    #[test]
    fn valid_options_are_read_and_others_are_refused() {
        let of = r#"LimitAsk { rule: "r", actor: "a" }"#;
        for (request, expected) in [
            ("DIVVY.LIMIT SET r a 5", format!("{of} 5 None")),
            ("divvy.limit set r a 0 ex 60", format!("{of} 0 Some(60)")),
            ("DIVVY.LIMIT GET r a", of.to_owned()),
            ("DIVVY.LIMIT DEL r a", of.to_owned()),
            ("DIVVY.LIMIT LIST", "LimitsAsk { rule: None, cursor: None, count: None }".to_owned()),
            (
                "DIVVY.LIMIT LIST count 5 RULE r CURSOR 7",
                r#"LimitsAsk { rule: Some("r"), cursor: Some("7"), count: Some(5) }"#.to_owned(),
            ),
            ("DIVVY.LIMIT SET r a -1", CommandError::not_credits(b"-1").to_string()),
            ("DIVVY.LIMIT SET r a 5 EX x", CommandError::not_a_lifetime(b"x").to_string()),
            ("DIVVY.LIMIT SET r a 5 EX 0", CommandError::not_a_lifetime(b"0").to_string()),
            ("DIVVY.LIMIT SET r a 5 EX 3155760001", CommandError::not_a_lifetime(b"3155760001").to_string()),
            ("DIVVY.LIMIT SET r a 5 EX", CommandError::not_a_limit_option(b"EX").to_string()),
            ("DIVVY.LIMIT SET r a 5 PX 6", CommandError::not_a_limit_option(b"PX").to_string()),
            ("DIVVY.LIMIT LIST COUNT 0", CommandError::not_positive("COUNT", b"0").to_string()),
        ] {
            assert_eq!(parsed(request), expected, "{request}");
        }
        assert!(parsed("DIVVY.LIMIT GET r").contains("wrong number of arguments"));
        assert!(parsed("DIVVY.LIMIT MOVE r a").contains("unknown subcommand"));
    }
}
