//! Recognizes values in operations that look like patterns of other programs: regular expressions and routes.

/// Parts of a regular expression that ordinary text rarely contains.
const REGEX_PARTS: [&str; 12] = ["[0-9", "[a-z", "[A-Z", "[^", "\\d", "\\w", "\\s", "\\.", "(?", ".+", "]+", "]*"];

/// Returns a description of the foreign pattern. `None` if the value looks like ordinary text or a pattern of divvy's.
pub(super) fn describe(value: &str) -> Option<&'static str> {
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
            assert!(describe(value).is_some_and(|text| text.contains("regular expression")), "{value}");
        }
    }

    #[test]
    fn routes_are_recognized() {
        for value in ["/users/{id}", "/users/:id/posts", "/users/<id>"] {
            assert!(describe(value).is_some_and(|text| text.contains("route")), "{value}");
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
            assert_eq!(describe(value), None, "{value}");
        }
    }
}
