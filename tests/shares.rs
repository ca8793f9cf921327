//! Shares of hot counters: several servers on one Redis, which die, stop and lose answers; and shares of clients on every store.

use std::thread;

use serde_json::json;

use crate::support::stores::on_every_store;
use crate::support::{RedisServer, Server, metrics, until, words};

const LIMIT: u64 = 2_000;
const KEY: &str = "divvy:api=x::2000:600";

fn rules(share: &str) -> String {
    format!("[api=x] creditLimit={LIMIT} resetSeconds=600 {share}\n[default] creditLimit=0")
}

fn serve(redis: &RedisServer, share: &str) -> Server {
    Server::serving(&rules(share), &["--redis-url", &redis.url(), "--denial-cache", "0"])
}

/// Hits the server until it denies one, or `hits` times. Returns how many it granted.
fn hit(server: &Server, hits: usize) -> u64 {
    let mut client = server.resp();
    (0..hits).take_while(|_| client.hit("api=x").0).count() as u64
}

fn left(redis: &RedisServer) -> u64 {
    redis.cli(&["GET", KEY]).parse().unwrap()
}

#[test]
fn servers_grant_a_counter_exactly_with_few_calls_also_next_to_one_without_shares() {
    let redis = RedisServer::start();
    let servers = ["share=auto", "share=auto", "share=300", ""].map(|share| serve(&redis, share));
    let asked = redis.info("stats", "total_commands_processed");
    let granted: u64 = thread::scope(|scope| {
        let clients = servers[..3].iter().map(|server| scope.spawn(|| hit(server, usize::MAX))).collect::<Vec<_>>();
        let without = scope.spawn(|| hit(&servers[3], 50));
        clients.into_iter().map(|client| client.join().unwrap()).sum::<u64>() + without.join().unwrap()
    });
    assert_eq!((granted, left(&redis)), (LIMIT, 0));
    let by_shares: u64 = servers[..3].iter().map(|server| metrics::number(server, "divvy_share_grants_total")).sum();
    assert!(by_shares > LIMIT / 2, "{by_shares} hits were granted from shares");
    let asked = redis.info("stats", "total_commands_processed") - asked;
    assert!(asked < LIMIT / 2, "{asked} commands");
}

#[test]
fn server_that_stops_gives_its_share_back_and_one_that_is_idle_does_so_too() {
    let redis = RedisServer::start();
    let [stopping, idle] = [serve(&redis, "share=auto"), serve(&redis, "share=auto")];
    let granted = hit(&stopping, 200) + hit(&idle, 200);
    assert!(left(&redis) < LIMIT - granted, "both hold shares");
    assert!(stopping.terminate().success());
    until(|| left(&redis) == LIMIT - granted);
}

#[test]
fn killed_server_keeps_what_it_took_and_nothing_is_granted_twice() {
    let redis = RedisServer::start();
    let [killed, other] = [serve(&redis, "share=auto"), serve(&redis, "share=auto")];
    let before = hit(&killed, 200);
    let held = LIMIT - before - left(&redis);
    assert!(held > 0);
    killed.kill();
    assert_eq!(before + hit(&other, usize::MAX), LIMIT - held);
}

#[test]
fn reset_through_the_same_server_ends_its_share() {
    let redis = RedisServer::start();
    let server = serve(&redis, "share=auto");
    hit(&server, 200);
    server.resp().command("DIVVY.RESET api=x");
    assert_eq!(hit(&server, usize::MAX), LIMIT);
}

#[test]
fn shares_outlast_redis_and_end_with_an_error() {
    let mut redis = RedisServer::start();
    let server = serve(&redis, "share=auto");
    hit(&server, 200);
    let held = metrics::number(&server, "divvy_share_credits");
    redis.kill();
    let mut client = server.resp();
    // Unused credits go back after a second, so some may be lost on the way.
    let granted = (0..held).take_while(|_| client.command("DIVVY.HIT api=x").starts_with('[')).count();
    assert!(granted > 0, "{held} credits are held");
    until(|| !client.command("DIVVY.HIT api=x").starts_with('['));
}

#[test]
fn client_takes_a_share_and_returns_what_it_did_not_use_once() {
    let rules = "[api=x user=*] creditLimit=100 resetSeconds=600 actorField=user label=x
[api=bucket user=*] creditLimit=100 resetSeconds=100 algorithm=leaky-bucket actorField=user
[api=log] creditLimit=100 resetSeconds=600 algorithm=sliding-log
[api=two user=*] creditLimit=9 resetSeconds=600 actorField=user matchPolicy=and
[api=two user=*] creditLimit=8 resetSeconds=600 actorField=user
[default] creditLimit=0";
    on_every_store(rules, &[], |_, server| {
        let (mut http, mut resp) = (server.http(), server.resp());
        let operation = json!({ "api": "x", "user": "a" });
        let share = http.post("/v1/shares", json!({ "operation": operation, "want": 50 })).json();
        assert_eq!(
            (&share["credits"], &share["remaining"], &share["rule"]),
            (&json!(12), &json!(88), &json!("x")),
            "{share}"
        );
        let milliseconds = share["milliseconds"].as_u64().unwrap();
        assert!((9_000..=10_000).contains(&milliseconds), "{share}");
        let path = format!("/v1/shares/{}/return", share["id"].as_str().unwrap());
        for _ in 0..2 {
            assert_eq!(http.post(&path, json!({ "credits": 5 })).json(), json!({ "returned": true }));
        }
        assert_eq!(resp.left("api=x user=a"), 93);
        let nothing = http.post(&path, json!({ "credits": 0 }));
        assert_eq!((nothing.status, &nothing.json()["pointer"]), (400, &json!("#/credits")));
        // It cannot return more than it got.
        let share = resp.command("DIVVY.SHARE api=x user=a WANT 3");
        let [credits, _, id, remaining, _] = words(&share)[..] else { panic!("{share}") };
        assert_eq!((credits, remaining), ("3", "90"));
        assert_eq!(resp.command(&format!("DIVVY.RETURN {id} CREDITS 90")), "1");
        assert_eq!(resp.left("api=x user=a"), 93);
        // A bucket takes nothing back.
        resp.command("DIVVY.HIT api=bucket user=a COST 60");
        let share = resp.command("DIVVY.SHARE api=bucket user=a WANT 3");
        let [credits, _, bucket, ..] = words(&share)[..] else { panic!("{share}") };
        assert_eq!(credits, "3");
        assert_eq!(resp.command(&format!("DIVVY.RETURN {bucket} CREDITS 3")), "0");
        // The ids of shares and reservations are not each other's.
        assert!(resp.command(&format!("DIVVY.COMMIT {id} COST 1")).contains("unknown reservation id"));
        let (_, reservation) = resp.reserve("api=x user=a AMOUNT 5 TTL 60");
        assert!(resp.command(&format!("DIVVY.RETURN {reservation} CREDITS 1")).contains("unknown reservation id"));
        for (operation, status) in [("log", 409), ("two", 409), ("other", 409)] {
            let refused = http.post("/v1/shares", json!({ "operation": { "api": operation, "user": "b" }, "want": 1 }));
            assert_eq!(refused.status, status, "{}", refused.body);
        }
        // A counter that is used up gives a share of nothing, and a blocked actor is denied.
        while resp.hit("api=x user=a").0 {}
        let nothing = http.post("/v1/shares", json!({ "operation": operation, "want": 50 })).json();
        assert_eq!((&nothing["credits"], &nothing["id"]), (&json!(0), &json!(null)), "{nothing}");
        resp.command("DIVVY.BLOCK SET x a");
        assert_eq!(http.post("/v1/shares", json!({ "operation": operation, "want": 50 })).status, 429);
    });
}
