//! /healthz and /readyz.

use std::process::Command;
use std::time::Instant;

use crate::support::{
    COMPAT_RULES, Place, Proxy, RedisCluster, RedisServer, Server, divvy, free_port, http, number, until,
};

/// Returns the status of /readyz.
fn ready(server: &Server) -> u16 {
    http::get(server.http, "/readyz").status
}

#[test]
fn server_is_ready_while_its_redis_answers() {
    let mut redis = RedisServer::start();
    let server = Server::start(&[COMPAT_RULES, "--redis-url", &redis.url()]);
    assert_eq!(ready(&server), 200);
    redis.kill();
    until(|| ready(&server) == 503);
    let response = http::get(server.http, "/readyz");
    assert!(response.body.starts_with("the store does not answer"), "{}", response.body);
    assert_eq!(http::get(server.http, "/healthz").status, 200);
    redis.restart();
    until(|| ready(&server) == 200);
    redis.signal("-STOP");
    until(|| ready(&server) == 503);
    redis.signal("-CONT");
    until(|| ready(&server) == 200);
    redis.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    until(|| http::get(server.http, "/readyz").body.contains("NOREPLICAS"));
    assert_eq!(ready(&server), 503);
    redis.cli(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    until(|| ready(&server) == 200);
}

#[test]
fn server_is_not_ready_when_no_master_of_its_cluster_takes_writes() {
    let cluster = RedisCluster::start();
    let server = Server::start(&[COMPAT_RULES, "--redis-url", &cluster.urls().join(",")]);
    until(|| ready(&server) == 200);
    for node in &cluster.nodes {
        node.cli(&["CONFIG", "SET", "min-replicas-to-write", "5"]);
    }
    until(|| http::get(server.http, "/readyz").body.contains("NOREPLICAS"));
    assert_eq!(ready(&server), 503);
}

#[test]
fn readiness_is_cached_and_costs_the_store_nothing() {
    let redis = RedisServer::start();
    let server = Server::start(&[COMPAT_RULES, "--redis-url", &redis.url()]);
    let commands = || redis.info("stats", "total_commands_processed");
    // The first probes may still make the store connect, which takes a few commands a connection.
    until(|| ready(&server) == 200);
    let (before, begun) = (commands(), Instant::now());
    for _ in 0..500 {
        assert_eq!(ready(&server), 200);
    }
    // A probe per second takes one or two commands.
    let allowed = 50 + 10 * begun.elapsed().as_secs();
    let asked = commands() - before;
    assert!(asked <= allowed, "{asked} commands");
}

#[test]
fn missing_redis_is_logged_at_the_start_and_so_is_its_arrival() {
    for (policy, meanwhile, reason) in [
        ("error", "hits are answered with an error", "does not answer"),
        ("local", "hits are counted in this server's memory", "have not been read yet"),
    ] {
        let port = free_port();
        let url = format!("redis://127.0.0.1:{port}");
        let (server, log) = Server::logged(&[COMPAT_RULES, "--redis-url", &url, "--on-store-error", policy]);
        log.await_line(&["ERROR", "failing: the store", meanwhile, &port.to_string()]);
        assert_eq!(ready(&server), 503);
        log.await_line(&["ERROR", "not ready", reason]);
        let _redis = RedisServer::start_with(port, &[]);
        until(|| ready(&server) == 200);
        log.await_line(&["INFO", "ready again"]);
        // An outage is over after ten seconds without a failure.
        log.await_line(&["INFO", "working again: the store"]);
        assert_eq!(log.count("failing: the store"), 1);
    }
}

#[test]
fn server_that_answers_during_a_redis_outage_is_ready_once_it_knows_the_blocks() {
    let redis = RedisServer::start();
    let start = |url: &str| Server::start(&[COMPAT_RULES, "--redis-url", url, "--on-store-error", "local"]);
    let server = start(&redis.url());
    assert_eq!(ready(&server), 200);
    let url = redis.url();
    drop(redis);
    assert_eq!(server.line().hit("method=GET path=/status"), (true, 999, 60));
    assert_eq!(ready(&server), 200);

    let late = start(&url);
    let refused = http::get(late.http, "/readyz");
    assert_eq!(refused.status, 503);
    assert!(refused.body.contains("limits and blocks of actors have not been read yet"), "{}", refused.body);
    assert_eq!(late.line().hit("method=GET path=/status"), (true, 999, 60));
}

#[test]
fn broken_connection_between_hits_is_no_outage() {
    let redis = RedisServer::start();
    let proxy = Proxy::start(redis.port);
    let (server, log) = Server::logged(&[COMPAT_RULES, "--redis-url", &proxy.url()]);
    until(|| ready(&server) == 200);
    // Only probes and other background calls are under way.
    for _ in 0..3 {
        proxy.lose_next_answer();
        until(|| !proxy.will_lose_answer());
        // The second attempt, and the probes after it.
        let lost_at = proxy.round_trips();
        until(|| proxy.round_trips() > lost_at + 8);
        assert_eq!(ready(&server), 200);
    }
    assert_eq!(server.line().hit("method=GET path=/status"), (true, 999, 60));
    assert!(server.terminate().success());
    assert_eq!((log.count("failing: the store"), log.count("not ready")), (0, 0));
}

#[test]
fn health_check_of_ratelimit_follows_the_store_and_the_shutdown() {
    let mut redis = RedisServer::start();
    let server = Server::start(&[COMPAT_RULES, "--redis-url", &redis.url(), "--drain-delay", "3600"]);
    let check = || {
        let response = http::get(server.http, "/healthcheck");
        (response.status, response.body)
    };
    let (healthy, unhealthy) = ((200, "OK".to_owned()), (500, String::new()));
    assert_eq!(check(), healthy);
    let call = r#"{"domain": "edge", "descriptors": [{"entries": [{"key": "method", "value": "GET"}, {"key": "path", "value": "/status"}]}]}"#;
    assert_eq!(server.http().post("/json", call).status, 200);
    redis.kill();
    until(|| check() == unhealthy);
    let response = server.http().post("/json", call);
    assert_eq!((response.status, response.body.as_str()), (400, "Bad Request\n"), "as any error of the service");
    redis.restart();
    until(|| check() == healthy);
    server.signal("-TERM");
    until(|| check() == unhealthy);
    // The second signal ends the delay.
    assert!(server.terminate().success());
}

/// Returns `divvy` with a limit on file sizes. Beyond it, writing fails as on a full disk.
fn divvy_with_a_small_disk() -> Command {
    let plain = divvy();
    let mut command = Command::new("bash");
    command.args(["-c", r#"ulimit -f 256; exec "$0" "$@""#]).arg(plain.get_program());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

#[test]
fn server_with_a_full_disk_is_alive_and_not_ready() {
    let place = Place::new("[ip=*] creditLimit=9 resetSeconds=3600 actorField=ip\n[default] creditLimit=0");
    let server = place.on_disk_as(&mut divvy_with_a_small_disk(), &[]);
    assert_eq!(ready(&server), 200);
    let mut client = server.line();
    let mut actor = 0;
    until(|| {
        let burst: String = (actor..actor + 1000).map(|actor| format!("HIT ip={actor}\n")).collect();
        actor += 1000;
        client.send(burst.as_bytes());
        burst.lines().filter(|_| client.read_line().starts_with("ERR unknown")).count() > 0
    });
    until(|| ready(&server) == 503);
    assert_eq!(number(&server, "divvy_commits_failing"), 1);
    assert!(number(&server, "divvy_store_errors_total") > 0);
    assert_eq!(http::get(server.http, "/healthz").status, 200);
}
