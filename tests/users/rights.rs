//! Rights on every front: each operation of the [`table`] is refused to users without its category, and to users without
//! the rules and actors that it is about. A refused request takes nothing, and does not reveal whether a counter exists.

mod table;

use divvy::access::Category;
use divvy::protocol::command::command_rows::commands;
use divvy::server::grpc::Rpc;

use self::table::{
    LISTINGS, OF_CONNECTIONS, Operation, PUBLIC, RESTRICTED, expand, operations, pairs_out_of_scope, parts,
};
use super::scopes::{Ids, KNOWN, REFUSED, UNKNOWN, fill, guarded, state, users};
use super::{Guarded, basic, line, only};
use crate::support::Response;
use crate::support::http::{encode, get, request as send};
use crate::support::http2::{Http2Client, Http2Response, call, descriptor, request};

/// The expected answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Anything but a refusal. The request may fail for other reasons.
    Served,
    /// The request needs a user.
    NoUser,
    /// The user lacks the category.
    NoCategory,
    /// The request is about rules or actors out of the user's scope.
    OutOfScope,
}

impl Expected {
    pub fn of(is_granted: bool) -> Self {
        if is_granted { Self::Served } else { Self::NoCategory }
    }

    /// Checks a reply over RESP to this user's command.
    pub fn check_resp(self, user: &str, command: &str, reply: &str) {
        let is_right = match self {
            Self::Served => !reply.starts_with("-NOPERM") && !reply.starts_with("-NOAUTH"),
            Self::NoUser => reply.starts_with("-NOAUTH"),
            Self::NoCategory => {
                let start = format!("-NOPERM User {user} has no permissions to run the '");
                let named = reply.strip_prefix(&start).and_then(|rest| rest.strip_suffix("' command"));
                let words = command.to_lowercase().replace(' ', "|");
                named.is_some_and(|name| format!("{words}|").starts_with(&format!("{name}|")))
            }
            Self::OutOfScope => reply == format!("-NOPERM {REFUSED}"),
        };
        assert!(is_right, "{user}: {command}: {self:?}, but {reply}");
    }

    /// Checks a response over HTTP to this user's request. The hits of the user `nothing` are all out of scope, those of
    /// others from the second one.
    pub fn check_http(self, category: Option<Category>, user: &str, request: &str, response: &Response) {
        let is_head = request.starts_with("HEAD ");
        let category = category.map_or("", Category::name);
        let is_right = match self {
            Self::Served => ![401, 403].contains(&response.status),
            Self::NoUser => response.status == 401,
            Self::NoCategory => {
                let is_problem = response.header("content-type") == Some("application/problem+json");
                let told = [r#""title":"Forbidden""#, &format!("requests of the category {category}\"")];
                response.status == 403
                    && (is_head || is_problem && told.iter().all(|part| response.body.contains(part)))
            }
            Self::OutOfScope => {
                let hit = if user == "nothing" { 0 } else { 1 };
                let pointer = format!(",\"pointer\":\"#/hits/{hit}\"");
                let pointer = if request.starts_with("POST /v1/hits ") { &pointer } else { "" };
                let start = r#"{"type":"about:blank","title":"Forbidden","status":403,"detail":""#;
                response.status == 403 && (is_head || response.body == format!("{start}{REFUSED}\"{pointer}}}\n"))
            }
        };
        assert!(is_right, "{user}: {request}: {self:?}, but {response:?}");
    }
}

/// Categories whose requests have an effect only on rules in scope. Requests of the other categories need everything in scope.
const SCOPED: [Category; 6] =
    [Category::Hit, Category::Read, Category::Status, Category::Limits, Category::Block, Category::Forget];

/// Returns all operations, with the listings and the commands about connections.
fn all_operations() -> Vec<Operation> {
    let listings = LISTINGS.iter().map(|(command, request, ..)| {
        let is_status = command.starts_with("DIVVY.STATUS");
        (if is_status { Category::Status } else { Category::Read }, (*command).to_owned(), (*request).to_owned())
    });
    let of_connections =
        OF_CONNECTIONS.iter().map(|command| (Category::Connection, (*command).to_owned(), String::new()));
    operations().into_iter().chain(listings).chain(of_connections).collect()
}

/// Returns whether a user with only the category `own` may send requests of `category`.
fn grants(own: Category, category: Category) -> bool {
    own == category || category == Category::Connection || (own == Category::Read && category == Category::Status)
}

/// Sends a request with each of its methods, as this user or without credentials.
fn over_http(guarded: &Guarded, user: Option<&str>, request: &str) -> Vec<(String, Response)> {
    let (methods, target, body) = parts(request);
    let authorization = user.map(basic);
    let headers = authorization.iter().map(|value| ("authorization", value.as_str()));
    let json = (!body.is_empty()).then_some(("content-type", "application/json"));
    let headers: Vec<_> = headers.chain(json).chain([("connection", "close")]).collect();
    let ask = |method: &str| {
        let response = send(guarded.server.http, encode(method, target, &headers, body.as_bytes()));
        (format!("{method} {target} {body}"), response)
    };
    methods.map(ask).collect()
}

#[test]
fn table_has_every_command_and_every_route() {
    let operations = all_operations();
    let is_known = |name: String| {
        let is_own = |command: &str| format!("{} ", command.to_lowercase()).starts_with(&format!("{name} "));
        assert!(operations.iter().any(|(_, command, _)| is_own(command)), "no request of the command {name}");
    };
    for command in commands() {
        if !command.has_subcommands {
            is_known(command.full_name().into_owned());
        }
        command.subcommands().for_each(|subcommand| is_known(subcommand.full_name().replace('|', " ")));
    }
    let guarded = guarded(&users());
    let described = get(guarded.server.http, "/openapi.json").json();
    let requests: Vec<_> =
        operations.iter().map(|(.., request)| request.as_str()).chain(PUBLIC.iter().copied()).collect();
    for (path, methods) in described["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys().filter(|key| *key != "parameters") {
            let is_own = |request: &str| {
                let (mut methods, target, _) = parts(request);
                target.split('?').next() == Some(path) && methods.any(|own| own.eq_ignore_ascii_case(method))
            };
            let mut requests = requests.iter().filter(|request| !request.is_empty());
            assert!(requests.any(|request| is_own(request)), "no request to {method} {path}");
        }
    }
}

#[test]
fn users_may_send_what_their_categories_have_and_nothing_else() {
    let guarded = guarded(&(Category::ALL.map(only).concat() + &users()));
    let Ids { open, .. } = fill(&guarded);
    for (category, command, request) in all_operations() {
        let (command, request) = (expand(&command, KNOWN, &open).remove(0), expand(&request, KNOWN, &open).remove(0));
        if category != Category::Connection && !command.is_empty() {
            let reply = guarded.server.resp().command(&command);
            Expected::NoUser.check_resp("nobody", &command, &reply);
        }
        if !request.is_empty() {
            for (request, response) in over_http(&guarded, None, &request) {
                Expected::NoUser.check_http(Some(category), "nobody", &request, &response);
            }
        }
        for own in Category::ALL {
            let (user, expected) = (own.name(), Expected::of(grants(own, category)));
            if !command.is_empty() {
                let reply = guarded.resp(user).command(&command);
                expected.check_resp(user, &command, &reply);
                if expected == Expected::NoCategory {
                    let mut client = guarded.resp(user);
                    assert_eq!(client.command("MULTI"), "OK");
                    assert_eq!(client.command(&command), reply, "after MULTI");
                    assert!(client.command("EXEC").starts_with("-EXECABORT"), "{user}: {command}");
                }
            }
            if !request.is_empty() {
                for (request, response) in over_http(&guarded, Some(user), &request) {
                    expected.check_http(Some(category), user, &request, &response);
                }
            }
        }
    }
    for user in [None, Some("hit")] {
        for request in PUBLIC {
            let (request, response) = over_http(&guarded, user, request).remove(0);
            Expected::Served.check_http(None, "anybody", &request, &response);
        }
    }
    assert_eq!(guarded.http("GET", "/v1/nothing", Some("hit")).status, 404);
}

/// A call of each method is refused to users without the category `hit`, and to users without the scope of one descriptor.
#[test]
fn calls_are_refused_without_the_category_or_the_scope() {
    let guarded = guarded(&(Category::ALL.map(only).concat() + &users()));
    let (ids, client) = (fill(&guarded), Http2Client::connect(guarded.server.grpc));
    let before = state(&guarded);
    let refusal = |request| {
        let Http2Response { status, grpc_status, grpc_message, .. } = client.send(request);
        (status, grpc_status.unwrap_or_default(), grpc_message.unwrap_or_default().replace("%20", " "))
    };
    let without_user = |mut request: hyper::Request<bytes::Bytes>| {
        request.headers_mut().remove("authorization");
        refusal(request).0
    };
    let ask = |rpc, user: &str, pairs: &[&str], id: &str| {
        request(rpc, &basic(user), pairs.iter().map(|pairs| descriptor(pairs)).collect(), id)
    };
    for rpc in Rpc::ALL {
        assert_eq!(without_user(ask(rpc, "", &["api=a user=bob"], "")), 401, "{rpc:?}");
        for user in Category::ALL.into_iter().filter(|user| *user != Category::Hit) {
            let (status, code, message) = refusal(ask(rpc, user.name(), &["api=a user=bob"], ""));
            assert!(status == 200 && code == "7" && message != REFUSED, "{user}: {rpc:?}: {message}");
        }
        for user in RESTRICTED {
            for pairs in [KNOWN, UNKNOWN].into_iter().flat_map(pairs_out_of_scope) {
                let refused = refusal(ask(rpc, user, &["api=a user=ann", &pairs], ""));
                assert_eq!(refused, (200, "7".to_owned(), REFUSED.to_owned()), "{user}: {rpc:?} {pairs}");
            }
        }
    }
    let commit = ask(Rpc::KuadrantCommit, "a", &["api=a user=ann"], &ids.open);
    assert_eq!(refusal(commit).2, REFUSED);
    assert_eq!(state(&guarded), before);
    assert_eq!(refusal(ask(Rpc::EnvoyShouldRateLimit, "a", &["api=a user=ann"], "")).1, "0");
    for rpc in Rpc::ALL {
        let (status, code, message) = refusal(ask(rpc, "hit", &["api=a user=ann"], ""));
        assert!(status == 200 && code != "7", "{rpc:?}: {code} {message}");
    }
    // Every user has the category `connection`, and a health check needs no user.
    let reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    assert_eq!(without_user(call(reflection, "", &())), 401);
    assert_eq!(refusal(call(reflection, &basic("metrics"), &())).0, 200);
    assert_eq!(without_user(call("/grpc.health.v1.Health/Check", "", &())), 200);
}

#[test]
fn line_protocol_serves_the_user_default_with_the_category_hit() {
    for category in Category::ALL {
        let guarded = Guarded::start(&line("default", &format!("-@all +@{category} ~*")), &[]);
        let mut client = guarded.line();
        client.send(b"HIT method=GET path=/status\n");
        let reply = client.read_line();
        match category {
            Category::Hit => assert_eq!(reply, "OK true 999 60\n"),
            _ => assert_eq!(reply, "ERR unknown \"This user has no permission for requests of the category hit.\"\n"),
        }
    }
}

#[test]
fn requests_out_of_scope_are_refused_and_take_nothing() {
    let guarded = guarded(&users());
    let ids = fill(&guarded);
    let before = state(&guarded);
    for (actor, id) in [(KNOWN, &ids.open), (UNKNOWN, &ids.released)] {
        for (category, command, request) in operations().iter().filter(|(category, ..)| SCOPED.contains(category)) {
            for user in RESTRICTED {
                if command.contains('{') {
                    let commands = expand(command, actor, id);
                    let (mut client, mut transaction) = (guarded.resp(user), guarded.resp(user));
                    assert_eq!(transaction.command("MULTI"), "OK");
                    for command in &commands {
                        Expected::OutOfScope.check_resp(user, command, &client.command(command));
                        assert_eq!(transaction.command(command), "QUEUED", "{user}: {command}");
                    }
                    let replies = vec![format!("-NOPERM {REFUSED}"); commands.len()];
                    assert_eq!(transaction.command("EXEC"), format!("[{}]", replies.join(" ")), "{user}: {command}");
                }
                let requests = if request.contains('{') { expand(request, actor, id) } else { Vec::new() };
                for (request, response) in requests.iter().flat_map(|request| over_http(&guarded, Some(user), request))
                {
                    Expected::OutOfScope.check_http(Some(*category), user, &request, &response);
                }
            }
        }
        // The user of the line protocol is `default`, who has the scope of the user `a`.
        let mut client = guarded.line();
        for pairs in pairs_out_of_scope(actor) {
            client.send(format!("HIT {pairs}\n").as_bytes());
            assert_eq!(client.read_line(), format!("ERR unknown \"{REFUSED}\"\n"), "{pairs}");
        }
    }
    assert_eq!(state(&guarded), before);
}

#[test]
fn listings_have_what_is_in_scope() {
    let guarded = guarded(&users());
    fill(&guarded);
    for entry in ["DIVVY.BLOCK SET b-user carl", "DIVVY.ALLOW SET a-user carl"] {
        assert_eq!(guarded.resp("all").command(entry), "OK");
    }
    for (command, request, names, seen) in LISTINGS {
        for (user, seen) in *seen {
            let reply = guarded.resp(user).command(command);
            let (request, response) = over_http(&guarded, Some(user), request).remove(0);
            let expected = if seen.is_some() { Expected::Served } else { Expected::OutOfScope };
            expected.check_resp(user, command, &reply);
            expected.check_http(None, user, &request, &response);
            for answer in [&reply, &response.body] {
                let shown: Vec<_> = names.iter().filter(|name| answer.contains(**name)).collect();
                assert_eq!(shown, seen.unwrap_or(&[]).iter().collect::<Vec<_>>(), "{user}: {command}: {answer}");
            }
        }
    }
}
