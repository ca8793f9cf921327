//! Reads INI rules files line by line, as npm's `ini` package reads them for Button's Divvy.
//!
//! divvy has its own small reader so that each problem is reported with its line. The INI crates either keep no line
//! numbers, or treat dots, quotes and brackets in a section header differently. Each line is read independently, so one
//! run reports every malformed line.
//!
//! How Button's Divvy 1.7.1 reads a line of an INI file or a value of a JSON file is only used to report differences. Button's Divvy reads INI with npm's `ini` package (1.3), and headers and numbers
//! with its own code. Sources: `ini.js` of <https://github.com/npm/ini>, `src/config.js` of
//! <https://github.com/button/divvy>.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;

use super::Problems;
use super::document::{self, DEFAULT, RawRule, RawSetting, RawValue};
use crate::rules::operation::{self, PairSpans, SyntaxError};
use crate::rules::setting_name::{ACTOR_FIELD, CREDIT_LIMIT, LABEL, MATCH_POLICY, RESET_SECONDS};

pub(super) fn read(text: &str, problems: &mut Problems) -> Vec<RawRule> {
    let mut rules: Vec<RawRule> = Vec::new();
    let mut seen = HashMap::new();
    for (line, whole) in (1..).zip(text.lines()) {
        let content = trim(whole);
        if content.contains('\r') {
            let what = "Button's Divvy 1.7.1 ends the line at its carriage return";
            problems.difference(line, what, "replace it with a line feed, or remove it");
        }
        if content.is_empty() || starts_comment(content) {
            continue;
        }
        if let Some(header) = content.strip_prefix('[') {
            let rule = read_header(line, header, problems);
            compare_header(whole, &rule, &mut seen, problems);
            rules.push(rule);
            continue;
        }
        let header = rules.last().map(|rule| rule.header.as_str());
        let Some(setting) = read_setting((line, header), whole, problems) else { continue };
        match rules.last_mut() {
            Some(rule) => rule.settings.push(setting),
            None => {
                let what = format!("`{}` is above the first section", setting.key);
                problems.error(line, what, "move it below the [operation] that it belongs to");
            }
        }
    }
    rules
}

/// Returns the pairs of a section with this header; `None` if divvy cannot read it, or Button's Divvy reads it
/// differently.
pub(super) fn header_pairs(header: &str) -> Option<Vec<(String, String)>> {
    let text = format!("{header}]");
    let whole = !header.contains('\n') && header_end(&text) == Some(header.len());
    let (text, has_comment) = whole.then(|| without_comment(header, true))?;
    if has_comment { None } else { owned_pairs(&text).ok() }
}

fn owned_pairs(text: &str) -> Result<Vec<(String, String)>, operation::SyntaxError> {
    operation::pairs(text).map(|pair| pair.map(|(key, value)| (key.to_owned(), value.to_owned()))).collect()
}

/// Reads the header in `text`, which follows the opening bracket.
fn read_header(line: usize, text: &str, problems: &mut Problems) -> RawRule {
    let Some(written) = header_end(text).and_then(|end| text.get(..end)) else {
        let (what, fix) = describe_unclosed(text);
        problems.error(line, what, fix);
        return RawRule::unreadable(line, text);
    };
    let (header, has_comment) = without_comment(written, true);
    if has_comment {
        let what = "text after `;` or `#` in a section header is a comment";
        let fix = "write `\\;` or `\\#` for the character itself, or put the comment on its own line";
        problems.warning((line, trim(written)), what, fix);
    }
    let header = trim(&header);
    if header == DEFAULT {
        return RawRule::new(line, Vec::new());
    }
    if header.is_empty() {
        let what = "the section header is empty";
        problems.error((line, header), what, "write [key=value key2=value2] or [default]");
        return RawRule::unreadable(line, header);
    }
    warn_of_commas(line, header, problems);
    owned_pairs(header).map(|pairs| RawRule::new(line, pairs)).unwrap_or_else(|error| {
        let (what, fix) = describe_syntax_error(header, &error);
        problems.error((line, header), what, fix);
        RawRule::unreadable(line, header)
    })
}

/// Warns of values without quotes that end with a comma, because it separates no pairs.
fn warn_of_commas(line: usize, header: &str, problems: &mut Problems) {
    for PairSpans { key, value } in operation::pair_spans(header.as_bytes(), 0).filter_map(Result::ok) {
        let is_quoted = header.get(value.end..).is_some_and(|rest| rest.starts_with('"'));
        let (key, value) = (header.get(key).unwrap_or_default(), header.get(value).unwrap_or_default());
        if let Some(meant) = value.strip_suffix(',').filter(|_| !is_quoted) {
            let what = format!("the value {value:?} of {key} ends with a comma, which is a part of it");
            let fix =
                format!("write {key}={meant} and separate pairs by spaces only, or put the value in double quotes");
            problems.warning((line, header), what, fix);
        }
    }
}

/// Describes why no `]` ends the header in `text`, and how to correct it.
fn describe_unclosed(text: &str) -> (String, &'static str) {
    let mut quotes = Quotes::default();
    let end = text.char_indices().find(|(_, c)| !quotes.advance(*c) && *c == ']').map(|(at, _)| at);
    if let Some(rest) = end.and_then(|at| text.get(at + 1..)).map(trim) {
        let what = format!("the text {rest:?} follows the `]` of the section header");
        return (what, "write pairs before the `]`, and settings on lines of their own");
    }
    if quotes.are_open {
        return (format!("a double quote in the section header [{text} is not closed"), "end it with a `\"`");
    }
    (format!("the section header [{text} is not closed"), "end it with a `]`")
}

/// Returns the position of the `]` that ends a header: the first one outside quotes that is followed by nothing but a
/// comment. Any other `]` is an ordinary character.
fn header_end(text: &str) -> Option<usize> {
    let mut quotes = Quotes::default();
    text.char_indices().find_map(|(at, c)| {
        let is_quoted = quotes.advance(c);
        (c == ']' && !is_quoted && is_blank_or_comment(text.get(at + 1..)?)).then_some(at)
    })
}

/// Returns the text up to the first `;` or `#`, and whether there is one. A backslash before one of them, or before another
/// backslash, makes it literal. If `is_header`, every character inside quotes is literal, too, which Button's Divvy does not
/// support there.
fn without_comment(written: &str, is_header: bool) -> (String, bool) {
    let mut text = String::with_capacity(written.len());
    let mut quotes = Quotes::default();
    let mut characters = written.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            _ if is_header && quotes.advance(c) => text.push(c),
            ';' | '#' => return (text, true),
            '\\' => text.push(characters.next_if(is_escaped).unwrap_or(c)),
            _ => text.push(c),
        }
    }
    (text, false)
}

/// Tracks quotes while a header is scanned.
struct Quotes {
    are_open: bool,
    previous: char,
}

impl Default for Quotes {
    fn default() -> Self {
        Self { are_open: false, previous: ' ' }
    }
}

impl Quotes {
    /// Consumes `c`. Returns whether it is quoted. The quotes themselves count as quoted.
    fn advance(&mut self, c: char) -> bool {
        let were_open = self.are_open;
        // Inside a bare string, a quote is an ordinary character.
        let opens = c == '"' && !were_open && (self.previous == '=' || self.previous.is_whitespace());
        self.are_open = opens || (were_open && c != '"');
        self.previous = c;
        were_open || opens
    }
}

/// Reports a header that Button's Divvy reads differently. `seen` has the line of each section that Button's Divvy sees.
fn compare_header(
    written: &str,
    rule: &RawRule,
    seen: &mut HashMap<Vec<(String, String)>, usize>,
    problems: &mut Problems,
) {
    const USE_JSON: &str = "use a JSON file if Button's Divvy reads it, too";
    let Some(ours) = &rule.operation else { return };
    let (what, fix) = match section(written) {
        Section::None => (
            "Button's Divvy 1.7.1 sees no section here, and applies the settings below to the section above".to_owned(),
            "write nothing before the first `[` or after the last `]`, and no other `]`",
        ),
        Section::Nested => {
            let what = "Button's Divvy 1.7.1 reads a dot in a section header as nesting: it refuses the file or loses \
                        the rule";
            (what.to_owned(), USE_JSON)
        }
        Section::Rule(theirs) if ours.len() != theirs.len() || !ours.iter().all(|pair| theirs.contains(pair)) => (
            format!("Button's Divvy 1.7.1 reads a different operation here: {theirs:?}"),
            "use a JSON file if Button's Divvy reads it, too: it does not support quotes in section headers",
        ),
        Section::Rule(theirs) => match seen.insert(theirs, rule.line) {
            Some(first) => {
                let merges = format!("merges this section with the one on line {first}, and uses these settings");
                (format!("Button's Divvy 1.7.1 {merges}"), USE_JSON)
            }
            None => return,
        },
    };
    problems.difference((rule.line, rule.header.as_str()), what, fix);
}

fn read_setting(place: (usize, Option<&str>), text: &str, problems: &mut Problems) -> Option<RawSetting> {
    let Some((key, value)) = text.split_once('=') else {
        let what = format!("`{}` is neither a section nor a setting", trim(text));
        problems.error(place, what, "write [operation], key = value, or a comment after `;` or `#`");
        return None;
    };
    let key = trim(key).to_owned();
    match read_value(trim(value)) {
        Ok(read) => {
            compare_setting(place, &key, value, &read, problems);
            Some(RawSetting { line: place.0, key, value: read })
        }
        Err((what, fix)) => {
            problems.error(place, format!("the value of `{key}`: {what}"), fix);
            None
        }
    }
}

/// Reports a value that Button's Divvy reads differently from `ours`. Values that divvy rejects are reported elsewhere.
fn compare_setting(place: (usize, Option<&str>), key: &str, written: &str, ours: &RawValue, problems: &mut Problems) {
    let theirs = setting(written);
    let is_same = match key {
        CREDIT_LIMIT | RESET_SECONDS => {
            let Ok(seconds) = document::seconds(ours) else { return };
            let whole = if let Setting::Text(text) = &theirs { whole_number(text) } else { None };
            whole.is_some_and(|whole| seconds.0 == Duration::from_secs(whole))
        }
        ACTOR_FIELD | LABEL | MATCH_POLICY => is_same_text(ours, &theirs),
        // Neither program uses the value, or only divvy does.
        _ => true,
    };
    if is_same {
        return;
    }
    let what = match (key, &theirs) {
        (CREDIT_LIMIT | RESET_SECONDS, Setting::Text(text)) => match whole_number(text) {
            Some(whole) => format!("`{key}` is {whole} in Button's Divvy 1.7.1, which drops fractions"),
            None => format!("`{key}` is not a number in Button's Divvy 1.7.1, which reads {text:?}"),
        },
        (_, Setting::Text(text)) => format!("`{key}` is {text:?} in Button's Divvy 1.7.1"),
        (_, Setting::Absent) => format!("`{key}` is not set in Button's Divvy 1.7.1"),
        (_, Setting::Other) => {
            format!("`{key}` is a different value in Button's Divvy 1.7.1, which reads JSON between the quotes")
        }
    };
    let fix = match key {
        CREDIT_LIMIT | RESET_SECONDS => "write a whole number without quotes if Button's Divvy reads the file, too",
        _ => "write it without quotes, or in double quotes with no comment after them, if Button's Divvy reads it, too",
    };
    problems.difference(place, what, fix);
}

/// A problem with a value, and its fix.
type ValueError = (&'static str, &'static str);

fn read_value(text: &str) -> Result<RawValue, ValueError> {
    if let Some(rest) = text.strip_prefix('"') {
        return read_double_quoted(rest).map(RawValue::Text);
    }
    if let Some(rest) = text.strip_prefix('\'') {
        return read_single_quoted(rest).map(RawValue::Text);
    }
    let bare = trim(&without_comment(text, false).0).to_owned();
    Ok(if bare == "null" { RawValue::Null } else { RawValue::Text(bare) })
}

/// Reads up to the first quote that is followed by nothing but blanks or a comment. There are no escapes.
fn read_single_quoted(text: &str) -> Result<String, ValueError> {
    let mut quotes = text.match_indices('\'');
    let end = quotes.find(|(at, _)| text.get(at + 1..).is_some_and(is_blank_or_comment));
    let value = end.and_then(|(at, _)| text.get(..at));
    value.map(str::to_owned).ok_or(("the single quote is not closed", "end it with a `'`"))
}

/// Reads a JSON string with escapes such as `\"`, `\\`, `\n` and `\u00e9`.
fn read_double_quoted(text: &str) -> Result<String, ValueError> {
    let mut escaped = false;
    let end = text.find(|c| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    let unclosed = ("the double quote is not closed", "end it with a `\"`");
    let (inside, rest) = end.and_then(|at| Some((text.get(..at)?, text.get(at + 1..)?))).ok_or(unclosed)?;
    if !is_blank_or_comment(rest) {
        return Err(("text follows the closing quote", "write a quote inside quotes as `\\\"`"));
    }
    // An INI value may contain a bare tab; a JSON string may not.
    serde_json::from_str(&format!("\"{}\"", inside.replace('\t', "\\t"))).map_err(|_| {
        (
            "it contains an escape or a character that double quotes do not allow",
            "write a backslash as `\\\\`, or use single quotes, which have no escapes",
        )
    })
}

fn is_blank_or_comment(text: &str) -> bool {
    let text = trim(text);
    text.is_empty() || starts_comment(text)
}

fn starts_comment(text: &str) -> bool {
    text.starts_with([';', '#'])
}

/// The content of a section header's line.
#[derive(Debug, PartialEq, Eq)]
enum Section {
    /// No section: the settings below belong to the previous section.
    None,
    /// A nested section, because its name contains a dot. It is not a rule.
    Nested,
    /// A rule for this operation.
    Rule(Vec<(String, String)>),
}

/// A setting's value.
#[derive(Debug, PartialEq, Eq)]
enum Setting {
    /// The setting counts as missing.
    Absent,
    Text(String),
    /// A list, an object, or a number that is not written as a plain whole number.
    Other,
}

/// Reads a line, including white space, that is a section header for divvy.
fn section(line: &str) -> Section {
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
fn setting(text: &str) -> Setting {
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
            // Beyond 2^53, JavaScript's numbers are not exact.
            Some(whole) if whole < 1 << 53 => Setting::Text(whole.to_string()),
            _ => Setting::Other,
        },
        Value::Array(_) | Value::Object(_) => Setting::Other,
    }
}

/// Returns the whole number at the start of a text, if any.
fn whole_number(text: &str) -> Option<u64> {
    let text = trim(text);
    let digits = text.strip_prefix('+').unwrap_or(text);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits.get(..end)?.parse().ok()
}

/// Converts a number in a JSON operation as JavaScript does: to floating point, and back to text.
pub(super) fn number(text: &str) -> String {
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
pub(super) fn has_same_meaning(pattern: &str) -> bool {
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
    Value::String(trim(&without_comment(text, false).0).to_owned())
}

/// Returns whether a backslash escapes the character. Before any other character, a backslash is literal.
pub(super) fn is_escaped(c: &char) -> bool {
    matches!(c, ';' | '#' | '\\')
}

/// Parses JSON. Any other text is a string.
fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// Removes surrounding white space, like JavaScript's `trim`.
fn trim(text: &str) -> &str {
    text.trim_matches(is_space)
}

fn is_space(c: char) -> bool {
    c == '\u{feff}' || (c.is_whitespace() && c != '\u{85}')
}

/// Returns whether both programs have read the same value.
fn is_same_text(ours: &RawValue, theirs: &Setting) -> bool {
    match (ours.as_text().filter(|text| !text.is_empty()), theirs) {
        (None, Setting::Absent) => true,
        (Some(ours), Setting::Text(theirs)) => ours == theirs,
        _ => false,
    }
}

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

#[cfg(test)]
mod rust_ini_comparison;
#[cfg(test)]
mod tests;
