//! /metrics: the store, the rules and the process. Numbers of requests are in tests/wire/metrics.txt.

use crate::clients::python;
use crate::statsd::ratelimit_calls;
use crate::support::metrics::Samples;
use crate::support::{COMPAT_RULES, Server, http, output_for, scrape, until};

const RULES: &str = "
[kind=trial user=*] creditLimit=2 resetSeconds=3600 actorField=user matchPolicy=canary label=trial
[kind=trial user=*] creditLimit=5 resetSeconds=3600 actorField=user label=real
[path=/status] creditLimit=3 resetSeconds=3600 label=status
[path=/free] creditLimit=1 resetSeconds=0
[default] creditLimit=0 resetSeconds=0
";

/// Checks that Prometheus's own parser reads the text. Returns what it reads: the kind, name, labels and value of each sample.
fn read_by_prometheus(text: &str) -> Vec<(String, String, serde_json::Value, serde_json::Value)> {
    let (code, out, error) = output_for(&mut python("read_metrics.py"), text);
    assert_eq!(code, 0, "{error}");
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
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
fn ratelimits_statistics_have_the_names_and_labels_of_its_mapping() {
    let server = ratelimit_calls(&[]);
    let response = http::get(server.http, "/metrics");
    let read = read_by_prometheus(&response.body);
    let kind = read.iter().find(|(_, name, ..)| name.starts_with("ratelimit_service_rate_limit_total_hits"));
    assert_eq!(kind.map(|(kind, ..)| kind.as_str()), Some("counter"));
    let samples = Samples(response.body);
    let limit = |statistic: &str, labels: &[(&str, &str)]| {
        samples.value(&format!("ratelimit_service_rate_limit_{statistic}"), &[&[("domain", "edge")], labels].concat())
    };
    assert_eq!(limit("total_hits", &[("key1", "user_ann")]), 3.0);
    assert_eq!(limit("over_limit", &[("key1", "user_ann")]), 1.0);
    assert_eq!(limit("within_limit", &[("key1", "path_/a"), ("key2", "ip_10_0_0_1")]), 3.0);
    assert_eq!(limit("over_limit", &[("key1", "path_/b")]), 3.0);
    assert_eq!(samples.value("ratelimit_service_should_rate_limit_error", &[("err_type", "service_error")]), 1.0);
    assert_eq!(samples.value("ratelimit_service_total_requests", &[("grpc_method", "ShouldRateLimit")]), 6.0);
    assert_eq!(samples.sum("ratelimit_service_response_time_seconds_count"), 6.0);
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
    assert_eq!(samples.value("divvy_redis_ack_failures_total", &[]), 0.0);
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
    assert!(text.contains("divvy_requests_total{command=\"invalid\",front=\"http\"} 1\n"), "{text}");
}
