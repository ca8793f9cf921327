//! The arguments of `DIVVY.STATUS`.

use super::ask::StatusAsk;
use super::counters::{ListOptions, Options};
use super::error::CommandError;
use super::kinds::Command;
use super::pairs::Pairs;
use crate::protocol::resp::Arguments;

/// `field=value… [CURSOR cursor] [COUNT count]`. A pair contains `=`, so no option looks like one.
pub(super) fn parse(arguments: Arguments<'_>) -> Result<Command<'_>, CommandError> {
    let pairs = arguments.iter().take_while(|argument| argument.contains(&b'=')).count();
    if pairs == 0 {
        return Err(CommandError::not_a_pair(arguments.get(0).unwrap_or_default()));
    }
    let options = Options { filter: None, unknown: CommandError::not_a_status_option };
    let ListOptions { cursor, count, .. } = options.read(arguments.skip(pairs))?;
    Ok(Command::Status(StatusAsk { actor: Pairs(arguments.first(pairs)), cursor, count }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::command::tests::with_command;
    use crate::rules::Operation;

    fn parsed(request: &str) -> Result<String, String> {
        with_command(&request.split(' ').collect::<Vec<_>>(), |command| {
            let ask = match command {
                Ok(Command::Status(ask)) => ask,
                Ok(other) => panic!("{other:?}"),
                Err(error) => return Err(error.to_string()),
            };
            let mut actor = Operation::new();
            ask.actor.read_into(&mut actor, 2).map_err(|error| error.to_string())?;
            let fields: Vec<_> = actor.iter().map(|(field, value)| format!("{field}:{value}")).collect();
            Ok(format!("{} {:?} {:?}", fields.join(","), ask.cursor, ask.count))
        })
    }

    #[test]
    fn options_follow_the_fields_in_any_order() {
        for (request, expected) in [
            ("DIVVY.STATUS user=ann", "user:ann None None"),
            ("divvy.status user=a=b path= count 10 CURSOR 7-ab", "user:a=b,path: Some(\"7-ab\") Some(10)"),
            ("DIVVY.STATUS cursor=x CURSOR 0", "cursor:x None None"),
        ] {
            assert_eq!(parsed(request).as_deref(), Ok(expected), "{request}");
        }
    }

    #[test]
    fn other_arguments_are_refused() {
        for (request, error) in [
            ("DIVVY.STATUS", "wrong number of arguments"),
            ("DIVVY.STATUS user", "expected key=value, got 'user'"),
            ("DIVVY.STATUS COUNT 5", "expected key=value, got 'COUNT'"),
            ("DIVVY.STATUS user=a path", "'path' is not an option here; DIVVY.STATUS takes"),
            ("DIVVY.STATUS user=a ACTOR b", "'ACTOR' is not an option here"),
            ("DIVVY.STATUS user=a COUNT 1 path=b", "'path=b' is not an option here"),
            ("DIVVY.STATUS user=a COUNT 0", "COUNT is '0', but must be a whole number from 1 to"),
            ("DIVVY.STATUS a=1 b=2 c=3", "more than 2 pairs"),
        ] {
            let message = parsed(request).unwrap_err();
            assert!(message.contains(error), "{request}: {message}");
        }
    }
}
