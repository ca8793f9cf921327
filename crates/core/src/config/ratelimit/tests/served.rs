//! Texts of YAML, and how ratelimit reads them: the domain, or the refusal with its line.

use std::fmt::Write;

use super::*;
use crate::config::ratelimit::model::{Domain, Domains, Entry, Rate};
use crate::config::ratelimit::raw::{At, RawDomain, RawEntry, RawLimit, Requests};
use crate::config::{Report, import_text};

/// Reads files given as name and text. Returns the domains, or all errors, one a line.
fn served(files: &[(&str, &str)], merges: bool) -> Result<String, String> {
    let (mut domains, mut report) = (Domains::new(merges), Report::default());
    for (name, text) in files {
        let mut problems = Problems::new(name);
        domains.add_text(text, &mut problems);
        report.append(problems.into());
    }
    let domains: Vec<_> = domains.iter().map(shown_domain).collect();
    if report.errors.is_empty() { Ok(domains.join(" ")) } else { Err(report.to_string()) }
}

/// Reads one entry, in flow style.
fn entry(text: &str) -> Result<String, String> {
    let domain = served(&[("a.yaml", &format!("domain: d\ndescriptors:\n- {{{text}}}\n"))], false)?;
    Ok(domain.strip_prefix("d [").and_then(|entries| entries.strip_suffix(']')).unwrap().to_owned())
}

/// Reads one limit, in flow style.
fn limit(text: &str) -> Result<String, String> {
    let entry = entry(&format!("key: k, rate_limit: {{{text}}}"))?;
    Ok(entry.trim_start_matches("k ").to_owned())
}

fn shown_domain(domain: &Domain) -> String {
    format!("{} [{}]", domain.name, shown(&domain.entries))
}

fn shown(entries: &[Entry]) -> String {
    entries.iter().map(shown_entry).collect::<Vec<_>>().join(", ")
}

fn shown_entry(entry: &Entry) -> String {
    let mut text = entry.key.clone();
    if let Some(value) = &entry.value {
        write!(text, "={value}").unwrap();
    }
    for (is_set, name) in [
        (entry.detailed_metric.value, "detailed"),
        (entry.value_to_metric.value, "to metric"),
        (entry.share_threshold, "shared"),
    ] {
        if is_set {
            write!(text, " {name}").unwrap();
        }
    }
    if let Some(limit) = &entry.limit {
        match limit.rate {
            Rate::Unlimited => text.push_str(" unlimited"),
            Rate::PerUnit { requests, unit } => write!(text, " {requests}/{unit}").unwrap(),
        }
        if !limit.name.value.is_empty() {
            write!(text, " name {}", limit.name.value).unwrap();
        }
        for replaced in &limit.replaces {
            write!(text, " replaces {}", replaced.value).unwrap();
        }
        for (is_set, name) in [(limit.shadow_mode, "shadow"), (limit.quota_mode.value, "quota")] {
            if is_set {
                write!(text, " {name}").unwrap();
            }
        }
        if let Some(metadata) = &limit.metadata {
            write!(text, " {}", serde_json::Value::from(metadata.value.clone())).unwrap();
        }
    }
    if !entry.entries.is_empty() {
        write!(text, " [{}]", shown(&entry.entries)).unwrap();
    }
    text
}

#[test]
fn whole_configuration_is_read() {
    let text = "
domain: shop
descriptors:
- key: user
  rate_limit: {unit: MINUTE, requests_per_unit: 10, name: users, replaces: [{name: all}, {name: some}]}
  detailed_metric: true
  metadata: {team: [a, 1]}
- key: user
  value: bot*
  share_threshold: yes
  shadow_mode: yes
  quota_mode: on
  rate_limit: {unit: Year, requests_per_unit: 4294967295}
  descriptors:
  - {key: path, value_to_metric: y, descriptors: [{key: verb, value: get, rate_limit: {unlimited: true}}]}
- key: b
  value: 5
";
    let expected = "shop [user detailed 10/minute name users replaces all replaces some {\"team\":[\"a\",1]}, user=bot* shared \
                    4294967295/year shadow quota [path to metric [verb=get unlimited]], b=5]";
    assert_eq!(served(&[("a.yaml", text)], false).as_deref(), Ok(expected));
}

#[test]
fn scalars_are_read_as_their_fields_are_typed() {
    for (text, expected) in [
        ("key: yes", "yes"),
        ("key: 0x10, value: 010", "0x10=010"),
        ("key: 2001-01-01, value: -1", "2001-01-01=-1"),
        ("key: !!str 1.10, value: '5e6'", "1.10=5e6"),
        ("key: !own k, value: ! 1.5", "k=1.5"),
        ("key: k, value: ~", "k"),
        ("key: k, value: \"\"", "k"),
        ("key: k, value: 'null'", "k=null"),
        ("key: k, value: NULL, descriptors: Null", "k"),
        ("\"key\": k, 'value': 1:30", "k=1:30"),
        ("key: k, ? value : v", "k=v"),
        ("key: &k k, value: *k", "k=k"),
        ("key: &k k, value: &k v, descriptors: [{key: *k}]", "k=v [v]"),
        ("key: k, rate_limit: ~", "k"),
        ("key: k, rate_limit: {unit: day, requests_per_unit: 1}, rate_limit: null", "k"),
        ("key: k, value: 1, value: 2, value:", "k"),
    ] {
        assert_eq!(entry(text).as_deref(), Ok(expected), "{text}");
    }
    for (text, expected) in [
        ("unit: day, requests_per_unit: 010", "8/day"),
        ("unit: day, requests_per_unit: 0o10", "8/day"),
        ("unit: day, requests_per_unit: 0x64", "100/day"),
        ("unit: day, requests_per_unit: 0b101", "5/day"),
        ("unit: day, requests_per_unit: +1_000", "1000/day"),
        ("unit: day, requests_per_unit: !!int '5'", "5/day"),
        ("unit: day, requests_per_unit: 4294967295", "4294967295/day"),
        ("unit: day, requests_per_unit: ~", "0/day"),
        ("unit: SeCoNd", "0/second"),
        ("unlimited: On, unit: UNKNOWN, requests_per_unit: 3", "unlimited"),
        ("unit: day, unlimited: ~, name: 5, replaces: [{name: yes}], replaces: [{name: 6}]", "0/day name 5 replaces 6"),
    ] {
        assert_eq!(limit(text).as_deref(), Ok(expected), "{text}");
    }
}

#[test]
fn metadata_becomes_json_as_in_ratelimit() {
    for (metadata, expected) in [
        ("{}", "{}"),
        ("{a: 1, b: [yes, 1.5, ~, [x]], c: 2001-01-01}", r#"{"a":1,"b":[true,1.5,null,["x"]],"c":"2001-01-01"}"#),
        ("{5: {0x6: x, yes: y, '': z}, yes: 1, 1.5: 2}", r#"{"5":{"6":"x","true":true,"":"z"},"yes":1,"1.5":2}"#),
        (
            "{a: &a {b: 1, c: 1}, d: {b: 2, <<: *a}, e: {<<: *a, b: 2}}",
            r#"{"a":{"b":1,"c":1},"d":{"b":1,"c":1},"e":{"b":2,"c":1}}"#,
        ),
        ("{a: 1, b: 1}, metadata: {b: 2}", r#"{"a":1,"b":2}"#),
        ("{a: 1}, metadata: ~, metadata: {b: 18446744073709551615}", r#"{"b":18446744073709551615}"#),
    ] {
        let text = format!("key: k, rate_limit: {{unlimited: true}}, metadata: {metadata}");
        assert_eq!(entry(&text), Ok(format!("k unlimited {expected}")), "{metadata}");
    }
    for metadata in
        ["{a: .nan}", "{a: {~: b}}", "{a: {1.5: b}}", "{a: {[b]: c}}", "[a]", "a", "{a: !!int b}", "{<<: a}"]
    {
        let text = format!("key: k, rate_limit: {{unlimited: true}}, metadata: {metadata}");
        assert!(entry(&text).is_err_and(|report| report.starts_with("a.yaml:3: ")), "{metadata}");
    }
}

#[test]
fn limits_and_entries_that_ratelimit_refuses_are_errors() {
    let number = "ratelimit rejects the file, too: write a whole number up to 4294967295";
    for (requests, expected) in [
        (
            "1e3",
            "`requests_per_unit` is 1e3, which YAML reads as a floating-point number; ratelimit rejects the file, too: write 1000",
        ),
        (
            "100.0",
            "`requests_per_unit` is 100.0, which YAML reads as a floating-point number; ratelimit rejects the file, too: write 100",
        ),
        (
            "08",
            "`requests_per_unit` is 08, which YAML reads as a floating-point number; ratelimit rejects the file, too: write 8",
        ),
        ("1.5", &format!("`requests_per_unit` is \"1.5\"; {number}")),
        ("1e10", &format!("`requests_per_unit` is \"1e10\"; {number}")),
        ("-1", &format!("`requests_per_unit` is \"-1\"; {number}")),
        ("4294967296", &format!("`requests_per_unit` is \"4294967296\"; {number}")),
        ("9223372036854775808", &format!("`requests_per_unit` is \"9223372036854775808\"; {number}")),
        ("many", &format!("`requests_per_unit` is \"many\"; {number}")),
        ("yes", &format!("`requests_per_unit` is \"yes\"; {number}")),
        (".inf", &format!("`requests_per_unit` is \".inf\"; {number}")),
        ("'1e3'", &format!("`requests_per_unit` is \"1e3\"; {number}")),
        ("'5'", "`requests_per_unit` is a text; ratelimit rejects the file, too: write it without quotes"),
    ] {
        let report = limit(&format!("unit: day, requests_per_unit: {requests}"));
        assert_eq!(report, Err(format!("a.yaml:3: [domain=d k=*] {expected}")));
    }
    for (text, expected) in [
        ("", "[domain=d k=*] unknown unit \"\""),
        ("unit: foo, requests_per_unit: 5", "[domain=d k=*] unknown unit \"foo\""),
        ("unit: unknown", "[domain=d k=*] unknown unit \"unknown\""),
        ("unlimited: true, unit: second", "[domain=d k=*] `unit` contradicts `unlimited: true`"),
        ("unit: day, replaces: [{name: ''}]", "[domain=d k=*] an entry of `replaces` has no `name`"),
        ("unit: day, replaces: [{}]", "[domain=d k=*] an entry of `replaces` has no `name`"),
        ("unit: day, name: x, replaces: [{name: y}, {name: x}]", "[domain=d k=*] the limit \"x\" replaces itself"),
        (
            "unit: day, requestsperunit: 3",
            "[domain=d k=*] `requestsperunit` is an unknown key; write `requests_per_unit`",
        ),
        ("unit: day, replaces: [{since: 3}], name: x", "[domain=d k=*] `since` is an unknown key; remove it"),
        ("unit: day, unlimited: 'true'", "`unlimited` must be true or false"),
        ("unit: day, unlimited: 1", "`unlimited` must be true or false"),
        ("unit: day, replaces: [x]", "this must be a mapping with `name`"),
        ("unit: day, replaces: x", "`replaces` must be a list of mappings"),
        ("unit: [day]", "`unit` must be a text"),
        ("unit: day, name: 1.5", "[domain=d k=*] `name` is the number 1.5"),
        ("unit: day, requests_per_unit: [1]", "`requests_per_unit` must be a whole number"),
    ] {
        let report = limit(text);
        assert!(
            report.as_ref().is_err_and(|report| report.contains(&format!("a.yaml:3: {expected}"))),
            "{text}: {report:?}"
        );
    }
    for (text, expected) in [
        ("value: x", "[domain=d] an entry has no `key`; ratelimit rejects the file, too: add `key: NAME`"),
        ("key: ''", "[domain=d] an entry has no `key`"),
        ("keys: k", "[domain=d] `keys` is an unknown key; write `key`, or remove it"),
        ("key: k, ratelimit: {}", "[domain=d k=*] `ratelimit` is an unknown key; write `rate_limit`"),
        ("key: k, 0.25: x", "[domain=d k=*] `0.25` is an unknown key"),
        ("key: k, 5: x", "[domain=d k=*] `5` is an unknown key"),
        ("key: k, yes: x", "[domain=d k=*] `yes` is an unknown key"),
        ("key: k, '<<': {}", "[domain=d k=*] `<<` is an unknown key"),
        ("key: k, [a]: x", "`a key` must be a text"),
        (
            "key: k, value: 1.10",
            "[domain=d k=1.10] `value` is the number 1.10; ratelimit rejects the file, too: write \"1.10\" in quotes",
        ),
        ("key: k, value: 5e6", "[domain=d k=5e6] `value` is the number 5e6"),
        ("key: k, value: .inf", "[domain=d k=.inf] `value` is the number .inf"),
        (
            "key: k, value: 9223372036854775808",
            "[domain=d k=9223372036854775808] `value` is the number 9223372036854775808",
        ),
        ("key: 1.5", "[domain=d 1.5=*] `key` is the number 1.5"),
        ("key: k, value: [a]", "`value` must be a text"),
        ("key: k, value: {key: a}", "`value` must be a text"),
        ("key: !!int k", "\"k\" does not have the type of its tag; remove the tag"),
        ("key: !!binary aw==", "cannot be read as YAML: the tag !!binary is not supported"),
        ("key: k, shadow_mode: 'true'", "`shadow_mode` must be true or false"),
        ("key: k, quota_mode: 1", "`quota_mode` must be true or false"),
        ("key: k, rate_limit: 5", "this must be a mapping with `unit` and `requests_per_unit`"),
        ("key: k, rate_limit: NULL", "this must be a mapping with `unit` and `requests_per_unit`"),
        ("key: k, rate_limit: 'null'", "this must be a mapping with `unit` and `requests_per_unit`"),
        ("key: k, descriptors: {key: l}", "`descriptors` must be a list of mappings"),
        ("key: k, descriptors: [a]", "this must be a mapping with `key`"),
        ("key: k, descriptors: [~]", "this must be a mapping with `key`"),
        ("key: k, descriptors: [[{key: l}]]", "this must be a mapping with `key`"),
        ("key: k, descriptors: [{key: l, value: x}, {key: l_x}]", "[domain=d k=*] the entry \"l_x\" is on line 3, too"),
        ("key: k, value: x, share_threshold: true", "[domain=d] `share_threshold` needs a value with `*`"),
        ("key: k, <<: 5", "the value of `<<` must be a mapping or a list of mappings"),
        ("key: k, <<: [5]", "the value of `<<` must be a mapping or a list of mappings"),
        ("key: k, <<: [[{value: x}]]", "the value of `<<` must be a mapping or a list of mappings"),
        ("key: &k k, <<: *k", "the value of `<<` must be a mapping or a list of mappings"),
        // Keys in the wrong place have no effect, but are checked.
        ("key: k, unit: {foo: 1}", "[domain=d k=*] `foo` is an unknown key"),
        ("key: k, unit: 1.5", "[domain=d k=*] `unit` is the number 1.5"),
        ("key: k, name: [a]", "this must be a mapping"),
        ("key: k, name: [{name: {value: 1.5}}]", "[domain=d k=*] `value` is the number 1.5"),
    ] {
        let report = entry(text);
        assert!(
            report.as_ref().is_err_and(|report| report.contains(&format!("a.yaml:3: {expected}"))),
            "{text}: {report:?}"
        );
    }
    for accepted in ["key: k*, share_threshold: true", "key: k, unit: {metadata: {foo: 1.5}, name: [], domain: ~}"] {
        assert!(entry(accepted).is_ok(), "{accepted}");
    }
}

#[test]
fn documents_that_ratelimit_refuses_are_errors() {
    for (text, expected) in [
        ("", "a.yaml:1: `domain` is missing"),
        ("# nothing\n", "a.yaml:1: `domain` is missing"),
        ("descriptors: []\n", "a.yaml:1: `domain` is missing"),
        ("domain: ''\n", "a.yaml:1: `domain` is missing"),
        ("domain:\n", "a.yaml:1: `domain` is missing"),
        ("domain: 1.0\n", "a.yaml:1: [domain=1.0] `domain` is the number 1.0"),
        ("domain: [d]\n", "a.yaml:1: `domain` must be a text"),
        ("domain: d\n0.25: x\n", "a.yaml:2: [domain=d] `0.25` is an unknown key"),
        ("text\n", "a.yaml:1: this must be a mapping with `domain` and `descriptors`"),
        (
            "- namespace: a\n",
            "a.yaml:1: this is a list, and not a configuration of ratelimit; convert limits of limitador",
        ),
        ("kind: ConfigMap\ndata:\n  limits: |\n    - namespace: a\n", "a.yaml:4: this is a list"),
        ("domain: d\ncolour: red\n", "a.yaml:2: [domain=d] `colour` is an unknown key"),
        ("domain: d\ndescriptors:\n- a\n", "a.yaml:3: this must be a mapping with `key`"),
        ("domain: d\ndescriptors: text\n", "a.yaml:2: `descriptors` must be a list of mappings"),
        ("domain: d\n\tdescriptors: []\n", "a.yaml:1: cannot be read as YAML: "),
        ("domain: d\ndescriptors: *a\n", "a.yaml:2: cannot be read as YAML: "),
        ("domain: d\n---\ndomain: e\ndescriptors: [", "a.yaml:4: cannot be read as YAML: "),
    ] {
        let report = served(&[("a.yaml", text)], false);
        assert!(report.as_ref().is_err_and(|report| report.starts_with(expected)), "{text}: {report:?}");
    }
    let all = served(
        &[("a.yaml", "domain: d\ndescriptors:\n- {key: a, b: 1}\n- {value: b}\n- {key: c, rate_limit: {}}\n")],
        false,
    );
    assert_eq!(all.unwrap_err().lines().count(), 3, "all problems are reported at once");
}

#[test]
fn deep_entries_are_read_up_to_the_bound() {
    let text = |depth: usize| {
        let keys: String = (0..depth).map(|number| format!("[{{key: k{number}, descriptors: ")).collect();
        format!("domain: d\ndescriptors: {keys}[]{}\n", "}]".repeat(depth))
    };
    assert!(served(&[("a.yaml", &text(124))], false).is_ok_and(|domain| domain.ends_with(&"]".repeat(124))));
    assert_eq!(import_text(&text(124), "a.yaml").unwrap().rules.len(), 1);
    assert!(served(&[("a.yaml", &text(125))], false).is_err_and(|report| report.starts_with("a.yaml:2: ")));
    let metadata =
        format!("key: k, rate_limit: {{unlimited: y}}, metadata: {{a: {}1{}}}", "[".repeat(245), "]".repeat(245));
    assert!(entry(&metadata).is_ok());
}

#[test]
fn domains_are_merged_only_on_request() {
    let (one, two, three) = (
        "domain: d\ndescriptors: [{key: a}]\n",
        "domain: d\ndescriptors: [{key: b*}]\n",
        "# -\ndomain: d\ndescriptors: [{key: a}]\n",
    );
    assert_eq!(served(&[("1.yaml", one), ("2.yaml", two)], true).as_deref(), Ok("d [a, b*]"));
    assert_eq!(served(&[("1.yaml", &format!("{one}---\n{two}"))], true).as_deref(), Ok("d [a, b*]"));
    let repeated = "2.yaml:1: the domain \"d\" is in 1.yaml:1, too; put all descriptors of a domain in one document";
    assert_eq!(served(&[("1.yaml", one), ("2.yaml", two)], false).unwrap_err(), repeated);
    let twice =
        "3.yaml:3: [domain=d] the entry \"a\" is in 1.yaml:2, too; ratelimit rejects the file, too: keep one of them";
    assert_eq!(served(&[("1.yaml", one), ("2.yaml", two), ("3.yaml", three)], true).unwrap_err(), twice);
}

#[test]
fn resources_without_lines_are_validated_as_files() {
    let entry = |key: &str, requests| RawEntry {
        key: At { line: 0, value: key.to_owned() },
        rate_limit: Some(Box::new(RawLimit {
            unit: At { line: 0, value: "HOUR".to_owned() },
            requests_per_unit: At { line: 0, value: Requests::Number(requests) },
            ..RawLimit::default()
        })),
        ..RawEntry::default()
    };
    let added = |descriptors| {
        let (mut domains, mut problems) = (Domains::default(), Problems::new("resource"));
        let domain = At { line: 0, value: "d".to_owned() };
        domains.add(RawDomain { domain, descriptors, ..RawDomain::default() }, &mut problems);
        (domains.get("d").map(shown_domain), Report::from(problems).to_string())
    };
    assert_eq!(added(vec![entry("a", 1), entry("b", 0)]), (Some("d [a 1/hour, b 0/hour]".to_owned()), String::new()));
    let (_, report) = added(vec![entry("a", 1), entry("a", 2), entry("", 3)]);
    let expected = "resource: [domain=d] the entry \"a\" is in resource, too; ratelimit rejects the file, too: keep one of them\n\
                    resource: [domain=d] an entry has no `key`; ratelimit rejects the file, too: add `key: NAME`";
    assert_eq!(report, expected);
}

#[test]
fn files_are_loaded_or_refused_together() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (one, wrong) = (path("1.yaml", ONE), path("2.yaml", "domain: two\nrate: 5\n"));
    let (domains, warnings) = model::load(&[&one], false).unwrap();
    assert_eq!((domains.iter().map(shown_domain).collect::<String>().as_str(), warnings), ("one [a 1/day]", vec![]));
    let report = model::load(&[&one, &wrong, &dir.path().join("none.yaml")], false).unwrap_err();
    assert_eq!((report.errors.len(), report.is_unread), (2, true));
}

use proptest::prelude::*;

fn fragment() -> impl Strategy<Value = String> {
    let fragments = "domain:|descriptors:|key:|value:|rate_limit:|unit:|requests_per_unit:|unlimited:|replaces:|name:|metadata:|\
                     shadow_mode:|share_threshold:|kind:|data:|ConfigMap|<<:|&a|*a|&b|*b|!!int|!!str|!x|{|}|[|]|,|:|?|-|'|\"|#|%|---|\
                     \n|\n- |\n  |\n    |\n  - |: |, | |\t|d|day|5|1e3|08|-1|~|yes|*|a*|\u{feff}";
    let known = prop::sample::select(fragments.split('|').map(str::to_owned).collect::<Vec<_>>());
    prop_oneof![9 => known, 1 => any::<String>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// A server takes every text that is converted completely, except a list: limitador's.
    #[test]
    fn every_text_is_read_or_refused(fragments in prop::collection::vec(fragment(), 0..60), is_domain: bool) {
        let text = if is_domain { "domain: d\ndescriptors:\n- key: k\n  " } else { "" }.to_owned() + &fragments.concat();
        let mut problems = Problems::new("a.yaml");
        Domains::default().add_text(&text, &mut problems);
        let is_refused = problems.has_errors();
        let is_list = text.trim_start().starts_with(['[', '-']);
        let is_converted = !is_list && import_text(&text, "a.yaml").is_ok_and(|import| import.left_out.is_empty());
        prop_assert!(!(is_refused && is_converted), "{}", text);
    }
}
