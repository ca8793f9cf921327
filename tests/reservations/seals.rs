//! The key that seals ids: servers on one Redis share it, restarts and backups keep it, and it may be lost or damaged.

use super::*;
use crate::support::{RulesFile, free_port, on_redis, until};

const SEAL: &str = "divvy.seal";

fn serve(redis: &RedisServer) -> Server {
    Server::serving(&rules(), &on_redis(&redis.url()))
}

fn is_refused(client: &mut Client, id: &str) -> bool {
    let reply = client.ask(&format!("DIVVY.RENEW {id}"));
    assert!(reply.contains("unknown reservation id") || reply.parse::<u64>().is_ok(), "{reply}");
    reply.starts_with('-')
}

#[test]
fn servers_on_one_redis_settle_each_others_reservations() {
    let redis = RedisServer::start();
    let servers = [serve(&redis), serve(&redis)];
    let [mut one, mut other] = servers.each_ref().map(Client::of);
    let (_, id) = one.reserve("by=tokens user=a", 30, "TTL 60");
    assert_eq!(other.commit(&id, 10), commit_answer(90, "settled"));
    assert_eq!(one.commit(&id, 10), commit_answer(90, "repeated"));
    let (_, id) = other.reserve("by=tokens user=a", 30, "TTL 60");
    assert_eq!([one.ask(&format!("DIVVY.RELEASE {id}")), other.ask(&format!("DIVVY.RELEASE {id}"))], ["1", "0"]);
}

#[test]
fn ids_are_known_after_restarts_of_the_server_and_of_redis() {
    let mut redis = RedisServer::start_with(free_port(), &["--appendonly", "yes", "--appendfsync", "always"]);
    let server = serve(&redis);
    let [one, two, three] = [0; 3].map(|_| Client::of(&server).reserve("by=tokens user=a", 10, "TTL 60").1);
    server.kill();
    let server = serve(&redis);
    assert_eq!(Client::of(&server).commit(&one, 5), commit_answer(75, "settled"));
    redis.kill();
    redis.restart();
    let mut client = Client::of(&server);
    until(|| client.ask(&format!("DIVVY.RENEW {two}")).parse::<u64>().is_ok_and(|seconds| seconds > 0));
    assert_eq!(client.commit(&two, 5), commit_answer(80, "settled"));
    server.kill();
    assert_eq!(Client::of(&serve(&redis)).commit(&three, 5), commit_answer(85, "settled"));
}

#[test]
fn redis_that_has_lost_the_key_gets_it_back() {
    let redis = RedisServer::start();
    let server = serve(&redis);
    let mut client = Client::of(&server);
    let (_, id) = client.reserve("by=tokens user=a", 10, "TTL 60");
    let key = redis.cli(&["GET", SEAL]);
    assert_eq!(key.len(), 32, "{key}");
    redis.cli(&["FLUSHALL"]);
    until(|| redis.cli(&["GET", SEAL]) == key);
    assert_eq!(client.commit(&id, 5), commit_answer(95, "late"), "the reservation is gone, and the id is known");
    let other = serve(&redis);
    assert!(!is_refused(&mut Client::of(&other), &id));
}

/// The same happens after a failover that lost the first server's key, if another server has created a new key.
#[test]
fn servers_agree_on_the_key_that_is_in_redis() {
    let redis = RedisServer::start();
    let servers = [serve(&redis), serve(&redis)];
    let mut clients = servers.each_ref().map(Client::of);
    let (_, before) = clients[0].reserve("by=tokens user=a", 10, "TTL 60");
    redis.cli(&["SET", SEAL, &"7".repeat(32)]);
    for client in &mut clients {
        until(|| is_refused(client, &before));
    }
    let (_, after) = clients[0].reserve("by=tokens user=a", 10, "TTL 60");
    assert_eq!(clients[1].ask(&format!("DIVVY.RELEASE {after}")), "1");
    assert_eq!(clients[1].left("by=tokens user=a"), 90, "refused reservations expire");
}

#[test]
fn unreadable_key_stops_reservations_only_on_new_servers() {
    let redis = RedisServer::start();
    let first = serve(&redis);
    let (_, id) = Client::of(&first).reserve("by=tokens user=a", 10, "TTL 60");
    let key = redis.cli(&["GET", SEAL]);
    redis.cli(&["SET", SEAL, &format!("{key} v2")]);
    let rules = RulesFile::ini(&rules());
    let (second, log) = Server::logged(&[&[rules.path()], &on_redis(&redis.url())[..]].concat());
    let mut client = Client::of(&second);
    for command in ["DIVVY.RESERVE by=tokens user=a AMOUNT 10 TTL 60", &format!("DIVVY.RELEASE {id}")] {
        let reply = client.ask(command);
        assert!(reply.starts_with("-ERR the key for reservation ids could not be read"), "{reply}");
    }
    assert_eq!(client.left("by=tokens user=a"), 90, "nothing was set aside, and hits go on");
    log.await_line(&["cannot read the key for reservation ids", "divvy.seal in Redis is not a key"]);
    assert!(!is_refused(&mut Client::of(&first), &id), "the last known key stays in force");
    redis.cli(&["DEL", SEAL]);
    until(|| client.ask("DIVVY.RESERVE by=tokens user=b AMOUNT 10 TTL 60").starts_with("[1 90 "));
}

#[test]
fn reservations_work_once_redis_is_available() {
    let mut redis = RedisServer::start();
    redis.kill();
    let server = serve(&redis);
    let mut client = Client::of(&server);
    let refused = client.ask("DIVVY.RESERVE by=tokens user=a AMOUNT 10 TTL 60");
    assert!(refused.starts_with("-ERR the key for reservation ids could not be read"), "{refused}");
    redis.restart();
    until(|| client.ask("DIVVY.RESERVE by=tokens user=a AMOUNT 10 TTL 60 ID x").starts_with("[1 90 "));
    let (_, id) = client.reserve("by=tokens user=a", 10, "TTL 60 ID x");
    assert_eq!(client.commit(&id, 5), commit_answer(95, "settled"));
}
