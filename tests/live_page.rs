//! The live page, as people use it: in Chromium, which `make test` installs, driven by tests/clients/python/live_page.py.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use divvy::access::Digest;
use divvy::config::{Format, parse};
use divvy::rules::{ActorFields, Operation, Pattern, Rule, operation};
use serde_json::{Value, json};

use crate::clients::{NODE, installed};
use crate::support::browser::browse;
use crate::support::redis::RedisServer;
use crate::support::{RespClient, RulesFile, Server};

const RULES: &str = "
[api=a user=*] creditLimit=3 resetSeconds=3600 actorField=user label=a-user
[api=b user=*] creditLimit=1000 resetSeconds=3600 actorField=user label=b-user
[default] creditLimit=0
";

/// A server with the page, and its rules file.
struct Shown {
    server: Server,
    rules: RulesFile,
}

impl Shown {
    /// Serves these rules to everybody on this machine.
    fn to_all(rules: &str, args: &[&str]) -> Self {
        Self::with_store(rules, &[&["--store", "memory"], args].concat())
    }

    fn with_store(rules: &str, args: &[&str]) -> Self {
        let rules = RulesFile::ini(rules);
        let server = Server::start(&[&[rules.path(), "--ui", "--reload-interval", "0.1"], args].concat());
        Self { server, rules }
    }

    /// Serves these rules to users. Each has its name as its password.
    fn to_users(rules: &str) -> Self {
        let line =
            |name: &str, words: &str| format!("user {name} on {} {words}\n", Digest::of(name.as_bytes()).to_word());
        let users = [
            line("operator", "+@all ~*"),
            line("dashboard", "-@all +@read +@metrics ~*"),
            line("scoped", "-@all +@read ~label:a-*"),
            line("ann", "-@all +@read ~actor:user=ann"),
        ];
        let file = RulesFile::new("users.acl", &users.concat());
        Self::to_all(rules, &["--access-file", file.path()])
    }

    /// Runs a scenario of live_page.py with the server's port and these arguments.
    fn browse(&self, scenario: &str, args: &[&str]) -> String {
        let port = self.server.http.port().to_string();
        browse("live_page.py", &[&[scenario, port.as_str()], args].concat())
    }

    fn resp(&self) -> String {
        self.server.resp.port().to_string()
    }
}

#[test]
fn users_see_what_they_have_rights_to() {
    Shown::to_users(RULES).browse("logins", &["operator", "dashboard", "scoped", "ann"]);
}

#[test]
fn password_without_users_is_enough() {
    Shown::to_all(RULES, &["--requirepass", "secret word"]).browse("password", &["secret word"]);
}

#[test]
fn page_without_logins_changes_nothing() {
    Shown::to_all(RULES, &[]).browse("read_only", &[]);
}

#[test]
fn page_of_a_shared_store_says_so() {
    let redis = RedisServer::start();
    Shown::with_store(RULES, &["--store", "redis", "--redis-url", &redis.url()]).browse("shared", &[]);
}

#[test]
fn hits_and_denials_appear() {
    let shown = Shown::to_all(RULES, &[]);
    shown.browse("hits", &[&shown.resp()]);
}

#[test]
fn changes_on_the_page_are_in_force_on_every_front() {
    let shown = Shown::to_users(RULES);
    shown.browse("changes", &[&shown.resp(), "operator"]);
}

#[test]
fn blocks_and_allows_on_the_page_are_in_force_on_every_front() {
    let unnamed = "[page=*] creditLimit=7 resetSeconds=3600 actorField=page\n[default]";
    let shown = Shown::to_users(&RULES.replace("[default]", unnamed));
    shown.browse("overrides", &[&shown.resp(), "operator", "dashboard"]);
}

#[test]
fn reload_shows_its_differences() {
    let shown = Shown::to_all(RULES, &[]);
    shown.browse("reload", &[shown.rules.path()]);
}

#[test]
fn markup_from_clients_and_rules_is_text() {
    let rules = "
[path=\"<img src=x onerror=alert(1)>\" user=*] creditLimit=2 resetSeconds=3600 actorField=user label=marked
comment = '<img src=x onerror=alert(1)>'
[default] creditLimit=0
";
    let shown = Shown::to_all(rules, &[]);
    shown.browse("markup", &[&shown.resp(), shown.rules.path()]);
}

#[test]
fn page_without_a_stream_says_so_and_tries_again() {
    Shown::to_all(RULES, &["--ui-streams", "1"]).browse("streams", &[]);
}

#[test]
fn only_visible_rules_are_on_the_page() {
    const RULES: usize = 10_000;
    let mut rules = String::new();
    for number in 0..RULES - 1 {
        let limit = "creditLimit = 9\nresetSeconds = 60\nactorField = user";
        writeln!(rules, "[path=/resource-{number} user=*]\n{limit}\nlabel = resource-{number}\n").unwrap();
    }
    rules.push_str("[default]\ncreditLimit = 0\n");
    Shown::to_all(&rules, &[]).browse("many", &[&RULES.to_string()]);
}

#[test]
fn page_works_with_the_keyboard() {
    Shown::to_all(RULES, &[]).browse("keyboard", &[]);
}

/// The pictures are in the target directory, for people to look at.
#[test]
fn every_view_is_accessible_and_fits_a_phone() {
    let shown = Shown::to_users(RULES);
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("live-page");
    fs::create_dir_all(&pictures).unwrap();
    let mut client = RespClient::connect(shown.server.resp);
    assert_eq!(client.command("AUTH operator operator"), "OK");
    client.command("DIVVY.HIT api=a user=ann");
    assert_eq!(client.command("DIVVY.BLOCK SET a-user ann EX 3600 REASON scraping"), "OK");
    assert_eq!(client.command("DIVVY.BLOCK SET * user=eve"), "OK");
    let axe = installed(Path::new(NODE).join("node_modules/axe-core/axe.min.js"));
    let port = shown.server.http.port().to_string();
    browse("live_page_access.py", &[&port, "operator", axe.to_str().unwrap(), pictures.to_str().unwrap()]);
}

/// Actors of one rule, and of a rule with several fields, whose text the page offers to copy.
fn changes() -> Vec<Value> {
    let one = json!({"name": "by-user", "operation": {"path": "/a*", "user": "*"}, "creditLimit": 3, "resetSeconds": 60,
        "algorithm": "fixed-window", "actorField": "user", "matchPolicy": "stop", "label": "by-user", "comment": "\"x\"; #y"});
    let two = json!({"name": "rule-2", "operation": {"tenant": "*"}, "creditLimit": 3, "window": "day", "timezone": "Europe/Berlin",
        "resetAt": "06:00", "algorithm": "fixed-window", "actorField": ["tenant", "a field"], "matchPolicy": "and"});
    let values =
        ["ann", "", "a b", "a=b", "x;y#z", "]", "[", "'", "o'brien", "\\", "a\\b", "ü", "null", "\"", "a\"b c", "a,b"];
    let of_one = values.map(|user| json!({"rule": one, "actor": {"user": user}, "credits": 7}));
    let of_two = values.map(|value| json!({"rule": two, "actor": {"tenant": value, "a field": "é f"}, "credits": 0}));
    of_one.into_iter().chain(of_two).collect()
}

/// Reads the text of a rule as a rules file with only this rule and `[default]`.
fn read(text: &str, format: Format) -> Rule {
    let file = match format {
        Format::Ini => format!("{text}\n[default]\ncreditLimit = 0\n"),
        Format::Json => format!("{{\"overrides\": [{text}], \"default\": {{\"creditLimit\": 0}}}}"),
    };
    let loaded = parse(&file, format, "rules").unwrap_or_else(|report| panic!("{text}\n{report}"));
    Rule { line: 0, ..loaded.rules.rules().first().unwrap().clone() }
}

#[test]
fn page_reads_and_writes_the_texts_that_the_server_does() {
    let operations = "| |a=b|a=b  c=\"d e\"|a=b a=c|a|a=b=c|a=\"b|a=\"b\"c|=x|\"k k\"=|a=\\\"|ü=<img>|a=b\tc=d";
    let operations: Vec<_> = operations.split('|').collect();
    let patterns = [
        ("*", ""),
        ("a", "a"),
        ("a", "ab"),
        ("a*", "a"),
        ("*a", "ba"),
        ("a*a", "a"),
        ("a*a", "aa"),
        ("/x/*/y", "/x/y"),
        ("/x/*/y", "/x/a/b/y"),
        ("a*b*c", "abbc"),
        ("a*b*c", "acb"),
        ("**", "x"),
    ];
    let changes = changes();
    let cases = json!({"operations": operations, "patterns": patterns, "changes": changes});
    let made = Shown::to_all(RULES, &[]).browse("texts", &[&cases.to_string()]);
    let made: Value = serde_json::from_str(&made).unwrap();

    for (text, read) in operations.iter().zip(made["operations"].as_array().unwrap()) {
        let pairs: Result<Vec<_>, _> = operation::pairs(text).collect();
        // The last of a repeated key wins, at the place of the first.
        let pairs = pairs.ok().map(|pairs| {
            let mut operation = Operation::new();
            for (key, value) in &pairs {
                operation.set(key, value);
            }
            operation.iter().map(|(key, value)| json!([key, value])).collect::<Vec<_>>()
        });
        assert_eq!(*read, json!(pairs), "{text}");
    }
    for ((pattern, value), matched) in patterns.iter().zip(made["patterns"].as_array().unwrap()) {
        assert_eq!(*matched, json!(Pattern::parse(pattern).matches(value)), "{pattern} {value}");
    }
    let texts = ["actors", "json", "ini"].map(|member| made[member].as_array().unwrap());
    let mut unwritable = 0;
    for (at, change) in changes.iter().enumerate() {
        let [actor, json, ini] = texts.map(|list| &list[at]);
        let rule = read(json.as_str().unwrap(), Format::Json);
        check_limit(change, actor.as_str().unwrap(), &rule);
        match ini.as_str() {
            Some(ini) => assert_eq!(read(ini, Format::Ini), rule, "{ini}"),
            None => unwritable += 1,
        }
    }
    assert_eq!(unwritable, 4, "a header in an INI file cannot have a double quote");
}

/// Checks that `rule` limits only the actor of this change, under whose name divvy counts it.
fn check_limit(change: &Value, actor: &str, rule: &Rule) {
    assert_eq!(json!(rule.settings.credit_limit), change["credits"]);
    let mut operation = Operation::new();
    operation.set("path", "/a/b");
    for (field, value) in change["actor"].as_object().unwrap() {
        operation.set(field, value.as_str().unwrap());
    }
    assert!(rule.matches(&operation), "{change}");
    let mut name = Vec::new();
    ActorFields::of(rule).write(&operation, &mut name);
    assert_eq!(name, actor.as_bytes(), "{change}");
    for field in &rule.actor_fields {
        let mut other = operation.clone();
        other.set(field, "another value");
        assert!(!rule.matches(&other), "{change}");
    }
}
