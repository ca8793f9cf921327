//! How Button's Divvy 1.7.1 reads a line of an INI file or a value of a JSON file.
//!
//! Only used to report differences. Button's Divvy reads INI with npm's `ini` package (1.3), and headers and numbers
//! with its own code. Sources: `ini.js` of <https://github.com/npm/ini>, `src/config.js` of
//! <https://github.com/button/divvy>.

use serde_json::Value;

use super::document::{DEFAULT, RawValue};

/// The content of a section header's line.
#[derive(Debug, PartialEq, Eq)]
pub enum Section {
    /// No section: the settings below belong to the previous section.
    None,
    /// A nested section, because its name contains a dot. It is not a rule.
    Nested,
    /// A rule for this operation.
    Rule(Vec<(String, String)>),
}

/// A setting's value.
#[derive(Debug, PartialEq, Eq)]
pub enum Setting {
    /// The setting counts as missing.
    Absent,
    Text(String),
    /// A list, an object, or a number that is not written as a plain whole number.
    Other,
}

/// Reads a line, including white space, that is a section header for divvy.
pub fn section(line: &str) -> Section {
    let inside = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let Some(inside) = inside.filter(|inside| !inside.contains(']')) else { return Section::None };
    let name = match unquoted(inside) {
        Value::String(name) => name,
        other => other.to_string(),
    };
    if name.contains('.') { Section::Nested } else { Section::Rule(operation(&name)) }
}

/// Returns the pairs of a section's name. Quotes are ordinary characters, and the last value of a repeated key wins.
fn operation(name: &str) -> Vec<(String, String)> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    if name == DEFAULT {
        return pairs;
    }
    for pair in name.split(is_space).filter(|pair| !pair.is_empty()) {
        let mut parts = pair.split('=');
        let (key, value) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        pairs.retain(|(other, _)| other != key);
        pairs.push((key.to_owned(), value.to_owned()));
    }
    pairs
}

/// Reads the text after the `=` of a setting.
pub fn setting(text: &str) -> Setting {
    // Button's Divvy does not recognize a line with one of these characters as a setting.
    if text.contains(['\u{2028}', '\u{2029}']) {
        return Setting::Absent;
    }
    match unquoted(text) {
        Value::String(text) => match text.as_str() {
            "" | "null" | "false" => Setting::Absent,
            _ => Setting::Text(text),
        },
        Value::Null | Value::Bool(false) => Setting::Absent,
        Value::Bool(true) => Setting::Text("true".to_owned()),
        Value::Number(number) => match number.as_u64() {
            Some(0) => Setting::Text("0".to_owned()),
            // Beyond 2^53, JavaScript's numbers are not exact.
            Some(whole) if whole < 1 << 53 => Setting::Text(whole.to_string()),
            _ => Setting::Other,
        },
        Value::Array(_) | Value::Object(_) => Setting::Other,
    }
}

/// Returns the whole number at the start of a text, if any.
pub fn whole_number(text: &str) -> Option<u64> {
    let text = trim(text);
    let digits = text.strip_prefix('+').unwrap_or(text);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits.get(..end)?.parse().ok()
}

/// Converts a number in a JSON operation as JavaScript does: to floating point, and back to text.
pub fn number(text: &str) -> String {
    let number: f64 = text.parse().unwrap_or(f64::INFINITY);
    if !number.is_finite() {
        return "null".to_owned();
    }
    if number == 0.0 {
        return "0".to_owned();
    }
    let sign = if number < 0.0 { "-" } else { "" };
    let (digits, exponent) = shortest_digits(number.abs());
    sign.to_owned() + &write_decimal(&digits, exponent)
}

/// Returns the fewest decimal digits that identify this number, and the power of ten of the first digit. If two numbers
/// are equally close, JavaScript writes the even one. Rust does the same if the number of digits is given.
fn shortest_digits(number: f64) -> (String, i32) {
    let shortest = format!("{number:e}");
    let decimals = shortest.split_once('e').map_or(0, |(mantissa, _)| mantissa.len().saturating_sub("1.".len()));
    let even = format!("{number:.decimals$e}");
    let scientific = if even.parse() == Ok(number) { even } else { shortest };
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    (mantissa.replace('.', ""), exponent.parse().unwrap_or_default())
}

/// Writes decimal digits as JavaScript does. `exponent` is the power of ten of the first digit.
fn write_decimal(digits: &str, exponent: i32) -> String {
    let zeros = |count: i32| "0".repeat(usize::try_from(count).unwrap_or_default());
    let count = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    let split = |at: i32| digits.split_at_checked(usize::try_from(at).unwrap_or_default()).unwrap_or((digits, ""));
    match exponent {
        -6..=-1 => format!("0.{}{digits}", zeros(-1 - exponent)),
        0..=20 if exponent + 1 >= count => format!("{digits}{}", zeros(exponent + 1 - count)),
        0..=20 => {
            let (whole, decimals) = split(exponent + 1);
            format!("{whole}.{decimals}")
        }
        _ => {
            let (first, rest) = split(1);
            let point = if rest.is_empty() { "" } else { "." };
            format!("{first}{point}{rest}e{exponent:+}")
        }
    }
}

/// Returns whether both programs give a rule's pattern the same meaning. In Button's Divvy only the first `*` stands
/// for any characters. The others repeat the character before them, and any text may follow the match.
pub fn has_same_meaning(pattern: &str) -> bool {
    pattern.strip_suffix('*').unwrap_or(pattern).chars().all(|c| c != '*')
}

/// Removes quotes. A double-quoted text is JSON, and so is the content of a single-quoted one. Any other text ends at a
/// comment, and loses a backslash before `;`, `#` or another backslash.
fn unquoted(text: &str) -> Value {
    let text = trim(text);
    if text.starts_with('"') && text.ends_with('"') {
        return json(text);
    }
    if text.starts_with('\'') && text.ends_with('\'') {
        let inside = text.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')).unwrap_or_default();
        return json(inside);
    }
    Value::String(trim(&without_comment(text)).to_owned())
}

/// Returns the text up to the first `;` or `#`. A backslash before one of them, or before another backslash, makes it
/// literal.
pub fn without_comment(text: &str) -> String {
    let mut value = String::new();
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            ';' | '#' => break,
            '\\' => value.push(characters.next_if(is_escaped).unwrap_or(c)),
            _ => value.push(c),
        }
    }
    value
}

/// Returns whether a backslash escapes the character. Before any other character, a backslash is literal.
pub fn is_escaped(c: &char) -> bool {
    matches!(c, ';' | '#' | '\\')
}

/// Parses JSON. Any other text is a string.
fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// Removes surrounding white space, like JavaScript's `trim`.
pub fn trim(text: &str) -> &str {
    text.trim_matches(is_space)
}

fn is_space(c: char) -> bool {
    c == '\u{feff}' || (c.is_whitespace() && c != '\u{85}')
}

/// Returns whether both programs have read the same value.
pub fn is_same_text(ours: &RawValue, theirs: &Setting) -> bool {
    match (ours.as_text().filter(|text| !text.is_empty()), theirs) {
        (None, Setting::Absent) => true,
        (Some(ours), Setting::Text(theirs)) => ours == theirs,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(pairs: &[(&str, &str)]) -> Section {
        Section::Rule(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn header_is_cut_at_a_comment_and_has_no_quotes() {
        assert_eq!(section("[path=/a#top]"), rule(&[("path", "/a")]));
        assert_eq!(section(r"[path=/a\#b\;c\\d\e]"), rule(&[("path", r"/a#b;c\d\e")]));
        assert_eq!(section("[ kind=\"a b\" ]"), rule(&[("kind", "\"a"), ("b\"", "")]));
        assert_eq!(section("[default ; the rest]"), rule(&[]));
        assert_eq!(section("[a=1 a=2]"), rule(&[("a", "2")]));
        for none in ["[path=/b] ; old", " [path=/b]", "[path=/a[0]]", "[path=/b] ", "\u{feff}[path=/b]"] {
            assert_eq!(section(none), Section::None, "{none}");
        }
        assert_eq!(section("[host=a.b]"), Section::Nested);
    }

    #[test]
    fn quoted_value_is_json() {
        let text = |text: &str| Setting::Text(text.to_owned());
        assert_eq!(setting(" ip ; by address"), text("ip"));
        assert_eq!(setting("\"ip\""), text("ip"));
        assert_eq!(setting("\"ip\" ; by address"), text("\"ip\""));
        assert_eq!(setting("'ip'"), text("ip"));
        assert_eq!(setting("'7'"), text("7"));
        assert_eq!(setting("'7.0'"), Setting::Other);
        for absent in ["", "null", "false", "'null'", "\"null\"", "''", "a\u{2028}b"] {
            assert_eq!(setting(absent), Setting::Absent, "{absent}");
        }
    }

    #[test]
    fn number_ends_after_its_digits() {
        assert_eq!(["60", "60.9", "0.5", "1e3", "+7"].map(whole_number), [60, 60, 0, 1, 7].map(Some));
        assert_eq!(["", "x1", "-1", "\"5\""].map(whole_number), [None; 4]);
    }

    #[test]
    fn json_number_is_written_as_in_javascript() {
        for (text, theirs) in [
            ("1.0", "1"),
            ("1.50", "1.5"),
            ("1e3", "1000"),
            ("-0", "0"),
            ("-2.5E1", "-25"),
            ("12345678901234567890", "12345678901234567000"),
            ("123456789012345678901", "123456789012345680000"),
            ("1e21", "1e+21"),
            ("1234e20", "1.234e+23"),
            ("0.000001", "0.000001"),
            ("0.00000012", "1.2e-7"),
            ("123.456", "123.456"),
            ("1635492147368519126e-3", "1635492147368519.2"),
            ("1e-400", "0"),
            ("1e400", "null"),
        ] {
            assert_eq!(number(text), theirs, "{text}");
        }
    }

    #[test]
    fn only_a_star_at_the_end_has_the_same_meaning() {
        assert!(["*", "a*", "a", ""].into_iter().all(has_same_meaning));
        assert!(!["*a", "a*b", "a**", "*a*"].into_iter().any(has_same_meaning));
    }
}
