//! Reads INI rules files line by line, as npm's `ini` package reads them for Button's Divvy.
//!
//! divvy has its own small reader so that each problem is reported with its line. The INI crates either keep no line
//! numbers, or treat dots, quotes and brackets in a section header differently. Each line is read independently, so one
//! run reports every malformed line.

use std::collections::HashMap;
use std::time::Duration;

use super::document::{DEFAULT, Document, RawRule, RawSetting, RawValue};
use super::original::{self, Section, Setting, is_escaped, trim, without_comment};
use super::problem::{Location, Problems};
use super::{number, operation_mistakes};
use crate::rules::operation_text::{self, PairSpans};
use crate::rules::setting_name::{ACTOR_FIELD, CREDIT_LIMIT, LABEL, MATCH_POLICY, RESET_SECONDS};

pub(super) fn read(text: &str, problems: &mut Problems) -> Document {
    let mut document = Document::default();
    let mut sections = Sections::default();
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
            sections.compare(whole, &rule, problems);
            document.rules.push(rule);
            continue;
        }
        let operation = document.rules.last().map(|rule| rule.header.as_str());
        let setting = read_setting(Location { line, operation }, whole, problems);
        match (setting, document.rules.last_mut()) {
            (Some(setting), Some(rule)) => rule.settings.push(setting),
            (Some(setting), None) => {
                let what = format!("`{}` is above the first section", setting.key);
                problems.error(line, what, "move it below the [operation] that it belongs to");
            }
            (None, _) => {}
        }
    }
    document
}

/// Returns the pairs of a section with this header; `None` if divvy cannot read it, or Button's Divvy reads it
/// differently.
pub(super) fn header_pairs(header: &str) -> Option<Vec<(String, String)>> {
    let text = format!("{header}]");
    let whole = !header.contains('\n') && header_end(&text) == Some(header.len());
    let Header { text, has_comment } = whole.then(|| unescaped(header))?;
    if has_comment { None } else { owned_pairs(&text).ok() }
}

fn owned_pairs(text: &str) -> Result<Vec<(String, String)>, operation_text::SyntaxError> {
    operation_text::pairs(text).map(|pair| pair.map(|(key, value)| (key.to_owned(), value.to_owned()))).collect()
}

/// Reads the header in `text`, which follows the opening bracket.
fn read_header(line: usize, text: &str, problems: &mut Problems) -> RawRule {
    let Some(written) = header_end(text).and_then(|end| text.get(..end)) else {
        let (what, fix) = describe_unclosed(text);
        problems.error(line, what, fix);
        return RawRule::unreadable(line, text);
    };
    let header = unescaped(written);
    if header.has_comment {
        let what = "text after `;` or `#` in a section header is a comment";
        let fix = "write `\\;` or `\\#` for the character itself, or put the comment on its own line";
        problems.warning(Location { line, operation: Some(trim(written)) }, what, fix);
    }
    let header = trim(&header.text);
    if header == DEFAULT {
        return RawRule::new(line, Vec::new());
    }
    if header.is_empty() {
        let what = "the section header is empty";
        problems.error(Location { line, operation: Some(header) }, what, "write [key=value key2=value2] or [default]");
        return RawRule::unreadable(line, header);
    }
    warn_of_commas(line, header, problems);
    owned_pairs(header).map(|pairs| RawRule::new(line, pairs)).unwrap_or_else(|error| {
        let (what, fix) = operation_mistakes::describe_syntax_error(header, &error);
        problems.error(Location { line, operation: Some(header) }, what, fix);
        RawRule::unreadable(line, header)
    })
}

/// Warns of values without quotes that end with a comma, because it separates no pairs.
fn warn_of_commas(line: usize, header: &str, problems: &mut Problems) {
    for PairSpans { key, value } in operation_text::pair_spans(header.as_bytes(), 0).filter_map(Result::ok) {
        let is_quoted = header.get(value.end..).is_some_and(|rest| rest.starts_with('"'));
        let (key, value) = (header.get(key).unwrap_or_default(), header.get(value).unwrap_or_default());
        if let Some(meant) = value.strip_suffix(',').filter(|_| !is_quoted) {
            let what = format!("the value {value:?} of {key} ends with a comma, which is a part of it");
            let fix =
                format!("write {key}={meant} and separate pairs by spaces only, or put the value in double quotes");
            problems.warning(Location { line, operation: Some(header) }, what, fix);
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

/// The text of a header.
struct Header {
    text: String,
    has_comment: bool,
}

/// Returns a header without its comment, with `\;`, `\#`, and `\\` unescaped, as Button's Divvy reads it. Inside
/// quotes, which Button's Divvy does not support there, every character is literal.
fn unescaped(written: &str) -> Header {
    let mut text = String::with_capacity(written.len());
    let mut quotes = Quotes::default();
    let mut characters = written.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            _ if quotes.advance(c) => text.push(c),
            ';' | '#' => return Header { text, has_comment: true },
            '\\' => text.push(characters.next_if(is_escaped).unwrap_or(c)),
            _ => text.push(c),
        }
    }
    Header { text, has_comment: false }
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

/// The sections so far, and how Button's Divvy reads them.
#[derive(Default)]
struct Sections {
    /// The line of each section that Button's Divvy sees.
    seen: HashMap<Vec<(String, String)>, usize>,
}

impl Sections {
    /// Reports a header that Button's Divvy reads differently.
    fn compare(&mut self, written: &str, rule: &RawRule, problems: &mut Problems) {
        let Some(ours) = &rule.operation else { return };
        let mut differs = |what: String, fix: &str| {
            problems.difference(Location { line: rule.line, operation: Some(&rule.header) }, what, fix);
        };
        let theirs = match original::section(written) {
            Section::None => {
                let what =
                    "Button's Divvy 1.7.1 sees no section here, and applies the settings below to the section above";
                let fix = "write nothing before the first `[` or after the last `]`, and no other `]`";
                return differs(what.to_owned(), fix);
            }
            Section::Nested => {
                let what = "Button's Divvy 1.7.1 reads a dot in a section header as nesting: it refuses the file or \
                            loses the rule";
                return differs(what.to_owned(), "use a JSON file if Button's Divvy reads it, too");
            }
            Section::Rule(pairs) => pairs,
        };
        if !is_same_operation(ours, &theirs) {
            let what = format!("Button's Divvy 1.7.1 reads a different operation here: {theirs:?}");
            return differs(
                what,
                "use a JSON file if Button's Divvy reads it, too: it does not support quotes in section headers",
            );
        }
        if let Some(first) = self.seen.insert(theirs, rule.line) {
            let what = format!(
                "Button's Divvy 1.7.1 merges this section with the one on line {first}, and uses these settings"
            );
            differs(what, "use a JSON file if Button's Divvy reads it, too");
        }
    }
}

fn is_same_operation(ours: &[(String, String)], theirs: &[(String, String)]) -> bool {
    ours.len() == theirs.len() && ours.iter().all(|pair| theirs.contains(pair))
}

fn read_setting(place: Location<'_>, text: &str, problems: &mut Problems) -> Option<RawSetting> {
    let Some((key, value)) = text.split_once('=') else {
        let what = format!("`{}` is neither a section nor a setting", trim(text));
        problems.error(place, what, "write [operation], key = value, or a comment after `;` or `#`");
        return None;
    };
    let key = trim(key).to_owned();
    match read_value(trim(value)) {
        Ok(read) => {
            compare_setting(place, &key, value, &read, problems);
            Some(RawSetting { line: place.line, key, value: read })
        }
        Err(error) => {
            problems.error(place, format!("the value of `{key}`: {}", error.what), error.fix);
            None
        }
    }
}

/// Reports a value that Button's Divvy reads differently from `ours`. Values that divvy rejects are reported elsewhere.
fn compare_setting(place: Location<'_>, key: &str, written: &str, ours: &RawValue, problems: &mut Problems) {
    let theirs = original::setting(written);
    let is_same = match key {
        CREDIT_LIMIT | RESET_SECONDS => {
            let Ok(seconds) = number::seconds(ours) else { return };
            let whole = if let Setting::Text(text) = &theirs { original::whole_number(text) } else { None };
            whole.is_some_and(|whole| seconds.0 == Duration::from_secs(whole))
        }
        ACTOR_FIELD | LABEL | MATCH_POLICY => original::is_same_text(ours, &theirs),
        // Neither program uses the value, or only divvy does.
        _ => true,
    };
    if is_same {
        return;
    }
    let what = match (key, &theirs) {
        (CREDIT_LIMIT | RESET_SECONDS, Setting::Text(text)) => match original::whole_number(text) {
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

/// Reads up to the first quote that is followed by nothing but blanks or a comment. There are no escapes.
fn read_single_quoted(text: &str) -> Result<String, ValueError> {
    let mut quotes = text.match_indices('\'');
    let end = quotes.find(|(at, _)| text.get(at + 1..).is_some_and(is_blank_or_comment));
    let value = end.and_then(|(at, _)| text.get(..at));
    value.map(str::to_owned).ok_or(ValueError { what: "the single quote is not closed", fix: "end it with a `'`" })
}

/// Reads a JSON string with escapes such as `\"`, `\\`, `\n` and `\u00e9`.
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
            fix: "write a quote inside quotes as `\\\"`",
        });
    }
    // An INI value may contain a bare tab; a JSON string may not.
    serde_json::from_str(&format!("\"{}\"", inside.replace('\t', "\\t"))).map_err(|_| ValueError {
        what: "it contains an escape or a character that double quotes do not allow",
        fix: "write a backslash as `\\\\`, or use single quotes, which have no escapes",
    })
}

fn read_bare(text: &str) -> String {
    trim(&without_comment(text)).to_owned()
}

fn is_blank_or_comment(text: &str) -> bool {
    let text = trim(text);
    text.is_empty() || starts_comment(text)
}

fn starts_comment(text: &str) -> bool {
    text.starts_with([';', '#'])
}

#[cfg(test)]
mod rust_ini_comparison;
#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Report;

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
    fn broken_quotes_are_rejected() {
        assert_eq!(value("'a"), Err("the single quote is not closed"));
        assert_eq!(value("'a' b"), Err("the single quote is not closed"));
        assert_eq!(value("\"a\\\""), Err("the double quote is not closed"));
        assert_eq!(value("\"a\" b"), Err("text follows the closing quote"));
        assert_eq!(value("\"C:\\dir\""), Err("it contains an escape or a character that double quotes do not allow"));
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
        assert_eq!(header("  [ host=a.b.c path=/x ]  "), pairs(&[("host", "a.b.c"), ("path", "/x")]));
        assert_eq!(header("[path=/a[0]] ; see [b]"), pairs(&[("path", "/a[0]")]));
        assert_eq!(header("[\"a b\"=\"] # c\"] # d"), pairs(&[("a b", "] # c")]));
        assert_eq!(header("[a=b\"c]"), pairs(&[("a", "b\"c")]));
    }

    #[test]
    fn header_ends_at_a_comment_as_in_buttons_divvy() {
        assert_eq!(header("[path=/a#top]"), pairs(&[("path", "/a")]));
        assert_eq!(header("[path=/a ; old]"), pairs(&[("path", "/a")]));
        assert_eq!(header(r"[path=/a\#b\;c\\d\e]"), pairs(&[("path", r"/a#b;c\d\e")]));
        assert_eq!(header("[default # the rest]"), pairs(&[]));
        assert_eq!(header("[path=\"/a#b;c\\#\"]"), pairs(&[("path", "/a#b;c\\#")]), "in quotes nothing is special");
        assert_eq!(header("[; all]"), None);
        let mut problems = Problems::new("test.ini");
        read("[path=/a#top]\n[path=\"/a#b\"]\n[path=/a\\#b] ; old", &mut problems);
        let warnings: Vec<_> = Report::from(problems).warnings.iter().map(|problem| problem.line).collect();
        assert_eq!(warnings, [Some(1)]);
    }

    /// Returns the lines where a difference from Button's Divvy is reported.
    fn differing(text: &str) -> Vec<usize> {
        let mut problems = Problems::new("test.ini");
        read(text, &mut problems);
        problems.take_differences().into_iter().filter_map(|problem| problem.line).collect()
    }

    #[test]
    fn lines_that_buttons_divvy_reads_differently_are_reported() {
        let same = "[path=/a#top]\ncreditLimit = 5\nresetSeconds = 60.0\nactorField = 'ip'\nlabel = \"x\"\n\
                    comment = 'a' ; b\nresetSeconds = '7'\nmatchPolicy = null\n";
        assert!(differing(same).is_empty(), "{:?}", differing(same));
        assert_eq!(differing("[path=/b] ; old"), [1]);
        assert_eq!(differing(" [path=/b]"), [1]);
        assert_eq!(differing("\u{feff}[path=/b]"), [1]);
        assert_eq!(differing("[host=a.b]"), [1]);
        assert_eq!(differing("[kind=\"weekly digest\"]"), [1]);
        assert_eq!(differing("[a=b]\nresetSeconds = 60.9\ncreditLimit = \"5\" ; five"), [2, 3]);
        assert_eq!(differing("[a=b]\nactorField = \"ip\" ; address\nlabel = 'null'\nmatchPolicy = false"), [2, 3, 4]);
        assert_eq!(differing("[a=b]\nlabel = x\u{2028}\n"), [2]);
        assert_eq!(differing("; old\r[a=b]\r\n[a=b]\r\n"), [1]);
        assert_eq!(differing("[a=b c=d]\n[c=e]\n[c=d a=b]\n[a=b c=d]"), [4]);
    }

    #[test]
    fn broken_headers_are_rejected() {
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
