//! A line of the audit log. It is ASCII only: text from clients cannot control a terminal that shows the file.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

use super::change::{Caller, Change, State};
use divvy_core::clock::Timestamp;

/// Maximum length of an error's text (bytes).
const MAX_ERROR: usize = 512;

/// How far a change has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The change is about to be made.
    Attempted,
    /// The change was made.
    Done,
    /// Nothing was changed.
    Refused,
    /// The change failed, and parts of it may have been made.
    Failed,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Self::Attempted => "attempted",
            Self::Done => "done",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

/// A change, and how far it has come.
#[derive(Debug)]
pub struct Entry<'a> {
    /// Number of the change since the start of the server. The attempt and the outcome of a change share it.
    pub number: u64,
    pub status: Status,
    pub caller: &'a Caller,
    pub change: &'a Change,
    /// State before the change, if there was one.
    pub before: Option<State>,
    /// State after the change, if there is one.
    pub after: Option<State>,
    /// Why the change was refused or failed.
    pub error: Option<String>,
    /// Number of entries like this that were left out before it.
    pub omitted: Option<u64>,
}

/// The fields of a line, in their order.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    change: u64,
    status: &'static str,
    user: &'a str,
    front: &'static str,
    address: String,
    what: &'static str,
    request: &'a Change,
    before: &'a Option<State>,
    after: &'a Option<State>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    omitted: Option<u64>,
}

impl Entry<'_> {
    /// Returns the entry as a JSON object and a newline.
    pub fn line(&self, now: Timestamp) -> Vec<u8> {
        let line = Line {
            time: format_time(now),
            change: self.number,
            status: self.status.name(),
            user: self.caller.user(),
            front: self.caller.front(),
            address: self.caller.address(),
            what: self.change.action().name(),
            request: self.change,
            before: &self.before,
            after: &self.after,
            error: self.error(),
            omitted: self.omitted,
        };
        let mut text = json(&line);
        text.push('\n');
        text.into_bytes()
    }

    /// Writes the entry to the ordinary log, which adds the time.
    pub fn log(&self) {
        tracing::info!(
            target: "audit",
            change = self.number,
            status = self.status.name(),
            user = plain(self.caller.user()),
            front = self.caller.front(),
            address = self.caller.address(),
            what = self.change.action().name(),
            request = %json(self.change),
            before = %json(&self.before),
            after = %json(&self.after),
            error = self.error().map(plain),
            omitted = self.omitted,
            "change by an operator"
        );
    }

    fn error(&self) -> Option<&str> {
        self.error.as_deref().map(truncate_error)
    }
}

/// Returns as much of an error as a line has.
pub fn truncate_error(error: &str) -> &str {
    error.get(..error.floor_char_boundary(MAX_ERROR)).unwrap_or_default()
}

/// Returns the value as JSON. All values in an entry can be written as such.
fn json(value: &impl Serialize) -> String {
    to_ascii(value).unwrap_or_default()
}

/// Returns the text in printable ASCII, escaped as in JSON, but without the quotes that the log's format adds.
fn plain(text: &str) -> String {
    let quoted = json(&text);
    quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or_default().to_owned()
}

/// Returns the time in UTC, as in RFC 3339, with milliseconds.
fn format_time(time: Timestamp) -> String {
    let nanos = i128::from(time.as_nanos());
    // Every timestamp is before the year 2555, which the library knows.
    jiff::Timestamp::from_nanosecond(nanos).map(|time| format!("{time:.3}")).unwrap_or_default()
}

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
    use super::*;
    use crate::audit::change::Action;
    use proptest::prelude::*;

    #[test]
    fn line_has_every_field_in_one_line() {
        let caller = Caller::client("resp", Some(([127, 0, 0, 1], 5).into()), Some("ann\n".into()));
        let change =
            Change::new(Action::LimitSet).with_rule("by-user").with_actor("a\"").with_terms(Some(9), Some(60), None);
        let mut entry = Entry {
            number: 7,
            status: Status::Done,
            caller: &caller,
            change: &change,
            before: None,
            after: Some(State::exception(Some(9), Some(60), None)),
            error: None,
            omitted: None,
        };
        let line = |entry: &Entry<'_>| String::from_utf8(entry.line(Timestamp::from_nanos(1_500_000_000))).unwrap();
        assert_eq!(
            line(&entry),
            concat!(
                r#"{"time":"1970-01-01T00:00:01.500Z","change":7,"status":"done","user":"ann\n","front":"resp","#,
                r#""address":"127.0.0.1:5","what":"limit.set","request":{"rule":"by-user","actor":"a\"","credits":9,"#,
                r#""expiresIn":60},"before":null,"after":{"credits":9,"expiresIn":60}}"#,
                "\n"
            )
        );
        entry.error = Some("x".repeat(MAX_ERROR + 1));
        entry.omitted = Some(3);
        assert_eq!(plain("a 'b'\u{1b}…\""), r#"a 'b'\u001b\u2026\""#);
        let end = format!(r#","error":"{}","omitted":3}}"#, "x".repeat(MAX_ERROR));
        assert!(line(&entry).trim_end().ends_with(&end), "{}", line(&entry));
    }

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
