//! Output for people at a terminal: text, and pipes that their reader has closed.

use std::borrow::Cow;
use std::error::Error;
use std::io;
use std::process::ExitCode;

/// Returns `text` with the characters escaped that a terminal would obey: control characters except line feeds, and those that
/// change the direction of the text around them.
pub fn printable(text: &str) -> Cow<'_, str> {
    let turns =
        |c| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let is_obeyed = |c: char| (c.is_control() && c != '\n') || turns(c);
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let escape = |c: char| if is_obeyed(c) { c.escape_default().to_string() } else { c.to_string() };
    Cow::Owned(text.chars().map(escape).collect())
}

/// Quotes an argument of a command that divvy suggests for a shell, if necessary.
pub fn quote(argument: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "_-./:=@%+,".contains(character);
    if !argument.is_empty() && argument.chars().all(is_plain) {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', r"'\''"))
    }
}

/// Returns the count with its noun: `1 rule`, `2 rules`.
pub fn count_of(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Returns success if standard output was a pipe that its reader has closed. Errors of a connection have a context, and stay
/// errors.
pub fn accept_closed_pipe(printed: anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
    printed.or_else(|error| if is_closed_pipe(error.as_ref()) { Ok(ExitCode::SUCCESS) } else { Err(error) })
}

fn is_closed_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\nb \u{fc}"), "a\nb \u{fc}");
        assert_eq!(printable("[a=\u{1b}[2J]\t\u{9b}\r"), "[a=\\u{1b}[2J]\\t\\u{9b}\\r");
        assert_eq!(printable("\u{202e}nna\u{202c} שלום"), "\\u{202e}nna\\u{202c} שלום");
    }

    #[test]
    fn only_arguments_that_need_quotes_get_them() {
        for (argument, expected) in
            [("a=b", "a=b"), ("my rules.ini", "'my rules.ini'"), ("it's", r"'it'\''s'"), ("", "''")]
        {
            assert_eq!(quote(argument), expected);
        }
    }

    #[test]
    fn only_a_closed_pipe_without_context_is_no_error() {
        let failed = |kind: io::ErrorKind| Err(io::Error::from(kind).into());
        assert!(accept_closed_pipe(failed(io::ErrorKind::BrokenPipe)).is_ok());
        assert!(accept_closed_pipe(failed(io::ErrorKind::StorageFull)).is_err());
        assert!(accept_closed_pipe(failed(io::ErrorKind::BrokenPipe).context("the connection is lost")).is_err());
    }
}
