//! The arguments of `DIVVY.BLOCK`, `DIVVY.ALLOW` and their subcommands: blocks and allows of single actors.

use super::ask::{LimitAsk, LimitsAsk, OverrideAsk};
use super::counters::{ListOptions, Options, lifetime, text};
use super::error::CommandError;
use super::kinds::Command;
use crate::protocol::resp::Arguments;
use crate::rules::OverrideKind;

/// The parsers of `DIVVY.BLOCK` have this parameter.
pub(super) const BLOCK: bool = false;
/// The parsers of `DIVVY.ALLOW` have this parameter.
pub(super) const ALLOW: bool = true;

const fn kind<const ALLOWS: bool>() -> OverrideKind {
    if ALLOWS { OverrideKind::Allow } else { OverrideKind::Block }
}

/// Parses `rule actor [EX seconds] [REASON text]`.
pub(super) fn set<const ALLOWS: bool>(arguments: Arguments<'_>) -> Result<Command<'_>, CommandError> {
    let (mut seconds, mut reason) = (None, None);
    let mut words = arguments.skip(2).iter();
    while let Some(option) = words.next() {
        let unknown = || CommandError::not_a_block_option(option);
        let value = words.next().ok_or_else(unknown)?;
        if option.eq_ignore_ascii_case(b"EX") && seconds.is_none() {
            seconds = Some(lifetime(value)?);
        } else if option.eq_ignore_ascii_case(b"REASON") && reason.is_none() {
            reason = Some(text(value)?);
        } else {
            return Err(unknown());
        }
    }
    Ok(Command::SetOverride(OverrideAsk { kind: kind::<ALLOWS>(), of: of(arguments)?, seconds, reason }))
}

/// Parses `rule actor`.
pub(super) fn get<const ALLOWS: bool>(arguments: Arguments<'_>) -> Result<Command<'_>, CommandError> {
    Ok(Command::GetOverride(kind::<ALLOWS>(), of(arguments)?))
}

/// Parses `rule actor`.
pub(super) fn remove<const ALLOWS: bool>(arguments: Arguments<'_>) -> Result<Command<'_>, CommandError> {
    Ok(Command::RemoveOverride(kind::<ALLOWS>(), of(arguments)?))
}

/// Parses `[RULE rule] [CURSOR cursor] [COUNT count]`.
pub(super) fn list<const ALLOWS: bool>(arguments: Arguments<'_>) -> Result<Command<'_>, CommandError> {
    let options = Options { filter: Some(b"RULE"), unknown: CommandError::not_a_block_option };
    let ListOptions { filter: rule, cursor, count } = options.read(arguments)?;
    Ok(Command::ListOverrides(kind::<ALLOWS>(), LimitsAsk { rule, cursor, count }))
}

fn of(arguments: Arguments<'_>) -> Result<LimitAsk<'_>, CommandError> {
    let word = |place| text(arguments.get(place).unwrap_or_default());
    Ok(LimitAsk { rule: word(0)?, actor: word(1)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::command::tests::with_command;

    fn parsed(request: &[&str]) -> String {
        with_command(request, |command| match command {
            Ok(Command::SetOverride(OverrideAsk { kind, of, seconds, reason })) => {
                format!("{kind} {} {} {seconds:?} {reason:?}", of.rule, of.actor)
            }
            Ok(Command::GetOverride(kind, of)) => format!("{kind} get {} {}", of.rule, of.actor),
            Ok(Command::RemoveOverride(kind, of)) => format!("{kind} remove {} {}", of.rule, of.actor),
            Ok(Command::ListOverrides(kind, ask)) => format!("{kind} {ask:?}"),
            Ok(other) => panic!("{other:?}"),
            Err(error) => error.to_string(),
        })
    }

    #[test]
    fn valid_options_are_read_and_others_are_refused() {
        for (request, expected) in [
            (&["DIVVY.BLOCK", "SET", "r", "a"][..], "block r a None None"),
            (
                &["divvy.block", "set", "*", "ip=::/0", "ex", "60", "reason", "a b"],
                "block * ip=::/0 Some(60) Some(\"a b\")",
            ),
            (&["DIVVY.ALLOW", "SET", "r", "a", "REASON", "ours", "EX", "1"], "allow r a Some(1) Some(\"ours\")"),
            (&["DIVVY.BLOCK", "GET", "r", "a"], "block get r a"),
            (&["DIVVY.ALLOW", "DEL", "r", "a"], "allow remove r a"),
            (&["DIVVY.ALLOW", "LIST"], "allow LimitsAsk { rule: None, cursor: None, count: None }"),
            (
                &["DIVVY.BLOCK", "LIST", "COUNT", "5", "RULE", "*", "CURSOR", "7"],
                "block LimitsAsk { rule: Some(\"*\"), cursor: Some(\"7\"), count: Some(5) }",
            ),
        ] {
            assert_eq!(parsed(request), expected, "{request:?}");
        }
        for (request, option) in [
            (&["DIVVY.BLOCK", "SET", "r", "a", "PX", "5"][..], "PX"),
            (&["DIVVY.BLOCK", "SET", "r", "a", "EX"], "EX"),
            (&["DIVVY.BLOCK", "SET", "r", "a", "EX", "5", "EX", "6"], "EX"),
            (&["DIVVY.ALLOW", "LIST", "ACTOR", "a"], "ACTOR"),
        ] {
            assert_eq!(parsed(request), CommandError::not_a_block_option(option.as_bytes()).to_string(), "{request:?}");
        }
        for command in ["DIVVY.BLOCK", "DIVVY.ALLOW"] {
            for seconds in ["0", "-1", "3155760001", "9223372036854775808", "x"] {
                assert_eq!(
                    parsed(&[command, "SET", "r", "a", "EX", seconds]),
                    format!(
                        "ERR EX is '{seconds}', but must be a whole number of seconds from 1 to 3155760000, which is 100 years"
                    )
                );
            }
        }
        assert_eq!(parsed(&["DIVVY.BLOCK", "SET", "r", "a", "EX", "3155760000"]), "block r a Some(3155760000) None");
    }
}
