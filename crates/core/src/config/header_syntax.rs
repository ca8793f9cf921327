//! Describes, for people, why a section header or an answer is not an operation. (The line protocol uses the words of Button's
//! Divvy.)

use crate::rules::operation_text::SyntaxError;

/// Returns the problem with a header, and the fix.
pub(super) fn describe(header: &str, error: &SyntaxError) -> (String, String) {
    Words { name: "the section header", brackets: ["[", "]"], default: "[default]" }.describe(header, error)
}

/// Returns the problem with an operation that a person was asked for, and the fix.
pub fn describe_answer(answer: &str, error: &SyntaxError) -> (String, String) {
    Words { name: "the answer", brackets: ["", ""], default: "nothing for all requests" }.describe(answer, error)
}

/// The words for a text with an operation.
struct Words {
    name: &'static str,
    /// The brackets around an operation.
    brackets: [&'static str; 2],
    /// The notation of the operation that every request matches.
    default: &'static str,
}

impl Words {
    fn describe(&self, header: &str, error: &SyntaxError) -> (String, String) {
        let Self { name, .. } = self;
        if has_spaced_equals(header) && !matches!(error, SyntaxError::UnclosedQuote) {
            return (format!("{name} has a space next to `=`"), self.fix_spaced_equals(header));
        }
        let what = match error {
            SyntaxError::UnclosedQuote => format!("a double quote in {name} is not closed"),
            SyntaxError::UnexpectedEnd | SyntaxError::ExpectedEquals(_) => {
                let mut words = bare_parts(header).flat_map(str::split_whitespace);
                let word = words.find(|word| !word.contains('=')).unwrap_or(header);
                format!("{name} is not an operation: {word:?} is not followed by `=` and a value")
            }
            SyntaxError::ExpectedWhitespace('=') => format!("a value in {name} contains a bare `=`"),
            SyntaxError::ExpectedWhitespace(next) => {
                format!("a quoted value in {name} is followed by {next:?} without a space")
            }
        };
        (what, self.form_for(header, error))
    }

    fn form_for(&self, header: &str, error: &SyntaxError) -> String {
        match error {
            SyntaxError::ExpectedWhitespace('=') => {
                format!("put the value in double quotes: {}", self.operation("key=\"a=b\""))
            }
            SyntaxError::UnclosedQuote => "end it with a `\"`".to_owned(),
            _ if header.eq_ignore_ascii_case("default") => format!("write {}", self.default),
            _ if header.starts_with('/') && !header.contains(['=', ' ', '"']) => {
                format!("write {}", self.operation(&format!("path={header}")))
            }
            _ => format!(
                "write {} or {}, and put values with spaces in double quotes",
                self.operation("key=value key2=value2"),
                self.default
            ),
        }
    }

    /// Returns advice with the header as it was probably meant.
    fn fix_spaced_equals(&self, header: &str) -> String {
        let fix = "remove the spaces around `=`";
        if header.contains('"') {
            return fix.to_owned();
        }
        let parts: Vec<_> = header.split('=').map(str::trim).collect();
        format!("{fix}: {}", self.operation(&parts.join("=")))
    }

    fn operation(&self, text: &str) -> String {
        let [open, close] = self.brackets;
        format!("{open}{text}{close}")
    }
}

/// Returns whether white space precedes or follows an `=` outside quotes.
fn has_spaced_equals(header: &str) -> bool {
    let is_spaced = |part: &str| {
        part.match_indices('=').any(|(at, _)| {
            let (before, after) = (part.get(..at).unwrap_or_default(), part.get(at + 1..).unwrap_or_default());
            before.ends_with(char::is_whitespace) || after.starts_with(char::is_whitespace)
        })
    };
    bare_parts(header).any(is_spaced)
}

/// Returns the parts of a header outside quotes.
fn bare_parts(header: &str) -> impl Iterator<Item = &str> {
    header.split('"').step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::operation_text;

    fn message(header: &str) -> String {
        let error = operation_text::pairs(header).find_map(Result::err).unwrap();
        let (what, fix) = describe(header, &error);
        format!("{what}; {fix}")
    }

    #[test]
    fn answer_is_described_without_words_of_a_file() {
        for (answer, expected) in [
            (
                "api",
                "the answer is not an operation: \"api\" is not followed by `=` and a value; write key=value key2=value2 or",
            ),
            ("/login", "write path=/login"),
            ("default", "write nothing for all requests"),
            ("a = b", "the answer has a space next to `=`; remove the spaces around `=`: a=b"),
            ("a=b=c", "a value in the answer contains a bare `=`; put the value in double quotes: key=\"a=b\""),
        ] {
            let error = operation_text::pairs(answer).find_map(Result::err).unwrap();
            let (what, fix) = describe_answer(answer, &error);
            let message = format!("{what}; {fix}");
            assert!(message.contains(expected) && !message.contains("header"), "{answer}: {message}");
        }
    }

    #[test]
    fn message_says_what_is_missing() {
        for (header, expected) in [
            ("/api/search", "\"/api/search\" is not followed by `=` and a value; write [path=/api/search]"),
            ("method=GET path", "\"path\" is not followed by `=` and a value; write [key=value"),
            ("path = /a", "has a space next to `=`; remove the spaces around `=`: [path=/a]"),
            ("a= b", "remove the spaces around `=`: [a=b]"),
            ("a =b c=d", "remove the spaces around `=`: [a=b c=d]"),
            ("a = \"b c\"", "has a space next to `=`; remove the spaces around `=`"),
            ("a=\"b = c\" d", "\"d\" is not followed by `=` and a value"),
            ("a=b=c", "contains a bare `=`; put the value in double quotes"),
            ("a=\"b\"c", "followed by 'c' without a space"),
            ("a=\"b", "a double quote in the section header is not closed; end it with a `\"`"),
            ("Default", "\"Default\" is not followed by `=` and a value; write [default]"),
        ] {
            let message = message(header);
            assert!(message.contains(expected), "{header}: {message}");
        }
    }
}
