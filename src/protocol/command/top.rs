//! The arguments of `DIVVY.TOP`.

use super::ask::{TopAsk, TopOrder, TopWindow};
use super::counters::named_rule;
use super::error::CommandError;
use super::integer::integer;
use super::kinds::Command;
use crate::protocol::resp::Arguments;

/// Maximum of `COUNT`. A ranking has no pages, so a larger number is an error.
pub const MAX_TOP: usize = 1_000;

/// `rule [DENIED | TAKEN] [LAST 60 | 3600] [COUNT n]`. The options come in any order, each at most once.
pub(super) fn parse(arguments: Arguments<'_>) -> Result<Command<'_>, CommandError> {
    let (rule, named_by) = named_rule(arguments)?;
    let (mut order, mut window, mut count) = (None, None, None);
    let options = arguments.skip(named_by);
    let mut words = options.iter();
    while let Some(option) = words.next() {
        let unknown = || CommandError::not_a_top_option(option);
        let is = |name: &[u8]| option.eq_ignore_ascii_case(name);
        let is_repeated = if is(b"DENIED") {
            order.replace(TopOrder::Denied).is_some()
        } else if is(b"TAKEN") {
            order.replace(TopOrder::Taken).is_some()
        } else if is(b"LAST") {
            let seconds = words.next().ok_or_else(unknown)?;
            window.replace(TopWindow::parse(seconds).ok_or_else(|| CommandError::not_a_window(seconds))?).is_some()
        } else if is(b"COUNT") {
            let value = words.next().ok_or_else(unknown)?;
            count.replace(parse_count(value).ok_or_else(|| CommandError::not_a_count(value, MAX_TOP))?).is_some()
        } else {
            true
        };
        if is_repeated {
            return Err(unknown());
        }
    }
    let (order, window) = (order.unwrap_or(TopOrder::Denied), window.unwrap_or(TopWindow::Minute));
    Ok(Command::Top(TopAsk { rule, order, window, count }))
}

fn parse_count(value: &[u8]) -> Option<usize> {
    let count = usize::try_from(integer(value)?).ok()?;
    (1..=MAX_TOP).contains(&count).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::command::NamedRule;
    use crate::protocol::command::tests::with_command;

    fn parsed(request: &str) -> Result<String, String> {
        with_command(&request.split(' ').collect::<Vec<_>>(), |command| match command {
            Ok(Command::Top(TopAsk { rule, order, window, count })) => {
                let rule = match rule {
                    NamedRule::Name(name) => name.to_owned(),
                    NamedRule::Operation(pairs) => format!("{} pairs", pairs.0.len()),
                };
                Ok(format!("{rule} {order:?} {window:?} {count:?}"))
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        })
    }

    #[test]
    fn options_follow_the_rule_in_any_order() {
        for (request, expected) in [
            ("DIVVY.TOP uploads", "uploads Denied Minute None"),
            ("divvy.top uploads taken last 3600 count 5", "uploads Taken Hour Some(5)"),
            ("DIVVY.TOP TAKEN COUNT 1 LAST 60 DENIED", "TAKEN Denied Minute Some(1)"),
            ("DIVVY.TOP a=* b= TAKEN", "2 pairs Taken Minute None"),
        ] {
            assert_eq!(parsed(request).as_deref(), Ok(expected), "{request}");
        }
    }

    #[test]
    fn other_arguments_are_refused() {
        for (request, error) in [
            ("DIVVY.TOP", "wrong number of arguments"),
            ("DIVVY.TOP a b", "'b' is not an option here; DIVVY.TOP takes"),
            ("DIVVY.TOP a TAKEN DENIED", "'DENIED' is not an option here"),
            ("DIVVY.TOP a LAST", "'LAST' is not an option here"),
            ("DIVVY.TOP a LAST 61", "LAST is '61', but must be 60 or 3600"),
            ("DIVVY.TOP a COUNT 1 COUNT 2", "'COUNT' is not an option here"),
            ("DIVVY.TOP a COUNT 0", "COUNT is '0', but must be a whole number from 1 to 1000"),
            ("DIVVY.TOP a COUNT 1001", "COUNT is '1001', but must be a whole number from 1 to 1000"),
            ("DIVVY.TOP a COUNT 1e2", "COUNT is '1e2', but must be a whole number from 1 to 1000"),
        ] {
            let message = parsed(request).unwrap_err();
            assert!(message.contains(error), "{request}: {message}");
        }
    }
}
