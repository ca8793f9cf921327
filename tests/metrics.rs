//! /metrics: the values add up to the requests that were sent.

use crate::clients::python;
use crate::support::metrics::Samples;
use crate::support::{COMPAT_RULES, LineClient, Server, encode, http, output_for, scrape, until};

const RULES: &str = "
[kind=trial user=*] creditLimit=2 resetSeconds=3600 actorField=user matchPolicy=canary label=trial
[kind=trial user=*] creditLimit=5 resetSeconds=3600 actorField=user label=real
[path=/status] creditLimit=3 resetSeconds=3600 label=status
[path=/free] creditLimit=1 resetSeconds=0
[default] creditLimit=0 resetSeconds=0
";

/// Sends the lines in one write, and reads a reply to each.
fn burst(client: &mut LineClient, lines: &[(&str, usize)]) {
    let text: String = lines.iter().map(|(line, times)| format!("{line}\n").repeat(*times)).collect();
    client.send(text.as_bytes());
    for _ in 0..text.lines().count() {
        assert_ne!(client.read_line(), "");
    }
}

/// Checks that Prometheus's own parser reads the text. Returns what it reads: the kind, name, labels and value of each sample.
fn read_by_prometheus(text: &str) -> Vec<(String, String, serde_json::Value, serde_json::Value)> {
    let (code, out, error) = output_for(&mut python("read_metrics.py"), text);
    assert_eq!(code, 0, "{error}");
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn hits(samples: &Samples, status: &str, label: &str) -> f64 {
    samples.value("divvy_hits_total", &[("status", status), ("rule_label", label)])
}

fn requests(samples: &Samples, front: &str, command: &str) -> f64 {
    samples.value("divvy_requests_total", &[("front", front), ("command", command)])
}

#[test]
fn requests_of_both_protocols_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::serving(RULES, &["--data-dir", dir.path().to_str().unwrap()]);
    let mut line = server.line();
    burst(
        &mut line,
        &[
            ("HIT path=/status", 10),
            ("HIT kind=trial user=ada", 8),
            ("NOPE", 3),
            ("HIT path=/free", 4),
            ("HIT path", 2),
            ("HIT path=/other", 2),
        ],
    );
    let mut resp = server.resp();
    let hit = encode(&[b"DIVVY.HIT", b"path=/status"]);
    resp.send(&hit.repeat(5));
    (0..5).for_each(|_| assert_eq!(resp.read_reply().split(' ').next(), Some("[0")));
    for command in [
        "DIVVY.PEEK path=/status",
        "DIVVY.PEEK path=/status",
        "DIVVY.RESET kind=trial user=bob",
        "DIVVY.EXPLAIN path=/free",
        "DIVVY.RULES",
        "RL.GET bucket 10 60",
        "CL.THROTTLE bucket 1 1 60",
        "PING",
        "INFO",
        "DIVVY.HIT path",
        "AUTH secret",
        "EVIL{le=\"0\"} 1",
    ] {
        resp.command(command);
    }

    let samples = scrape(server.http);
    assert_eq!((hits(&samples, "accepted", "status"), hits(&samples, "rejected", "status")), (3.0, 12.0));
    assert_eq!((hits(&samples, "accepted", "real"), hits(&samples, "rejected", "real")), (5.0, 3.0));
    assert_eq!((hits(&samples, "canary-accepted", "trial"), hits(&samples, "canary-rejected", "trial")), (2.0, 6.0));
    assert_eq!((hits(&samples, "accepted", "rule-4"), hits(&samples, "rejected", "default")), (4.0, 2.0));
    assert_eq!(samples.sum("divvy_hits_total"), 24.0 + 8.0 + 5.0, "peeks and resets are no hits");
    assert_eq!(samples.value("divvy_errors_total", &[("code", "unknown-command")]), 3.0 + 1.0);
    assert_eq!(samples.value("divvy_errors_total", &[("code", "unknown")]), 2.0 + 2.0);

    assert_eq!((requests(&samples, "line", "hit"), requests(&samples, "line", "invalid")), (24.0, 5.0));
    let expected = [
        ("hit", 6.0),
        ("peek", 2.0),
        ("reset", 1.0),
        ("explain", 1.0),
        ("rules", 1.0),
        ("bucket", 2.0),
        ("connection", 2.0),
        ("server", 1.0),
        ("invalid", 1.0),
    ];
    for (command, count) in expected {
        assert_eq!(requests(&samples, "resp", command), count, "{command}");
    }
    assert_eq!(requests(&samples, "http", "server"), 1.0);

    assert_eq!(samples.value("divvy_hit_duration_seconds_count", &[]), 29.0);
    assert_eq!(samples.value("divvy_hit_duration_seconds_bucket", &[("le", "+Inf")]), 29.0);
    // All requests that reach the limiter: hits, peeks, a reset, and buckets.
    assert_eq!(samples.value("divvy_batch_requests_sum", &[]), 24.0 + 5.0 + 2.0 + 1.0 + 2.0);
    // A hit on the rule with a trial uses two counters. A hit on /free or on the default rule uses none.
    let actions = 10.0 + 16.0 + 5.0 + 2.0 + 2.0 + 2.0;
    let in_table = samples.value("divvy_hot_table_hits_total", &[]);
    let loaded = samples.value("divvy_hot_table_misses_total", &[]);
    // A new store has all counters in memory, so nothing has to be looked up.
    assert_eq!((in_table, loaded), (actions, 0.0));
    assert_eq!(samples.value("divvy_hot_counters", &[]), 4.0);
    assert_eq!(samples.value("divvy_store_errors_total", &[]), 0.0);
}

#[test]
fn metrics_show_the_store_the_rules_and_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::serving(RULES, &["--data-dir", dir.path().to_str().unwrap(), "--durability", "sync"]);
    let mut client = server.line();
    for actor in 0..20 {
        client.hit(&format!("kind=trial user=u{actor}"));
    }
    let response = http::get(server.http, "/metrics");
    assert_eq!(response.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let read = read_by_prometheus(&response.body);
    for (name, kind) in [
        ("divvy_hits_total", "counter"),
        ("divvy_tcp_connections_total", "gauge"),
        ("divvy_hit_duration_seconds_bucket", "histogram"),
    ] {
        let first = read.iter().find(|(_, read, ..)| read == name).map(|(kind, ..)| kind.as_str());
        assert_eq!(first, Some(kind), "{name}");
    }
    let samples = Samples(response.body);
    let commits = samples.value("divvy_commit_duration_seconds_count", &[]);
    assert!((1.0..=20.0).contains(&commits), "{commits}");
    for positive in [
        "divvy_commit_duration_seconds_sum",
        "divvy_store_duration_seconds_sum",
        "divvy_rocksdb_disk_bytes",
        "divvy_rocksdb_write_buffer_bytes",
        "divvy_config_last_success_timestamp_seconds",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
        "process_open_fds",
    ] {
        assert!(samples.value(positive, &[]) > 0.0, "{positive}");
    }
    for zero in [
        "divvy_commits_failing",
        "divvy_rocksdb_writes_stopped",
        "divvy_rocksdb_delayed_write_bytes_per_second",
        "divvy_rocksdb_background_errors_total",
        "divvy_unreadable_kept_total",
        "divvy_config_failures_total",
    ] {
        assert_eq!(samples.value(zero, &[]), 0.0, "{zero}");
    }
    assert_eq!(samples.value("divvy_hot_counters", &[]), 40.0);
    assert_eq!(samples.value("divvy_config_rules", &[]), 5.0);
    assert_eq!(samples.value("divvy_config_version", &[]), 1.0);
    assert_eq!(samples.value("divvy_build_info", &[("version", env!("CARGO_PKG_VERSION"))]), 1.0);
    // RocksDB can count the counters after a write-back.
    until(|| scrape(server.http).value("divvy_live_counters", &[]) == 40.0);
}

#[test]
fn metrics_show_a_failing_redis() {
    let url = "redis://127.0.0.1:1";
    let server = Server::start(&[COMPAT_RULES, "--redis-url", url, "--on-store-error", "allow"]);
    let mut client = server.line();
    for _ in 0..3 {
        client.hit("method=GET path=/status");
    }
    let samples = scrape(server.http);
    assert_eq!(samples.value("divvy_redis_connected", &[]), 0.0);
    assert_eq!(samples.value("divvy_redis_outage", &[]), 1.0);
    assert_eq!(samples.value("divvy_redis_failures_total", &[]), 3.0);
    assert_eq!(samples.value("divvy_redis_stand_ins_total", &[("policy", "allow")]), 3.0);
    assert_eq!(samples.value("divvy_denial_cache_answers_total", &[]), 0.0);
    assert_eq!(samples.value("divvy_store_errors_total", &[]), 0.0, "no hit was answered with one");
    assert_eq!(samples.values("divvy_live_counters", &[]), [] as [f64; 0], "unknown");
}

#[test]
fn client_input_never_becomes_a_metric_label() {
    let server = Server::in_memory(COMPAT_RULES);
    let (mut line, mut resp) = (server.line(), server.resp());
    for hostile in ["mallory", "mallory\"} 1\ndivvy_mallory 2", "mallory\\", "{mallory=\"\"}"] {
        let pair = format!("mallory={hostile}");
        for words in [&[hostile][..], &["DIVVY.HIT", &pair], &["CLIENT", hostile], &["CLIENT", "SETNAME", "mallory"]] {
            resp.command_of(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
        }
        let lines = format!("{hostile}\nHIT mallory=\"mallory\"\n");
        line.send(lines.as_bytes());
        lines.lines().for_each(|_| drop(line.read_line()));
    }
    http::get(server.http, "/mallory");
    let text = http::get(server.http, "/metrics").body;
    assert!(!text.contains("mallory"), "{text}");
    assert_eq!(requests(&Samples(text), "http", "invalid"), 1.0);
}
