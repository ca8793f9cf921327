//! A table of mistakes, each with a text that helps: in rules, on command lines, in the environment, and at ports of other
//! protocols. Those in requests are in tests/wire/http_answers.txt. Mistakes that a parser finds alone are in the tests of the crates.

use std::io::{Read, Write};

use divvy::config::{Format, parse};

#[cfg(feature = "rocksdb")]
use crate::support::Place;
use crate::support::http::encode;
use crate::support::{COMPAT_RULES, RulesFile, Server, connect, divvy_with, output};

/// A mistake, a part of the text that helps, and the whole text.
type Explained = (String, &'static str, String);

/// Panics with every mistake whose text does not help.
fn check(texts: impl IntoIterator<Item = Explained>) {
    let bad = texts.into_iter().filter(|(_, expected, text)| !text.contains(expected));
    let bad: String =
        bad.map(|(mistake, expected, text)| format!("\n{mistake}\n  lacks {expected:?}:\n  {text}")).collect();
    assert!(bad.is_empty(), "{bad}");
}

/// Rules, which a default rule follows, and the text that helps. `LIMIT` stands for two settings.
const INI: &[(&str, &str)] = &[
    ("[a=b=c]\nLIMIT", "put values with spaces or `=` in double quotes"),
    (
        "[kind=\"weekly digest]\nLIMIT",
        "the section header [kind=\"weekly digest] does not end with a `]`; close it and its quotes",
    ),
    ("[a=b] c=d\nLIMIT", "the section header [a=b] c=d does not end with a `]`"),
    ("[api=search, user=x]\nLIMIT", "the value \"search,\" of api ends with a comma"),
    ("[]\nLIMIT", "the section header is empty"),
    ("[path=/a#top]\nLIMIT", "write `\\;` or `\\#` for the character itself"),
    (
        "[path=/api/[0-9]+]\nLIMIT",
        "looks like a regular expression or a route of another program; in a rule, `*` stands for any text",
    ),
    ("[path=/users/{id}]\nLIMIT", "looks like a regular expression or a route"),
    ("[a=1]\nLIMIT\npriority = 5", "remove it: a rule has creditLimit, limit, resetSeconds,"),
    ("[a=1]\ncreditLimit = 1\nresetSeconds = 1m", "or in `per` with a unit"),
    (
        "[a=1]\ncreditLimit = 1\nper = 31d\nalgorithm = concurrency",
        "`per` is 2678400 s, but a lease lasts for whole seconds, from 1 to 2592000",
    ),
    ("[tenant=* key=*]\nLIMIT", "add `actorField = tenant, key`"),
    ("[a=* b=*]\nLIMIT\nactorField = a,,b", "contains an empty field name"),
    ("[a=*]\nLIMIT\nactorField = a\nholdField = a", "set `algorithm = concurrency`"),
    ("[a=1]\nLIMIT\noverrun = allow", "write `refuse`, `debt`, `count` or `annotate`"),
    (
        "[a=1]\nLIMIT\nmatchPolicy = and\n[a=1]\ncreditLimit = 5\nper = 1h\nmatchPolicy = and",
        "write `matchPolicy = stop` in the last rule that must allow the request, or give [default] a limit",
    ),
];

/// A whole JSON file, and the text that helps.
const JSON: &[(&str, &str)] = &[
    ("{\"rules\": []}", "write the rules in \"overrides\" and \"default\""),
    ("{\"overrides\": {}}", "write the rules as [{…}, {…}]"),
];

fn report(text: &str, format: Format) -> String {
    let (errors, warnings) = match parse(text, format, "rules") {
        Ok(loaded) => (Vec::new(), loaded.warnings),
        Err(report) => (report.errors, report.warnings),
    };
    errors.iter().chain(&warnings).map(|problem| format!("{problem}\n")).collect()
}

fn ini(rules: &str) -> String {
    let rules = rules.replace("LIMIT", "creditLimit = 1\nper = 1m");
    report(&format!("{rules}\n[default]\ncreditLimit = 0\n"), Format::Ini)
}

#[test]
fn each_mistake_in_rules_is_explained() {
    check(INI.iter().map(|(rules, expected)| ((*rules).to_owned(), *expected, ini(rules))));
    check(JSON.iter().map(|(text, expected)| ((*text).to_owned(), *expected, report(text, Format::Json))));
    for (rules, _) in INI {
        let report = ini(rules);
        assert!(!report.contains("end of input") && !report.contains(".;"), "parser internals: {report}");
    }
    assert_eq!(ini("[a=1]\ncreditlimit = 1\nper = 1m").lines().count(), 1, "a misspelled key is one error");
}

#[test]
fn reasonable_rules_have_no_warning() {
    for rules in [
        // One counter is meant.
        "[user=*]\nLIMIT\nactorField =",
        // A total for all users, next to the limit of each.
        "[user=*]\nLIMIT\nactorField = user\nmatchPolicy = and\n[user=*]\ncreditLimit = 100\nper = 1m",
        // The field is the cost.
        "[api=upload bytes=*]\ncreditLimit = 100\nper = 1m\ncostField = bytes",
        // Nothing is counted.
        "[user=*]\ncreditLimit = 0",
        "[user=*]\ncreditLimit = 1\nresetSeconds = 0",
        "[path=/api/*]\nLIMIT",
        // The limit on the login comes first.
        "[path=/login ip=*]\ncreditLimit = 5\nper = 15m\nactorField = ip\n\
         [api-key=*]\ncreditLimit = 9\nper = 1m\nactorField = api-key",
        // The limit on the login must allow, too.
        "[api-key=*]\ncreditLimit = 9\nper = 1m\nactorField = api-key\nmatchPolicy = and\n\
         [path=/login ip=*]\ncreditLimit = 5\nper = 15m\nactorField = ip\n\
         [api-key=*]\ncreditLimit = 5\nper = 1h\nactorField =",
    ] {
        assert_eq!(ini(rules), "", "{rules}");
    }
}

/// A command line whose words have no spaces, and the text that helps. `{resp}`, `{line}`, `{http}` and `{grpc}` are a server's
/// addresses, `{locked}` is that of one with a password. `{rules}` is a rules file, `{dir}` a directory.
const LINES: &[(&str, &str)] = &[
    ("serve --resp-listen :9049", "write 127.0.0.1:9049 for clients on this machine, or 0.0.0.0:9049 for all"),
    (
        "serve --store memory --listen none --resp-listen none --http-listen none --grpc-listen none",
        "every listen address is `none`",
    ),
    (
        "serve --store memory --listen {line}",
        "it is in use: is another divvy running? Stop it, or choose another address with --listen",
    ),
    (
        "serve --store memory --listen none --resp-listen none --grpc-listen none --http-listen 127.0.0.1:0,{http}",
        "it is in use: is another divvy running? Stop it, or choose another address with --http-listen",
    ),
    (
        "serve --store memory --listen none --resp-listen none --grpc-listen none --http-listen 127.0.0.1:0,none",
        "--http-listen has `none` and an address",
    ),
    ("convert {rules} {dir}/rules.txt", "name it *.ini or *.json"),
    ("convert {rules} {rules}", "add --force to overwrite it"),
    ("hit --server redis://localhost a=1", "must be the address of HTTP: HOST:PORT, http://"),
    ("hit --addr 127.0.0.1:1 a=1", "--addr names another address"),
    ("serve --store memory --requirepass x --open none,hit", "--open none opens nothing"),
    ("serve --store memory --check-id header:X-Request-Id", "--check-from"),
    ("serve --store memory --tls-cert /nosuch --tls-key /nosuch", "cannot read /nosuch (--tls-cert)"),
    (
        "hit --server {resp} a=1",
        "this is divvy's RESP port: HTTP has a port of its own (--http-listen, 8322 by default)",
    ),
    ("hit --addr {http} a=1", "this is divvy's HTTP port: the line protocol has a port of its own (--listen, 8321"),
    ("hit --addr {resp} a=1", "{resp} answered over RESP: use the line protocol's port (8321 by default), or --server"),
    ("hit --addr {resp} --password x a=1", "answered over RESP: use the line protocol's port"),
    ("hit --server {locked} a=1", "): set DIVVY_PASSWORD or --password"),
    ("hit --server {locked} --password wrong a=1", "requires a password ("),
    ("counters --server {http} --rule none", "no rule is called 'none' (GET /v1/rules lists them)"),
    ("counters --server {http} --rule by-pair --actor ann", "write the actor as 'user=… path=…'"),
    ("counters --server {http} --rule total --actor ann", "has one counter for all: the actor must be empty"),
    ("backup --server {locked} --password secret monday", "the memory store keeps nothing on this server's disk"),
];

/// A variable, its value, and the text that helps.
const VARIABLES: &[(&str, &str, &str)] = &[
    ("DIVVY_DURABILTY", "sync", "did you mean DIVVY_DURABILITY?"),
    ("DIVVY_QQQ", "1", "see `divvy help`"),
    ("PORT", "http", "PORT is \"http\", but must be a port number from 0 to 65535\n"),
];

const RULES: &str = "
[user=* path=*] creditLimit=5 per=1m actorField=user,path label=by-pair
[user=*] creditLimit=5 per=1m actorField=user label=by-user
[api=total] creditLimit=5 per=1m label=total
[api=export] creditLimit=2 per=1m algorithm=concurrency label=export
[api=upload] creditLimit=9 per=1m costField=bytes
[default] creditLimit=0
";

/// Runs the program. Returns what it printed; it must fail.
fn failed(line: &str, variables: &[(&str, &str)]) -> String {
    let (code, out, error) = output(divvy_with(line).envs(variables.iter().copied()));
    if code == 0 { format!("no failure: {out}{error}") } else { out + &error }
}

#[test]
fn each_mistake_on_a_command_line_is_explained() {
    let rules = RulesFile::ini(RULES);
    let dir = tempfile::tempdir().unwrap();
    let server = Server::in_memory(rules.path());
    let locked = Server::start(&[rules.path(), "--store", "memory", "--requirepass", "secret"]);
    let texts = LINES.iter().map(|(line, expected)| {
        let filled = [
            ("{resp}", server.resp.to_string()),
            ("{line}", server.line.to_string()),
            ("{http}", server.http.to_string()),
            ("{grpc}", server.grpc.to_string()),
            ("{locked}", locked.http.to_string()),
            ("{rules}", rules.path().to_owned()),
            ("{dir}", dir.path().display().to_string()),
        ]
        .iter()
        .fold((*line).to_owned(), |line, (name, value)| line.replace(name, value));
        // The text may name an address, too.
        let text = failed(&filled, &[]).replace(&server.resp.to_string(), "{resp}");
        ((*line).to_owned(), *expected, text)
    });
    check(texts);
}

#[test]
fn each_mistake_in_the_environment_is_explained() {
    // The server ends immediately, because no client could reach it.
    let line = "serve --store memory --resp-listen none --http-listen none --grpc-listen none --listen none";
    let texts = VARIABLES.iter().map(|(name, value, expected)| {
        let line = if *name == "PORT" { line.trim_end_matches(" --listen none") } else { line };
        (format!("{name}={value}"), *expected, failed(line, &[(name, value)]))
    });
    check(texts);
}

#[cfg(feature = "rocksdb")]
#[test]
fn each_mistaken_data_directory_is_explained() {
    let place = Place::with("", &[("file", "mine")]);
    let nowhere = "serve --listen 127.0.0.1:0 --resp-listen none --http-listen none --grpc-listen none --data-dir";
    let texts = [
        (place.path("file"), "Not a directory"),
        (place.path("mistyped/data"), "No such file or directory (os error 2); make it writable"),
        ("/proc/divvy".to_owned(), "cannot open the data directory /proc/divvy"),
        (place.path(""), "choose an empty or new directory with --data-dir"),
    ];
    check(texts.map(|(data, expected)| (data.clone(), expected, failed(&format!("{nowhere} {data}"), &[]))));
    assert!(!place.dir().join("mistyped").exists());
}

#[cfg(feature = "rocksdb")]
#[test]
fn created_data_directory_is_a_warning() {
    let place = Place::compat();
    let start = || {
        let (server, log) = place.logged_on_disk(&[]);
        server.terminate();
        log.text()
    };
    let first = start();
    let is_warning =
        |line: &str| line.contains("WARN") && line.contains("the data directory did not exist: created it");
    assert!(first.lines().any(is_warning), "{first}");
    let second = start();
    assert!(!second.contains("did not exist"), "{second}");
}

#[test]
fn grpc_on_the_port_of_http_learns_which_port_it_is() {
    let server = Server::in_memory(COMPAT_RULES);
    let mut client = server.http();
    let call = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    client.send(&encode("POST", call, &[("content-type", "application/grpc")], b""));
    let response = client.read_response();
    assert_eq!(response.header("grpc-status"), Some("12"), "{response:?}");
    let message = response.header("grpc-message").unwrap().replace("%20", " ");
    assert!(message.starts_with("this is divvy's HTTP port: gRPC has a port of its own"), "{message}");
}

const GET: &[u8] = b"GET /v1/rules HTTP/1.1\r\nhost: divvy\r\n\r\n";
const HTTP_2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
const HIT: &[u8] = b"HIT path=/a\n";
const TLS: &[u8] = b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03";

/// The port, the first bytes of a client of another protocol, or with TLS, and the answer in its own protocol.
const PORTS: &[(&str, &[u8], &str)] = &[
    ("line", GET, "this is divvy's line protocol port: HTTP has a port of its own (--http-listen, 8322 by default)"),
    (
        "line",
        PING,
        "-ERR this is divvy's line protocol port: RESP has a port of its own (--resp-listen, 9049 by default)",
    ),
    ("line", HTTP_2, "this is divvy's line protocol port: gRPC has a port of its own (--grpc-listen, 8323 by default)"),
    ("line", TLS, "this port does not speak TLS"),
    ("resp", GET, "this is divvy's RESP port: HTTP has a port of its own"),
    ("resp", TLS, "this port does not speak TLS"),
    ("http", PING, "-ERR this is divvy's HTTP port: RESP has a port of its own"),
    ("http", HIT, "ERR unknown \"this is divvy's HTTP port: the line protocol has a port of its own (--listen, 8321"),
    ("http", TLS, "this port does not speak TLS: use http:"),
    ("grpc", GET, "this is divvy's gRPC port: HTTP has a port of its own"),
    ("grpc", PING, "-ERR this is divvy's gRPC port: RESP has a port of its own (--resp-listen, 9049 by default)"),
    ("grpc", HIT, "ERR unknown \"this is divvy's gRPC port"),
    ("grpc", TLS, "this port does not speak TLS"),
];

#[test]
fn client_on_the_wrong_port_learns_which_port_it_is() {
    let (server, log) = Server::logged(&[COMPAT_RULES, "--store", "memory"]);
    let texts = PORTS.iter().map(|(port, first, expected)| {
        let address = match *port {
            "line" => server.line,
            "resp" => server.resp,
            "http" => server.http,
            _ => server.grpc,
        };
        let mut stream = connect(address);
        stream.write_all(first).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        (format!("{} on the {port} port", first.escape_ascii()), *expected, answer)
    });
    check(texts);
    log.await_line(&["a client speaks the protocol of another port", "front=\"resp\"", "peer=127.0.0.1:"]);
    log.await_line(&["TLS on a plaintext port", "front=\"grpc\"", "peer=127.0.0.1:"]);
}
