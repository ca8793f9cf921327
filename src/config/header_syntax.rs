//! Describes, for people, why a section header is not an operation. (The line protocol uses the words of Button's
//! Divvy.)

use crate::rules::operation_text::SyntaxError;

const FORM: &str = "write [key=value key2=value2] or [default], and put values with spaces in double quotes";

/// Returns the problem with a header, and the fix.
pub(super) fn describe(header: &str, error: &SyntaxError) -> (String, String) {
    let what = match error {
        SyntaxError::UnclosedQuote => "a double quote in the section header is not closed".to_owned(),
        SyntaxError::UnexpectedEnd | SyntaxError::ExpectedEquals(_) => {
            let word = header.split_whitespace().find(|word| !word.contains('=')).unwrap_or(header);
            format!("the section header is not an operation: {word:?} is not followed by `=` and a value")
        }
        SyntaxError::ExpectedWhitespace('=') => "a value in the section header contains a bare `=`".to_owned(),
        SyntaxError::ExpectedWhitespace(next) => {
            format!("a quoted value in the section header is followed by {next:?} without a space")
        }
    };
    (what, form_for(header, error))
}

fn form_for(header: &str, error: &SyntaxError) -> String {
    match error {
        SyntaxError::ExpectedWhitespace('=') => "put the value in double quotes: [key=\"a=b\"]".to_owned(),
        SyntaxError::UnclosedQuote => "end it with a `\"`".to_owned(),
        _ if header.eq_ignore_ascii_case("default") => "write [default]".to_owned(),
        _ if header.starts_with('/') && !header.contains(['=', ' ', '"']) => format!("write [path={header}]"),
        _ => FORM.to_owned(),
    }
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
    fn message_says_what_is_missing() {
        for (header, expected) in [
            ("/api/search", "\"/api/search\" is not followed by `=` and a value; write [path=/api/search]"),
            ("method=GET path", "\"path\" is not followed by `=` and a value; write [key=value"),
            ("path = /a", "\"path\" is not followed by `=`"),
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
