//! Mistakes in operations, described for people: why a section header is not an operation, and values that look like
//! patterns of other programs, regular expressions and routes. (The line protocol uses the words of Button's Divvy.)

use crate::rules::operation_text::SyntaxError;

/// Returns the problem with a header, and the fix.
pub(super) fn describe_syntax_error(header: &str, error: &SyntaxError) -> (String, String) {
    if has_spaced_equals(header) && !matches!(error, SyntaxError::UnclosedQuote) {
        return ("the section header has a space next to `=`".to_owned(), fix_spaced_equals(header));
    }
    let what = match error {
        SyntaxError::UnclosedQuote => "a double quote in the section header is not closed".to_owned(),
        SyntaxError::UnexpectedEnd | SyntaxError::ExpectedEquals(_) => {
            let mut words = bare_parts(header).flat_map(str::split_whitespace);
            let word = words.find(|word| !word.contains('=')).unwrap_or(header);
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
        _ => "write [key=value key2=value2] or [default], and put values with spaces in double quotes".to_owned(),
    }
}

/// Returns advice with the header as it was probably meant.
fn fix_spaced_equals(header: &str) -> String {
    let fix = "remove the spaces around `=`";
    if header.contains('"') {
        return fix.to_owned();
    }
    let parts: Vec<_> = header.split('=').map(str::trim).collect();
    format!("{fix}: [{}]", parts.join("="))
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

/// Parts of a regular expression that ordinary text rarely contains.
const REGEX_PARTS: [&str; 12] = ["[0-9", "[a-z", "[A-Z", "[^", "\\d", "\\w", "\\s", "\\.", "(?", ".+", "]+", "]*"];

/// Returns a description of the foreign pattern. `None` if the value looks like ordinary text or a pattern of divvy's.
pub(super) fn describe_foreign_pattern(value: &str) -> Option<&'static str> {
    if is_regex(value) {
        Some("looks like a regular expression, but there are no regular expressions")
    } else if is_route(value) {
        Some("looks like a route with a placeholder, but it matches only this text")
    } else {
        None
    }
}

fn is_regex(value: &str) -> bool {
    // After a letter or digit, it is a pattern of divvy's: `10.0.*`.
    let is_wildcard =
        |at| !value.get(..at).is_some_and(|text| text.ends_with(|c: char| c.is_alphanumeric() || c == '*'));
    let has_any_text = value.match_indices(".*").any(|(at, _)| is_wildcard(at));
    let has_alternatives = value
        .split_once('(')
        .and_then(|(_, rest)| rest.split_once(')'))
        .is_some_and(|(inside, _)| inside.contains('|'));
    let is_anchored = value.ends_with('$') || value.starts_with("^/");
    is_anchored || has_alternatives || has_any_text || REGEX_PARTS.iter().any(|part| value.contains(part))
}

/// Returns whether a path has a segment such as `{id}`, `<id>` or `:id`.
fn is_route(value: &str) -> bool {
    let is_placeholder = |segment: &str| {
        let is_in = |open, close| segment.len() > 2 && segment.starts_with(open) && segment.ends_with(close);
        let is_named =
            segment.strip_prefix(':').is_some_and(|name| name.starts_with(|c: char| c.is_ascii_alphabetic()));
        is_in('{', '}') || is_in('<', '>') || is_named
    };
    value.starts_with('/') && value.split('/').any(is_placeholder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::operation_text;

    fn message(header: &str) -> String {
        let error = operation_text::pairs(header).find_map(Result::err).unwrap();
        let (what, fix) = describe_syntax_error(header, &error);
        format!("{what}; {fix}")
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

    #[test]
    fn regular_expressions_are_recognized() {
        for value in [
            "/api/[0-9]+",
            "^/login$",
            "^GET$",
            "/v[^/]+/x",
            "user-.*",
            "/api/.*",
            ".*",
            r"/id/\d+",
            "(?i)get",
            "[a-z]",
            "/a.+",
            "(x|y)",
            "/v(1|2)/x",
            "/login$",
            "$",
        ] {
            assert!(describe_foreign_pattern(value).is_some_and(|text| text.contains("regular expression")), "{value}");
        }
    }

    #[test]
    fn routes_are_recognized() {
        for value in ["/users/{id}", "/users/:id/posts", "/users/<id>"] {
            assert!(describe_foreign_pattern(value).is_some_and(|text| text.contains("route")), "{value}");
        }
    }

    #[test]
    fn ordinary_values_and_patterns_are_not() {
        for value in [
            "*",
            "/api/*",
            "*.example.com",
            "a.b.*",
            "/files/*.*",
            "/.well-known/*",
            "10.0.*",
            "::1",
            "[::1]:80",
            "10:30",
            "/a?b=[1]",
            "a+b",
            "$5",
            "a|b",
            "f(x)",
            "^",
            "{}",
            "application/json",
            "weekly digest",
        ] {
            assert_eq!(describe_foreign_pattern(value), None, "{value}");
        }
    }
}
