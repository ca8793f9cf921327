//! The table of rights: each operation on each front, the category that a user needs for it, and requests that are out of
//! scope of the users [`RESTRICTED`]. Requests of operators follow from their declarations.

use divvy::access::Category::{self, Admin, Forget, Hit, Info, Limits, Metrics, Read, Status};
use divvy::metrics::RequestKind;
use divvy_api::{ENDPOINTS, Endpoint, Field, Kind, Place};

use crate::users::scopes::LABELS;

/// An operation: its category, its command over RESP, and its request over HTTP. Empty if the front lacks it.
///
/// Words in braces stand for all pairs, rules and entries that are out of scope; see [`expand`]. A request without any is
/// about all rules, or about the server.
pub type Operation = (Category, String, String);

/// Operations of customers, the server's own, and further forms of those of operators.
#[rustfmt::skip]
const OPERATIONS: &[(Category, &str, &str)] = &[
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
    (Hit, "DIVVY.SHARE {pairs} WANT 5", r#"POST /v1/shares {"operation":{json},"want":5}"#),
    (Hit, "DIVVY.RETURN {id} CREDITS 1", r#"POST /v1/shares/{id}/return {"credits":1}"#),
    (Hit, "RL.REDUCE {actor} 10 60", ""),
    (Hit, "RL.PREDUCE {actor} 10 60", ""),
    (Hit, "RL.SESSIONIZE {actor} 10 60", ""),
    (Hit, "RL.PSESSIONIZE {actor} 10 60", ""),
    (Hit, "CL.THROTTLE {actor} 1 1 60", ""),
    (Hit, "INCREX {actor} EX 60 ENX", ""),
    (Hit, "", "GET|POST /v1/check?{query}"),
    (Hit, "", "GET|PUT|POST|DELETE|OPTIONS|HEAD|PATCH|TRACE /v1/check/?{query}"),
    (Hit, "", "GET|PUT|POST|DELETE|OPTIONS|HEAD|PATCH|TRACE /v1/check/{path}?{query}"),
    (Read, "RL.GET {actor} 10 60", ""),
    (Read, "RL.PGET {actor} 10 60", ""),
    (Read, "DIVVY.COUNTERS api=b user=* ACTOR {actor}", ""),
    (Read, "DIVVY.TOP api=tenants tenant=* TAKEN", ""),
    (Status, "DIVVY.STATUS user={actor} tenant={actor}", "GET /v1/status?user={actor}&tenant={actor}"),
    (Limits, "DIVVY.LIMIT SET no-such {actor} 5", ""),
    (Forget, "DIVVY.FORGET api=b user=* ACTOR {actor}", ""),
    (Metrics, "", "GET /metrics"),
    (Info, "CLIENT LIST", ""),
    (Info, "DBSIZE", ""),
    (Info, "CONFIG GET *", ""),
    (Admin, "ACL GETUSER all", ""),
];

/// Returns the operations.
pub fn operations() -> Vec<Operation> {
    let owned =
        |&(category, command, request): &(Category, &str, &str)| (category, command.to_owned(), request.to_owned());
    OPERATIONS.iter().map(owned).chain(ENDPOINTS.iter().map(|endpoint| of_operator(endpoint))).collect()
}

/// Returns an operation with the fields that it needs, and about a rule and an actor if it can be.
fn of_operator(endpoint: &Endpoint) -> Operation {
    let is_given = |field: &&&Field| field.is_required || ["rule", "actor", "operation", "set"].contains(&field.name);
    let fields: Vec<_> = endpoint.fields.iter().filter(is_given).collect();
    let has_actor = fields.iter().any(|field| field.name == "actor");
    let value = |field: &Field| match field.kind {
        Kind::Rule => (if has_actor { "{rule}" } else { "{ranked}" }).to_owned(),
        Kind::Pairs if field.name == "actor" => "tenant={actor}".to_owned(),
        Kind::Pairs => "{pairs}".to_owned(),
        Kind::List { .. } => r#"[{"rule":"b-user","actor":"{actor}"}]"#.to_owned(),
        Kind::Text if field.name == "rule" => "b-user".to_owned(),
        Kind::Text if field.name == "actor" => "{actor}".to_owned(),
        Kind::Number { min, .. } => min.to_string(),
        Kind::Choice(words) => words[0].to_owned(),
        Kind::Text | Kind::Owner | Kind::Seconds => "7".to_owned(),
    };
    let words = fields.iter().filter_map(|field| match field.place {
        Place::Position | Place::Word => Some(format!(" {}", value(field))),
        // A listing of one rule has what is in scope.
        Place::Option("RULE") => None,
        Place::Option(word) => Some(format!(" {word} {}", value(field))),
        Place::Nowhere => None,
    });
    let command =
        format!("{} {}", endpoint.command.0, endpoint.command.1).trim().to_uppercase() + &words.collect::<String>();
    let in_query = fields.iter().filter(|field| !field.is_in_body).map(|field| match field.kind {
        Kind::Pairs => value(field).replace(' ', "&"),
        _ => format!("{}={}", field.name, value(field)),
    });
    let in_body = fields.iter().filter(|field| field.is_in_body).map(|field| match field.kind {
        Kind::Pairs => r#""operation":{json}"#.to_owned(),
        Kind::Text => format!("\"{}\":\"{}\"", field.name, value(field)),
        _ => format!("\"{}\":{}", field.name, value(field)),
    });
    let (query, body) = (in_query.collect::<Vec<_>>().join("&"), in_body.collect::<Vec<_>>().join(","));
    let body = if endpoint.has_body() { format!(" {{{body}}}") } else { String::new() };
    let request = endpoint.http.map_or(String::new(), |(method, path)| {
        let mark = if query.is_empty() { "" } else { "?" };
        format!("{method} {path}{mark}{query}{body}")
    });
    let is_block = endpoint.kind == RequestKind::Blocks;
    let [command, request] =
        [(command, "b-user {actor}", "{entry}"), (request, "rule=b-user&actor={actor}", "{about}")]
            .map(|(text, of_rule, of_any)| if is_block { text.replace(of_rule, of_any) } else { text });
    (endpoint.category, command, request)
}

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

/// Returns the pairs of operations out of scope for this actor.
pub fn pairs_out_of_scope(actor: &str) -> [String; 6] {
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
