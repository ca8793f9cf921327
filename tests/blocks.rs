//! Blocks and allows of single actors on every store, through a SIGKILL and in a backup. Their fronts are in tests/wire/.

use serde_json::{Value, json};

use crate::support::{HttpClient, Place, Server, http, number, on_every_store, resp, until};

const RULES: &str = "
[api=* ip=*] creditLimit=5 resetSeconds=2592000 actorField=ip label=by-ip
[api=* user=*] creditLimit=5 algorithm=token-bucket resetSeconds=2592000 actorField=user label=by-user
[default] creditLimit=0
";

/// Returns all listed entries, sorted: rule, actor, reason, and whether it ends.
fn listed(server: &Server, list: &str) -> Vec<Value> {
    let entries = http::all_pages(server, &format!("/v1/{list}?count=1"), list);
    let shown = |entry: &Value| json!([entry["rule"], entry["actor"], entry["reason"], entry["expiresIn"].is_u64()]);
    let mut entries: Vec<_> = entries.iter().map(shown).collect();
    entries.sort_by_key(Value::to_string);
    entries
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

    let blocks = [json!(["*", "ip=10.0.0.0/8", null, true]), json!(["by-user", "ann", "first", false])];
    let server = place.on_disk(&[]);
    assert_eq!(
        listed(&server, "blocks"),
        [&blocks[..1], &[json!(["by-ip", "10.9.9.9", null, false])], &blocks[1..]].concat()
    );
    assert_eq!(listed(&server, "allows"), [json!(["*", "ip=10.1.2.3", null, false])]);
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
