//! Mistakes in rules files, which `divvy check` and a starting server report.

use divvy::config::{Format, parse};

use super::check;

/// A rule, which a default rule follows, and the text that helps.
const INI: &[(&str, &str)] = &[
    // Section headers.
    ("[/api/search]\ncreditLimit = 1\nper = 1m", "is not followed by `=` and a value; write [path=/api/search]"),
    ("[search]\ncreditLimit = 1\nper = 1m", "\"search\" is not followed by `=` and a value; write [key=value"),
    ("[path = /a]\ncreditLimit = 1\nper = 1m", "remove the spaces around `=`: [path=/a]"),
    ("[a=b=c]\ncreditLimit = 1\nper = 1m", "put the value in double quotes: [key=\"a=b\"]"),
    ("[kind=weekly digest]\ncreditLimit = 1\nper = 1m", "put values with spaces in double quotes"),
    (
        "[kind=\"weekly digest]\ncreditLimit = 1\nper = 1m",
        "a double quote in the section header [kind=\"weekly digest] is not closed",
    ),
    (
        "[a=b] c=d\ncreditLimit = 1\nper = 1m",
        "the text \"c=d\" follows the `]` of the section header; write pairs before the `]`",
    ),
    (
        "[api=search, user=x]\ncreditLimit = 1\nper = 1m",
        "the value \"search,\" of api ends with a comma, which is a part of it; write api=search",
    ),
    ("[path=/a\ncreditLimit = 1\nper = 1m", "end it with a `]`"),
    ("[]\ncreditLimit = 1\nper = 1m", "the section header is empty"),
    ("[Default]\ncreditLimit = 1\nper = 1m", "write [default]"),
    ("[path=/a path=/b]\ncreditLimit = 1\nper = 1m", "names \"path\" twice"),
    ("[path=/a] ; old ]\ncreditLimit = 1\nper = 1m\nwhat", "`what` is neither a section nor a setting"),
    ("[path=/a#top]\ncreditLimit = 1\nper = 1m", "write `\\;` or `\\#` for the character itself"),
    ("creditLimit = 1\n[path=/a]\ncreditLimit = 1\nper = 1m", "move it below the [operation]"),
    // Patterns.
    (
        "[path=/api/[0-9]+]\ncreditLimit = 1\nper = 1m",
        "there are no regular expressions; in a rule, `*` stands for any text",
    ),
    ("[path=^/api/.*$]\ncreditLimit = 1\nper = 1m", "there are no regular expressions"),
    ("[path=/api/.*]\ncreditLimit = 1\nper = 1m", "there are no regular expressions"),
    ("[path=(x|y)]\ncreditLimit = 1\nper = 1m", "there are no regular expressions"),
    ("[path=/a$]\ncreditLimit = 1\nper = 1m", "there are no regular expressions"),
    ("[path=/users/{id}]\ncreditLimit = 1\nper = 1m", "looks like a route with a placeholder"),
    ("[path=/users/:id]\ncreditLimit = 1\nper = 1m", "`*` stands for any text"),
    // Keys.
    ("[a=1]\ncreditlimit = 1\nper = 1m", "unknown setting `creditlimit`; did you mean `creditLimit`?"),
    ("[a=1]\ncredit_limit = 1\nper = 1m", "did you mean `creditLimit`?"),
    ("[a=1]\nlimit = 1\nper = 1m", "did you mean `creditLimit`?"),
    ("[a=1]\nrequests_per_unit = 1\nper = 1m", "did you mean `creditLimit`?"),
    ("[a=1]\ncreditLimit = 1\nresetSecond = 60", "did you mean `resetSeconds`?"),
    ("[a=1]\ncreditLimit = 1\nperiod = 1m", "did you mean `per`?"),
    ("[a=1]\ncreditLimit = 1\nunit = minute", "did you mean `window`?"),
    ("[a=*]\ncreditLimit = 1\nper = 1m\nactor = a", "did you mean `actorField`?"),
    ("[a=1]\ncreditLimit = 1\nper = 1m\npolicy = and", "did you mean `matchPolicy`?"),
    ("[a=1]\ncreditLimit = 1\nper = 1m\npriority = 5", "remove it: a rule has creditLimit, limit, resetSeconds,"),
    ("[a=1]\ncreditLimit = 1\ncreditLimit = 2\nper = 1m", "is set twice, first on line 2"),
    ("[a=1]\nper = 1m", "`creditLimit` is missing; add it: the number of credits"),
    ("[a=1]\ncreditLimit = 1", "the length of the window is missing; add `per`, `resetSeconds` or `window`"),
    // Numbers.
    ("[a=1]\ncreditLimit = 10/minute\nper = 1m", "write the number of credits in a window"),
    ("[a=1]\ncreditLimit = 1_000\nper = 1m", "in digits only"),
    ("[a=1]\ncreditLimit = -1\nper = 1m", "is negative"),
    ("[a=1]\ncreditLimit = 1.5\nper = 1m", "is not a whole number"),
    ("[a=1]\ncreditLimit = 99999999999999999999\nper = 1m", "is over 9007199254740991"),
    ("[a=1]\ncreditLimit = 1\nresetSeconds = 1m", "write `per = 1m`, or the seconds in digits only"),
    ("[a=1]\ncreditLimit = 1\nresetSeconds = 1 minute", "for example `60` or `0.25`"),
    ("[a=1]\ncreditLimit = 1\nper = 60", "for example `90s`, `5m`, `12h`, `7d` or `2w`"),
    ("[a=1]\ncreditLimit = 1\nper = 1 month", "is not a time, such as 90s"),
    ("[a=1]\ncreditLimit = 1\nper = 1m\nresetSeconds = 60", "both set the length of the window; keep one"),
    ("[a=1]\ncreditLimit = 1\nresetSeconds = 9999999999", "which is 100 years"),
    ("[a=1]\ncreditLimit = 1\nper = 36526d", "`per` is 36526d, but at most 36525d, which is 100 years"),
    ("[a=1]\ncreditLimit = 1\nper = 31d\nalgorithm = concurrency", "`per` is 31d, but a lease lasts from 1s to 30d"),
    // Calendar windows.
    (
        "[a=1]\ncreditLimit = 1\nwindow = days",
        "did you mean `day`? The values are `minute`, `hour`, `day`, `week`, `month` and `year`",
    ),
    ("[a=1]\ncreditLimit = 1\nwindow = fortnight", "write `minute`, `hour`, `day`, `week`, `month` or `year`"),
    ("[a=1]\ncreditLimit = 1\nwindow = 5m", "for a window of another length, write `per`"),
    ("[a=1]\ncreditLimit = 1\nwindow = day\ntimezone = Berlin", "write an IANA name, such as `Europe/Berlin`"),
    ("[a=1]\ncreditLimit = 1\nwindow = day\nresetAt = 6", "write hours and minutes, for example `06:00`"),
    ("[a=1]\ncreditLimit = 1\nper = 1d\ntimezone = UTC", "`timezone` has no meaning without `window`"),
    ("[a=1]\ncreditLimit = 1\nwindow = day\nper = 1d", "both set the length of the window"),
    ("[a=1]\ncreditLimit = 1\nwindow = day\nalgorithm = sliding-window", "fixed-window"),
    // Algorithms.
    ("[a=1]\ncreditLimit = 1\nper = 1m\nalgorithm = gcra", "did you mean `leaky-bucket`?"),
    ("[a=1]\ncreditLimit = 1\nper = 1m\nalgorithm = token_bucket", "did you mean `token-bucket`?"),
    ("[a=1]\ncreditLimit = 1\nper = 1m\nalgorithm = magic", "write `fixed-window`, `sliding-window`, `sliding-log`"),
    ("[a=1]\ncreditLimit = 1\nper = 1m\nburst = 5", "set `algorithm = leaky-bucket`"),
    ("[a=1]\ncreditLimit = 1\nper = 1m\nrefillSeconds = 5", "set `algorithm = token-bucket`"),
    ("[a=1]\ncreditLimit = 5000\nper = 1m\nalgorithm = sliding-log", "set `algorithm = sliding-window`"),
    // Actors and other fields.
    (
        "[user=*]\ncreditLimit = 1\nper = 1m",
        "one counter for all requests: `user=*` only says that the field \"user\" must",
    ),
    ("[tenant=* key=*]\ncreditLimit = 1\nper = 1m", "add `actorField = tenant, key`"),
    ("[a=1]\ncreditLimit = 1\nper = 1m\nactorField = user", "add user=* to the operation"),
    ("[a=* b=*]\ncreditLimit = 1\nper = 1m\nactorField = a,,b", "contains an empty field name"),
    ("[a=*]\ncreditLimit = 1\nper = 1m\nactorField = a, a", "names \"a\" twice"),
    ("[a=*]\ncreditLimit = 1\nper = 1m\nactorField = a\nholdField = a", "set `algorithm = concurrency`"),
    ("[a=1]\ncreditLimit = 1\nper = 1m\noverrun = allow", "write `refuse` or `debt`"),
    ("[a=1]\ncreditLimit = 1\nper = 1m\nlabel = my label", "letters, digits, `-` and `_`"),
    // Combinations of rules.
    (
        "[a=1]\ncreditLimit = 1\nper = 1m\n[a=1]\ncreditLimit = 5\nper = 1h",
        "remove one of them, or add `matchPolicy = and` to the first",
    ),
    (
        "[a=*]\ncreditLimit = 1\nper = 1m\nactorField = a\n[a=1]\ncreditLimit = 5\nper = 1h",
        "unreachable: [a=*] on line 1 answers every request that this rule matches; move this rule above",
    ),
    (
        "[a=1]\ncreditLimit = 1\nper = 1m\nmatchPolicy = and\n[a=1]\ncreditLimit = 5\nper = 1h\nmatchPolicy = and",
        "remove the `matchPolicy` of the last rule that must allow the request, or give [default] a limit",
    ),
    (
        "[a=1]\ncreditLimit = 1\nper = 1m\nmatchPolicy = all",
        "did you mean `and`? The values are `stop`, `and` and `canary`",
    ),
    (
        "[api-key=*]\ncreditLimit = 9\nper = 1m\nactorField = api-key\n\
         [path=/login ip=*]\ncreditLimit = 5\nper = 15m\nactorField = ip",
        "the field \"api-key\" evades [path=/login ip=*] on line 5",
    ),
    (
        "[a=1]\ncreditLimit = 1\nper = 1m\nlabel = x\n[a=2]\ncreditLimit = 1\nper = 1m\nlabel = x",
        "label \"x\" is already used on line 4",
    ),
    (
        "[a=1]\ncreditLimit = 1\nper = 1m\nlabel = rule-3",
        "the label `rule-3` normally means rule 3 in the file; choose another label",
    ),
    ("[a=1]\ncreditLimit = 1\nper = 1m\n[default]\ncreditLimit = 0", "the default rule is not the last one"),
];

/// A whole JSON file, and the text that helps.
const JSON: &[(&str, &str)] = &[
    ("[]", "write {\"overrides\": [{…}, …], \"default\": {…}}"),
    ("{\"rules\": []}", "write the rules in \"overrides\" and \"default\""),
    ("{\"override\": []}", "did you mean \"overrides\"?"),
    ("{\"overrides\": [{\"creditLimit\": 1}]}", "the rule has no \"operation\""),
    ("{\"overrides\": {}}", "write the rules as [{…}, {…}]"),
    ("{\"overrides\": [],}", "malformed JSON at column"),
    ("{\"overrides\": []}", "(in JSON, \"default\": {…})"),
];

fn report(text: &str, format: Format) -> String {
    let (errors, warnings) = match parse(text, format, "rules") {
        Ok(loaded) => (Vec::new(), loaded.warnings),
        Err(report) => (report.errors, report.warnings),
    };
    errors.iter().chain(&warnings).map(|problem| format!("{problem}\n")).collect()
}

fn ini(rules: &str) -> String {
    report(&format!("{rules}\n[default]\ncreditLimit = 0\n"), Format::Ini)
}

#[test]
fn each_mistake_in_rules_is_explained() {
    check(INI.iter().map(|(rules, expected)| ((*rules).to_owned(), *expected, ini(rules))).collect());
    check(JSON.iter().map(|(text, expected)| ((*text).to_owned(), *expected, report(text, Format::Json))).collect());
}

#[test]
fn misspelled_key_is_one_error() {
    for rules in ["[a=1]\ncreditlimit = 1\nper = 1m", "[a=1]\ncreditLimit = 1\nresetSecond = 60"] {
        assert_eq!(ini(rules).lines().count(), 1, "{}", ini(rules));
    }
}

#[test]
fn parser_internals_do_not_appear_in_errors() {
    for (rules, _) in INI {
        let report = ini(rules);
        assert!(!report.contains("end of input") && !report.contains(".;"), "{report}");
    }
}

#[test]
fn reasonable_rules_have_no_warning() {
    for rules in [
        // One counter is meant.
        "[user=*]\ncreditLimit = 1\nper = 1m\nactorField =",
        // A total for all users, next to the limit of each.
        "[user=*]\ncreditLimit = 1\nper = 1m\nactorField = user\nmatchPolicy = and\n[user=*]\ncreditLimit = 100\nper = 1m",
        // The field is the cost.
        "[api=upload bytes=*]\ncreditLimit = 100\nper = 1m\ncostField = bytes",
        // Nothing is counted.
        "[user=*]\ncreditLimit = 0",
        "[user=*]\ncreditLimit = 1\nresetSeconds = 0",
        "[path=/api/*]\ncreditLimit = 1\nper = 1m",
        // The limit on the login comes first.
        "[path=/login ip=*]\ncreditLimit = 5\nper = 15m\nactorField = ip\n\
         [api-key=*]\ncreditLimit = 9\nper = 1m\nactorField = api-key",
        // The limit on the login must allow, too.
        "[api-key=*]\ncreditLimit = 9\nper = 1m\nactorField = api-key\nmatchPolicy = and\n\
         [path=/login ip=*]\ncreditLimit = 5\nper = 15m\nactorField = ip\n\
         [api-key=*]\ncreditLimit = 5\nper = 1h\nactorField =",
    ] {
        assert_eq!(ini(rules), "", "{rules}");
    }
}
