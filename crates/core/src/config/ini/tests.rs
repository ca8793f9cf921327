//! Single lines of INI, as divvy and Button's Divvy read them.

use super::*;
use crate::config::Report;
use crate::rules::operation;
use crate::rules::testing::cases;

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
    let mut lines: Vec<_> = problems.differences.into_iter().filter_map(|problem| problem.line).collect();
    lines.sort_unstable();
    lines
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
    let rule = &document[0];
    assert_eq!((rule.line, rule.settings[0].line), (2, 3));
    assert_eq!(rule.settings[0].value, RawValue::Text("5".into()));
    assert!(!problems.has_errors());
}

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
    let rows = "1.0 => 1|1.50 => 1.5|1e3 => 1000|-0 => 0|-2.5E1 => -25|\
        12345678901234567890 => 12345678901234567000|123456789012345678901 => 123456789012345680000|\
        1e21 => 1e+21|1234e20 => 1.234e+23|0.000001 => 0.000001|0.00000012 => 1.2e-7|123.456 => 123.456|\
        1635492147368519126e-3 => 1635492147368519.2|1e-400 => 0|1e400 => null";
    for (text, theirs) in cases(rows) {
        assert_eq!(number(text), theirs, "{text}");
    }
}

#[test]
fn only_a_star_at_the_end_has_the_same_meaning() {
    assert!(["*", "a*", "a", ""].into_iter().all(has_same_meaning));
    assert!(!["*a", "a*b", "a**", "*a*"].into_iter().any(has_same_meaning));
}

fn message(header: &str) -> String {
    let error = operation::pairs(header).find_map(Result::err).unwrap();
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
