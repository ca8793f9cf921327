//! ratelimit's configuration served as it is: requests over gRPC, and the answers that ratelimit gives to them. Its integration tests
//! and the examples of its README are here as tables. Windows last a year, so that none ends during a test.
//!
//! A case is `DOMAIN descriptor; descriptor => overall: status; status`. A descriptor's options begin with `@`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::gateway::application_with;
use crate::support::grpc::Caller;
use crate::support::{Gateway, Server, divvy, until};

/// Serves configurations given as name and text.
struct Served {
    directory: tempfile::TempDir,
    server: Server,
    caller: Caller,
}

impl Served {
    fn new(files: &[(&str, &str)], flags: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(directory.path().join(name), text).unwrap();
        }
        let server = start(directory.path(), flags);
        let caller = Caller::new(&server);
        Self { directory, server, caller }
    }

    /// Sends each request of a table, a line each, and compares the answers.
    fn check(&mut self, cases: &str) {
        for case in cases.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (request, expected) = case.split_once(" => ").unwrap();
            assert_eq!(self.ask(request), expected, "{request}");
        }
    }

    fn ask(&mut self, request: &str) -> String {
        shown(&self.caller.should_rate_limit(&parse(request)))
    }
}

fn start(path: &Path, flags: &[&str]) -> Server {
    let path = path.to_str().unwrap();
    Server::start(&[&["--ratelimit-config", path, "--store", "memory", "--reload-interval", "0.05"], flags].concat())
}

/// Parses `DOMAIN[+HITS] pairs @options; pairs`.
fn parse(text: &str) -> Value {
    let (domain, descriptors) = text.split_once(' ').unwrap_or((text, ""));
    let (domain, hits) = domain.split_once('+').unwrap_or((domain, "0"));
    let descriptors: Vec<_> = descriptors.split("; ").map(descriptor).collect();
    json!({ "domain": domain, "hits_addend": hits.parse::<u32>().unwrap(), "descriptors": descriptors })
}

fn descriptor(text: &str) -> Value {
    let (mut entries, mut descriptor) = (Vec::new(), json!({}));
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let (key, value) = word.split_once('=').unwrap();
        match key {
            "@hits" => descriptor["hits_addend"] = value.parse::<u64>().unwrap().into(),
            "@back" => descriptor["is_negative_hits"] = true.into(),
            "@limit" => {
                descriptor["limit"] = json!({ "requests_per_unit": value.parse::<u32>().unwrap(), "unit": "YEAR" });
            }
            key => entries.push(json!({ "key": key, "value": value })),
        }
    }
    descriptor["entries"] = entries.into();
    descriptor
}

/// Shows an answer: `OK: 2/3 of name; none`, or `OVER: 0/3!` with `!` for a status that is over its limit.
fn shown(reply: &Value) -> String {
    let is_over = |code: &Value| code == "OVER_LIMIT";
    let statuses = reply["statuses"].as_array().unwrap().iter().map(|status| {
        let (left, limit) = (status["limit_remaining"].as_u64().unwrap_or(0), &status["current_limit"]);
        let mark = if is_over(&status["code"]) { "!" } else { "" };
        if limit.is_null() {
            if status["duration_until_reset"] == "0s" {
                return "of no domain".to_owned();
            }
            assert!(status["duration_until_reset"].is_null(), "{status}");
            return if left == u64::from(u32::MAX) { "unlimited" } else { "none" }.to_owned() + mark;
        }
        let seconds: u64 = status["duration_until_reset"].as_str().unwrap().trim_end_matches('s').parse().unwrap();
        assert!((1..=365 * 86_400).contains(&seconds) && limit["unit"] == "YEAR", "{status}");
        let name = limit["name"].as_str().map_or(String::new(), |name| format!(" of {name}"));
        format!("{left}/{}{mark}{name}", limit["requests_per_unit"].as_u64().unwrap_or(0))
    });
    let overall = if is_over(&reply["overall_code"]) { "OVER" } else { "OK" };
    format!("{overall}: {}", statuses.collect::<Vec<_>>().join("; "))
}

/// Returns a configuration. Each line is an entry: its depth as leading spaces, `key[=value]`, and its settings.
fn config(domain: &str, entries: &str) -> String {
    let mut text = format!("domain: {domain}\ndescriptors:\n");
    let mut deepest = 0;
    for line in entries.lines().filter(|line| !line.trim().is_empty()) {
        let depth = (line.len() - line.trim_start().len()) / 2;
        let indent = "    ".repeat(depth);
        if depth > deepest {
            text += &format!("{}descriptors:\n", "    ".repeat(depth - 1) + "  ");
        }
        deepest = depth;
        let mut words = line.split_whitespace();
        let (key, value) = words.next().map(|word| word.split_once('=').unwrap_or((word, ""))).unwrap();
        text += &format!("{indent}- key: {key}\n");
        if !value.is_empty() {
            text += &format!("{indent}  value: \"{value}\"\n");
        }
        let (mut limit, mut switches) = (Vec::new(), Vec::new());
        for word in words {
            match word.split_once('=') {
                None if word == "unlimited" => limit.push("unlimited: true".to_owned()),
                None if word.parse::<u32>().is_ok() => limit.push(format!("requests_per_unit: {word}, unit: YeaR")),
                None => switches.push(word),
                Some(("replaces", name)) => limit.push(format!("replaces: [{{name: {name}}}]")),
                Some((key, value)) => limit.push(format!("{key}: {value}")),
            }
        }
        if !limit.is_empty() {
            text += &format!("{indent}  rate_limit: {{{}}}\n", limit.join(", "));
        }
        switches.iter().for_each(|switch| text += &format!("{indent}  {switch}: true\n"));
    }
    text
}

#[test]
fn integration_tests_have_the_same_answers() {
    let basic = config("basic", "key1 50\nblock 0\none_per 1\n");
    let another = config("another", "key2 20\nkey3 10\nkey4 20\nkey5=a\n  sub 3\n");
    let mut served = Served::new(&[("basic.yaml", &basic), ("another.yaml", &another)], &[]);
    served.check(
        "basic hello=world => OK: none
         basic key1=foo => OK: 49/50
         basic key1=foo => OK: 48/50
         basic block=x => OVER: 0/0!
         basic one_per=x @hits=0 => OK: 1/1
         basic one_per=x => OK: 0/1
         basic one_per=x @hits=0 => OK: 0/1
         basic one_per=x => OVER: 0/1!
         basic one_per=x @hits=0 => OVER: 0/1!
         basic one_per=y @hits=0; one_per=y => OK: 1/1; 0/1
         basic one_per=z; one_per=z => OVER: 0/1; 0/1!
         another key2=a; key3=b @hits=9 => OK: 19/20; 1/10
         another key2=a; key3=b => OK: 18/20; 0/10
         another key2=a; key3=b => OVER: 17/20; 0/10!
         another+5 key2=a; key3=b @hits=0 => OVER: 12/20; 0/10!
         another key5=a => OK: none
         another key5=a sub=x => OK: 2/3
         another key5=b sub=x => OK: none
         another key5=a sub=x more=y => OK: none
         another sub=x => OK: none",
    );
    assert_eq!(
        served.caller.refused(&json!({ "domain": "basic" })),
        "INVALID_ARGUMENT rate limit descriptor list must not be empty"
    );
    assert_eq!(served.ask("foo hello=world"), "OK: of no domain");
}

/// The eleven examples, each in a domain of its own.
#[test]
fn examples_of_its_readme_have_the_described_answers() {
    let files = [
        ("example1", "database=users 500\ndatabase=default 500\n"),
        ("example2", "message_type=marketing\n  to_number 5\nto_number 100\n"),
        ("example3", "remote_address 10\nremote_address=50.0.0.5 0\n"),
        ("example4", "flat=value 300\nkey=value\n  subkey 300\n"),
        ("example5", "ldap unlimited\nazure 100\n"),
        ("example6", "service\n  user=user-a 1 shadow_mode\n  user=user-b 2\n"),
        ("example7", "key_1=value_1\n  user=ann 5 name=specific\nkey_2=value_2\n  user=ann 10 replaces=specific\n"),
        ("example8", "key1 10 detailed_metric\nkey1=value1 20\n"),
        ("example9", "key1=value* 20\npath=/api/*/action 20\nroute=/api/*/resource/*/action 20\n"),
        ("example10", "route value_to_metric\n  method value_to_metric\n    subject 60\n"),
        ("example11", "files=files/* 2 share_threshold\nno_share=no_share/* 2\n"),
    ];
    let texts = files.map(|(name, entries)| config(name, entries));
    let files: Vec<_> = files.iter().zip(&texts).map(|((name, _), text)| (*name, text.as_str())).collect();
    Served::new(&files, &[]).check(
        "example1 database=users => OK: 499/500
         example1 database=default => OK: 499/500
         example1 database=other => OK: none
         example2 message_type=marketing to_number=1; to_number=1 => OK: 4/5; 99/100
         example2 message_type=marketing to_number=2; to_number=1 => OK: 4/5; 98/100
         example2 message_type=marketing => OK: none
         example3 remote_address=50.0.0.5 => OVER: 0/0!
         example3 remote_address=50.0.0.1 => OK: 9/10
         example4 flat=value subkey=subvalue => OK: none
         example4 key=value subkey=subvalue => OK: 299/300
         example5 ldap=x; azure=x; gcp=x => OK: unlimited; 99/100; none
         example6 service=auth user=user-a => OK: 0/1
         example6 service=auth user=user-a => OK: 0/1
         example6 service=auth user=user-b @hits=2 => OK: 0/2
         example6 service=auth user=user-b => OVER: 0/2!
         example6 service=other user=user-b => OK: 1/2
         example7 key_1=value_1 user=ann => OK: 4/5 of specific
         example7 key_2=value_2 user=ann => OK: 9/10
         example7 key_1=value_1 user=ann; key_2=value_2 user=ann => OK: none; 8/10
         example7 key_2=value_2 user=ann; key_1=value_1 user=ann => OK: 7/10; none
         example7 key_1=value_1 user=ann => OK: 3/5 of specific
         example8 key1=unspecified => OK: 9/10
         example8 key1=unspecified2 => OK: 9/10
         example8 key1=value1 => OK: 19/20
         example9 key1=value1 => OK: 19/20
         example9 key1=valueXYZ => OK: 19/20
         example9 key1=other => OK: none
         example9 path=/api/123/action => OK: 19/20
         example9 path=/api/123/other => OK: none
         example9 route=/api/v1/resource/123/action => OK: 19/20
         example9 route=/api/v2/resource/456/action => OK: 19/20
         example10 route=api method=GET subject=123 => OK: 59/60
         example10 route=web method=POST subject=123 => OK: 59/60
         example11 files=files/a.pdf => OK: 1/2
         example11 files=files/b.csv => OK: 0/2
         example11 files=files/c.txt => OVER: 0/2!
         example11 no_share=no_share/a.pdf @hits=2 => OK: 0/2
         example11 no_share=no_share/b.csv => OK: 1/2",
    );
}

#[test]
fn quotas_deny_only_together() {
    let quotas = config("q", "a 1 quota_mode\nb 2 quota_mode\nc 1\nd=x unlimited\n");
    Served::new(&[("q.yaml", &quotas)], &[]).check(
        "q a=1; b=1 => OK: 0/1; 1/2
         q a=1; b=1 => OK: 0/1!; 0/2
         q a=1; b=1 => OVER: 0/1!; 0/2!
         q a=1; b=2 => OK: 0/1!; 1/2
         q a=1 => OVER: 0/1!
         q a=1; d=x => OVER: 0/1!; unlimited
         q a=1; e=x => OVER: 0/1!; none
         q a=2; c=1 => OK: 0/1; 0/1
         q a=3; c=1 => OVER: 0/1; 0/1!",
    );
}

#[test]
fn overrides_count_with_the_limits_of_their_unit() {
    let limits = config("d", "k 3 shadow_mode\nk=ten 10 name=ten\n  l 2\n");
    Served::new(&[("d.yaml", &limits)], &[]).check(
        "d k=a @limit=2 => OK: 1/2
         d k=a => OK: 1/3
         d k=a @limit=2 => OVER: 0/2!
         d k=a @limit=0 => OVER: 0/0!
         d k=a => OK: 0/3
         d k=a @limit=9 => OK: 4/9
         d other=a @limit=1 => OK: 0/1
         d k=ten @hits=4 => OK: 6/10 of ten
         d k=ten @hits=3 @back=1 => OK: 9/10 of ten
         d k=ten l=1 @limit=5; k=ten l=1 => OK: 4/5; 0/2
         d @limit=1 => OK: 0/1",
    );
}

#[test]
fn keys_may_repeat_and_their_order_matters() {
    let limits = config("d", "a=1\n  a=2 5\n  b 4\na_x_y 9\nb\n  a=1 3\ndomain=z 2\n");
    Served::new(&[("d.yaml", &limits)], &[]).check(
        "d a=1 a=2 => OK: 4/5
         d a=2 a=1 => OK: none
         d a=1 a=1 => OK: none
         d a=1 b=1 => OK: 3/4
         d b=1 a=1 => OK: 2/3
         d a_x=y => OK: 8/9
         d a=x_y => OK: 8/9
         d domain=z => OK: 1/2
         d domain=y => OK: none",
    );
}

#[test]
fn files_are_loaded_as_kubernetes_swaps_them() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    // A volume of a ConfigMap: links to a directory that is swapped as a whole.
    let publish = |version: &str, files: &[(&str, &str)]| {
        fs::create_dir(path(version)).unwrap();
        for (name, text) in files {
            fs::write(path(version).join(name), text).unwrap();
            if !path(name).is_symlink() {
                symlink(Path::new("..data").join(name), path(name)).unwrap();
            }
        }
        symlink(version, path("..data_tmp")).unwrap();
        fs::rename(path("..data_tmp"), path("..data")).unwrap();
    };
    let (one, more) = (config("a", "k 5\n"), config("a", "k 9\nk=x 7\n"));
    publish("..2026_1", &[("a.yaml", &one)]);
    let server = start(directory.path(), &[]);
    let mut caller = Caller::new(&server);
    let mut ask = |request: &str| shown(&caller.should_rate_limit(&parse(request)));
    assert_eq!(ask("a k=x"), "OK: 4/5");
    publish("..2026_2", &[("a.yaml", &more), ("b.yaml", &config("b", "k 2\n"))]);
    until(|| ask("b k=x @hits=0") == "OK: 2/2");
    assert_eq!(ask("a k=x"), "OK: 5/7", "what was counted stays");
    assert_eq!(ask("a k=y"), "OK: 8/9");
    publish("..2026_3", &[("a.yaml", "domain: a\ndescriptors:\n- key: k\n  limit: 5\n"), ("b.yaml", "domain: b\n")]);
    let mut http = server.http();
    until(|| !http.get("/metrics", &[]).body.contains("divvy_config_failures_total 0"));
    assert_eq!(ask("a k=y"), "OK: 7/9", "a configuration with errors changes nothing");
    publish("..2026_4", &[("a.yaml", "domain: c\n"), ("b.yaml", "domain: b\n")]);
    until(|| ask("b k=x") == "OK: none");
}

#[test]
fn rules_file_and_configuration_are_apart() {
    let rules =
        "[domain=edge k=*]\ncreditLimit = 1\nresetSeconds = 3600\n\n[default]\ncreditLimit = 2\nresetSeconds = 0\n";
    let rules = crate::support::RulesFile::ini(rules);
    let mut served = Served::new(&[("a.yaml", &config("a", "k 5\n"))], &[rules.path()]);
    assert_eq!(served.ask("a k=x; other=y"), "OK: 4/5; none");
    let reply = served.caller.should_rate_limit(&parse("edge k=x"));
    assert_eq!(reply["statuses"][0]["current_limit"]["unit"], "HOUR");
    // Other fronts find the same limits.
    let mut http = served.server.http();
    let hit = http.post("/v1/hit", r#"{"operation": {"domain": "a", "k": "x"}}"#);
    assert!(hit.body.contains(r#""remaining":3"#) || hit.body.contains(r#""credit":3"#), "{}", hit.body);
    let limited = crate::support::programs::run_at(&served.server, "limit set a-k k=x 7");
    assert_eq!((limited.0, served.ask("a k=x")), (0, "OK: 4/7".to_owned()), "{}", limited.2);
    let listed = http.get("/v1/rules", &[]).body;
    assert!(listed.contains(r#""descriptor":"k""#) && listed.contains(r#""name":"a-k""#), "{listed}");
    drop(served.directory);
}

#[test]
fn configuration_with_errors_is_refused_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.yaml");
    fs::write(&file, "domain: a\ndescriptors:\n- key: k\n  rate_limit: {unit: eon, requests_per_unit: 1}\n").unwrap();
    let path = directory.path().to_str().unwrap();
    for line in [format!("check {path}"), format!("serve --store memory --ratelimit-config {path}")] {
        let error = crate::support::programs::refused(&line);
        assert!(error.contains("a.yaml:4: [domain=a k=*] unknown unit \"eon\""), "{line}: {error}");
    }
}

/// Starts a server with variables of ratelimit, whose domain `d` has the limits `entries`.
fn with_variables(entries: &str, variables: &[(&str, &str)]) -> Served {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("d.yaml"), config("d", entries)).unwrap();
    let mut command = divvy();
    command.envs(variables.iter().copied()).env("USE_STATSD", "false");
    let path = directory.path().to_str().unwrap();
    let server = Server::start_as(&mut command, &["--ratelimit-env", "--ratelimit-config", path, "--store", "memory"]);
    let caller = Caller::new(&server);
    Served { directory, server, caller }
}

#[test]
fn headers_describe_the_limit_that_denies_or_that_has_the_least_left() {
    let mut served = with_variables(
        "a 5\nb 3\nc 1\nd 1 quota_mode\n",
        &[("LIMIT_RESPONSE_HEADERS_ENABLED", "true"), ("LIMIT_RESET_HEADER", "X-Reset")],
    );
    for (request, expected) in [
        ("d other=1", None),
        ("d a=1; b=1", Some(["3", "2"])),
        ("d a=2 @hits=4; b=2", Some(["5", "1"])),
        ("d c=1; a=3", Some(["1", "0"])),
        ("d c=1 @hits=0; a=3; c=1; b=9", Some(["1", "0"])),
        ("d d=1; a=4 @hits=9; b=4", Some(["5", "0"])),
    ] {
        let reply = served.caller.should_rate_limit(&parse(request));
        let headers: Vec<_> = reply["response_headers_to_add"].as_array().into_iter().flatten().collect();
        let named = |name: &str| headers.iter().find(|header| header["key"] == name).map(|header| &header["value"]);
        let found = named("RateLimit-Limit").zip(named("RateLimit-Remaining")).map(|(limit, left)| [limit, left]);
        assert_eq!(found.map(|found| found.map(|value| value.as_str().unwrap())), expected, "{request}: {reply}");
        assert_eq!(named("X-Reset").is_some(), expected.is_some());
    }
}

#[test]
fn metadata_has_the_request_and_the_data_of_the_limits_that_it_passes() {
    let limits = "domain: d
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 1}, metadata: {name: one, nested: {x: 1, list: [true, null]}}}
- {key: b, rate_limit: {unit: year, requests_per_unit: 9}, metadata: {name: two, nested: {x: 2, w: z}}}
- {key: c, rate_limit: {unit: year, requests_per_unit: 9}}
";
    let mut served = with_variables("a 1\n", &[("RESPONSE_DYNAMIC_METADATA", "true")]);
    fs::write(served.directory.path().join("d.yaml"), limits).unwrap();
    until(|| served.ask("d c=1 @hits=0") == "OK: 9/9");
    let mut metadata = |request: &str| served.caller.should_rate_limit(&parse(request))["dynamic_metadata"].clone();
    let (one, both) = (json!({ "entries": ["a=1"] }), json!({ "x": 1.0, "list": [true, null], "w": "z" }));
    assert_eq!(
        metadata("d+2 a=1 @hits=1; b=1 x=y @limit=7; b=2"),
        json!({
            "domain": "d",
            "hitsAddend": 2.0,
            "descriptors": [
                { "entries": ["a=1"], "hitsAddend": 1.0 },
                { "entries": ["b=1", "x=y"], "limit": "requests_per_unit:7 unit:YEAR" },
                { "entries": ["b=2"] },
            ],
            "metadata": { "name": "one", "nested": both },
        })
    );
    assert_eq!(metadata("d a=1"), json!({ "domain": "d", "descriptors": [one] }), "it is over its limit");
    assert_eq!(
        metadata("d b=3")["metadata"]["nested"],
        json!({ "x": 2.0, "w": "z" }),
        "nothing was merged into the limit"
    );
}

#[test]
fn modes_of_the_server_apply_to_all_limits() {
    with_variables("a 0\nb 1\nc unlimited\n", &[("QUOTA_MODE", "true")]).check(
        "d a=1; b=1 => OK: 0/0!; 0/1
         d a=1; b=1 => OVER: 0/0!; 0/1!
         d a=1; b=1; other=1 => OK: 0/0!; 0/1!; none
         d a=1; b=1; c=1 => OVER: 0/0!; 0/1!; unlimited
         d c=1 => OK: unlimited",
    );
    with_variables("a 0\n", &[("SHADOW_MODE", "true")]).check("d a=1 => OK: 0/0!");
    let mut served = with_variables("a 1\n", &[("MERGE_DOMAIN_CONFIG", "true"), ("CACHE_KEY_PREFIX", "p:")]);
    fs::write(served.directory.path().join("e.yaml"), config("d", "b 1\n")).unwrap();
    until(|| served.ask("d a=1 @hits=0; b=1 @hits=0") == "OK: 1/1; 1/1");
    assert!(served.server.http().get("/v1/rules", &[]).body.contains("\"counter\":\"p:d/365-days\""));
}

/// Starts the real Envoy with one of the examples, and divvy with a configuration of the domain `edge`.
fn behind_envoy(example: &str, entries: &str, response_headers: &'static str) -> (Served, Gateway) {
    let served = Served::new(&[("edge.yaml", &config("edge", entries))], &[]);
    let application = application_with(response_headers);
    let gateway = super::envoy::start(example, ("8323", served.server.grpc), application, &[]);
    (served, gateway)
}

#[test]
fn envoy_is_denied_by_limits_and_not_by_shadows() {
    let entries =
        "method=POST\n  path=/login\n    remote_address 2\n  path=/shadow*\n    remote_address 1 shadow_mode\n";
    let (_served, gateway) = behind_envoy("envoy.yaml", entries, "");
    for (left, status) in [("1", 200), ("0", 200), ("0", 429)] {
        let response = gateway.post("/login");
        assert_eq!(
            (response.status, response.header("x-ratelimit-remaining")),
            (status, Some(left)),
            "{}",
            response.head
        );
    }
    assert_eq!([(); 3].map(|()| gateway.post("/shadowed").status), [200; 3]);
    let unlimited = gateway.post("/elsewhere");
    assert_eq!((unlimited.status, unlimited.header("x-ratelimit-limit")), (200, None), "{}", unlimited.head);
}

/// Envoy asks with a cost of 0 before a request, and reports the tokens after it.
#[test]
fn budget_of_tokens_runs_out_behind_envoy() {
    let (mut served, gateway) = behind_envoy("tokens.yaml", "api=chat\n  user 5000\n", "x-tokens: 1200\r\n");
    for used in 1..=5 {
        assert_eq!(gateway.post_as("ann", "/").status, 200);
        let left = format!("{}/5000", 5_000_u32.saturating_sub(1_200 * used));
        until(|| served.ask("edge api=chat user=ann @hits=0").contains(&left));
    }
    assert_eq!(gateway.post_as("ann", "/").status, 429);
    assert_eq!(gateway.post_as("bob", "/").status, 200);
}

/// Each quota that a request passes adds its metadata. Envoy may choose by it where the request goes.
#[test]
fn envoy_sees_the_metadata_of_the_quotas_that_are_left() {
    let limits = "domain: edge
descriptors:
- key: method
  value: POST
  descriptors:
  - key: path
    descriptors:
    - {key: remote_address, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}, metadata: {tier: free}}
- {key: plan, value: gold, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 2}, metadata: {tier: paid}}
";
    let served = with_variables("a 1\n", &[("RESPONSE_DYNAMIC_METADATA", "true")]);
    fs::write(served.directory.path().join("d.yaml"), limits).unwrap();
    until(|| served.server.http().get("/rlconfig", &[]).body.contains("edge.plan_gold"));
    let second_descriptor = "- remote_address: {}
                        - actions:
                            - generic_key: { descriptor_key: plan, descriptor_value: gold }";
    let header = r#"domains: ["*"]
                      response_headers_to_add:
                        - header: { key: x-tier, value: "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:metadata:tier)%" }"#;
    let changes = [("- remote_address: {}", second_descriptor.to_owned()), (r#"domains: ["*"]"#, header.to_owned())];
    let gateway = super::envoy::start("envoy.yaml", ("8323", served.server.grpc), application_with(""), &changes);
    for expected in [(200, Some("free")), (200, Some("paid")), (429, None)] {
        let response = gateway.post("/login");
        assert_eq!(
            (response.status, response.header("x-tier").filter(|tier| *tier != "-")),
            expected,
            "{}",
            response.head
        );
    }
}
