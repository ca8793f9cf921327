//! Text from files and clients, for a terminal.

use std::borrow::Cow;

/// Returns `text` with its control characters escaped, except line feeds. A terminal would obey them.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_obeyed = |c: char| c.is_control() && c != '\n';
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let escape = |c: char| if is_obeyed(c) { c.escape_default().to_string() } else { c.to_string() };
    Cow::Owned(text.chars().map(escape).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\nb \u{fc}"), "a\nb \u{fc}");
        assert_eq!(printable("[a=\u{1b}[2J]\t\u{9b}\r"), "[a=\\u{1b}[2J]\\t\\u{9b}\\r");
    }
}
