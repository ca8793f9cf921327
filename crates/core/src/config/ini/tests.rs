//! Single lines of INI, as divvy and Button's Divvy read them.

use super::*;
use crate::config::Report;

fn value(text: &str) -> Result<RawValue, &'static str> {
    read_value(text).map_err(|(what, _)| what)
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
    let rule = read(text, &mut problems).pop().and_then(|rule| rule.operation);
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
    assert_eq!(header(r"[path=/a\#b\;c\\d\e]"), pairs(&[("path", r"/a#b;c\d\e")]));
    assert_eq!(header("[default # the rest]"), pairs(&[]));
    assert_eq!(header("[path=\"/a#b;c\\#\"]"), pairs(&[("path", "/a#b;c\\#")]), "in quotes nothing is special");
    assert_eq!(header("[; all]"), None);
    let mut problems = Problems::new("test.ini");
    read("[path=/a#top]\n[path=\"/a#b\"]\n[path=/a\\#b] ; old\n[a=b, c=d]", &mut problems);
    let warnings: Vec<_> = Report::from(problems).warnings.iter().map(|problem| problem.line).collect();
    assert_eq!(warnings, [Some(1), Some(4)]);
}

/// Returns the lines where a difference from Button's Divvy is reported.
fn differing(text: &str) -> Vec<usize> {
    let mut problems = Problems::new("test.ini");
    read(text, &mut problems);
    let mut lines: Vec<_> = problems.differences.into_iter().filter_map(|problem| problem.line).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn lines_that_buttons_divvy_reads_differently_are_reported() {
    let same = "[path=/a#top]\ncreditLimit = 5\nresetSeconds = 60 ; c\nactorField = 'ip'\nlabel = \"x\"\ncomment = 'a' ; b\n\
                matchPolicy = null\nlabel = a\\;b\nactorField = it's\nactorField =";
    assert!(differing(same).is_empty(), "{:?}", differing(same));
    for header in [
        "[path=/b] ; old",
        " [path=/b]",
        "[path=/b] ",
        "[path=/a[0]]",
        "\u{feff}[path=/b]",
        "[host=a.b]",
        "[kind=\"a b\"]",
    ] {
        assert_eq!(differing(header), [1], "{header}");
    }
    let values = "creditLimit = \"5\" ; five|resetSeconds = 60.9|resetSeconds = '7.0'|creditLimit = 5;\u{2028}|label = 'null'|\
        actorField = \"ip\" ; address|actorField = '7'|matchPolicy = false|label = x\u{2028}";
    for value in values.split('|') {
        assert_eq!(differing(&format!("[a=b]\n{value}")), [2], "{value}");
    }
    assert_eq!(differing("; old\r[a=b]\r\n[a=b]\r\n"), [1]);
    assert_eq!(differing("[a=b c=d]\n[c=e]\n[c=d a=b]\n[a=b c=d]"), [4]);
}

#[test]
fn broken_headers_are_rejected() {
    for text in ["[a=b", "[]", "[a]", "[a=\"b]", "[a=b] c", "[/api]", "[a = b]", "[a=b=c]", "[a=\"b\"c]", "[Default]"] {
        assert_eq!(header(text), None, "{text}");
    }
}

#[test]
fn lines_end_in_lf_or_crlf_after_a_byte_order_mark() {
    let mut problems = Problems::new("test.ini");
    let document = read("\u{feff}; x\r\n[default]\r\ncreditLimit = 5\r\n", &mut problems);
    let rule = &document[0];
    assert_eq!((rule.line, rule.settings[0].line), (2, 3));
    assert_eq!(rule.settings[0].value, RawValue::Text("5".into()));
    assert!(!problems.has_errors());
}

#[test]
fn only_a_star_at_the_end_has_the_same_meaning() {
    assert!(["*", "a*", "a", ""].into_iter().all(has_same_meaning));
    assert!(!["*a", "a*b", "a**", "*a*"].into_iter().any(has_same_meaning));
}
