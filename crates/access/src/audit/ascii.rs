//! JSON that is ASCII only: text from clients cannot control a terminal that shows the file.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

/// Escapes all characters but printable ASCII.
struct AsciiFormatter;

impl Formatter for AsciiFormatter {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        for character in fragment.chars() {
            if matches!(character, ' '..='~') {
                write!(writer, "{character}")?;
            } else {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    write!(writer, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }
}

/// Serializes a value as JSON in one line of printable ASCII.
///
/// # Errors
/// The value cannot be represented in JSON.
pub fn to_ascii(value: &impl Serialize) -> serde_json::Result<String> {
    let mut bytes = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut bytes, AsciiFormatter))?;
    // ASCII is UTF-8.
    Ok(String::from_utf8(bytes).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn control_sequences_and_other_scripts_are_escaped() {
        let hostile = "a\"\\\n\u{1b}[2J\u{7f}\u{9b}\u{202e}ü🍪";
        assert_eq!(to_ascii(&hostile).unwrap(), r#""a\"\\\n\u001b[2J\u007f\u009b\u202e\u00fc\ud83c\udf6a""#);
    }

    proptest! {
        #[test]
        fn any_text_becomes_ascii_that_reads_as_the_same_text(text in any::<String>()) {
            let written = to_ascii(&text).unwrap();
            prop_assert!(written.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{}", written);
            prop_assert_eq!(serde_json::from_str::<String>(&written).unwrap(), text);
        }
    }
}
