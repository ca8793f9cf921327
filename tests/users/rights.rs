//! Rights on every front: each operation of the [`table`] is refused to users without its category, and to users without
//! the rules and actors that it is about. A refused request takes nothing, and does not reveal whether a counter exists.

mod answer;
mod table;

use divvy::access::Category;
use divvy::protocol::command::table::commands;
use divvy::server::grpc::Rpc;

use self::answer::Expected;
use self::table::{LISTINGS, OF_CONNECTIONS, OPERATIONS, Operation, PUBLIC, RESTRICTED, expand, operations, parts};
use super::scopes::{Ids, KNOWN, REFUSED, UNKNOWN, fill, guarded, state, users};
use super::{Guarded, basic, line, only};
use crate::support::RespClient;
use crate::support::http::{Response, encode, get, request as send};
use crate::support::http2::{Http2Client, call, descriptor, request};

/// Categories whose requests have an effect only on rules in scope. Requests of the other categories need everything in scope.
const SCOPED: [Category; 6] =
    [Category::Hit, Category::Read, Category::Status, Category::Limits, Category::Block, Category::Forget];

/// Returns all operations, with the listings and the commands about connections.
fn all_operations() -> Vec<Operation> {
    let listings = LISTINGS.iter().map(|(command, request, ..)| {
        let is_status = command.starts_with("DIVVY.STATUS");
        (if is_status { Category::Status } else { Category::Read }, *command, *request)
    });
    let of_connections = OF_CONNECTIONS.iter().map(|command| (Category::Connection, *command, ""));
    OPERATIONS.iter().copied().chain(listings).chain(of_connections).collect()
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
    let (_rules, guarded) = guarded(&users());
    let described = get(guarded.server.http, "/openapi.json").json();
    let requests: Vec<_> = operations.iter().map(|(.., request)| *request).chain(PUBLIC.iter().copied()).collect();
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
    let (_rules, guarded) = guarded(&(Category::ALL.map(only).concat() + &users()));
    let Ids { open, .. } = fill(&guarded);
    for (category, command, request) in all_operations() {
        let (command, request) = (expand(command, KNOWN, &open).remove(0), expand(request, KNOWN, &open).remove(0));
        if category != Category::Connection && !command.is_empty() {
            let reply = RespClient::connect(guarded.server.resp).command(&command);
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

#[test]
fn users_may_call_the_rpcs_of_their_categories_and_no_others() {
    let (_rules, guarded) = guarded(&Category::ALL.map(only).concat());
    let client = Http2Client::connect(guarded.server.grpc);
    let without_user = |mut request: hyper::Request<bytes::Bytes>| {
        request.headers_mut().remove("authorization");
        client.send(request)
    };
    let ask = |rpc, user: &str| request(rpc, &basic(user), vec![descriptor("api=a user=bob")], "");
    for rpc in Rpc::ALL {
        Expected::NoUser.check_grpc(rpc.path(), &without_user(ask(rpc, "")));
        for user in Category::ALL {
            let expected = Expected::of(user == Category::Hit);
            expected.check_grpc(&format!("{user}: {rpc:?}"), &client.send(ask(rpc, user.name())));
        }
    }
    // Every user has the category `connection`.
    let reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    Expected::NoUser.check_grpc(reflection, &without_user(call(reflection, "", &())));
    Expected::Served.check_grpc(reflection, &client.send(call(reflection, &basic("metrics"), &())));
    let health = "/grpc.health.v1.Health/Check";
    Expected::Served.check_grpc(health, &without_user(call(health, "", &())));
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
    let (_rules, guarded) = guarded(&users());
    let ids = fill(&guarded);
    let before = state(&guarded);
    for (actor, id) in [(KNOWN, &ids.open), (UNKNOWN, &ids.released)] {
        for (category, command, request) in OPERATIONS.iter().filter(|(category, ..)| SCOPED.contains(category)) {
            for user in RESTRICTED {
                if !command.is_empty() {
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
                let requests = if request.is_empty() { Vec::new() } else { expand(request, actor, id) };
                for (request, response) in requests.iter().flat_map(|request| over_http(&guarded, Some(user), request))
                {
                    Expected::OutOfScope.check_http(Some(*category), user, &request, &response);
                }
            }
        }
        // The user of the line protocol is `default`, who has the scope of the user `a`.
        let mut client = guarded.line();
        for pairs in operations(actor) {
            client.send(format!("HIT {pairs}\n").as_bytes());
            assert_eq!(client.read_line(), format!("ERR unknown \"{REFUSED}\"\n"), "{pairs}");
        }
    }
    assert_eq!(state(&guarded), before);
}

#[test]
fn calls_out_of_scope_are_refused_and_take_nothing() {
    for args in [&[][..], &["--grpc-atomic"]] {
        let (_rules, guarded) = super::scopes::guarded_with(&users(), args);
        let ids = fill(&guarded);
        let before = state(&guarded);
        let client = Http2Client::connect(guarded.server.grpc);
        let in_scope = || descriptor("api=a user=ann");
        for (user, rpc) in RESTRICTED.into_iter().flat_map(|user| Rpc::ALL.map(|rpc| (user, rpc))) {
            let refuse = |descriptors, id: &str| {
                let response = client.send(request(rpc, &basic(user), descriptors, id));
                Expected::OutOfScope.check_grpc(&format!("{user}: {rpc:?} {args:?}"), &response);
            };
            for pairs in [KNOWN, UNKNOWN].into_iter().flat_map(operations) {
                refuse(vec![descriptor(&pairs)], "");
                refuse(vec![in_scope(), descriptor(&pairs)], "");
            }
            if rpc == Rpc::KuadrantCommit {
                refuse(vec![in_scope()], &ids.open);
            }
        }
        assert_eq!(state(&guarded), before);
        let served = client.send(request(Rpc::EnvoyShouldRateLimit, &basic("a"), vec![in_scope()], ""));
        assert_eq!(served.grpc_status.as_deref(), Some("0"), "{served:?}");
    }
}

#[test]
fn listings_have_what_is_in_scope() {
    let (_rules, guarded) = guarded(&users());
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
