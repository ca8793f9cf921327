//! Mistakes in requests to a running server.

use super::check;
use crate::support::http::{self, HttpClient};
use crate::support::{LineClient, RespClient, RulesFile, Server};

const RULES: &str = "[user=* path=*]\ncreditLimit = 5\nper = 1m\nactorField = user, path\nlabel = by-pair\n\n\
    [api=export]\ncreditLimit = 2\nper = 1m\nalgorithm = concurrency\nlabel = export\n\n\
    [api=upload]\ncreditLimit = 9\nper = 1m\ncostField = bytes\n\n\
    [default]\ncreditLimit = 5\nper = 1h\n";

/// A command and the text that helps.
const RESP: &[(&str, &str)] = &[
    ("HIT a=1", "(did you mean DIVVY.HIT?)"),
    ("RESERVE a=1", "(did you mean DIVVY.RESERVE?)"),
    ("DIVVY.HITS a=1", "(did you mean DIVVY.HIT?)"),
    ("DIVVY.COUNTER default", "(did you mean DIVVY.COUNTERS?)"),
    ("DIVVY.HIT search", "expected key=value, got 'search'"),
    ("DIVVY.HIT a=1 COST x", "COST is 'x', but must be a whole number from 0"),
    ("DIVVY.HIT COST 5 a=1", "COST comes once, after all pairs"),
    ("DIVVY.HIT api=upload bytes=many", "the field 'bytes' is the cost of the hit and must be a whole number"),
    ("DIVVY.HIT api=export", "take a lease with DIVVY.RESERVE and AMOUNT 1, and release it"),
    ("DIVVY.RESERVE a=1 b=2 c=3", "DIVVY.RESERVE needs AMOUNT n after all pairs"),
    ("DIVVY.RESERVE a=1 AMOUNT 0 TTL 5", "must be a whole number from 1"),
    ("DIVVY.RESERVE a=1 AMOUNT 1", "needs a time (TTL)"),
    ("DIVVY.RESERVE a=1 AMOUNT 1 TTL 100000", "exceeds the maximum of 600 s (--max-reservation-ttl)"),
    ("DIVVY.RESERVE a=1 AMOUNT 1 TIMEOUT 5", "takes key=value pairs, then AMOUNT, and TTL and ID if wanted"),
    ("DIVVY.COMMIT mine COST 1", "unknown reservation id; send the one in the reservation's answer"),
    ("DIVVY.RELEASE mine", "unknown reservation id; send the one in the reservation's answer"),
    ("DIVVY.COUNTERS none", "no rule is called 'none' (DIVVY.RULES lists them)"),
    ("DIVVY.COUNTERS by-pair ACTOR ann", "write the actor as 'user=… path=…'"),
    ("DIVVY.LIMIT SET by-pair ann 5", "write the actor as 'user=… path=…'"),
    ("DIVVY.LIMIT SET by-pair ann x", "credits is 'x', but must be a whole number from 0 to"),
    ("DIVVY.LIMIT SET by-pair ann 5 EX -1", "EX is '-1', but must be a whole number of seconds from 1 to"),
    ("DIVVY.COUNTERS by-pair COUNT 0", "COUNT is '0', but must be a whole number from 1 to"),
    ("DIVVY.BACKUP monday", "the memory store keeps nothing on this server's disk"),
];

/// A method, a path, a body, and the text that helps, in the head or the body of the response.
const HTTP: &[(&str, &str, &str, &str)] = &[
    ("GET", "/v1/hit", "", "/v1/hit does not accept GET"),
    ("POST", "/v2/hit", "{}", "/v2/hit does not exist; /openapi.json describes the API"),
    ("POST", "/v1/hit", "{}", "missing field `operation`"),
    ("POST", "/v1/hit", "{\"path\": \"/a\"}", "unknown field `path`, expected `operation` or `cost`"),
    ("POST", "/v1/hit", "user=ann", "expected a value at line 1 column 1"),
    ("POST", "/v1/hit", "", "the body is empty"),
    ("POST", "/v1/hit", "\u{feff}{}", "the body begins with a byte order mark: send it without one"),
    ("POST", "/v1/hit", "[{\"a\": \"1\"}]", "expected an object, got a list"),
    ("POST", "/v1/hits", "{\"hits\": {}}", "expected a list, got an object"),
    ("POST", "/v1/hit", "{\"operation\": {\"a\": []}}", "expected a string, a number or a boolean"),
    ("POST", "/v1/hit", "{\"operation\": {\"a\": \"1\"}, \"cost\": -1}", "\"#/cost\""),
    ("GET", "/v1/counters", "", "the query's parameter 'rule' is missing: add ?rule=VALUE to the URL"),
    (
        "GET",
        "/v1/counters?label=by-pair",
        "",
        "unknown parameter 'label', expected 'rule', 'actor', 'cursor' or 'count'",
    ),
    ("GET", "/v1/counters?rule=none", "", "no rule is called 'none' (GET /v1/rules lists them)"),
    ("GET", "/v1/counters?rule=by-pair&actor=ann", "", "write the actor as 'user=… path=…'"),
    ("GET", "/v1/counters?rule=by-pair&count=0", "", "count is '0', but must be a whole number from 1 to 1000"),
    ("GET", "/v1/counters?rule=by-pair&count=x", "", "count is 'x', but must be a whole number from 1 to 1000"),
    ("GET", "/v1/counters?rule=a&rule=b", "", "the query's parameter 'rule' is given twice"),
    (
        "POST",
        "/v1/reservations",
        "{\"operation\": {\"a\": \"1\"}, \"amount\": 1, \"ttl\": 100000}",
        "exceeds the maximum of 600 s (--max-reservation-ttl)",
    ),
    ("POST", "/v1/reservations/mine/commit", "{\"used\": 1}", "unknown reservation id; send the one in"),
];

/// A line and the text that helps. Button's Divvy has the same texts.
const LINE: &[(&str, &str)] = &[
    ("STATUS", "ERR unknown-command \"Unrecognized command: STATUS\""),
    ("HIT search", "ERR unknown \"Unexpected end of input string.\""),
    ("HIT \"a=1", "ERR unknown \"Unexpected end of quoted string.\""),
    ("HIT a=1=2", "ERR unknown \"Expected whitespace, found '='\""),
];

#[test]
fn each_mistaken_request_is_explained() {
    let rules = RulesFile::ini(RULES);
    let server = Server::in_memory(rules.path());
    let mut resp = RespClient::connect(server.resp);
    check(RESP.iter().map(|(words, expected)| ((*words).to_owned(), *expected, resp.command(words))).collect());
    let mut line = LineClient::connect(server.line);
    let lines = LINE.iter().map(|(text, expected)| {
        line.send(format!("{text}\n").as_bytes());
        ((*text).to_owned(), *expected, line.read_line())
    });
    check(lines.collect());
    let mut client = HttpClient::connect(server.http);
    let requests = HTTP.iter().map(|(method, path, body, expected)| {
        client.send(&http::encode(method, path, &[("content-type", "application/json")], body.as_bytes()));
        (format!("{method} {path} {body}"), *expected, client.read_response().body)
    });
    check(requests.collect());
}

#[test]
fn grpc_client_on_the_http_port_learns_which_port_it_is() {
    let server = Server::in_memory(crate::support::COMPAT_RULES);
    let mut client = HttpClient::connect(server.http);
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    client.send(&http::encode("POST", path, &[("content-type", "application/grpc")], b""));
    let response = client.read_response();
    assert_eq!(response.header("grpc-status"), Some("12"), "{response:?}");
    let message = response.header("grpc-message").unwrap().replace("%20", " ");
    assert!(message.starts_with("this is divvy's HTTP port: gRPC has a port of its own"), "{message}");
}
