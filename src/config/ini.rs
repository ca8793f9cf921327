//! Reads INI rules files, line by line, as the `ini` package of npm reads them for Divvy.
//!
//! A small reader of our own, because every problem is reported with its line, and the INI crates either keep no lines
//! or treat the dots, quotes and brackets of a section header in a way of their own. Every line is read for itself, so
//! one run reports all that is malformed.

use super::document::{Document, RawRule, RawSetting, RawValue};
use super::problem::{Place, Problems};
use crate::rules::operation_text;

/// The header of the default rule.
pub(super) const DEFAULT: &str = "default";

pub(super) fn read(text: &str, problems: &mut Problems) -> Document {
    let mut document = Document::default();
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (line, content) in (1..).zip(text.lines()) {
        let content = content.trim();
        if content.is_empty() || starts_comment(content) {
            continue;
        }
        if let Some(header) = content.strip_prefix('[') {
            document.rules.push(read_header(line, header, problems));
            continue;
        }
        let operation = document.rules.last().map(|rule| rule.header.as_str());
        let setting = read_setting(Place { line, operation }, content, problems);
        match (setting, document.rules.last_mut()) {
            (Some(setting), Some(rule)) => rule.settings.push(setting),
            (Some(setting), None) => {
                let what = format!("`{}` stands before the first section", setting.key);
                problems.error(Place::line(line), what, "put it below the [operation] that it belongs to");
            }
            (None, _) => {}
        }
    }
    document
}

/// The pairs that a section with this header would be read with; `None` when it would be read otherwise, or not at all.
pub(super) fn header_pairs(header: &str) -> Option<Vec<(&str, &str)>> {
    let text = format!("{header}]");
    let whole = !header.contains('\n') && header_end(&text) == Some(header.len());
    whole.then(|| operation_text::pairs(header).collect::<Result<_, _>>().ok())?
}

/// `text` follows the opening bracket.
fn read_header(line: usize, text: &str, problems: &mut Problems) -> RawRule {
    let Some(header) = header_end(text).and_then(|end| text.get(..end)).map(str::trim) else {
        problems.error(Place::line(line), format!("the section header [{text} is not closed"), "end it with a `]`");
        return RawRule::unreadable(line, text);
    };
    if header == DEFAULT {
        return RawRule::new(line, Vec::new());
    }
    let mut wrong = |what: String| {
        let fix = "write [key=value key2=value2], with values in double quotes where they hold spaces, or [default]";
        problems.error(Place { line, operation: Some(header) }, what, fix);
        RawRule::unreadable(line, header)
    };
    if header.is_empty() {
        return wrong("the section header is empty".to_owned());
    }
    let pairs: Result<Vec<_>, _> = operation_text::pairs(header).collect();
    match pairs {
        Ok(pairs) => RawRule::new(line, pairs.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect()),
        Err(error) => wrong(format!("the section header is no operation: {error}")),
    }
}

/// Where the `]` is that ends a header: the first one outside of a quoted string after which nothing follows but a
/// comment. Any other `]` is an ordinary character.
fn header_end(text: &str) -> Option<usize> {
    let mut quoted = false;
    let mut previous = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '"' if quoted => quoted = false,
            // Inside of a bare string a quote is an ordinary character.
            '"' => quoted = previous == '=' || previous.is_whitespace(),
            ']' if !quoted && is_blank_or_comment(text.get(at + 1..)?) => return Some(at),
            _ => {}
        }
        previous = c;
    }
    None
}

fn read_setting(place: Place<'_>, text: &str, problems: &mut Problems) -> Option<RawSetting> {
    let Some((key, value)) = text.split_once('=') else {
        let what = format!("`{text}` is neither a section nor a setting");
        problems.error(place, what, "write [operation], key = value, or a comment after `;` or `#`");
        return None;
    };
    let key = key.trim().to_owned();
    match read_value(value.trim()) {
        Ok(value) => Some(RawSetting { line: place.line, key, value }),
        Err(error) => {
            problems.error(place, format!("the value of `{key}`: {}", error.what), error.fix);
            None
        }
    }
}

struct ValueError {
    what: &'static str,
    fix: &'static str,
}

fn read_value(text: &str) -> Result<RawValue, ValueError> {
    if let Some(rest) = text.strip_prefix('"') {
        return read_double_quoted(rest).map(RawValue::Text);
    }
    if let Some(rest) = text.strip_prefix('\'') {
        return read_single_quoted(rest).map(RawValue::Text);
    }
    let bare = read_bare(text);
    Ok(if bare == "null" { RawValue::Null } else { RawValue::Text(bare) })
}

/// Up to the first quote that ends the value: what follows it is blank or a comment. No escapes.
fn read_single_quoted(text: &str) -> Result<String, ValueError> {
    let mut quotes = text.match_indices('\'');
    let end = quotes.find(|(at, _)| text.get(at + 1..).is_some_and(is_blank_or_comment));
    let value = end.and_then(|(at, _)| text.get(..at));
    value.map(str::to_owned).ok_or(ValueError { what: "the single quote is not closed", fix: "end it with a `'`" })
}

/// A JSON string: `\"`, `\\`, `\n`, `\u00e9` and so on are escapes.
fn read_double_quoted(text: &str) -> Result<String, ValueError> {
    let mut escaped = false;
    let end = text.find(|c| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    let unclosed = ValueError { what: "the double quote is not closed", fix: "end it with a `\"`" };
    let (inside, rest) = end.and_then(|at| Some((text.get(..at)?, text.get(at + 1..)?))).ok_or(unclosed)?;
    if !is_blank_or_comment(rest) {
        return Err(ValueError {
            what: "text follows the closing quote",
            fix: "write a quote inside of quotes as `\\\"`",
        });
    }
    // A tab may stand in an INI value as it is, and only as an escape in a JSON string.
    serde_json::from_str(&format!("\"{}\"", inside.replace('\t', "\\t"))).map_err(|_| ValueError {
        what: "an escape or a character that double quotes do not allow",
        fix: "write a backslash as `\\\\`, or use single quotes, which know no escapes",
    })
}

/// Up to the first `;` or `#`; a backslash before one of them or before another backslash takes it literally.
fn read_bare(text: &str) -> String {
    let mut value = String::new();
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            ';' | '#' => break,
            '\\' => value.push(characters.next_if(|next| matches!(next, ';' | '#' | '\\')).unwrap_or(c)),
            _ => value.push(c),
        }
    }
    value.trim_end().to_owned()
}

fn is_blank_or_comment(text: &str) -> bool {
    let text = text.trim_start();
    text.is_empty() || starts_comment(text)
}

fn starts_comment(text: &str) -> bool {
    text.starts_with([';', '#'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Result<RawValue, &'static str> {
        read_value(text).map_err(|error| error.what)
    }

    fn text(text: &str) -> Result<RawValue, &'static str> {
        Ok(RawValue::Text(text.to_owned()))
    }

    #[test]
    fn values_are_bare_or_quoted() {
        assert_eq!(value("canary  # <- canary this rule"), text("canary"));
        assert_eq!(value("60;seconds"), text("60"));
        assert_eq!(value(r"a\;b\#c\\d\e ; comment"), text(r"a;b#c\d\e"));
        assert_eq!(value("'#1; it''s \"it\"' ; don't"), text("#1; it''s \"it\""));
        assert_eq!(value(r#""a\tb \"c\" ;" # d"#), text("a\tb \"c\" ;"));
        assert_eq!(value(""), text(""));
        assert_eq!(value("; nothing"), text(""));
    }

    #[test]
    fn only_a_bare_null_is_absent() {
        assert_eq!(value("null"), Ok(RawValue::Null));
        assert_eq!(value("null ; no label"), Ok(RawValue::Null));
        assert_eq!(value("'null'"), text("null"));
        assert_eq!(value("\"null\""), text("null"));
    }

    #[test]
    fn broken_quotes_are_refused() {
        assert_eq!(value("'a"), Err("the single quote is not closed"));
        assert_eq!(value("'a' b"), Err("the single quote is not closed"));
        assert_eq!(value("\"a\\\""), Err("the double quote is not closed"));
        assert_eq!(value("\"a\" b"), Err("text follows the closing quote"));
        assert_eq!(value("\"C:\\dir\""), Err("an escape or a character that double quotes do not allow"));
    }

    fn header(text: &str) -> Option<Vec<(String, String)>> {
        let mut problems = Problems::new("test.ini");
        let rule = read(text, &mut problems).rules.pop().and_then(|rule| rule.operation);
        assert_eq!(rule.is_none(), problems.has_errors());
        rule
    }

    fn pairs(pairs: &[(&str, &str)]) -> Option<Vec<(String, String)>> {
        Some(pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect())
    }

    #[test]
    fn headers_are_operations() {
        assert_eq!(header("[default]"), pairs(&[]));
        assert_eq!(header("  [ host=a.b.c path=/x;y#z ]  "), pairs(&[("host", "a.b.c"), ("path", "/x;y#z")]));
        assert_eq!(header("[path=/a[0]] ; see [b]"), pairs(&[("path", "/a[0]")]));
        assert_eq!(header("[\"a b\"=\"] # c\"] # d"), pairs(&[("a b", "] # c")]));
        assert_eq!(header("[a=b\"c]"), pairs(&[("a", "b\"c")]));
    }

    #[test]
    fn broken_headers_are_refused() {
        for text in ["[a=b", "[]", "[a]", "[a=\"b]", "[a=b] c"] {
            assert_eq!(header(text), None, "{text}");
        }
    }

    #[test]
    fn lines_end_in_lf_or_crlf_after_a_byte_order_mark() {
        let mut problems = Problems::new("test.ini");
        let document = read("\u{feff}; x\r\n[default]\r\ncreditLimit = 5\r\n", &mut problems);
        let rule = &document.rules[0];
        assert_eq!((rule.line, rule.settings[0].line), (2, 3));
        assert_eq!(rule.settings[0].value, RawValue::Text("5".into()));
        assert!(!problems.has_errors());
    }
}
