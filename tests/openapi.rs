//! /openapi.json compared with the server: by its routes, by answers of each kind, and by Schemathesis, which generates
//! requests from it.

use std::fmt::Display;
use std::path::Path;
use std::process::Command;

use crate::clients::{PYTHON, installed, run};
use crate::support::{RulesFile, Server};

/// Rules of each kind, so that answers of each kind occur.
const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/algorithms.ini");

#[test]
fn answers_of_each_kind_match_their_schema() {
    let served =
        Server::start(&[RULES, "--store", "memory", "--check-operation", &from_query(["api", "user", "bytes"])]);
    let ruleless = Server::start(&["--store", "memory"]);
    let locked = Server::start(&["--store", "memory", "--requirepass", "secret"]);
    let stack = too_many_rules();
    let stacked = stacked(&stack);
    let mut command = Command::new(installed(Path::new(PYTHON).join(".venv/bin/python")));
    command.arg(Path::new(PYTHON).join("openapi.py"));
    command.args([served.http, ruleless.http, locked.http, stacked.http].map(|address| format!("http://{address}")));
    run(command);
}

/// Returns rules that all match a request with the fields `k1` to `k17`, which is more than a stack may have.
fn too_many_rules() -> RulesFile {
    let rule = |key: u32| format!("[k{key}=*]\ncreditLimit = 9\nresetSeconds = 60\nmatchPolicy = and\n");
    RulesFile::ini(&((1..=17).map(rule).collect::<String>() + "[default]\ncreditLimit = 9\nresetSeconds = 60\n"))
}

/// Returns a server whose checks have the fields of [`too_many_rules`].
fn stacked(rules: &RulesFile) -> Server {
    let operation = from_query((1..=17).map(|key| format!("k{key}")));
    Server::start(&[rules.path(), "--store", "memory", "--check-operation", &operation])
}

/// Returns a check's operation that takes these pairs from its query.
fn from_query<T: Display>(keys: impl IntoIterator<Item = T>) -> String {
    keys.into_iter().map(|key| format!("{key}=query:{key} ")).collect()
}

#[test]
fn request_that_matches_too_many_rules_is_an_operator_error() {
    let stack = too_many_rules();
    let server = stacked(&stack);
    let fields: Vec<_> = (1..=17).map(|key| format!("\"k{key}\": \"x\"")).collect();
    let operation = format!("\"operation\": {{{}}}", fields.join(", "));
    let query: Vec<_> = (1..=17).map(|key| format!("k{key}=x")).collect();
    let hit = format!("{{{operation}}}");
    for (path, body) in [
        ("/v1/hit", hit.clone()),
        (&format!("/v1/check?{}", query.join("&")), String::new()),
        ("/v1/hits", format!("{{\"atomic\": true, \"hits\": [{hit}]}}")),
        ("/v1/reservations", format!("{{{operation}, \"amount\": 1, \"ttl\": 60}}")),
    ] {
        let refused = server.http().post(path, &body);
        assert_eq!((refused.status, refused.header("retry-after")), (500, None), "{path}: {}", refused.body);
        assert!(refused.body.contains("more than 16 rules must allow this request"), "{path}: {}", refused.body);
    }
    let one_by_one = server.http().post("/v1/hits", format!("{{\"hits\": [{hit}]}}")).json();
    assert_eq!(one_by_one["results"][0]["status"], 500, "{one_by_one}");
}

#[test]
fn schemathesis_finds_no_issues() {
    // All generated requests must be allowed, even after charges of any size, so windows are short. Generated limits
    // apply to actors of the rule `people`, which no other request uses.
    let server = Server::serving(
        "[person=*]\ncreditLimit = 1000000000\nresetSeconds = 3600\nactorField = person\nlabel = people\n
        [default]\ncreditLimit = 1000000000\nresetSeconds = 0.001\nactorField = one, other\n",
        &[],
    );
    let mut command = Command::new(installed(Path::new(PYTHON).join(".venv/bin/schemathesis")));
    command.arg("--config-file").arg(Path::new(PYTHON).join("schemathesis.toml"));
    let directory = tempfile::tempdir().unwrap();
    command.current_dir(directory.path()).arg("run").arg(format!("http://{}/openapi.json", server.http));
    let report = run(command);
    assert!(report.contains("No issues found"), "{report}");
}
