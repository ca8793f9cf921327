//! Blocks and allows of single actors on every store and every front. Together with limits: their entries over HTTP and on the
//! command line, through a SIGKILL and in a backup.

use serde_json::{Value, json};

use crate::support::{HttpClient, Place, Server, done_at, http, number, on_every_store, resp, run_at, until};

const RULES: &str = "
[api=* ip=*] creditLimit=5 resetSeconds=2592000 actorField=ip label=by-ip
[api=* user=*] creditLimit=5 algorithm=token-bucket resetSeconds=2592000 actorField=user label=by-user
[default] creditLimit=0
";

/// Returns all listed entries, sorted: rule, actor, reason, and whether it ends.
fn listed(server: &Server, list: &str) -> Vec<(String, String, Option<String>, bool)> {
    let (mut entries, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = http::get(server.http, &format!("/v1/{list}?count=1{cursor}"));
        assert_eq!(page.status, 200, "{}", page.body);
        let page = page.json();
        for entry in page[list].as_array().unwrap() {
            let text = |key: &str| entry[key].as_str().map(str::to_owned);
            entries.push((
                text("rule").unwrap(),
                text("actor").unwrap(),
                text("reason"),
                entry["expiresIn"].as_u64().is_some(),
            ));
        }
        let Some(next) = page["next"].as_str() else { break };
        let next: String = url_encoded(next);
        cursor = format!("&cursor={next}");
    }
    entries.sort();
    entries
}

fn url_encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

fn entry(rule: &str, actor: &str, reason: Option<&str>, ends: bool) -> (String, String, Option<String>, bool) {
    (rule.to_owned(), actor.to_owned(), reason.map(str::to_owned), ends)
}

#[test]
fn resp_sets_returns_and_removes_entries() {
    let server = Server::serving(RULES, &[]);
    for (command, reply) in [
        ("DIVVY.BLOCK SET by-user ann EX 900 REASON scraping", "OK"),
        ("DIVVY.HIT api=a user=ann", "[0 0 900]"),
        ("DIVVY.BLOCK GET by-user ann", "[900 scraping]"),
        ("DIVVY.ALLOW SET by-user ann", "OK"),
        ("DIVVY.ALLOW GET by-user ann", "[-1 nil]"),
        ("DIVVY.HIT api=a user=ann COST 100", "[1 0 2592000]"),
        ("DIVVY.ALLOW DEL by-user ann", "1"),
        ("DIVVY.ALLOW DEL by-user ann", "0"),
        ("DIVVY.BLOCK DEL by-user ann", "1"),
        ("DIVVY.BLOCK SET * ip=2001:db8::/32", "OK"),
        ("DIVVY.HIT api=a ip=2001:db8:1::9", "[0 0 0]"),
        ("DIVVY.BLOCK DEL * ip=2001:db8::/32", "1"),
    ] {
        assert_eq!(resp(&server, command), reply, "{command}");
    }
    assert_eq!((listed(&server, "blocks"), listed(&server, "allows")), (vec![], vec![]));
}

#[test]
#[cfg_attr(not(feature = "rocksdb"), ignore = "needs the embedded store")]
fn blocks_and_limits_survive_a_sigkill_and_a_restored_backup() {
    let place = Place::new(RULES);
    let server = place.on_disk(&[]);
    for command in [
        "DIVVY.BLOCK SET by-user ann REASON first",
        "DIVVY.BLOCK SET * ip=10.0.0.0/8 EX 1000",
        "DIVVY.BLOCK SET * user=gone",
        "DIVVY.ALLOW SET * ip=10.1.2.3",
        "DIVVY.LIMIT SET by-user bob 9 EX 1000",
    ] {
        assert_eq!(resp(&server, command), "OK", "{command}");
    }
    assert_eq!(resp(&server, "DIVVY.BLOCK DEL * user=gone"), "1");
    assert!(resp(&server, "DIVVY.HIT api=a user=bob").starts_with("[1 8 "));
    assert!(resp(&server, "DIVVY.BACKUP first").contains("first"));
    assert_eq!(resp(&server, "DIVVY.BLOCK SET by-ip 10.9.9.9 OWNER feed"), "OK");
    let sequence = http::get(server.http, "/v1/blocks").json()["sequence"].clone();
    server.kill();

    let blocks = [entry("*", "ip=10.0.0.0/8", None, true), entry("by-user", "ann", Some("first"), false)];
    let server = place.on_disk(&[]);
    assert_eq!(
        listed(&server, "blocks"),
        [&blocks[..1], &[entry("by-ip", "10.9.9.9", None, false)], &blocks[1..]].concat()
    );
    assert_eq!(listed(&server, "allows"), [entry("*", "ip=10.1.2.3", None, false)]);
    let owned = http::get(server.http, "/v1/blocks?owner=feed").json();
    assert_eq!(owned["blocks"][0]["actor"], "10.9.9.9", "{owned}");
    let found = http::get(server.http, &format!("/v1/blocks?since={}", sequence.as_str().unwrap())).json();
    assert_eq!(found["reset"], true, "a restarted server does not know earlier changes");
    assert!(resp(&server, "DIVVY.HIT api=a ip=10.9.9.8").starts_with("[0 0 "));
    assert!(resp(&server, "DIVVY.HIT api=a ip=10.1.2.3").starts_with("[1 4 "));
    assert!(resp(&server, "DIVVY.HIT api=a user=bob COST 0").starts_with("[1 8 "));
    server.kill();

    place.restore("first");
    let server = place.on_disk(&[]);
    assert_eq!(listed(&server, "blocks"), blocks);
    assert!(resp(&server, "DIVVY.HIT api=a user=bob COST 0").starts_with("[1 8 "));
    until(|| number(&server, "divvy_counters_counted") == 1);
    let counters = number(&server, "divvy_live_counters");
    assert!(counters <= 2, "blocks are no counters: {counters}");
}

#[test]
fn http_api_sets_returns_lists_and_removes_entries() {
    let server = Server::serving(RULES, &[]);
    let client = &mut server.http();
    let reason = json!({"reason": "scraping", "expiresIn": 60});
    for (list, body) in
        [("limits", json!({"credits": 20, "expiresIn": 60})), ("blocks", reason.clone()), ("allows", reason)]
    {
        let target = format!("/v1/{list}?rule=by-user&actor=a%20b");
        let new = client.put(&target, &body);
        assert_eq!(new.status, 200, "{}", new.body);
        let mut entry = json!({"rule": "by-user", "actor": "a b", "orphan": false});
        entry.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        if list != "limits" {
            entry["owner"] = Value::Null;
        }
        assert_eq!((new.json(), client.get(&target, &[]).json()), (entry.clone(), entry.clone()));
        assert_eq!(client.get(&format!("/v1/{list}?rule=by-user"), &[]).json()[list], json!([entry]));
        assert_eq!(client.get(&format!("/v1/{list}?rule=by-ip"), &[]).json()[list], json!([]));
        for (query, status) in [
            ("rule=nobody&actor=a", 404),
            ("rule=by-user", 400),
            ("rule=*&actor=a", if list == "limits" { 404 } else { 400 }),
        ] {
            let refused = client.put(&format!("/v1/{list}?{query}"), &body);
            assert_eq!(refused.status, status, "{list} {query}: {}", refused.body);
        }
        for wrong in [json!({"more": 1}), json!({"expiresIn": 0}), json!({"credits": -1}), json!({"reason": "a\nb"})] {
            let mut wrong_body = body.clone();
            wrong_body.as_object_mut().unwrap().extend(wrong.as_object().unwrap().clone());
            assert_eq!(client.put(&target, wrong_body).status, 400, "{list} {wrong}");
        }
        assert_eq!(client.get(&format!("/v1/{list}?rule=by-user&actor=other"), &[]).status, 404);
        let mut remove = || client.delete(&target).json()["removed"].clone();
        assert_eq!([remove(), remove()], [json!(true), json!(false)]);
    }
    assert_eq!(resp(&server, "DIVVY.BLOCK SET by-user ann EX 60 REASON scraping"), "OK");
    let denied = client.post("/v1/hit", r#"{"operation":{"api":"a","user":"ann"}}"#);
    assert_eq!((denied.status, &denied.json()["blocked"]), (429, &json!({"reason": "scraping"})), "{}", denied.body);
    assert_eq!((&denied.json()["retryAfter"], denied.header("retry-after")), (&json!(60), Some("60")));
    let explained = client.post("/v1/explain", r#"{"operation":{"api":"a","user":"ann"}}"#).json();
    let decides = json!({"kind": "block", "endsIn": 60, "reason": "scraping", "entry": null});
    assert_eq!(explained["rules"][1]["grants"]["override"], decides, "{explained}");
}

/// Checks that a program changes its own blocks only, many at once, and that clients can follow the changes.
fn programs_own_blocks(server: &Server) {
    let client = &mut server.http();
    let start = client.get("/v1/blocks", &[]).json();
    assert_eq!((&start["blocks"], &start["removed"], &start["reset"]), (&json!([]), &json!([]), &json!(false)));
    assert_eq!(resp(server, "DIVVY.BLOCK SET * ip=192.0.2.1 REASON mine"), "OK");
    assert_eq!(resp(server, "DIVVY.BLOCK SET * ip=192.0.2.2 OWNER feed-2"), "OK");
    assert!(resp(server, "DIVVY.BLOCK SET * ip=192.0.2.1 OWNER feed").contains("belongs to another owner"));
    assert!(resp(server, "DIVVY.BLOCK DEL * ip=192.0.2.2 OWNER feed").contains("belongs to another owner"));
    let taken = client.put("/v1/blocks?rule=*&actor=ip%3D192.0.2.2", r#"{"owner":"feed"}"#);
    assert_eq!(taken.status, 409, "{}", taken.body);

    let set = |actors: &[&str]| -> Vec<_> {
        let block = |actor: &&str| json!({"rule": "*", "actor": actor, "expiresIn": 900, "reason": "feed: x"});
        actors.iter().map(block).collect()
    };
    let edit = |client: &mut HttpClient, set: Vec<Value>, remove: &[&str]| {
        let remove: Vec<_> = remove.iter().map(|actor| json!({"rule": "*", "actor": actor})).collect();
        client.post("/v1/blocks/bulk", json!({"owner": "feed", "set": set, "remove": remove}))
    };
    let actors = ["ip=192.0.2.1", "ip=192.0.2.2", "ip=192.0.2.3", "ip=2001:db8::/32"];
    let edited = edit(client, set(&actors), &["ip=192.0.2.9"]);
    assert_eq!(edited.json(), json!({"set": 2, "removed": 0, "kept": 2, "full": 0}), "{}", edited.body);
    assert_eq!(resp(server, "DIVVY.HIT api=a ip=2001:db8::9"), "[0 0 900]");
    assert_eq!(resp(server, "DIVVY.BLOCK GET * ip=192.0.2.1"), "[-1 mine]");
    let wrong = edit(client, set(&["ip=192.0.2.4", "nobody"]), &[]);
    assert_eq!((wrong.status, wrong.body.contains("set/1: with the rule *")), (400, true), "{}", wrong.body);
    let owned = |client: &mut HttpClient, owner: &str| {
        let page = client.get(&format!("/v1/blocks?owner={owner}"), &[]).json();
        let actors = page["blocks"].as_array().unwrap().iter().map(|block| block["actor"].as_str().unwrap().to_owned());
        let mut actors: Vec<_> = actors.collect();
        actors.sort();
        actors.join(" ")
    };
    assert_eq!(owned(client, "feed"), "ip=192.0.2.3 ip=2001:db8::/32", "a mistake changes nothing");
    assert_eq!(owned(client, "feed-2"), "ip=192.0.2.2");

    let since = |client: &mut HttpClient, sequence: &Value, more: &str| {
        client.get(&format!("/v1/blocks?since={}{more}", sequence.as_str().unwrap()), &[]).json()
    };
    let found = since(client, &start["sequence"], "");
    assert_eq!((found["blocks"].as_array().unwrap().len(), &found["removed"]), (4, &json!([])), "{found}");
    let edited = edit(client, vec![], &["ip=192.0.2.3", "ip=192.0.2.1"]);
    assert_eq!(edited.json(), json!({"set": 0, "removed": 1, "kept": 1, "full": 0}), "{}", edited.body);
    let found = since(client, &found["sequence"], "&field=ip&owner=feed");
    assert_eq!(found["blocks"], json!([]));
    assert_eq!(found["removed"], json!([{"rule": "*", "actor": "ip=192.0.2.3"}]));
    assert_eq!(since(client, &found["sequence"], "")["sequence"], found["sequence"]);
    assert_eq!(resp(server, "DIVVY.BLOCK DEL * ip=192.0.2.2"), "1", "an operator may change all blocks");
    assert_eq!(resp(server, "DIVVY.ALLOW SET * ip=192.0.2.0/24"), "OK");
    let found = since(client, &found["sequence"], "");
    assert_eq!((&found["reset"], &found["blocks"]), (&json!(true), &json!([])));
    let found = since(client, &json!("0-0"), "");
    assert_eq!(found["reset"], true, "of another server, or from before a restart");
}

#[test]
fn programs_own_blocks_on_every_store() {
    on_every_store(RULES, &[], |_, server| programs_own_blocks(server));
}

#[test]
fn command_line_sets_returns_lists_and_removes_entries() {
    let server = Server::serving(RULES, &[]);
    let limit = r#"{"rule":"by-user","actor":"ann","credits":20,"expiresIn":null,"orphan":false}"#;
    let block = r#"{"rule":"by-user","actor":"ann","reason":"fast","expiresIn":null,"orphan":false,"owner":null}"#;
    for (line, expected) in [
        ("limit set by-user ann 20", ""),
        ("limit set by-ip 192.0.2.1 30 --expires 7d", ""),
        ("limit list --json --rule by-user", limit),
        ("block set by-user ann --reason fast", ""),
        ("allow set '*' ip=10.0.0.0/8 --expires 7d", ""),
        ("block list --json --rule by-user", block),
    ] {
        assert_eq!(done_at(&server, line).trim_end(), expected, "{line}");
    }
    for (line, expected) in [
        ("limit get by-user ann", "20 - - by-user ann"),
        ("limit get by-ip 192.0.2.1", "30 604800 - by-ip 192.0.2.1"),
        ("block get by-user ann", "- - by-user ann fast -"),
        ("allow get '*' ip=10.0.0.0/8", "604800 - * ip=10.0.0.0/8 - -"),
    ] {
        let table = done_at(&server, line);
        let words: Vec<_> = table.lines().nth(1).unwrap_or_default().split_whitespace().collect();
        assert_eq!(words.join(" "), expected, "{line}: {table}");
    }
    for (line, lines) in [("limit list", 3), ("allow list", 2)] {
        let table = done_at(&server, line);
        assert_eq!(table.lines().count(), lines, "{line}: {table}");
    }
    for line in ["limit delete by-user ann", "block delete by-user ann"] {
        assert_eq!(done_at(&server, line), "", "{line}");
    }
    for (line, told) in [
        ("limit delete by-user ann", "this actor has no limit of its own"),
        ("limit get by-user ann", "this actor has no limit of its own"),
        ("block delete by-user ann", "this actor has no block"),
        ("block get by-user ann", "this actor has no block"),
        ("limit set nobody a 5", "no rule is called 'nobody'"),
    ] {
        let (code, out, error) = run_at(&server, line);
        assert!(code != 0 && out.is_empty() && error.contains(told), "{line}: {error}");
    }
}
