//! `/v1/check`: no spelling of a request and no header of a client evades a limit.

use axum::http::Request;
use bytes::Bytes;
use serde_json::json;

use crate::support::http::{HttpClient, Response, encode};
use crate::support::log::Log;
use crate::support::{RulesFile, Server, divvy};
use crate::users::http2::Http2Client;

/// A limit for logins, and everything else.
const LOGIN: &str = "
[method=POST path=/login host=shop.example ip=*]
creditLimit = 1000
resetSeconds = 3600
actorField = ip
label = login

[default]
creditLimit = 1000
resetSeconds = 60
label = rest
";

const METHODS: [&str; 3] = ["POST", "post", "Post"];
const URIS: [&str; 20] = [
    "/login",
    "/login?next=/",
    "//login",
    "///login",
    "/%6cogin",
    "/%6Cogin",
    "/./login",
    "/x/../login",
    "/../login",
    "/x/%2e%2e/login",
    "/x/.%2E/login",
    "/%2e/login",
    "/login#top",
    "/login#1?x",
    "/log%69n?a#b",
    "https://shop.example/login",
    "http://SHOP.example:80/login?a=b",
    "/a//../../login",
    "/login/",
    "/login//.",
];
const HOSTS: [&str; 6] =
    ["shop.example", "SHOP.example", "shop.example:443", "shop.example:8080", "shop.example.", "Shop.Example.:80"];
const ADDRESSES: [&str; 6] = [
    "192.0.2.7",
    "192.0.2.7:4711",
    "::ffff:192.0.2.7",
    "[::FFFF:C000:207]:80",
    "::ffff:192.0.2.7%eth0",
    "64:ff9b::c000:207",
];

/// The request in question: method, URI, host and address.
const REQUEST: [&str; 4] = ["POST", "/login", "shop.example", "192.0.2.7"];
/// The headers of each family for these values.
const FAMILIES: [(&str, [&str; 4]); 2] = [
    ("original", ["X-Original-Method", "X-Original-URI", "X-Original-Host", "X-Forwarded-For"]),
    ("forwarded", ["X-Forwarded-Method", "X-Forwarded-Uri", "X-Forwarded-Host", "X-Forwarded-For"]),
];

fn served(rules: &RulesFile, flags: &[&str]) -> Server {
    Server::start(&[&[rules.path(), "--store", "memory"], flags].concat())
}

/// Returns the rule that answered and its remaining credit, or the status of a refusal.
fn standing(response: &Response) -> String {
    match response.header("ratelimit") {
        Some(text) => text.split(";t=").next().unwrap_or_default().replace('"', ""),
        None => response.status.to_string(),
    }
}

/// Returns the rule that answered, or the status of a refusal.
fn rule(response: &Response) -> String {
    standing(response).split(';').next().unwrap_or_default().to_owned()
}

#[test]
fn every_spelling_is_the_same_request() {
    let rules = RulesFile::ini(LOGIN);
    let spellings: [&[&str]; 4] = [&METHODS, &URIS, &HOSTS, &ADDRESSES];
    for (family, names) in FAMILIES {
        let server = served(&rules, &["--check-from", family, "--check-final-slash", "drop"]);
        let mut client = HttpClient::connect(server.http);
        let mut asked = 0;
        for (place, spellings) in spellings.into_iter().enumerate() {
            for spelling in spellings {
                let mut values = REQUEST;
                values[place] = spelling;
                asked += 1;
                let answer = client.get("/v1/check", &names.into_iter().zip(values).collect::<Vec<_>>());
                assert_eq!(standing(&answer), format!("login;r={}", 1_000 - asked), "{family}: {spelling}");
            }
        }
    }
}

#[test]
fn final_slash_counts_by_default() {
    let rules = RulesFile::ini(LOGIN);
    let server = served(&rules, &["--check-from", "original"]);
    let mut client = HttpClient::connect(server.http);
    let mut asked = |uri| {
        let values = [REQUEST[0], uri, REQUEST[2], REQUEST[3]];
        rule(&client.get("/v1/check", &FAMILIES[0].1.into_iter().zip(values).collect::<Vec<_>>()))
    };
    assert_eq!([asked("/login"), asked("//login"), asked("/login/")], ["login", "login", "rest"]);
}

#[test]
fn request_itself_has_one_spelling_and_its_headers_are_ignored() {
    let rules = RulesFile::ini(LOGIN);
    let server = served(&rules, &["--check-from", "envoy", "--check-final-slash", "drop"]);
    let mut client = HttpClient::connect(server.http);
    let mut asked = |target: &str, host: &str, more: &str| {
        let head = format!("POST {target} HTTP/1.1\r\nhost: {host}\r\nx-forwarded-for: 192.0.2.7\r\n");
        client.send(format!("{head}{more}content-length: 0\r\n\r\n").as_bytes());
        rule(&client.read_response())
    };
    let forged = "x-original-uri: /harmless\r\nx-forwarded-method: GET\r\nx-forwarded-host: other.example\r\n";
    for path in URIS.into_iter().filter(|uri| uri.starts_with('/') && !uri.contains('#')) {
        assert_eq!(asked(&format!("/v1/check{path}"), "shop.example", forged), "login", "{path}");
    }
    for host in HOSTS {
        assert_eq!(asked("/v1/check/login", host, forged), "login", "{host}");
    }
    assert_eq!(asked("http://SHOP.example/v1/check/login", "other.example", ""), "login", "the target's host counts");
    assert_eq!(asked("/v1/check/login", "other.example", ""), "rest");
    client.send(&encode("GET", "/v1/check", &[], b""));
    let plain = client.read_response();
    assert!(plain.status == 400 && plain.body.contains("expects the request itself"), "{}", plain.body);
}

#[test]
fn host_is_known_over_http_2() {
    let rules = RulesFile::ini(
        "[host=shop.example ip=*]\ncreditLimit = 0\nlabel = shop\n[default]\ncreditLimit = 1\nresetSeconds = 0\n",
    );
    for (operation, path) in [
        ("host=host ip=ip", "/v1/check/login"),
        ("host=header:Host ip=ip", "/v1/check/login"),
        ("host=header:host ip=ip", "/v1/check"),
    ] {
        let server = served(&rules, &["--check-operation", operation]);
        let client = Http2Client::connect(server.http);
        let ask = |authority: &str, host: Option<&str>| {
            let request = Request::get(format!("http://{authority}{path}")).header("x-forwarded-for", "192.0.2.7");
            let request = host.into_iter().fold(request, |request, host| request.header("host", host));
            let response = client.send(request.body(Bytes::new()).unwrap());
            (response.status, String::from_utf8(response.body).unwrap())
        };
        assert_eq!(ask("shop.example", None).0, 429, "{operation} {path}");
        assert_eq!(ask("shop.example", Some("shop.example")).0, 429, "{operation} {path}");
        assert_eq!(ask("other.example", None).0, 200, "{operation} {path}");
        let (status, detail) = ask("other.example", Some("shop.example"));
        assert_eq!((status, detail.contains(":authority and Host give a different host")), (400, true), "{detail}");
    }
}

#[test]
fn client_that_adds_another_description_evades_no_limit() {
    let rules = RulesFile::ini(LOGIN);
    let mut command = divvy();
    let log = Log::of(&mut command);
    let unnamed = Server::start_as(&mut command, &[rules.path(), "--store", "memory"]);
    let forgeries = [
        ("X-Original-URI", "/harmless"),
        ("X-Original-URI", ""),
        ("X-Original-URL", "https://shop.example/harmless"),
        ("X-Original-URL", "https://other.example/login"),
        ("X-Original-Method", "GET"),
        ("X-Original-Method", ""),
        ("X-Original-Host", "other.example"),
        ("X-Original-Host", "a, b"),
        ("X-Forwarded-Uri", "/harmless"),
        ("X-Forwarded-Uri", "http://other.example/login"),
        ("X-Forwarded-Uri", ""),
        ("X-Forwarded-Method", "GET"),
        ("X-Forwarded-Host", "other.example"),
        ("X-Real-IP", "198.51.100.9"),
    ];
    for (family, names) in FAMILIES {
        let named = served(&rules, &["--check-from", family]);
        let gateway: Vec<_> = names.into_iter().zip(REQUEST).collect();
        for forged in forgeries {
            // The client's header comes before and after the gateway's.
            for headers in [[&gateway[..], &[forged]].concat(), [&[forged], &gateway[..]].concat()] {
                let ask = |server: &Server| rule(&HttpClient::connect(server.http).get("/v1/check", &headers));
                let answers = [ask(&named), ask(&unnamed)];
                assert!(
                    answers.iter().all(|answer| ["login", "400"].contains(&answer.as_str())),
                    "{headers:?}: {answers:?}"
                );
                let is_of_other = !forged.0.to_lowercase().contains(family) && forged.0 != "X-Real-IP";
                assert!(!is_of_other || answers[0] == "login", "{family} ignores {forged:?}: {answers:?}");
            }
        }
        // A proxy appends the address of its client to the list.
        let listed = [&gateway[..3], &[("X-Forwarded-For", "198.51.100.9"), gateway[3]]].concat();
        assert_eq!(
            standing(&HttpClient::connect(named.http).get("/v1/check", &listed)).split(';').next(),
            Some("login")
        );
    }
    log.await_line(&["WARN", "refused a check of a gateway", "give a different"]);
}

#[test]
fn gateway_that_sets_only_real_ip_is_not_deceived_by_a_list() {
    let rules = RulesFile::ini(LOGIN);
    let server = served(&rules, &[]);
    let gateway = [&FAMILIES[0].1[..3], &["X-Real-IP"]].concat().into_iter().zip(REQUEST).collect::<Vec<_>>();
    let mut client = HttpClient::connect(server.http);
    assert_eq!(rule(&client.get("/v1/check", &gateway)), "login");
    let listed = [&gateway[..], &[("X-Forwarded-For", "198.51.100.9")]].concat();
    let refused = client.get("/v1/check", &listed);
    assert!(refused.body.contains("x-forwarded-for and x-real-ip give a different address"), "{}", refused.body);
}

#[test]
fn parameters_of_the_query_are_no_pairs_unless_they_are_named() {
    let rules = RulesFile::ini(
        "[plan=pro ip=*]\ncreditLimit = 1000\nper = 1h\nactorField = ip\ncostField = cost\nlabel = pro\n
        [ip=*]\ncreditLimit = 2\nper = 1h\nactorField = ip\ncostField = cost\nlabel = free\n[default]\ncreditLimit = 0\n",
    );
    let server = Server::in_memory(rules.path());
    let mut client = HttpClient::connect(server.http);
    for (query, status) in [("plan=pro", 200), ("cost=0", 200), ("plan=pro&cost=0", 429)] {
        let answer = client.get(&format!("/v1/check?{query}"), &[("X-Forwarded-For", "192.0.2.7")]);
        assert_eq!((answer.status, rule(&answer).as_str()), (status, "free"), "{query}");
    }
}

#[test]
fn rules_in_any_spelling_apply_to_checks_and_other_hits_are_compared_as_they_come() {
    let list = tempfile::tempdir().unwrap();
    std::fs::write(list.path().join("hosts"), "Listed.EXAMPLE:443\n").unwrap();
    let path = list.path().join("rules.ini");
    let limit = "creditLimit = 1000\nper = 1h";
    let text = format!(
        "[method=post path=//Caf\u{e9}/./x host=Shop.EXAMPLE.:443 ip=::ffff:192.0.2.7]\n{limit}\nlabel = odd\n
        [path=/admin/* host=shop.example]\n{limit}\nlabel = admin\n
        [host=*]\nlist = host: hosts\n{limit}\nlabel = listed\n
        [default]\n{limit}\nlabel = rest\n",
    );
    std::fs::write(&path, text).unwrap();
    let flags = ["--store", "memory", "--check-final-slash", "drop"];
    let server = Server::start(&[&[path.to_str().unwrap()], &flags[..]].concat());
    let mut client = HttpClient::connect(server.http);
    let mut asked = |uri: &str, host: &str| {
        let values = ["POST", uri, host, "192.0.2.7"];
        rule(&client.get("/v1/check", &FAMILIES[0].1.into_iter().zip(values).collect::<Vec<_>>()))
    };
    for (uri, host, expected) in [
        ("/Caf%c3%a9/x", "shop.example", "odd"),
        ("/Caf%C3%A9//x/", "shop.example", "odd"),
        ("/caf%c3%a9/x", "shop.example", "rest"),
        ("/admin/", "shop.example", "admin"),
        ("/admin", "shop.example", "admin"),
        ("/admin/users", "SHOP.example", "admin"),
        ("/administrators", "shop.example", "rest"),
        ("/", "listed.example.", "listed"),
    ] {
        assert_eq!(asked(uri, host), expected, "{uri} {host}");
    }
    let hit = |operation: serde_json::Value| {
        let body = json!({ "operation": operation }).to_string();
        HttpClient::connect(server.http).post("/v1/hit", &body).json()["rule"].clone()
    };
    let odd =
        json!({"method": "post", "path": "//Caf\u{e9}/./x", "host": "Shop.EXAMPLE.:443", "ip": "::ffff:192.0.2.7"});
    assert_eq!(hit(odd), "odd");
    assert_eq!(hit(json!({"path": "/admin", "host": "shop.example"})), "rest");
}

#[test]
fn pattern_that_no_check_has_is_an_error_with_its_line() {
    for (header, told) in [
        ("host=https://shop.example/", "host=https://shop.example/ matches no check: it is not the name of a host"),
        ("ip=10.0.0.0/8", "ip=10.0.0.0/8 matches no check: it is a network"),
    ] {
        let rules = RulesFile::ini(&format!("\n[{header}]\ncreditLimit = 1\nper = 1h\n[default]\ncreditLimit = 0\n"));
        for command in ["check", "serve"] {
            let output = divvy().args([command, rules.path()]).output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && error.contains(told) && error.contains(":2:"), "{command}: {error}");
        }
    }
}

/// Traefik and Caddy may be configured with a final slash.
#[test]
fn headers_that_describe_another_request_than_the_path_are_refused() {
    let rules = RulesFile::ini(LOGIN);
    let gateway: Vec<_> = FAMILIES[1].1.into_iter().zip(REQUEST).collect();
    let (unnamed, envoy) = (served(&rules, &[]), served(&rules, &["--check-from", "envoy"]));
    for path in ["/v1/check/", "/v1/check//", "/v1/check/x", "/v1/check/?a"] {
        let refused = HttpClient::connect(unnamed.http).get(path, &gateway);
        assert!(refused.status == 400 && refused.body.contains("x-forwarded-"), "{path}: {}", refused.body);
        assert_eq!(rule(&HttpClient::connect(envoy.http).get(path, &gateway)), "rest", "{path}");
    }
}

#[test]
fn uri_below_a_directory_includes_the_directory_without_its_slash() {
    let rules = RulesFile::ini(
        "[uri=\"/admin/*\"]\ncreditLimit = 0\nlabel = admin\n[default]\ncreditLimit = 9\nper = 1h\nlabel = rest\n",
    );
    let server =
        served(&rules, &["--check-from", "original", "--check-operation", "uri=uri", "--check-final-slash", "drop"]);
    let mut client = HttpClient::connect(server.http);
    for (uri, status) in [
        ("/admin/", 429),
        ("/admin/?x=1", 429),
        ("/admin", 429),
        ("/admin?x", 429),
        ("/admin/x", 429),
        ("/administrators", 200),
    ] {
        assert_eq!(client.get("/v1/check", &[("X-Original-URI", uri)]).status, status, "{uri}");
    }
}

#[test]
fn pairs_without_effect_are_errors_at_the_start() {
    let rules = RulesFile::ini(LOGIN);
    for (flags, told) in [
        (["--check-operation", "ip=ip +path=path"].as_slice(), "write the `+` before the first pair"),
        (&["--check-operation", ""], "it names no pair"),
        (&["--check-operation", "+ plan=query:plan", "--check-from", "envoy"], "the pair plan never has a value"),
    ] {
        let output = divvy().args([&["serve", rules.path(), "--store", "memory"], flags].concat()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(told), "{flags:?}: {error}");
    }
}

/// A block in another spelling would be listed without an effect.
#[test]
fn block_in_any_spelling_applies_to_checks() {
    let rules = RulesFile::ini(LOGIN);
    let server = served(&rules, &["--check-from", "original", "--check-final-slash", "drop"]);
    let (mut client, json) = (HttpClient::connect(server.http), [("content-type", "application/json")]);
    let names = FAMILIES[0].1;
    for (rule, actor) in [
        ("login", "::ffff:192.0.2.7"),
        ("login", "192.0.2.7:80"),
        ("*", "host=SHOP.example:443"),
        ("*", "path=//login/"),
        ("*", "method=post"),
        ("*", "ip=192.0.2.0/24"),
    ] {
        let target = format!("/v1/blocks?rule={rule}&actor={}", actor.replace('/', "%2F").replace('=', "%3D"));
        client.send(&encode("PUT", &target, &json, b"{}"));
        let set = client.read_response();
        assert!((200..300).contains(&set.status), "{actor}: {}", set.body);
        assert_eq!(client.get("/v1/check", &names.into_iter().zip(REQUEST).collect::<Vec<_>>()).status, 429, "{actor}");
        client.send(&encode("DELETE", &target, &[], b""));
        assert!((200..300).contains(&client.read_response().status), "{actor}");
        assert_eq!(client.get("/v1/check", &names.into_iter().zip(REQUEST).collect::<Vec<_>>()).status, 200, "{actor}");
    }
}

#[test]
fn checks_of_one_request_count_once() {
    let rules = RulesFile::ini(
        "[ip=*]\ncreditLimit = 100\nper = 1h\nactorField = ip\nlabel = by-ip\n[default]\ncreditLimit = 0\n",
    );
    let server = served(&rules, &["--check-from", "original", "--check-id", "header:X-Request-Id"]);
    let mut client = HttpClient::connect(server.http);
    let mut left = |uri: &str, ip: &str, id: Option<&str>| {
        let described = [("X-Original-Method", "GET"), ("X-Original-URI", uri), ("X-Forwarded-For", ip)];
        let id = id.map(|id| ("X-Request-Id", id));
        standing(&client.get("/v1/check", &described.into_iter().chain(id).collect::<Vec<_>>()))
    };
    let of_first = "192.0.2.1";
    assert_eq!(left("/a", of_first, Some("one")), "by-ip;r=99");
    assert_eq!(left("/a", of_first, Some("one")), "by-ip;r=99", "the same request");
    assert_eq!(left("//a", of_first, Some("one")), "by-ip;r=99", "the same request in another spelling");
    assert_eq!(left("/b", of_first, Some("one")), "by-ip;r=98", "another operation");
    assert_eq!(left("/a", "192.0.2.2", Some("one")), "by-ip;r=99", "another client with this ID");
    assert_eq!(left("/a", of_first, Some("other")), "by-ip;r=97");
    assert_eq!([left("/a", of_first, None), left("/a", of_first, None)], ["by-ip;r=96", "by-ip;r=95"]);
    assert_eq!(left("/a", of_first, Some(&"x".repeat(201))), "400");
    let twice = [("X-Forwarded-For", of_first), ("X-Request-Id", "one"), ("X-Request-Id", "two")];
    assert_eq!(client.get("/v1/check", &twice).status, 400);
}
