//! Reads INI rules files line by line, as npm's `ini` package reads them for Button's Divvy.
//!
//! divvy has its own small reader so that each problem is reported with its line. The INI crates either keep no line
//! numbers, or treat dots, quotes and brackets in a section header differently. Each line is read independently, so one
//! run reports every malformed line.
//!
//! A line that Button's Divvy 1.7.1 may read differently is reported as a difference. It reads INI with npm's `ini` package
//! (1.3), and headers with its own code. Sources: `ini.js` of <https://github.com/npm/ini>, `src/config.js` of
//! <https://github.com/button/divvy>.

use std::collections::HashMap;

use super::Problems;
use super::document::{DEFAULT, RawRule, RawSetting, RawValue};
use crate::rules::operation;
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
        let what = format!("the section header [{text} does not end with a `]`");
        problems.error(line, what, "close it and its quotes, and write settings on lines of their own");
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
    match owned_pairs(header) {
        Ok(pairs) => {
            if let Some((key, value)) = pairs.iter().find(|(_, value)| value.ends_with(',')) {
                let what = format!("the value {value:?} of {key} ends with a comma, which is a part of it");
                problems.warning((line, header), what, "separate pairs by spaces only");
            }
            RawRule::new(line, pairs)
        }
        Err(_) => {
            let what = "the section header is not an operation, which consists of pairs with spaces between them";
            let fix = "write [key=value key2=value2] without spaces around `=`, or [default], and put values with spaces or `=` \
                       in double quotes";
            problems.error((line, header), what, fix);
            RawRule::unreadable(line, header)
        }
    }
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
            '\\' => text.push(characters.next_if(|c| matches!(c, ';' | '#' | '\\')).unwrap_or(c)),
            _ => text.push(c),
        }
    }
    (text, false)
}

/// Tracks quotes while a header is scanned.
#[derive(Default)]
struct Quotes {
    are_open: bool,
    previous: Option<char>,
}

impl Quotes {
    /// Consumes `c`. Returns whether it is quoted. The quotes themselves count as quoted.
    fn advance(&mut self, c: char) -> bool {
        let were_open = self.are_open;
        // Inside a bare string, a quote is an ordinary character.
        let begins_string = self.previous.is_none_or(|previous| previous == '=' || previous.is_whitespace());
        let opens = c == '"' && !were_open && begins_string;
        self.are_open = opens || (were_open && c != '"');
        self.previous = Some(c);
        were_open || opens
    }
}

/// Reports a header that Button's Divvy may read differently. `seen` has the line of each section that Button's Divvy sees.
fn compare_header(
    written: &str,
    rule: &RawRule,
    seen: &mut HashMap<Vec<(String, String)>, usize>,
    problems: &mut Problems,
) {
    let Some(operation) = &rule.operation else { return };
    let inside = written.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_odd =
        |inside: &str| inside.contains([']', '.', '"', '\u{feff}', '\u{85}']) || trim(inside).starts_with('\'');
    let what = if inside.is_none_or(is_odd) {
        "reads dots, quotes, brackets and text around the brackets of a section header differently".to_owned()
    } else {
        let Some(first) = seen.insert(operation.clone(), rule.line) else { return };
        format!("merges this section with the one on line {first}, and uses these settings")
    };
    let fix = "use a JSON file if Button's Divvy reads it, too";
    problems.difference((rule.line, rule.header.as_str()), format!("Button's Divvy 1.7.1 {what}"), fix);
}

fn read_setting(place: (usize, Option<&str>), text: &str, problems: &mut Problems) -> Option<RawSetting> {
    let Some((key, value)) = text.split_once('=') else {
        let what = format!("`{}` is neither a section nor a setting", trim(text));
        problems.error(place, what, "write [operation], key = value, or a comment after `;` or `#`");
        return None;
    };
    let key = trim(key).to_owned();
    let report = |(what, fix): ValueError| problems.error(place, format!("the value of `{key}`: {what}"), fix);
    let read = read_value(trim(value)).map_err(report).ok()?;
    compare_setting(place, &key, value, &read, problems);
    Some(RawSetting { line: place.0, key, value: read })
}

/// Reports a value that Button's Divvy may read differently from `ours`. Values that divvy rejects are reported elsewhere.
fn compare_setting(place: (usize, Option<&str>), key: &str, written: &str, ours: &RawValue, problems: &mut Problems) {
    let (text, trimmed) = (ours.as_text().unwrap_or_default(), trim(written));
    let is_quoted = trimmed.starts_with(['"', '\'']);
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        && !["null", "true", "false"].contains(&text);
    // Button's Divvy does not recognize a line with one of these characters as a setting, and quotes before a comment.
    let is_read = !written.contains(['\u{2028}', '\u{2029}']) && (!is_quoted || trimmed.len() == text.len() + 2);
    let is_same = match key {
        CREDIT_LIMIT | RESET_SECONDS => is_read && text.bytes().all(|byte| byte.is_ascii_digit()),
        ACTOR_FIELD | LABEL | MATCH_POLICY => is_read && if is_quoted { is_word } else { text != "false" },
        // Neither program uses the value, or only divvy does.
        _ => true,
    };
    if !is_same {
        let what =
            format!("Button's Divvy 1.7.1 reads `{key}` differently: it has its own quotes, and drops fractions");
        let fix = "write a word or a whole number without quotes if Button's Divvy reads the file, too";
        problems.difference(place, what, fix);
    }
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

/// Returns whether both programs give a rule's pattern the same meaning. In Button's Divvy only the first `*` stands
/// for any characters. The others repeat the character before them, and any text may follow the match.
pub(super) fn has_same_meaning(pattern: &str) -> bool {
    pattern.strip_suffix('*').unwrap_or(pattern).chars().all(|c| c != '*')
}

/// Removes surrounding white space, like JavaScript's `trim`.
fn trim(text: &str) -> &str {
    text.trim_matches(|c: char| c == '\u{feff}' || (c.is_whitespace() && c != '\u{85}'))
}

#[cfg(test)]
mod rust_ini_comparison;
#[cfg(test)]
mod tests;
