//! Files next to the code: the Kubernetes manifests, the Helm chart and the container image, to the extent that one machine
//! can test them; the alert rules, the dashboard and the manual, whose metrics exist; and the Makefile's campaigns.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::clients::{PYTHON, installed, run, tool};
use crate::crowdsec::programs::Sidecar;
use crate::support::{DIVVY, RulesFile, Server, http};

const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging");

/// Runs a script of `packaging` with divvy's path, which must succeed. Returns its output.
fn checked(script: &str, tools: &[&OsStr]) -> String {
    let mut command = Command::new(installed(Path::new(PYTHON).join(".venv/bin/python")));
    command.arg(Path::new(PACKAGING).join(script)).arg(DIVVY).args(tools);
    run(command)
}

#[test]
fn manifests_match_kubernetes_schemas_and_divvy() {
    let checked = checked("kubernetes/check.py", &[]);
    assert!(checked.contains("StatefulSet") && checked.contains("Deployment"), "{checked}");
}

#[test]
fn chart_matches_kubernetes_schemas_and_divvy_and_refuses_wrong_values() {
    let checked = checked("helm/check.py", &[tool("helm").get_program()]);
    assert!(
        checked.contains("StatefulSet") && checked.contains("Deployment") && checked.contains("refused"),
        "{checked}"
    );
}

#[test]
fn container_command_serves_and_is_healthy() {
    let checked = checked("container_check.py", &[]);
    assert!(checked.contains("its health check passes"), "{checked}");
}

const RULES: &str = "
[path=/status] creditLimit=1 resetSeconds=60 label=status
[default] creditLimit=0
";

const ALERTS: &str = "packaging/prometheus/alerts.yml";
const ALERT_TESTS: &str = "packaging/prometheus/alerts.test.yml";
const MANUAL: &str = "docs/monitoring.md";

/// The suffixes of a histogram's samples.
const HISTOGRAM: [&str; 3] = ["_bucket", "_sum", "_count"];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Runs promtool from the system, or else the one that `make test-setup` installed.
fn promtool(args: &[&str]) -> String {
    let unpacked = path("tests/clients/tools/promtool");
    let program = if unpacked.exists() { unpacked } else { PathBuf::from("promtool") };
    let output = Command::new(&program)
        .args(args)
        .current_dir(path("packaging/prometheus"))
        .output()
        .unwrap_or_else(|error| panic!("promtool: {error}; run `make test-setup` first"));
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    assert!(output.status.success(), "promtool {args:?}:\n{text}");
    text
}

/// Returns the values of a key in a YAML file with one key per line.
fn yaml_values<'a>(yaml: &'a str, key: &str) -> Vec<&'a str> {
    yaml.lines()
        .filter_map(|line| line.trim_start_matches([' ', '-']).strip_prefix(key)?.strip_prefix(':'))
        .map(str::trim)
        .collect()
}

/// Returns the names of divvy's metrics, and its process metrics, in a text.
fn metric_names(text: &str) -> BTreeSet<&str> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
        .filter(|word| word.starts_with("divvy_") || word.starts_with("process_"))
        // `process_*` stands for all process metrics, and INFO's version is not a metric.
        .filter(|word| !["process_", "divvy_version"].contains(word))
        .collect()
}

/// Returns the metric families in /metrics, with their kinds.
fn families(address: SocketAddr) -> Vec<(String, String)> {
    let metrics = http::get(address, "/metrics").body;
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    types.map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect()
}

/// Returns the families of servers with all three stores that have answered a hit and rejected a password, and of
/// divvy-crowdsec.
fn all_families() -> Vec<(String, String)> {
    let (rules, dir) = (RulesFile::ini(RULES), tempfile::tempdir().unwrap());
    let stores = [
        &["--data-dir", dir.path().to_str().unwrap()][..],
        &["--store", "memory"],
        // No Redis answers there. The metrics exist nevertheless.
        &["--redis-url", "redis://127.0.0.1:1", "--redis-timeout", "50ms"],
    ];
    let mut found = Vec::new();
    for store in stores {
        let server = Server::start(&[&[rules.path(), "--requirepass", "secret"], store].concat());
        let mut client = server.resp();
        assert!(client.command("AUTH wrong").starts_with("-WRONGPASS"));
        assert_eq!(client.command("AUTH secret"), "OK");
        client.command("DIVVY.HIT path=/status");
        found.extend(families(server.http));
    }
    let server = Server::in_memory(rules.path());
    let sidecar = Sidecar::start(&server, &[]);
    http::get(sidecar.address, "/v1/decisions");
    found.extend(families(sidecar.address));
    found
}

#[test]
fn promtool_accepts_the_alert_rules_and_their_tests_pass() {
    let checked = promtool(&["check", "rules", "alerts.yml"]);
    let alerts = read(ALERTS);
    let names = yaml_values(&alerts, "alert");
    assert!(!names.is_empty() && checked.contains(&format!("SUCCESS: {} rules found", names.len())), "{checked}");
    promtool(&["check", "config", "prometheus.yml"]);
    let tested = promtool(&["test", "rules", "alerts.test.yml"]);
    assert!(tested.contains("SUCCESS"), "{tested}");
}

#[test]
fn every_metric_in_alerts_dashboard_and_manual_exists_and_is_described() {
    let families = all_families();
    let mut samples: BTreeSet<String> = families.iter().map(|(name, _)| name.clone()).collect();
    for (name, _) in families.iter().filter(|(_, kind)| kind == "histogram") {
        samples.extend(HISTOGRAM.map(|suffix| format!("{name}{suffix}")));
    }
    for file in [ALERTS, ALERT_TESTS, "packaging/grafana/divvy.json", MANUAL, "docs/troubleshooting.md"] {
        let text = read(file);
        let named = metric_names(&text);
        assert!(!named.is_empty(), "{file} names no metric");
        let unknown: Vec<_> = named.into_iter().filter(|name| !samples.contains(*name)).collect();
        assert!(unknown.is_empty(), "{file} names metrics that do not exist: {unknown:?}");
    }
    let manual = read(MANUAL);
    let described = metric_names(&manual);
    let missing: Vec<_> = families.iter().filter(|(name, _)| !described.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "{MANUAL} does not describe {missing:?}");
}

#[test]
fn every_campaign_names_a_test() {
    let makefile = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Makefile")).unwrap();
    let campaigns = makefile.lines().filter(|line| line.starts_with('\t') && line.contains("$(CAMPAIGN)"));
    let filters: Vec<_> = campaigns.filter_map(|line| line.split_whitespace().last()).collect();
    assert!(filters.len() >= 10, "{filters:?}");
    for filter in filters {
        let listed = Command::new(std::env::current_exe().unwrap()).args(["--list", filter]).output().unwrap();
        let tests = String::from_utf8_lossy(&listed.stdout).lines().filter(|line| line.ends_with(": test")).count();
        assert!(tests > 0, "no test is called {filter}");
    }
}
