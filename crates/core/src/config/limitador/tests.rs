//! Limits and their rules, and reports of limits that are left out.

use crate::config::{Format, import_text, parse, write};

/// Converts a file. Returns its rules without the default one, a section a line, and the report, a problem a line. The rules must
/// be valid in both formats.
pub fn convert(text: &str) -> (String, String) {
    let import = import_text(text, "f.yaml").unwrap_or_else(|report| panic!("{report}"));
    let json = write(&import.rules, Format::Json).unwrap();
    parse(&json, Format::Json, "rules.json").unwrap_or_else(|report| panic!("{report}"));
    if let Ok(ini) = write(&import.rules, Format::Ini) {
        parse(&ini, Format::Ini, "rules.ini").unwrap_or_else(|report| panic!("{report}"));
    }
    let (default, rules) = import.rules.split_last().unwrap();
    assert_eq!(write(std::slice::from_ref(default), Format::Ini).unwrap().lines().nth(1), Some("limit = none"));
    let section = |rule| {
        let section = write(std::slice::from_ref(rule), Format::Ini).unwrap();
        let section = section.trim_end().replace(" = ", "=").replace('\n', " ");
        section.replace(" matchPolicy=and", "").replace("comment=f.yaml", "at ") + "\n"
    };
    let problems = import.left_out.iter().map(|problem| format!("{problem}\n"));
    let warnings = import.warnings.iter().map(|problem| format!("warning: {problem}\n"));
    (rules.iter().map(section).collect(), problems.chain(warnings).collect())
}

/// Converts a limit of 5 in 60 seconds with these other keys, in flow style.
fn convert_limit(keys: &str) -> (String, String) {
    let (rules, report) = convert(&format!("- {{namespace: shop, max_value: 5, seconds: 60, {keys}}}\n"));
    // Most of the keys here are bare, because they are short.
    let (warnings, others): (Vec<_>, Vec<_>) =
        report.lines().partition(|line| line.contains("limitador 2 never applies"));
    assert!(warnings.len() <= 1, "{report}");
    (rules, others.join("\n"))
}

#[test]
fn keys_of_limitador_1_are_reported() {
    let of = |key: &str| convert(&format!("- namespace: a\n  max_value: 5\n  seconds: 60\n  variables:\n  - {key}\n"));
    let (rules, report) = of("user");
    assert_eq!(of("descriptors[0].user"), (rules, String::new()));
    assert!(report.starts_with("warning: f.yaml:5: this key is not in `descriptors[0]`"), "{report}");
}

#[test]
fn limits_become_rules_of_a_stack() {
    let of = |header: &str, settings: &str, label: &str| {
        format!("[{header}] creditLimit=5 resetSeconds=60 {settings}label={label} at :1\n")
    };
    for (keys, rules) in [
        ("name: all", of("domain=shop", "", "all")),
        ("id: one", of("domain=shop", "", "one")),
        ("name: null, id: null, conditions: null, variables: null", of("domain=shop", "", "shop")),
        (
            "conditions: [\"descriptors[0]['method'] == 'GET'\"], variables: [\"descriptors[0]['user']\"]",
            of("domain=shop method=GET user=*", "actorField=user ", "shop"),
        ),
        (
            "conditions: [\"user == 'ann'\"], variables: [user, user, zone]",
            of("domain=shop user=ann zone=*", "actorField=\"user, zone\" ", "shop"),
        ),
        (
            "conditions: [\"m in ['GET', 'PUT']\", \"p.startsWith('/v1/')\"]",
            of("domain=shop m=GET p=/v1/*", "counter=shop ", "shop")
                + &of("domain=shop m=PUT p=/v1/*", "counter=shop ", "shop-2"),
        ),
        ("conditions: [\"a == 'x'\", \"a == 'y'\"]", String::new()),
    ] {
        assert_eq!(convert_limit(keys), (rules, String::new()), "{keys}");
    }
}

#[test]
fn limits_of_0_deny_and_windows_of_0_allow() {
    let text = "- {namespace: a, max_value: 0, seconds: 60, variables: ['descriptors[0].u']}\n- {namespace: b, max_value: 5, seconds: 0}\n";
    let rules = "[domain=a u=*] creditLimit=0 resetSeconds=60 label=a at :1\n\
                 [domain=b] creditLimit=5 resetSeconds=0 label=b at :2\n";
    assert_eq!(convert(text), (rules.into(), String::new()));
}

#[test]
fn what_no_rule_can_say_is_left_out_with_its_line() {
    for (keys, report) in [
        (
            "\n conditions: [\"a != 'x'\"]",
            "2: no rule can say \"a != 'x'\": the limit is left out; a rule compares keys",
        ),
        ("variables: [a + b]", "1: the variable \"a + b\" is no key of `descriptors[0]`: the limit is left out; let"),
        ("\n policy: deny", "2: `policy` is an unknown key: the limit is left out; remove it: the keys are `id`,"),
        ("condition: []", "1: `condition` is an unknown key: the limit is left out; write `conditions`, or remove it"),
        ("id: a, id: b", "1: `id` is there twice: the limit is left out; remove one of them"),
        ("<<: {}", "1: `<<` is an unknown key: the limit is left out"),
        ("conditions: {}", "1: this is not a list: the limit is left out; write one"),
        ("conditions: [{}]", "1: this is not a text: the limit is left out; write one"),
        ("variables: [domain]", "1: the key \"domain\" is the domain of the request in a rule: the limit is left out"),
    ] {
        let (rules, problems) = convert_limit(keys);
        assert!(rules.is_empty() && problems.starts_with(&format!("f.yaml:{report}")), "{keys}: {rules}{problems}");
    }
    let many = format!("[{}]", (0..20).map(|number| format!("'{number}'")).collect::<Vec<_>>().join(", "));
    let (_, problems) = convert_limit(&format!("conditions: [\"a in {many}\", \"b in {many}\"]"));
    assert!(problems.starts_with("f.yaml:1: it needs 400 rules"), "{problems}");
    for (limit, report) in [
        ("{max_value: 5, seconds: 60}", "`namespace` is missing"),
        ("{namespace: '', max_value: 5, seconds: 60}", "the namespace is \"\""),
        ("{namespace: a*, max_value: 5, seconds: 60}", "the namespace is \"a*\""),
        ("{namespace: a, seconds: 60}", "`max_value` is missing"),
        ("{namespace: a, max_value: 5}", "`seconds` is missing"),
        ("{namespace: a, max_value: '5', seconds: 60}", "this is not a whole number"),
        ("{namespace: a, max_value: -5, seconds: 60}", "this is not a whole number"),
        ("{namespace: a, max_value: 010, seconds: 60}", "this is not a whole number"),
        ("{namespace: a, max_value: 18446744073709551615, seconds: 60}", "`creditLimit is over 9007199254740991"),
        ("{namespace: a, max_value: 5, seconds: 99999999999}", "`resetSeconds is over 3155760000 s"),
        ("5", "this is not a mapping"),
    ] {
        let (rules, problems) = convert(&format!("- {{namespace: b, max_value: 1, seconds: 1}}\n- {limit}\n"));
        assert_eq!(rules.lines().count(), 1, "{limit}");
        assert!(problems.starts_with(&format!("f.yaml:2: {report}")), "{limit}: {problems}");
    }
}

#[test]
fn limitador_applies_the_first_of_limits_that_differ_in_their_number() {
    let text = "- {namespace: a, max_value: 5, seconds: 60, variables: [u, v]}\n\
                - {namespace: a, max_value: 3, seconds: 60, variables: [v, u], name: b}\n\
                - {namespace: a, max_value: 5, seconds: 61, variables: [u, v]}\n";
    let (rules, problems) = convert(text);
    assert_eq!(rules.lines().count(), 2, "{rules}");
    assert!(problems.starts_with("f.yaml:2: the limit at f.yaml:1 has the same conditions"), "{problems}");
}

#[test]
fn documents_of_every_kind_may_be_in_one_file() {
    let ratelimit = "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]\n";
    let limits = "- {namespace: shop, max_value: 5, seconds: 60}\n";
    let resource = "apiVersion: limitador.kuadrant.io/v1alpha1\nkind: Limitador\nspec:\n  limits:\n  - {namespace: bar, max_value: 1, seconds: 1}\n";
    let config_map = "kind: ConfigMap\ndata:\n  limits: |\n    - {namespace: inn, max_value: 2, seconds: 2}\n";
    let list = format!("kind: List\nitems:\n- {}", config_map.trim_end().replace('\n', "\n  ").replace("inn", "pub"));
    let (rules, report) = convert(&[ratelimit, limits, resource, config_map, &list].join("---\n"));
    let headers: Vec<_> = rules.lines().filter_map(|rule| rule.split_once(']')).map(|(header, _)| header).collect();
    assert_eq!(headers, ["[domain=shop", "[domain=bar", "[domain=inn", "[domain=pub", "[domain=edge a=*"], "{report}");
    assert_eq!(report, "");
    let (rules, report) = convert(&resource.replace("- {", "  {"));
    assert!(rules.is_empty() && report.starts_with("f.yaml:5: this is not a list"), "{rules}{report}");
    // Only the limits of one kind have its differences.
    let comment = |text| import_text(text, "f.yaml").unwrap().rules.pop().unwrap().comment.unwrap_or_default();
    assert!(comment(limits).starts_with("Converted from limits of limitador"));
    assert!(comment(ratelimit).starts_with("Converted from envoyproxy/ratelimit's YAML"));
    assert_eq!(comment("[]"), "");
}
