//! /healthz and /readyz.

use crate::support::redis::RedisServer;
use crate::support::{COMPAT_RULES, LineClient, Server, http, until};

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
    until("Redis is back", || http::get(server.http, "/readyz").status == 200);
    redis.signal("-STOP");
    assert_eq!(http::get(server.http, "/readyz").status, 503, "Redis hangs");
    redis.signal("-CONT");
    until("Redis goes on", || http::get(server.http, "/readyz").status == 200);
}

#[test]
fn a_server_that_answers_in_its_redis_s_place_is_ready() {
    let server = Server::start(&[COMPAT_RULES, "--redis-url", "redis://127.0.0.1:1", "--on-store-error", "local"]);
    assert_eq!(http::get(server.http, "/readyz").status, 200);
    assert_eq!(LineClient::connect(server.line).hit("method=GET path=/status"), (true, 999, 60));
}
