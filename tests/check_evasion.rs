//! `/v1/check`: no spelling of a request and no header of a client evades a limit.

use bytes::Bytes;
use hyper::Request;

use crate::support::http2::Http2Client;
use crate::support::{Response, RulesFile, Server};

/// A limit for logins, and everything else.
const LOGIN: &str = "
[method=POST path=/login host=shop.example ip=*] creditLimit=1000 resetSeconds=3600 actorField=ip label=login
[default] creditLimit=1000 resetSeconds=60 label=rest
";

/// The request in question: method, URI, host and address.
const REQUEST: [&str; 4] = ["POST", "/login", "shop.example", "192.0.2.7"];
/// The headers of each family for these values.
const FAMILIES: [(&str, [&str; 4]); 2] = [
    ("original", ["X-Original-Method", "X-Original-URI", "X-Original-Host", "X-Forwarded-For"]),
    ("forwarded", ["X-Forwarded-Method", "X-Forwarded-Uri", "X-Forwarded-Host", "X-Forwarded-For"]),
];

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
fn host_is_known_over_http_2() {
    let rules = "[host=shop.example ip=*] creditLimit=0 label=shop\n[default] creditLimit=1 resetSeconds=0";
    for (operation, path) in [
        ("host=host ip=ip", "/v1/check/login"),
        ("host=header:Host ip=ip", "/v1/check/login"),
        ("host=header:host ip=ip", "/v1/check"),
    ] {
        let server = Server::serving(rules, &["--check-operation", operation]);
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
    let (unnamed, log) = Server::logged(&[rules.path(), "--store", "memory"]);
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
        let named = Server::serving(LOGIN, &["--check-from", family]);
        let gateway: Vec<_> = names.into_iter().zip(REQUEST).collect();
        for forged in forgeries {
            // The client's header comes before and after the gateway's.
            for headers in [[&gateway[..], &[forged]].concat(), [&[forged], &gateway[..]].concat()] {
                let ask = |server: &Server| rule(&server.http().get("/v1/check", &headers));
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
        assert_eq!(standing(&named.http().get("/v1/check", &listed)).split(';').next(), Some("login"));
    }
    log.await_line(&["WARN", "refused a check of a gateway", "give a different"]);
}
