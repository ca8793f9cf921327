//! The arguments of `DIVVY.RESERVE`, `DIVVY.COMMIT`, `DIVVY.RELEASE` and `DIVVY.RENEW`.

use super::ask::ReserveAsk;
use super::error::CommandError;
use super::integer::{integer, positive};
use super::kinds::Command;
use super::pairs::Pairs;
use crate::protocol::resp::Arguments;

type ParseResult<'a> = Result<Command<'a>, CommandError>;

/// Parses `key=value… AMOUNT n [TTL seconds] [ID text]`. A pair contains `=`, so no option looks like one.
pub(super) fn reserve(arguments: Arguments<'_>) -> ParseResult<'_> {
    let pairs = arguments.iter().take_while(|argument| argument.contains(&b'=')).count();
    let (mut credits, mut ttl_seconds, mut id) = (None, None, None);
    let options = arguments.skip(pairs);
    let mut words = options.iter();
    while let Some(option) = words.next() {
        let unknown = || CommandError::not_a_reserve_option(option);
        let value = words.next().ok_or_else(unknown)?;
        let is = |name: &[u8]| option.eq_ignore_ascii_case(name);
        if is(b"AMOUNT") && credits.is_none() {
            credits = Some(positive("AMOUNT", value)?);
        } else if is(TTL) && ttl_seconds.is_none() {
            ttl_seconds = Some(seconds(value)?);
        } else if is(b"ID") && id.is_none() {
            id = Some(value);
        } else {
            return Err(unknown());
        }
    }
    let credits = credits.ok_or(CommandError::NoAmount)?;
    Ok(Command::Reserve(ReserveAsk { pairs: Pairs(arguments.first(pairs)), credits, ttl_seconds, id }))
}

/// Parses `id COST n`.
pub(super) fn commit(arguments: Arguments<'_>) -> ParseResult<'_> {
    let (id, number) = option(arguments, b"COST", "DIVVY.COMMIT id COST n")?;
    let cost = integer(number).and_then(|number| u64::try_from(number).ok());
    Ok(Command::Commit { id, cost: cost.ok_or_else(|| CommandError::not_a_cost(number))? })
}

/// Parses `id`.
pub(super) fn release(arguments: Arguments<'_>) -> ParseResult<'_> {
    Ok(Command::Release(arguments.get(0).unwrap_or_default()))
}

/// Parses `id [TTL seconds]`.
pub(super) fn renew(arguments: Arguments<'_>) -> ParseResult<'_> {
    const USAGE: &str = "DIVVY.RENEW id [TTL seconds]";
    if arguments.len() == 1 {
        return Ok(Command::Renew { id: arguments.get(0).unwrap_or_default(), ttl_seconds: None });
    }
    let (id, value) = option(arguments, TTL, USAGE)?;
    Ok(Command::Renew { id, ttl_seconds: Some(seconds(value)?) })
}

const TTL: &[u8] = b"TTL";

/// Returns the id, and the value of the only option.
fn option<'a>(
    arguments: Arguments<'a>,
    name: &[u8],
    usage: &'static str,
) -> Result<(&'a [u8], &'a [u8]), CommandError> {
    let word = |place| arguments.get(place).unwrap_or_default();
    if !word(1).eq_ignore_ascii_case(name) {
        return Err(CommandError::not_a_settling_option(word(1), usage));
    }
    Ok((word(0), word(2)))
}

/// Parses seconds, and caps them. The limiter refuses the cap as too long, too.
fn seconds(value: &[u8]) -> Result<u32, CommandError> {
    Ok(u32::try_from(positive("TTL", value)?).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::command::tests::with_command;
    use divvy_core::rules::Operation;

    fn parsed(request: &str) -> String {
        let words: Vec<_> = request.split(' ').collect();
        with_command(&words, |command| match command {
            Ok(Command::Reserve(ReserveAsk { pairs, credits, ttl_seconds, id })) => {
                let mut operation = Operation::new();
                match pairs.read_into(&mut operation, 8) {
                    Ok(()) => format!(
                        "{} {credits} {ttl_seconds:?} {:?}",
                        operation.iter().len(),
                        id.map(<[u8]>::escape_ascii).map(|id| id.to_string())
                    ),
                    Err(error) => error.to_string(),
                }
            }
            Ok(Command::Commit { id, cost }) => format!("{} {cost}", id.escape_ascii()),
            Ok(Command::Release(id)) => id.escape_ascii().to_string(),
            Ok(Command::Renew { id, ttl_seconds }) => format!("{} {ttl_seconds:?}", id.escape_ascii()),
            Ok(other) => panic!("{other:?}"),
            Err(error) => error.to_string(),
        })
    }

    #[test]
    fn options_follow_the_pairs_in_any_order() {
        let largest = i64::MAX;
        for (request, expected) in [
            ("DIVVY.RESERVE a=b c=d AMOUNT 5 TTL 30", "2 5 Some(30) None".to_owned()),
            ("divvy.reserve AMOUNT=1 ID=x ttl 30 id a=b amount 5", "2 5 Some(30) Some(\"a=b\")".to_owned()),
            ("DIVVY.RESERVE AMOUNT 1 TTL 1", "0 1 Some(1) None".to_owned()),
            ("DIVVY.RESERVE a=b AMOUNT 1 TTL 1 ID ID", "1 1 Some(1) Some(\"ID\")".to_owned()),
            (
                &format!("DIVVY.RESERVE a=b AMOUNT {largest} TTL {largest}"),
                format!("1 {largest} Some({}) None", u32::MAX),
            ),
            ("DIVVY.COMMIT x COST 0", "x 0".to_owned()),
            ("divvy.commit x cost 7", "x 7".to_owned()),
            ("DIVVY.RELEASE x", "x".to_owned()),
            ("DIVVY.RENEW x ttl 9", "x Some(9)".to_owned()),
            ("DIVVY.RENEW x", "x None".to_owned()),
            ("DIVVY.RESERVE a=b AMOUNT 1", "1 1 None None".to_owned()),
            ("DIVVY.RESERVE AMOUNT 1 ID x", "0 1 None Some(\"x\")".to_owned()),
        ] {
            assert_eq!(parsed(request), expected, "{request}");
        }
    }

    #[test]
    fn every_mistake_is_reported() {
        for (request, error) in [
            ("DIVVY.RESERVE a=b", CommandError::wrong_arity("x".to_owned())),
            ("DIVVY.RESERVE a=b c=d TTL 5", CommandError::NoAmount),
            ("DIVVY.RESERVE a=b c=d e=f g=h", CommandError::NoAmount),
            ("DIVVY.RESERVE a=b AMOUNT 5 TTL 1 COST 2", CommandError::not_a_reserve_option(b"COST")),
            ("DIVVY.RESERVE a=b AMOUNT 5 TTL 1 ID", CommandError::not_a_reserve_option(b"ID")),
            ("DIVVY.RESERVE a=b AMOUNT 5 TTL 1 TTL 2", CommandError::not_a_reserve_option(b"TTL")),
            ("DIVVY.RESERVE a AMOUNT 5 TTL 1", CommandError::not_a_reserve_option(b"a")),
            ("DIVVY.RESERVE AMOUNT 5 TTL 1 a=b c", CommandError::not_a_reserve_option(b"a=b")),
            ("DIVVY.RESERVE a=b AMOUNT 0 TTL 1", CommandError::not_positive("AMOUNT", b"0")),
            ("DIVVY.RESERVE a=b AMOUNT 5 TTL -1", CommandError::not_positive("TTL", b"-1")),
            ("DIVVY.COMMIT x COST -1", CommandError::not_a_cost(b"-1")),
            ("DIVVY.COMMIT x AMOUNT 1", CommandError::not_a_settling_option(b"AMOUNT", "DIVVY.COMMIT id COST n")),
            ("DIVVY.RENEW x TTL many", CommandError::not_positive("TTL", b"many")),
            ("DIVVY.RENEW x 5 TTL", CommandError::not_a_settling_option(b"5", "DIVVY.RENEW id [TTL seconds]")),
        ] {
            let message = parsed(request);
            match error {
                CommandError::WrongArity { .. } => assert!(message.contains("wrong number of arguments"), "{message}"),
                error => assert_eq!(message, error.to_string(), "{request}"),
            }
        }
        for request in ["DIVVY.COMMIT x", "DIVVY.RELEASE", "DIVVY.RELEASE x y", "DIVVY.RENEW"] {
            assert!(parsed(request).contains("wrong number of arguments"), "{request}");
        }
    }
}
