//! /healthz and /readyz.

use std::process::Command;

use crate::support::metrics::scrape;
use crate::support::redis::{RedisCluster, RedisServer, until};
use crate::support::{COMPAT_RULES, LineClient, RulesFile, Server, divvy, http};

#[test]
fn a_server_that_serves_is_alive_and_ready() {
    let server = Server::in_memory(COMPAT_RULES);
    for path in ["/healthz", "/readyz"] {
        let response = http::get(server.http, path);
        assert_eq!(response.status, 200, "{path}: {}", response.body);
    }
    assert_eq!(http::get(server.http, "/nothing").status, 404);
    assert!(server.terminate().success());
}

#[test]
fn a_server_is_ready_while_its_redis_answers() {
    let mut redis = RedisServer::start();
    let server = Server::start(&[COMPAT_RULES, "--redis-url", &redis.url()]);
    assert_eq!(http::get(server.http, "/readyz").status, 200);
    redis.kill();
    let response = http::get(server.http, "/readyz");
    assert_eq!(response.status, 503);
    assert!(response.body.starts_with("the store does not answer"), "{}", response.body);
    assert_eq!(http::get(server.http, "/healthz").status, 200);
    redis.restart();
    until(|| http::get(server.http, "/readyz").status == 200);
    redis.signal("-STOP");
    assert_eq!(http::get(server.http, "/readyz").status, 503, "Redis hangs");
    redis.signal("-CONT");
    until(|| http::get(server.http, "/readyz").status == 200);
    redis.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let response = http::get(server.http, "/readyz");
    assert!(response.status == 503 && response.body.contains("NOREPLICAS"), "{response:?}");
    redis.cli(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    until(|| http::get(server.http, "/readyz").status == 200);
}

#[test]
fn a_server_is_not_ready_when_no_master_of_its_cluster_takes_writes() {
    let cluster = RedisCluster::start();
    let server = Server::start(&[COMPAT_RULES, "--redis-url", &cluster.urls().join(",")]);
    until(|| http::get(server.http, "/readyz").status == 200);
    for node in &cluster.nodes {
        node.cli(&["CONFIG", "SET", "min-replicas-to-write", "5"]);
    }
    let response = http::get(server.http, "/readyz");
    assert!(response.status == 503 && response.body.contains("NOREPLICAS"), "{response:?}");
}

#[test]
fn a_server_that_answers_in_its_redis_s_place_is_ready() {
    let server = Server::start(&[COMPAT_RULES, "--redis-url", "redis://127.0.0.1:1", "--on-store-error", "local"]);
    assert_eq!(http::get(server.http, "/readyz").status, 200);
    assert_eq!(LineClient::connect(server.line).hit("method=GET path=/status"), (true, 999, 60));
}

/// `divvy` with a bound on the size of its files, past which writing fails as on a full disk.
fn divvy_with_a_small_disk() -> Command {
    let plain = divvy();
    let mut command = Command::new("bash");
    command.args(["-c", r#"trap '' XFSZ; ulimit -f 256; exec "$0" "$@""#]).arg(plain.get_program());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

#[test]
fn a_server_whose_disk_is_full_is_alive_and_not_ready() {
    let rules = RulesFile::ini(
        "[ip=*]\ncreditLimit=9\nresetSeconds=3600\nactorField=ip\n[default]\ncreditLimit=0\nresetSeconds=0\n",
    );
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().to_str().unwrap();
    let server = Server::start_as(&mut divvy_with_a_small_disk(), &[rules.path(), "--data-dir", data_dir]);
    assert_eq!(http::get(server.http, "/readyz").status, 200);
    let mut client = LineClient::connect(server.line);
    let mut actor = 0;
    until(|| {
        let burst: String = (actor..actor + 1000).map(|actor| format!("HIT ip={actor}\n")).collect();
        actor += 1000;
        client.send(burst.as_bytes());
        burst.lines().filter(|_| client.read_line().starts_with("ERR unknown")).count() > 0
    });
    let response = http::get(server.http, "/readyz");
    assert_eq!(response.status, 503, "{}", response.body);
    assert_eq!(scrape(server.http).value("divvy_commits_failing", &[]), 1.0);
    assert!(scrape(server.http).value("divvy_store_errors_total", &[]) > 0.0);
    assert_eq!(http::get(server.http, "/healthz").status, 200);
}
