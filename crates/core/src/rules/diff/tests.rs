use proptest::prelude::*;

use super::*;
use crate::rules::testing::{canary, networks, rule, rules_strategy};
use crate::rules::{ActorPrefix, Condition, List, ListEntry, MatchPolicy, Pattern, PrefixLengths, Seconds, Settings};

/// Returns a rule that allows `credits` in 60 s.
fn limited(header: &str, credits: u64) -> Rule {
    let reset_seconds = Seconds::whole(60);
    let settings = Settings { credit_limit: credits, reset_seconds, ..Settings::default() };
    Rule { settings, quota: settings.quota().unwrap(), ..rule(header) }
}

/// Returns the changes, each on a line. All rules are on the first line of their file.
fn shown(old: &[Rule], new: &[Rule]) -> String {
    let changes: Vec<_> = diff(old, new, |_| ()).iter().map(Change::to_string).collect();
    changes.join("\n").replace("line 1: ", "")
}

/// Checks the changes of a single rule.
fn assert_changes<'a>(old: &Rule, changes: impl IntoIterator<Item = (Rule, &'a str)>) {
    for (new, expected) in changes {
        assert_eq!(shown(&[old.clone(), rule("")], &[new, rule("")]), expected);
    }
}

#[test]
fn equal_rules_do_not_differ() {
    let rules = [limited("a=1 b=2", 5), canary("a=1"), rule("")];
    assert!(diff(&rules, &rules, |_| ()).is_empty());
    // The order of pairs and the line number do not matter.
    let same = [Rule { line: 9, ..limited("b=2 a=1", 5) }, canary("a=1"), rule("")];
    assert!(diff(&rules, &same, |_| ()).is_empty());
}

#[test]
fn counters_start_afresh_if_the_limit_or_the_actors_change() {
    let old = limited("a=1 ip=*", 5);
    let by = |fields: &[&str]| Rule {
        actor_fields: fields.iter().map(|field| (*field).to_owned()).collect(),
        ..old.clone()
    };
    let labelled = Rule { label: Some("l".into()), comment: Some("two\nlines".into()), ..old.clone() };
    // Spelling out the default algorithm leaves the limit unchanged.
    let explicit = Settings { algorithm: Some(Default::default()), ..old.settings };
    let changes = [
        (limited("a=*", 5), "removed [a=1 ip=*] allows 5 in 60 s\nadded [a=*] allows 5 in 60 s"),
        (limited("a=1 ip=*", 6), "changed [a=1 ip=*] creditLimit from 5 to 6; its counters start afresh"),
        (by(&["ip"]), "changed [a=1 ip=*] actorField from nothing to ip; its counters start afresh"),
        (by(&["ip", "path"]), "changed [a=1 ip=*] actorField from nothing to ip, path; its counters start afresh"),
        (
            labelled,
            r"changed [a=1 ip=*] label from nothing to l, comment from nothing to two\nlines; its counters are kept",
        ),
        (Rule { settings: explicit, ..old.clone() }, ""),
        (rule("a=1 ip=*"), "changed [a=1 ip=*] creditLimit from 5 to 0, resetSeconds from 60 to 0"),
    ];
    assert_changes(&old, changes);
    let (by_ip, by_path) = (by(&["ip"]), by(&["path"]));
    let other_field = "changed [a=1 ip=*] actorField from ip to path; its counters start afresh, except for actors that have \
        the same value in both";
    assert_changes(&by_ip, [(by_path.clone(), other_field)]);
    for (old, new) in [(&old, &by_ip), (&by_ip, &old), (&by_ip, &by_path)] {
        let find = |new: &Rule| find_abandoned(std::slice::from_ref(old), std::slice::from_ref(new), |_| ());
        assert_eq!((find(new), find(old)), (vec![0], vec![]));
    }
}

#[test]
fn named_counters_outlive_changes_of_their_rules() {
    let named =
        |header: &str, credits, counter: &str| Rule { counter: Some(counter.into()), ..limited(header, credits) };
    let old = named("plan=a", 5, "usage");
    let longer = Settings { reset_seconds: Seconds::whole(61), ..old.settings };
    let longer = Rule { settings: longer, quota: longer.quota().unwrap(), ..old.clone() };
    let moved = "removed [plan=a] allows 5 in 60 s, from the counter usage\nadded [plan=b] allows 6 in 60 s, from the counter \
        usage; its counters are kept";
    let changes = [
        (named("plan=a", 6, "usage"), "changed [plan=a] creditLimit from 5 to 6; its counters are kept"),
        (named("plan=b", 6, "usage"), moved),
        (named("plan=a", 5, "other"), "changed [plan=a] counter from usage to other; its counters start afresh"),
        (longer, "changed [plan=a] resetSeconds from 60 to 61; its counters start afresh"),
    ];
    assert_changes(&old, changes);
    // Another rule counts under that name, so this rule's own usage is abandoned.
    let joined = "changed [plan=b] counter from nothing to usage; it now shares that counter's usage, and abandons what it \
        counted before";
    let new = [old.clone(), named("plan=b", 5, "usage"), rule("")];
    assert_eq!(shown(&[old, limited("plan=b", 5), rule("")], &new), joined);
}

#[test]
fn name_would_keep_counters_only_if_nothing_but_the_limit_changes() {
    let old = limited("a=1 ip=*", 5);
    let with = |settings: Settings| Rule { settings, quota: settings.quota().unwrap(), ..old.clone() };
    assert!(would_keep_if_named(&old, &limited("a=1 ip=*", 6)));
    let log = with(Settings { algorithm: Some(Kind::SlidingLog), ..old.settings });
    let longer_log = with(Settings { credit_limit: 6, ..log.settings });
    assert!(!would_keep_if_named(&log, &longer_log));
    for new in [
        limited("a=1 ip=*", 0),
        with(Settings::unlimited()),
        with(Settings { algorithm: Some(Kind::SlidingWindow), ..old.settings }),
        with(Settings { reset_seconds: Seconds::whole(61), ..old.settings }),
        Rule { counter: Some("c".into()), ..limited("a=1 ip=*", 6) },
        Rule { actor_fields: vec!["ip".into()], ..limited("a=1 ip=*", 6) },
        Rule { networks: Some(networks("ip: 10.0.0.0/8")), ..limited("a=1 ip=*", 6) },
    ] {
        assert!(!would_keep_if_named(&old, &new), "{new:?}");
        assert!(!would_keep_if_named(&new, &old), "{new:?}");
    }
}

#[test]
fn promoted_canary_keeps_its_counters() {
    let trial = Rule { match_policy: MatchPolicy::Canary, ..limited("a=1", 5) };
    let promoted = "changed [a=1] matchPolicy from canary to stop; its counters are kept";
    assert_changes(&trial, [(limited("a=1", 5), promoted)]);
    // The stop rule takes over the canary's limit, and with it the canary's counters.
    let over = shown(&[trial, limited("a=1", 9), rule("")], &[limited("a=1", 5), rule("")]);
    let expected =
        "removed [a=1] allows 5 in 60 s, as a canary\nchanged [a=1] creditLimit from 9 to 5; its counters are kept";
    assert_eq!(over, expected);
}

#[test]
fn only_reordered_rules_have_moved() {
    let old: Vec<_> = ["a=1", "a=2", "a=3", "a=4", ""].map(rule).into();
    let new: Vec<_> = ["a=4", "a=1", "b=1", "a=2", "a=3", ""].map(rule).into();
    let moved: Vec<_> =
        diff(&old, &new, |_| ()).into_iter().filter(|change| matches!(change, Change::Moved(_))).collect();
    assert_eq!(moved, [Change::Moved(&new[0])]);
}

proptest! {
    #[test]
    fn every_rule_is_accounted_for(old in rules_strategy(20), new in rules_strategy(20)) {
        let changes = diff(&old, &new, |_| ());
        let count = |kind: fn(&Change) -> bool| changes.iter().filter(|change| kind(change)).count();
        let (added, removed) = (count(|c| matches!(c, Change::Added { .. })), count(|c| matches!(c, Change::Removed(_))));
        prop_assert_eq!(old.len() + added, new.len() + removed);
        // For each operation, the number of rules added or removed is the difference in its number of rules.
        for rule in old.iter().chain(&new) {
            let of = |rules: &[Rule]| rules.iter().filter(|other| operation(other) == operation(rule)).count();
            let both = changes.iter().filter_map(|change| match change {
                Change::Added { rule, .. } | Change::Removed(rule) => Some(operation(rule)),
                _ => None,
            });
            prop_assert_eq!(both.filter(|other| *other == operation(rule)).count(), of(&old).abs_diff(of(&new)));
        }
    }

    #[test]
    fn reordered_rules_only_move(
        (old, new) in rules_strategy(12).prop_flat_map(|rules| (Just(rules.clone()), Just(rules).prop_shuffle()))
    ) {
        let changes = diff(&old, &new, |_| ());
        let expected = |change: &Change| match change {
            Change::Moved(_) => true,
            // If several rules share an operation, a canary may have become the stop rule.
            Change::Changed { settings, .. } => settings.iter().all(|change| change.name == "matchPolicy"),
            Change::Added { .. } | Change::Removed(_) => false,
        };
        prop_assert!(changes.iter().all(expected), "{:?}", changes);
        prop_assert_eq!(changes.is_empty(), old.iter().eq(new.iter()));
    }
}

#[test]
fn networks_are_part_of_the_counters_and_entries_of_a_list_are_not() {
    let of_networks = |text: &str| Rule { networks: Some(networks(text)), ..limited("ip=*", 5) };
    let [first, second, default] = [of_networks("ip: 10.0.0.0/8"), of_networks("ip: 11.0.0.0/8"), rule("")];
    let old = [first, second.clone(), default.clone()];
    assert_eq!(
        shown(&old, &[second, of_networks("ip: 12.0.0.0/8"), default]),
        "moved [ip=*]\nchanged [ip=*] networks from ip: 10.0.0.0/8 to ip: 12.0.0.0/8; its counters start afresh"
    );
    let same = "changed [ip=*] networks from ip: 11.0.0.0/8 to ip: 11.0.0.0/8, 11.0.0.0/8; its counters are kept";
    assert_changes(&of_networks("ip: 11.0.0.0/8"), [(of_networks("ip: 11.0.0.0/8, 11.0.0.0/8"), same)]);
    let with_list = |entries: &[&str]| {
        let entries = entries.iter().map(|text| ListEntry::Pattern(Pattern::parse(text)));
        let members = List::new("office.txt", (1..).zip(entries).collect());
        let list = Condition { field: "ip".to_owned(), is_inverted: false, members };
        Rule { list: Some(list), ..limited("ip=*", 5) }
    };
    let entries =
        "changed [ip=*] list from ip: office.txt to ip: office.txt (2 entries added, 1 removed); its counters are kept";
    assert_changes(&with_list(&["a", "b"]), [(with_list(&["b", "c", "d"]), entries)]);
    let prefix = |v4| {
        let prefix = ActorPrefix { field: "ip".to_owned(), lengths: PrefixLengths { v4, v6: 56 } };
        Rule { actor_fields: vec!["ip".to_owned()], actor_prefix: Some(prefix), ..limited("ip=*", 5) }
    };
    let wider = "changed [ip=*] actorPrefix from ip: 32, 56 to ip: 24, 56; its counters start afresh";
    assert_changes(&prefix(32), [(prefix(24), wider)]);
}
