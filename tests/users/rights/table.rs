//! The table of rights: each operation on each front, the category that a user needs for it, and requests that are out of
//! scope of the users [`RESTRICTED`].

use divvy::access::Category::{self, Admin, Backup, Block, Forget, Hit, Info, Limits, Metrics, Read, Status};

use crate::users::scopes::LABELS;

/// An operation: its category, its command over RESP, and its request over HTTP. Empty if the front lacks it.
///
/// Words in braces stand for all pairs, rules and entries that are out of scope; see [`expand`]. A request without any is
/// about all rules, or about the server.
pub type Operation = (Category, &'static str, &'static str);

#[rustfmt::skip]
pub const OPERATIONS: &[Operation] = &[
    (Hit, "DIVVY.HIT {pairs} COST 3", r#"POST /v1/hit {"operation":{json}}"#),
    // The first hit is in scope of some of the users.
    (Hit, "DIVVY.HIT {pairs} ID x",
        r#"POST /v1/hits {"atomic":true,"hits":[{"operation":{"api":"a","user":"ann"}},{"operation":{json}}]}"#),
    (Hit, "DIVVY.PEEK {pairs}", r#"POST /v1/peek {"operation":{json}}"#),
    (Hit, "DIVVY.CHARGE {pairs} COST 3", r#"POST /v1/charge {"operation":{json}}"#),
    (Hit, "DIVVY.CHARGE {pairs} ID x", ""),
    (Hit, "DIVVY.REFUND {pairs} COST 3", r#"POST /v1/refund {"operation":{json}}"#),
    (Hit, "DIVVY.REFUND {pairs} ID x", ""),
    (Hit, "DIVVY.RESERVE {pairs} AMOUNT 1 TTL 5", r#"POST /v1/reservations {"operation":{json},"amount":1,"ttl":5}"#),
    (Hit, "DIVVY.COMMIT {id} COST 1", r#"POST /v1/reservations/{id}/commit {"cost":1}"#),
    (Hit, "DIVVY.RENEW {id}", r#"POST /v1/reservations/{id}/renew {"ttl":9}"#),
    (Hit, "DIVVY.RELEASE {id}", "DELETE /v1/reservations/{id}"),
    (Hit, "RL.REDUCE {actor} 10 60", ""),
    (Hit, "RL.PREDUCE {actor} 10 60", ""),
    (Hit, "RL.SESSIONIZE {actor} 10 60", ""),
    (Hit, "RL.PSESSIONIZE {actor} 10 60", ""),
    (Hit, "CL.THROTTLE {actor} 1 1 60", ""),
    (Hit, "", "GET|POST /v1/check?{query}"),
    (Hit, "", "GET|PUT|POST|DELETE|OPTIONS|HEAD|PATCH|TRACE /v1/check/?{query}"),
    (Hit, "", "GET|PUT|POST|DELETE|OPTIONS|HEAD|PATCH|TRACE /v1/check/{path}?{query}"),
    (Read, "RL.GET {actor} 10 60", ""),
    (Read, "RL.PGET {actor} 10 60", ""),
    (Read, "DIVVY.EXPLAIN {pairs}", r#"POST /v1/explain {"operation":{json}}"#),
    (Read, "DIVVY.COUNTERS {rule} ACTOR {actor}", "GET /v1/counters?rule={rule}&actor={actor}"),
    (Read, "DIVVY.COUNTERS api=b user=* ACTOR {actor}", ""),
    (Read, "DIVVY.TOP {ranked} TAKEN", "GET /v1/top?rule={ranked}"),
    (Read, "DIVVY.TOP api=tenants tenant=* TAKEN", ""),
    (Read, "DIVVY.LIMIT GET b-user {actor}", "GET /v1/limits?rule=b-user&actor={actor}"),
    (Read, "DIVVY.BLOCK GET {entry}", "GET /v1/blocks?{about}"),
    (Read, "DIVVY.ALLOW GET {entry}", "GET /v1/allows?{about}"),
    (Status, "DIVVY.STATUS tenant={actor}", "GET /v1/status?tenant={actor}"),
    (Status, "DIVVY.STATUS user={actor} tenant={actor}", "GET /v1/status?user={actor}&tenant={actor}"),
    (Limits, "DIVVY.LIMIT SET b-user {actor} 5", r#"PUT /v1/limits?rule=b-user&actor={actor} {"credits":5}"#),
    (Limits, "DIVVY.LIMIT SET no-such {actor} 5", ""),
    (Limits, "DIVVY.LIMIT DEL b-user {actor}", "DELETE /v1/limits?rule=b-user&actor={actor}"),
    (Block, "DIVVY.BLOCK SET {entry}", r#"PUT /v1/blocks?{about} {"reason":"x"}"#),
    (Block, "DIVVY.ALLOW SET {entry}", r#"PUT /v1/allows?{about} {"reason":"x"}"#),
    (Block, "DIVVY.BLOCK DEL {entry}", "DELETE /v1/blocks?{about}"),
    (Block, "DIVVY.ALLOW DEL {entry}", "DELETE /v1/allows?{about}"),
    (Block, "", r#"POST /v1/blocks/bulk {"set":[{"rule":"b-user","actor":"{actor}"}]}"#),
    (Forget, "DIVVY.RESET {pairs}", ""),
    (Forget, "DIVVY.FORGET {rule} ACTOR {actor}", "DELETE /v1/counters?rule={rule}&actor={actor}"),
    (Forget, "DIVVY.FORGET api=b user=* ACTOR {actor}", ""),
    (Backup, "DIVVY.BACKUP x", r#"POST /v1/backups {"name":"x"}"#),
    (Metrics, "", "GET /metrics"),
    (Info, "INFO", "GET /v1/stats"),
    (Info, "CLIENT LIST", ""),
    (Info, "DBSIZE", ""),
    (Info, "CONFIG GET *", ""),
    (Admin, "ACL LIST", "GET /v1/users"),
    (Admin, "DIVVY.RELOAD", "POST /v1/reload"),
    (Admin, "ACL GETUSER all", ""),
];

/// Commands about the connection and the protocol, which every user may send.
#[rustfmt::skip]
pub const OF_CONNECTIONS: &[&str] = &[
    "PING", "ECHO x", "HELLO", "AUTH x", "SELECT 0", "QUIT", "RESET", "MULTI", "EXEC", "DISCARD", "WATCH x", "UNWATCH",
    "CLIENT SETNAME x", "CLIENT GETNAME", "CLIENT SETINFO LIB-NAME x", "CLIENT ID", "CLIENT INFO", "CLIENT REPLY ON",
    "CLIENT NO-EVICT ON", "CLIENT NO-TOUCH ON", "COMMAND COUNT", "COMMAND DOCS", "COMMAND INFO", "COMMAND LIST", "TIME",
    "ROLE", "ACL WHOAMI", "ACL CAT",
];

/// Routes that need no user.
pub const PUBLIC: &[&str] = &["GET /healthz", "GET /readyz", "GET /openapi.json"];

type Names = &'static [&'static str];

/// A listing: its command and its request, names that may occur in the answer, and those that each user sees. `None` if the
/// user is refused.
pub type Listing = (&'static str, &'static str, Names, &'static [(&'static str, Option<Names>)]);

const BY_USER: Names = &["a-user", "b-user", "a-first", "b-second", "c-canary", "a-watched"];
const OF_A: Names = &["a-user", "a-first", "a-watched"];
const LIMITS: Names = &["a-user", "b-user", "ann", "bob"];
const NONE: Option<Names> = Some(&[]);

#[rustfmt::skip]
pub const LISTINGS: &[Listing] = &[
    ("DIVVY.RULES", "GET /v1/rules", &LABELS,
        &[("all", Some(&LABELS)), ("a", Some(OF_A)), ("ann", Some(BY_USER)), ("nothing", NONE)]),
    ("DIVVY.STATUS user=bob", "GET /v1/status?user=bob", &LABELS,
        &[("all", Some(BY_USER)), ("a", Some(OF_A)), ("ann", None)]),
    ("DIVVY.STATUS user=ann", "GET /v1/status?user=ann", &LABELS,
        &[("ann", Some(&["a-user", "b-user"])), ("a", Some(&["a-user"])), ("nothing", None)]),
    ("DIVVY.STATUS no=such", "GET /v1/status?no=such", &LABELS, &[("all", NONE), ("a", None)]),
    ("DIVVY.LIMIT LIST", "GET /v1/limits", LIMITS,
        &[("all", Some(LIMITS)), ("a", Some(&["a-user", "bob"])), ("ann", Some(&["b-user", "ann"])), ("nothing", NONE)]),
    ("DIVVY.BLOCK LIST", "GET /v1/blocks", &["b-user", "carl"],
        &[("all", Some(&["b-user", "carl"])), ("a", NONE), ("ann", NONE), ("nothing", NONE)]),
    ("DIVVY.ALLOW LIST", "GET /v1/allows", &["a-user", "carl"],
        &[("all", Some(&["a-user", "carl"])), ("a", Some(&["a-user", "carl"])), ("ann", NONE), ("nothing", NONE)]),
];

/// Users who may use only a part of the rules, or only the actor `ann`.
pub const RESTRICTED: [&str; 3] = ["a", "ann", "nothing"];

/// Pairs that are out of scope of all of them.
const PAIRS: [&str; 6] = [
    "api=b user={actor}",
    "api=both user={actor}",
    "api=watched user={actor}",
    "api=plain user={actor}",
    "api=tenants tenant={actor}",
    "other={actor}",
];

/// Returns operations out of scope for this actor, as pairs.
pub fn operations(actor: &str) -> [String; 6] {
    PAIRS.map(|pairs| pairs.replace("{actor}", actor))
}

/// Replaces the words in braces by everything that they stand for.
pub fn expand(request: &str, actor: &str, id: &str) -> Vec<String> {
    let json = PAIRS.map(|pairs| format!("{{\"{}\"}}", pairs.replace('=', "\":\"").replace(' ', "\",\"")));
    let query = PAIRS.map(|pairs| pairs.replace(' ', "&"));
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let choices = [
        ("{pairs}", owned(&PAIRS)),
        ("{json}", json.to_vec()),
        ("{query}", query.to_vec()),
        ("{rule}", owned(&["b-user", "b-second", "c-canary", "rule-8", "default", "no-such"])),
        ("{ranked}", owned(&["b-tenant", "default", "no-such"])),
        ("{entry}", owned(&["b-user {actor}", "* user={actor}"])),
        ("{about}", owned(&["rule=b-user&actor={actor}", "rule=*&actor=user={actor}"])),
    ];
    let chosen = choices.into_iter().find(|(word, _)| request.contains(word));
    let requests = chosen.map_or_else(
        || vec![request.to_owned()],
        |(word, values)| values.iter().map(|value| request.replace(word, value)).collect(),
    );
    let fill = |request: String| request.replace("{actor}", actor).replace("{id}", id).replace("{path}", "x");
    requests.into_iter().map(fill).collect()
}

/// Splits a request into its methods, its target, and its body.
pub fn parts(request: &str) -> (impl Iterator<Item = &str>, &str, &str) {
    let (methods, rest) = request.split_once(' ').unwrap();
    let (target, body) = rest.split_once(' ').unwrap_or((rest, ""));
    (methods.split('|'), target, body)
}
