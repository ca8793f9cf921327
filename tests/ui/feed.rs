//! The events of a stream: rules, health, reloads, and what each user sees of them.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::browser::of_each;
use super::{Browser, RULES, Site, line, open_site};
use crate::support::{LineClient, Server};

fn hit(server: &Server, pairs: &str, count: usize) {
    let mut client = LineClient::connect(server.line);
    for _ in 0..count {
        client.hit(pairs);
    }
}

#[test]
fn hits_of_every_rule_are_counted_apart() {
    let (server, _rules) = open_site(RULES, &[]);
    let browser = Browser::new(server.http);
    let mut events = browser.feed("");
    let first = events.next_named("rules");
    assert_eq!((&first["total"], &first["matching"], &first["first"]), (&json!(4), &json!(4), &json!(0)));
    assert_eq!(of_each(&first, "name"), ["search", "rule-2", "try", "default"]);
    assert_eq!(of_each(&first, "canary"), [false, true, false, false]);
    assert_eq!(of_each(&first, "line"), [1, 8, 13, 18]);
    let search = &first["rules"][0];
    assert_eq!(search["operation"], "api=search");
    assert_eq!(search["limit"], "allows 2 in 3600 s");
    assert_eq!((&search["actorField"], &search["stack"]), (&json!("user"), &json!(false)));
    assert_eq!(search["comment"], "Costly & <b>slow</b>");
    assert!(search["file"].as_str().unwrap().ends_with("rules.ini"), "{search}");
    hit(&server, "api=search user=ann", 5);
    hit(&server, "api=try", 3);
    let mut sums = [[0_u64; 2]; 4];
    while sums.iter().map(|sums| sums[0]).sum::<u64>() < 5 + 3 + 3 {
        let event = events.next_named("rules");
        for (index, sums) in sums.iter_mut().enumerate() {
            for (sum, member) in sums.iter_mut().zip(["hits", "denied"]) {
                *sum += event["rules"][index][member].as_u64().unwrap();
            }
        }
    }
    assert_eq!(sums, [[5, 3], [3, 2], [3, 0], [0, 0]]);
    // A page that opens now sees the minute, and the last second of it is the event's.
    let again = browser.feed("").next_named("rules");
    let history = &again["rules"][0]["history"];
    for (member, expected) in [("hits", 5), ("denied", 3)] {
        let seconds = history[member].as_array().unwrap();
        let sum: u64 = seconds.iter().map(|count| count.as_u64().unwrap()).sum();
        assert_eq!((seconds.len(), sum, &seconds[59]), (60, expected, &again["rules"][0][member]), "{member}");
    }
    assert_eq!(again["denying"], 1, "canaries do not deny");
}

#[test]
fn page_receives_only_the_rules_in_view() {
    let (server, _rules) = open_site(RULES, &[]);
    let browser = Browser::new(server.http);
    let view = |query: &str| {
        let event = browser.feed(query).next_named("rules");
        json!([event["total"], event["matching"], event["first"], of_each(&event, "index")])
    };
    for (query, expected) in [
        ("?first=1&count=2", json!([4, 4, 1, [1, 2]])),
        ("?first=9", json!([4, 4, 9, []])),
        ("?count=0", json!([4, 4, 0, []])),
        ("?search=TRY", json!([4, 2, 0, [1, 2]])),
        ("?search=try&first=1&count=5", json!([4, 2, 1, [2]])),
        ("?search=%3CB%3Eslow", json!([4, 1, 0, [0]])),
        ("?search=default", json!([4, 1, 0, [3]])),
        ("?search=nothing", json!([4, 0, 0, []])),
        ("?only=denied", json!([4, 0, 0, []])),
        ("?first=18446744073709551615&count=100", json!([4, 4, u64::MAX, []])),
    ] {
        assert_eq!(view(query), expected, "{query}");
    }
    for (query, detail) in [
        ("?count=101", "count is 101, but must be at most 100"),
        ("?count=-1", "the query is not valid"),
        ("?first=x", "the query is not valid"),
        ("?search=%ff", "'search' is not valid UTF-8"),
        (&format!("?search={}", "x".repeat(257)), "longer than 256 bytes"),
        ("?new=1", "unknown field `new`"),
        ("?only=other", "only is 'other', but must be denied"),
        ("?first=1&first=2", "duplicate field `first`"),
    ] {
        let refused = browser.get(&format!("/ui/api/feed{query}"));
        assert_eq!(refused.status, 400, "{query}");
        assert!(refused.body.contains(detail), "{query}: {}", refused.body);
    }
    let mut denied = browser.feed("?only=denied&rule=search");
    assert_eq!(denied.next_named("rules")["selected"]["name"], "search");
    hit(&server, "api=try", 9);
    hit(&server, "api=search", 9);
    let event = denied.rules_until(|event| event["matching"] == 3);
    assert_eq!(of_each(&event, "index"), [0, 1, 2]);
    assert!(event["rules"][0]["history"].is_object(), "rules that come into view have their facts");
    assert_eq!(browser.feed("?rule=none").next_named("rules")["selected"], Value::Null);
}

#[test]
fn each_user_sees_its_part() {
    let users = [
        line("all", "+@read +@metrics ~*"),
        line("reader", "+@read ~*"),
        line("scoped", "+@all ~label:try"),
        line("hitter", "+@hit +@metrics ~*"),
    ];
    let site = Site::start(&users.concat(), &[]);
    let (mut events, mut seen) = (site.logged_in("all").feed(""), BTreeSet::new());
    while seen.len() < 3 {
        seen.insert(events.next().unwrap().0);
    }
    assert!(["health", "reloads", "rules"].iter().eq(&seen), "{seen:?}");
    let mut events = site.logged_in("reader").feed("");
    let seen: BTreeSet<_> = (0..8).map(|_| events.next().unwrap().0).collect();
    assert!(["reloads", "rules"].iter().eq(&seen), "{seen:?}");
    let mut events = site.logged_in("scoped").feed("?rule=search");
    let first = events.next_named("rules");
    assert_eq!((&first["total"], of_each(&first, "name")), (&json!(1), vec![json!("try")]));
    assert_eq!(first["selected"], Value::Null, "a rule out of scope");
    hit(&site.server, "api=search", 9);
    for _ in 0..3 {
        let (name, event) = events.next().unwrap();
        assert_eq!(name, "rules", "neither health nor reloads");
        assert_eq!((&event["sum"]["hits"], &event["denying"]), (&json!(0), &json!(0)), "hits out of scope");
    }
    assert_eq!(site.logged_in("hitter").try_feed("").0, 403);
    assert_eq!(site.browser().try_feed("").0, 401);
}

/// The counts of a rule are those of all actors, and only one of them is in this user's scope.
#[test]
fn user_with_one_actor_sees_no_counts_of_others() {
    let users = line("all", "+@all ~*") + &line("ann", "+@all ~actor:user=ann");
    let site = Site::start(&users, &[]);
    let (all, ann) = (site.logged_in("all"), site.logged_in("ann"));
    hit(&site.server, "api=search user=bob", 9);
    let mut of_all = all.feed("?only=denied");
    of_all.rules_until(|event| event["matching"] == 1);
    for query in ["?rule=search", "?only=denied&rule=search"] {
        let mut events = ann.feed(query);
        for _ in 0..3 {
            let (name, event) = events.next().unwrap();
            assert_eq!(
                (name.as_str(), &event["total"], &event["matching"]),
                ("rules", &json!(1), &json!(1)),
                "{query}"
            );
            assert_eq!((event.get("sum"), event.get("denying")), (None, None), "{event}");
            for rule in [&event["rules"][0], &event["selected"]] {
                assert_eq!(rule["name"], "search", "{rule}");
                for count in ["hits", "denied", "history"] {
                    assert_eq!(rule.get(count), None, "{count} in {rule}");
                }
            }
        }
    }
    assert!(!ann.session()["can"].as_array().unwrap().contains(&json!("metrics")));
}

#[test]
fn lost_right_ends_the_stream_and_a_new_scope_changes_it() {
    let site = Site::start(&line("ann", "+@read ~*"), &[]);
    let ann = site.logged_in("ann");
    let mut events = ann.feed("");
    assert_eq!(events.next_named("rules")["total"], 4);
    site.replace("users.acl", &line("ann", "+@read ~label:try"), "the new users are in force");
    let event = events.rules_until(|event| event["total"] == 1);
    assert_eq!(event["rules"][0]["operation"], "api=try", "with all facts");
    site.replace("users.acl", &line("ann", "+@hit ~*"), "the new users are in force");
    assert_eq!(events.next_named("end"), json!({}));
    assert_eq!(events.next(), None);
    assert_eq!(ann.session()["user"], "ann", "the session goes on");
}

/// Every page compares and searches all rules after such a reload, while clients go on.
#[test]
fn reload_of_thousands_of_rules_reaches_open_pages() {
    let rules = |rules: std::ops::Range<usize>, limit: usize| {
        let rule =
            |number| format!("[api=a{number}]\ncreditLimit = {limit}\nresetSeconds = 3600\nlabel = a{number}\n\n");
        rules.map(rule).collect::<String>() + "[default]\ncreditLimit = 0\nresetSeconds = 0\n"
    };
    let site = Site::start(&line("ann", "+@all ~*"), &["--threads", "1"]);
    site.replace("rules.ini", &rules(0..10_000, 2), "rules are in force");
    let ann = site.logged_in("ann");
    let mut events = ann.feed("?search=a9999&rule=a5000");
    events.rules_until(|event| event["total"] == 10_001);
    hit(&site.server, "api=a9999", 5);
    events.rules_until(|event| event["rules"][0]["hits"].as_u64() > Some(0));
    // All rules move, and all limits change.
    site.replace("rules.ini", &rules(1..10_001, 3), "rules are in force");
    let event = events.rules_until(|event| event["rules"][0]["index"] == 9_998);
    assert_eq!((&event["matching"], &event["rules"][0]["limit"]), (&json!(1), &json!("allows 3 in 3600 s")));
    let kept = event["rules"][0]["history"]["hits"].as_array().unwrap().iter().map(|hits| hits.as_u64().unwrap());
    assert_eq!(kept.sum::<u64>(), 5, "{event}");
    assert_eq!(event["selected"]["index"], 4_999);
    let reloads = ann.feed("?count=0").next_named("reloads");
    let lines = reloads[0]["lines"].as_array().unwrap();
    assert!((2..1_000).contains(&lines.len()), "{} lines", lines.len());
    assert!(LineClient::connect(site.server.line).hit("api=a9999").0);
}
