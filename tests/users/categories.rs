//! Every command, route and RPC against every category: what is not granted is refused.

use std::process::Command;

use divvy::access::Category;
use divvy::protocol::command::table::{COMMANDS, Spec, offered};
use divvy::protocol::rpc::Rpc;

use super::{Guarded, basic, line, only, password};
use crate::clients::run;
use crate::support::http::get;
use crate::support::{LineClient, RespClient};

const NOPERM: &str = "-NOPERM";

fn guarded() -> Guarded {
    Guarded::start(&Category::ALL.map(only).concat(), &["--open", "none"])
}

/// Returns a request of each command and subcommand, with as many arguments as it needs, and the category of its row.
fn requests() -> Vec<(Category, Vec<String>)> {
    let mut requests = Vec::new();
    let mut add = |spec: &Spec, parent: Option<&Spec>| {
        let names = parent.into_iter().chain([spec]).map(|spec| spec.name.to_owned());
        let mut words: Vec<_> = names.collect();
        words.resize(words.len().max(spec.arity.unsigned_abs() as usize), "x".to_owned());
        requests.push((spec.category, words));
    };
    for spec in offered(COMMANDS) {
        match spec.subcommands {
            [] => add(spec, None),
            subcommands => offered(subcommands).for_each(|sub| add(sub, Some(spec))),
        }
    }
    requests
}

/// Returns whether a user with only the category `own` may send requests of `category`.
fn grants(own: Category, category: Category) -> bool {
    own == category || (own == Category::Read && category == Category::Status)
}

fn ask(client: &mut RespClient, words: &[String]) -> String {
    client.command_of(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>())
}

#[test]
fn users_may_send_the_commands_of_their_categories_and_no_others() {
    let guarded = guarded();
    let (mut granted, mut refused) = (0, 0);
    for user in Category::ALL {
        for (category, words) in requests() {
            let is_granted = grants(user, category) || category == Category::Connection;
            let reply = ask(&mut guarded.resp(user.name()), &words);
            assert_eq!(!reply.starts_with(NOPERM), is_granted, "{user}: {words:?}: {reply}");
            *(if is_granted { &mut granted } else { &mut refused }) += 1;
            if !is_granted {
                let name = words.join("|");
                let start = format!("{NOPERM} User {user} has no permissions to run the '");
                let ran = reply.strip_prefix(&start).and_then(|rest| rest.strip_suffix("' command"));
                assert!(ran.is_some_and(|ran| name.starts_with(ran)), "{reply}");

                let mut client = guarded.resp(user.name());
                assert_eq!(client.command("MULTI"), "OK");
                assert_eq!(ask(&mut client, &words), reply, "after MULTI");
                assert!(client.command("EXEC").starts_with("-EXECABORT"), "{user}: {words:?}");
            }
        }
    }
    assert!(granted > 200 && refused > 150, "{granted} {refused}");
}

#[test]
fn commands_have_the_documented_categories() {
    let category = |name: &str| {
        let words: Vec<_> = name.split(' ').map(str::to_owned).collect();
        let found = requests().into_iter().find(|(_, request)| request.starts_with(&words));
        found.unwrap_or_else(|| panic!("{name}")).0
    };
    for (expected, names) in [
        (
            Category::Hit,
            "divvy.hit,divvy.peek,divvy.charge,divvy.refund,divvy.reserve,divvy.commit,divvy.release,divvy.renew,rl.reduce,\
             rl.preduce,rl.sessionize,rl.psessionize,cl.throttle",
        ),
        (
            Category::Read,
            "divvy.explain,divvy.rules,divvy.counters,divvy.top,divvy.limit get,divvy.limit list,divvy.block get,divvy.block list,\
             divvy.allow get,divvy.allow list,rl.get,rl.pget",
        ),
        (Category::Status, "divvy.status"),
        (Category::Limits, "divvy.limit set,divvy.limit del"),
        (Category::Block, "divvy.block set,divvy.block del,divvy.allow set,divvy.allow del"),
        (Category::Forget, "divvy.reset,divvy.forget"),
        (Category::Backup, "divvy.backup"),
        (Category::Info, "info,client list,dbsize,config get"),
        (Category::Admin, "acl list,acl getuser"),
        (
            Category::Connection,
            "ping,echo,hello,auth,select,quit,reset,multi,exec,discard,watch,unwatch,client setname,client id,client info,\
             command,command docs,time,role,acl whoami,acl cat",
        ),
    ] {
        for name in names.split(',') {
            // `COMMAND` alone has no row among the requests, because it has subcommands.
            let name = if name == "command" { "command count" } else { name };
            assert_eq!(category(name), expected, "{name}");
        }
    }
}

/// Returns the category of a route, `None` for a public one.
pub fn category_of_route(method: &str, path: &str) -> Option<Category> {
    match (path, method) {
        ("/healthz" | "/readyz" | "/openapi.json", _) => None,
        ("/metrics", _) => Some(Category::Metrics),
        (
            "/v1/explain" | "/v1/rules" | "/v1/top" | "/v1/decisions" | "/v1/decisions/stream" | "/v1/usage-metrics",
            _,
        )
        | ("/v1/counters" | "/v1/limits" | "/v1/blocks" | "/v1/allows", "get") => Some(Category::Read),
        ("/v1/status", _) => Some(Category::Status),
        ("/v1/counters", "delete") => Some(Category::Forget),
        ("/v1/limits", "put" | "delete") => Some(Category::Limits),
        ("/v1/blocks" | "/v1/allows", "put" | "delete") => Some(Category::Block),
        (
            "/v1/hit"
            | "/v1/hits"
            | "/v1/peek"
            | "/v1/charge"
            | "/v1/refund"
            | "/v1/reservations"
            | "/v1/reservations/{id}"
            | "/v1/reservations/{id}/commit"
            | "/v1/reservations/{id}/renew",
            _,
        ) => Some(Category::Hit),
        (check, _) if check.starts_with("/v1/check") => Some(Category::Hit),
        other => panic!("{other:?} is a route without a category in this test"),
    }
}

#[test]
fn users_may_use_the_routes_of_their_categories_and_no_others() {
    let guarded = guarded();
    let described = get(guarded.server.http, "/openapi.json").json();
    let mut routes = 0;
    for (path, methods) in described["paths"].as_object().unwrap() {
        let methods: Vec<_> = methods.as_object().unwrap().keys().filter(|key| *key != "parameters").collect();
        let target = path.replace("{id}", "x").replace("{path}", "x");
        for method in methods {
            routes += 1;
            let category = category_of_route(method, path);
            let ask = |user| guarded.http(&method.to_uppercase(), &target, user).status;
            assert_eq!(ask(None) == 401, category.is_some(), "{method} {path} without a user");
            for user in Category::ALL {
                let is_granted = category.is_none_or(|category| grants(user, category));
                let status = ask(Some(user.name()));
                assert_eq!(status != 403, is_granted, "{user}: {method} {path}: {status}");
                assert_ne!(status, 401, "{user}: {method} {path}");
            }
        }
    }
    assert!(routes > 30, "{routes}");
    let refused = guarded.http("GET", "/v1/rules", Some("hit"));
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    assert_eq!(refused.json()["title"], "Forbidden");
    assert!(refused.json()["detail"].as_str().unwrap().contains("category read"), "{refused:?}");
    assert_eq!(guarded.http("GET", "/v1/nothing", Some("hit")).status, 404);
}

/// Calls over gRPC without a message. Returns the head of the response.
fn call(guarded: &Guarded, path: &str, authorization: Option<&str>) -> String {
    let mut command = Command::new("curl");
    command.args(["-s", "-o", "/dev/null", "-D", "-", "--http2-prior-knowledge", "-X", "POST"]);
    command.args(["-H", "content-type: application/grpc", "--data-binary", "@/dev/null"]);
    command.args(authorization.into_iter().flat_map(|value| ["-H".to_owned(), format!("authorization: {value}")]));
    command.arg(format!("http://{}{path}", guarded.server.grpc));
    run(command)
}

#[test]
fn users_may_call_the_rpcs_of_their_categories_and_no_others() {
    let guarded = guarded();
    for rpc in Rpc::ALL {
        assert!(call(&guarded, rpc.path(), None).starts_with("HTTP/2 401"), "{rpc:?}");
        for user in Category::ALL {
            let head = call(&guarded, rpc.path(), Some(&basic(user.name())));
            // PERMISSION_DENIED
            let is_refused = head.contains("grpc-status: 7\r\n");
            assert_eq!(!is_refused, grants(user, rpc.category()), "{user}: {rpc:?}: {head}");
            assert!(head.starts_with("HTTP/2 200"), "{head}");
        }
    }
    let reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    assert!(call(&guarded, reflection, None).starts_with("HTTP/2 401"));
    let head = call(&guarded, reflection, Some(&format!("Bearer {}", password("metrics"))));
    assert!(
        head.starts_with("HTTP/2 200") && !head.contains("grpc-status: 7"),
        "every user has the category connection"
    );
    assert!(call(&guarded, "/grpc.health.v1.Health/Check", None).starts_with("HTTP/2 200"));
}

#[test]
fn line_protocol_serves_the_user_default_with_the_category_hit() {
    for category in Category::ALL {
        let guarded = Guarded::start(&line("default", &format!("-@all +@{category} ~*")), &[]);
        let mut client = LineClient::connect(guarded.server.line);
        client.send(format!("AUTH {}\nHIT method=GET path=/status\n", password("default")).as_bytes());
        assert_eq!(client.read_line(), "OK\n");
        let reply = client.read_line();
        match category {
            Category::Hit => assert_eq!(reply, "OK true 999 60\n"),
            _ => assert_eq!(reply, "ERR unknown \"This user has no permission for requests of the category hit.\"\n"),
        }
    }
}

#[test]
fn users_with_a_scope_have_neither_metrics_nor_info_nor_backups_nor_other_users() {
    let guarded = Guarded::start(&line("all", "+@all ~label:*"), &["--open", "none"]);
    let mut client = guarded.resp("all");
    for command in ["INFO", "CLIENT LIST", "DBSIZE", "DIVVY.BACKUP x", "ACL LIST", "ACL GETUSER all"] {
        assert!(client.command(command).starts_with(NOPERM), "{command}");
    }
    assert_eq!(guarded.http("GET", "/metrics", Some("all")).status, 403);
    assert_eq!(client.command("ACL WHOAMI"), "all");
}

#[test]
fn open_parts_need_no_user() {
    let guarded = Guarded::start(&only(Category::Read), &["--open", "hit,line,grpc,check"]);
    let mut client = LineClient::connect(guarded.server.line);
    assert_eq!(client.hit("method=GET path=/status").1, 999);
    client.send(b"AUTH x\n");
    assert!(client.read_line().starts_with("ERR unknown-command"));
    assert_eq!(guarded.http("POST", "/v1/hit", None).status, 415);
    assert_eq!(guarded.http("POST", "/v1/hit", Some("read")).status, 415);
    assert!(![401, 403].contains(&guarded.http("GET", "/v1/check", None).status));
    for (method, path) in [("POST", "/v1/peek"), ("GET", "/v1/rules"), ("GET", "/metrics")] {
        assert_eq!(guarded.http(method, path, None).status, 401, "{path}");
    }
    let head = call(&guarded, Rpc::EnvoyShouldRateLimit.path(), None);
    assert!(head.starts_with("HTTP/2 200") && !head.contains("grpc-status: 7"), "{head}");
    assert!(RespClient::connect(guarded.server.resp).command("PING").starts_with("-NOAUTH"));
}
