//! Mistakes on command lines and in the environment.
//!
//! Placeholders: `{resp}`, `{line}`, `{http}` and `{grpc}` are a server's addresses, `{locked}` and `{locked-line}`
//! those of one with a password. `{rules}` is a rules file, and `{dir}` an empty directory.

use std::process::Output;

use super::check;
#[cfg(feature = "rocksdb")]
use crate::support::log::Log;
use crate::support::{RulesFile, Server, divvy};

/// A command line whose words have no spaces, and the text that helps.
const LINES: &[(&str, &str)] = &[
    // Flags and values of `divvy serve`.
    ("serve --port 80", "--listen (line protocol), --resp-listen, --http-listen and --grpc-listen"),
    ("serve -p 80", "--http-listen 0.0.0.0:8322"),
    ("serve --config rules.ini", "the rules file is an argument without a flag: divvy serve rules.ini"),
    ("serve --password secret", "write --requirepass PASSWORD"),
    ("serve --redis localhost", "write --redis-url redis://HOST:PORT"),
    ("serve --http-listem none", "'--http-listen'"),
    ("serve --resp-listen :9049", "write 127.0.0.1:9049 for clients on this machine, or 0.0.0.0:9049 for all"),
    ("serve --http-listen 8322", "write 127.0.0.1:8322 for clients on this machine"),
    ("serve --listen localhost", "expected HOST:PORT"),
    ("serve --grpc-listen http://localhost:8323", "expected HOST:PORT"),
    ("serve --store disk", "possible values: rocksdb, redis, memory"),
    ("serve --threads many", "--threads"),
    ("serve --store memory --data-dir {dir}", "--data-dir (or its DIVVY_ variable) is for the rocksdb store"),
    ("serve --store memory --redis-url redis://localhost", "leave it out, or choose --store redis"),
    (
        "serve --store memory --listen none --resp-listen none --http-listen none --grpc-listen none",
        "every listen address is `none`",
    ),
    (
        "serve --store memory --listen {line}",
        "it is in use: is another divvy running? Stop it, or choose another address with --listen",
    ),
    ("serve --tls-cert {dir}/cert.pem", "--tls-key"),
    ("serve {dir}/none.ini --store memory", "check its path and its permissions"),
    ("serve {dir}/rules.txt --store memory", "name the file *.ini or *.json"),
    ("serve {dir}/rules.yaml --store memory", "divvy convert FILE.yaml rules.ini"),
    ("serve --redis-url localhost:6379", "redis://"),
    // Other subcommands, without a server.
    ("serv", "'serve'"),
    ("check", "<CONFIG>"),
    ("check {rules} --compat divvy", "[possible values: button-divvy]"),
    ("explain search", "expected key=value"),
    ("explain {rules} user=ann", "write --file"),
    ("convert {rules} {dir}/rules.txt", "name it *.ini or *.json"),
    ("convert {rules} {rules}", "add --force to overwrite it"),
    ("hit search", "expected key=value"),
    ("hit --port 9049 a=1", "name the server with --server HOST:PORT"),
    ("hit --server localhost a=1", "must be HOST:PORT, http://HOST:PORT or https://HOST:PORT (TLS)"),
    ("hit --server redis://localhost a=1", "but this speaks HTTP: write http://HOST:8322"),
    ("hit --server 127.0.0.1:1 a=1", "does `divvy serve` listen there for HTTP? --server names another address"),
    ("hit --addr 127.0.0.1:1 a=1", "--addr names another address"),
    ("hit --addr 127.0.0.1:1 --cost 5 a=1", "use --server"),
    ("counters", "--rule <NAME>"),
    ("limit set by-user ann many", "'many'"),
    ("limit set by-user ann -1", "must be a whole number from 0 to"),
    ("hit --cost -1 a=1", "must be a whole number from 0 to 9223372036854775807"),
    ("reserve --cost 2 a=1", "write --amount N"),
    ("serve --max-counters -1", "must be"),
    ("serve --max-reservation-ttl 1.5", "must be a whole number of seconds"),
    ("serve --store memory --requirepass-file /nosuch", "--requirepass-file: cannot read /nosuch"),
    ("serve --store memory --tls-cert /nosuch --tls-key /nosuch", "cannot read /nosuch (--tls-cert)"),
    // These need a running server.
    (
        "hit --server {resp} a=1",
        "this is divvy's RESP port: HTTP has a port of its own (--http-listen, 8322 by default); write --server http://HOST:PORT",
    ),
    ("hit --server {line} a=1", "this is divvy's line protocol port: HTTP has a port of its own"),
    ("hit --server {grpc} a=1", "this is divvy's gRPC port: HTTP has a port of its own"),
    ("hit --addr {http} a=1", "this is divvy's HTTP port: the line protocol has a port of its own (--listen, 8321"),
    (
        "hit --addr {resp} a=1",
        "{resp} is divvy's RESP port: use the line protocol's port (8321 by default), or --server",
    ),
    ("hit --addr {resp} --password x a=1", "speaks RESP, as divvy's RESP port does: use the line protocol's port"),
    ("hit --server {locked} a=1", "requires a password: set DIVVY_PASSWORD"),
    ("hit --addr {locked-line} a=1", "requires a password: set DIVVY_PASSWORD"),
    ("hit --server {locked} --password wrong a=1", "check DIVVY_PASSWORD or --password"),
    ("stats --server {locked}", "requires a password: set DIVVY_PASSWORD"),
    ("counters --server {http} --rule none", "no rule is called 'none' (GET /v1/rules lists them)"),
    ("counters --server {http} --rule by-pair --actor ann", "write the actor as 'user=… path=…'"),
    ("counters --server {http} --rule total --actor ann", "has one counter for all: the actor must be empty"),
    ("counters --server {http} --operation api=none", "write it as the rules file does, patterns included"),
    ("limit set --server {http} by-pair ann 5", "write the actor as 'user=… path=…'"),
    ("limit set --server {http} none ann 5", "no rule is called 'none'"),
    ("backup --server {http} monday", "only a user may ask for this: start the server with --requirepass"),
    ("backup --server {locked} --password secret monday", "the memory store keeps nothing on this server's disk"),
];

/// A variable, its value, and the text that helps.
const VARIABLES: &[(&str, &str, &str)] = &[
    ("DIVVY_PORT", "8321", "set DIVVY_LISTEN to HOST:PORT"),
    ("DIVVY_RESP_PORT", "9049", "set DIVVY_RESP_LISTEN to HOST:PORT"),
    ("DIVVY_HTTP_HOST", "0.0.0.0", "set DIVVY_HTTP_LISTEN to HOST:PORT"),
    ("DIVVY_DURABILTY", "sync", "did you mean DIVVY_DURABILITY?"),
    ("DIVVY_QQQ", "1", "see `divvy help`"),
    ("DIVVY_THREADS", "many", "--threads"),
    ("PORT", "http", "PORT is \"http\", but must be a port number from 0 to 65535\n"),
];

const RULES: &str = "[user=* path=*]\ncreditLimit = 5\nper = 1m\nactorField = user, path\nlabel = by-pair\n\n\
    [user=*]\ncreditLimit = 5\nper = 1m\nactorField = user\nlabel = by-user\n\n\
    [api=total]\ncreditLimit = 5\nper = 1m\nlabel = total\n\n[default]\ncreditLimit = 0\n";

/// Runs the program. Returns what it printed; it must fail.
fn failed(line: &str, variables: &[(&str, &str)]) -> String {
    let Output { status, stdout, stderr } =
        divvy().args(line.split(' ')).envs(variables.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
    if status.success() { format!("no failure: {text}") } else { text }
}

#[test]
fn each_mistake_on_a_command_line_is_explained() {
    let rules = RulesFile::ini(RULES);
    let dir = tempfile::tempdir().unwrap();
    let server = Server::in_memory(rules.path());
    let locked = Server::start_as(divvy().env("DIVVY_REQUIREPASS", "secret"), &[rules.path(), "--store", "memory"]);
    let texts = LINES.iter().map(|(line, expected)| {
        let filled = [
            ("{resp}", server.resp.to_string()),
            ("{line}", server.line.to_string()),
            ("{http}", server.http.to_string()),
            ("{grpc}", server.grpc.to_string()),
            ("{locked}", locked.http.to_string()),
            ("{locked-line}", locked.line.to_string()),
            ("{rules}", rules.path().to_owned()),
            ("{dir}", dir.path().display().to_string()),
        ]
        .iter()
        .fold((*line).to_owned(), |line, (name, value)| line.replace(name, value));
        // The text may name an address, too.
        let text = failed(&filled, &[]).replace(&server.resp.to_string(), "{resp}");
        ((*line).to_owned(), *expected, text)
    });
    check(texts.collect());
}

#[test]
fn each_mistake_in_the_environment_is_explained() {
    // The server ends immediately, because no client could reach it.
    let line = "serve --store memory --resp-listen none --http-listen none --grpc-listen none --listen none";
    let texts = VARIABLES.iter().map(|(name, value, expected)| {
        let line = if *name == "PORT" { line.trim_end_matches(" --listen none") } else { line };
        (format!("{name}={value}"), *expected, failed(line, &[(name, value)]))
    });
    check(texts.collect());
}

#[cfg(feature = "rocksdb")]
#[test]
fn each_mistaken_data_directory_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("file"), "mine").unwrap();
    let serve = |data: &str| {
        failed(
            &format!(
                "serve --listen 127.0.0.1:0 --resp-listen none --http-listen none --grpc-listen none --data-dir {data}"
            ),
            &[],
        )
    };
    let texts = [
        (path("file"), "is a file; choose a directory with --data-dir"),
        (path("mistyped/data"), "mistyped does not exist; create that first, or correct --data-dir"),
        ("/proc/divvy".to_owned(), "cannot open the data directory /proc/divvy"),
        (dir.path().to_str().unwrap().to_owned(), "choose an empty or new directory with --data-dir"),
    ];
    check(texts.into_iter().map(|(data, expected)| (data.clone(), expected, serve(&data))).collect());
    assert!(!dir.path().join("mistyped").exists());
}

#[cfg(feature = "rocksdb")]
#[test]
fn created_data_directory_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let new = dir.path().join("new");
    let start = || {
        let mut command = divvy();
        let log = Log::of(&mut command);
        Server::start_as(&mut command, &["--data-dir", new.to_str().unwrap()]).terminate();
        log.text()
    };
    let first = start();
    let is_warning =
        |line: &str| line.contains("WARN") && line.contains("the data directory did not exist: created it");
    assert!(first.lines().any(is_warning), "{first}");
    let second = start();
    assert!(!second.contains("did not exist"), "{second}");
}
