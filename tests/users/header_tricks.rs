//! Requests that try to get rights by anything but one header `authorization`.

use super::{Guarded, basic, line, password};
use crate::support::Response;
use crate::support::http::request;

const EXAMPLE: &str = include_str!("../../config/example.ini");

fn guarded() -> Guarded {
    let users = line("app", "+@read ~*") + &line("ops", "+@all ~*");
    Guarded::with_rules(EXAMPLE, &users, &["--open", "none"])
}

/// Sends a request with these lines after the host.
fn ask(guarded: &Guarded, target: &str, lines: &str) -> Response {
    request(guarded.server.http, format!("GET {target} HTTP/1.1\r\nhost: divvy\r\nconnection: close\r\n{lines}\r\n"))
}

#[test]
fn only_one_plain_header_logs_in() {
    let guarded = guarded();
    let (right, basic) = (format!("Bearer {}", password("app")), basic("app"));
    for (lines, expected) in [
        (format!("authorization: {right}\r\n"), 200),
        (format!("AUTHORIZATION:{right}\r\n"), 200),
        (format!("authorization: bearer {}\r\n", password("app")), 200),
        (format!("authorization: {basic}\r\n"), 200),
        (format!("authorization : {right}\r\n"), 400),
        (format!("authorization:\r\n {right}\r\n"), 400),
        (format!(" authorization: {right}\r\n"), 400),
        (format!("authorization: {right}\0\r\n"), 400),
        (format!("authorization: {right}, {right}\r\n"), 401),
        (format!("authorization: {basic}, Basic eDp5\r\n"), 401),
        (format!("authorization: {right};\r\n"), 401),
        (format!("authorization: Bearer\t{}\r\n", password("app")), 401),
        (format!("authorization: {}\r\n", password("app")), 401),
        (format!("authorization: {right}\r\nAuthorization: {right}\r\n"), 401),
        (format!("authorization: {right}\r\nauthorization:\r\n"), 401),
        (format!("authorization:\r\nauthorization: {right}\r\n"), 401),
        (format!("authorization: {right}\r\nx: y\r\nAUTHORIZATION: {basic}\r\n"), 401),
        (format!("proxy-authorization: {right}\r\n"), 401),
        (format!("x-authorization: {right}\r\nx-original-authorization: {right}\r\n"), 401),
        (format!("cookie: authorization={right}\r\n"), 401),
        (format!("authorization_: {right}\r\n"), 401),
        ("x-forwarded-user: app\r\nremote-user: app\r\nx-remote-user: app\r\n".to_owned(), 401),
        ("x-forwarded-client-cert: Subject=\"CN=app\";DNS=app\r\nssl-client-cert: app\r\n".to_owned(), 401),
        ("x-forwarded-for: 127.0.0.1\r\nforwarded: for=127.0.0.1\r\n".to_owned(), 401),
        ("x-original-url: /healthz\r\nx-rewrite-url: /healthz\r\nx-forwarded-uri: /healthz\r\n".to_owned(), 401),
    ] {
        let response = ask(&guarded, "/v1/rules", &lines);
        assert_eq!(response.status, expected, "{lines}: {response:?}");
        assert_eq!(response.body.contains("get-status"), expected == 200, "{lines}: {response:?}");
    }
}

#[test]
fn other_spellings_of_a_path_are_not_served() {
    let guarded = guarded();
    let targets = "//v1/rules /v1//rules /v1/rules/ /v1/%72ules /v1%2frules /v1/./rules /healthz/../v1/rules \
                   /healthz/%2e%2e/v1/rules /healthz;/v1/rules /healthz%00/v1/rules /v1/rules%00 /v1/rules;x /V1/RULES \
                   /v1/rules?/healthz /v1/rules?authorization=app http://divvy/v1/rules http://app@divvy/v1/rules";
    for target in targets.split_whitespace() {
        let response = ask(&guarded, target, "");
        assert!([400, 401, 404].contains(&response.status), "{target}: {response:?}");
        assert!(!response.body.contains("get-status"), "{target}: {response:?}");
    }
}

/// A body that is not read becomes no request, and trailers are no headers.
#[test]
fn bodies_and_trailers_log_nobody_in() {
    let guarded = guarded();
    let hidden = format!("GET /v1/rules HTTP/1.1\r\nhost: x\r\nauthorization: {}\r\n\r\n", basic("app"));
    let chunked = format!("{:x}\r\n{hidden}\r\n0\r\nauthorization: {}\r\n\r\n", hidden.len(), basic("app"));
    for (lines, body, expected) in [
        ("transfer-encoding: chunked\r\n".to_owned(), chunked.clone(), 401),
        ("transfer-encoding: chunked\r\ntrailer: authorization\r\n".to_owned(), chunked.clone(), 401),
        (format!("content-length: {}\r\n", hidden.len()), hidden.clone(), 401),
        ("content-length: 0\r\ncontent-length: 5\r\n".to_owned(), hidden.clone(), 400),
        ("content-length: 0, 5\r\n".to_owned(), hidden.clone(), 400),
    ] {
        let response = ask(&guarded, "/v1/rules", &format!("{lines}\r\n{body}"));
        assert_eq!(response.status, expected, "{lines}: {response:?}");
        assert!(!response.body.contains("HTTP/1.1 200"), "{lines}: {response:?}");
    }
}
