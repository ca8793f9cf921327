//! The key that seals ids: servers on one Redis share it, restarts and backups keep it, and it may be lost or damaged.

use super::*;
use crate::support::{RulesFile, on_redis, until};

const SEAL: &str = "divvy.seal";

fn serve(redis: &RedisServer) -> Server {
    Server::serving(&rules(), &on_redis(&redis.url()))
}

fn is_refused(client: &mut RespClient, id: &str) -> bool {
    let reply = client.command(&format!("DIVVY.RENEW {id}"));
    assert!(reply.contains("unknown reservation id") || reply.parse::<u64>().is_ok(), "{reply}");
    reply.starts_with('-')
}

#[test]
fn servers_on_one_redis_settle_each_others_reservations() {
    let redis = RedisServer::start();
    let servers = [serve(&redis), serve(&redis)];
    let [mut one, mut other] = servers.each_ref().map(Server::resp);
    let (_, id) = one.reserve("by=tokens user=a AMOUNT 30 TTL 60");
    assert_eq!(commit(&mut other, &id, 10), commit_answer(90, "settled"));
    assert_eq!(commit(&mut one, &id, 10), commit_answer(90, "repeated"));
    let (_, id) = other.reserve("by=tokens user=a AMOUNT 30 TTL 60");
    assert_eq!(
        [one.command(&format!("DIVVY.RELEASE {id}")), other.command(&format!("DIVVY.RELEASE {id}"))],
        ["1", "0"]
    );
}

#[test]
fn ids_are_known_after_restarts_of_the_server_and_of_redis() {
    let mut redis = RedisServer::durable();
    let server = serve(&redis);
    let [one, two, three] = [0; 3].map(|_| server.resp().reserve("by=tokens user=a AMOUNT 10 TTL 60").1);
    server.kill();
    let server = serve(&redis);
    assert_eq!(commit(&mut server.resp(), &one, 5), commit_answer(75, "settled"));
    redis.kill();
    redis.restart();
    let mut client = server.resp();
    until(|| client.command(&format!("DIVVY.RENEW {two}")).parse::<u64>().is_ok_and(|seconds| seconds > 0));
    assert_eq!(commit(&mut client, &two, 5), commit_answer(80, "settled"));
    server.kill();
    assert_eq!(commit(&mut serve(&redis).resp(), &three, 5), commit_answer(85, "settled"));
}

#[test]
fn redis_that_has_lost_the_key_gets_it_back() {
    let redis = RedisServer::start();
    let server = serve(&redis);
    let mut client = server.resp();
    let (_, id) = client.reserve("by=tokens user=a AMOUNT 10 TTL 60");
    let key = redis.cli(&["GET", SEAL]);
    assert_eq!(key.len(), 32, "{key}");
    redis.cli(&["FLUSHALL"]);
    until(|| redis.cli(&["GET", SEAL]) == key);
    assert_eq!(commit(&mut client, &id, 5), commit_answer(95, "late"), "the reservation is gone, and the id is known");
    let other = serve(&redis);
    assert!(!is_refused(&mut other.resp(), &id));
}

/// The same happens after a failover that lost the first server's key, if another server has created a new key.
#[test]
fn servers_agree_on_the_key_that_is_in_redis() {
    let redis = RedisServer::start();
    let servers = [serve(&redis), serve(&redis)];
    let mut clients = servers.each_ref().map(Server::resp);
    let (_, before) = clients[0].reserve("by=tokens user=a AMOUNT 10 TTL 60");
    redis.cli(&["SET", SEAL, &"7".repeat(32)]);
    for client in &mut clients {
        until(|| is_refused(client, &before));
    }
    let (_, after) = clients[0].reserve("by=tokens user=a AMOUNT 10 TTL 60");
    assert_eq!(clients[1].command(&format!("DIVVY.RELEASE {after}")), "1");
    assert_eq!(clients[1].left("by=tokens user=a"), 90, "refused reservations expire");
}

#[test]
fn unreadable_key_stops_reservations_only_on_new_servers() {
    let redis = RedisServer::start();
    let first = serve(&redis);
    let (_, id) = first.resp().reserve("by=tokens user=a AMOUNT 10 TTL 60");
    let key = redis.cli(&["GET", SEAL]);
    redis.cli(&["SET", SEAL, &format!("{key} v2")]);
    let rules = RulesFile::ini(&rules());
    let (second, log) = Server::logged(&[&[rules.path()], &on_redis(&redis.url())[..]].concat());
    let mut client = second.resp();
    for command in ["DIVVY.RESERVE by=tokens user=a AMOUNT 10 TTL 60", &format!("DIVVY.RELEASE {id}")] {
        let reply = client.command(command);
        assert!(reply.starts_with("-ERR the key for reservation ids could not be read"), "{reply}");
    }
    assert_eq!(client.left("by=tokens user=a"), 90, "nothing was set aside, and hits go on");
    log.await_line(&["cannot read the key for reservation ids", "divvy.seal in Redis is not a key"]);
    assert!(!is_refused(&mut first.resp(), &id), "the last known key stays in force");
    redis.cli(&["DEL", SEAL]);
    until(|| client.command("DIVVY.RESERVE by=tokens user=b AMOUNT 10 TTL 60").starts_with("[1 90 "));
}

#[test]
fn reservations_work_once_redis_is_available() {
    let mut redis = RedisServer::start();
    redis.kill();
    let server = serve(&redis);
    let mut client = server.resp();
    let refused = client.command("DIVVY.RESERVE by=tokens user=a AMOUNT 10 TTL 60");
    assert!(refused.starts_with("-ERR the key for reservation ids could not be read"), "{refused}");
    redis.restart();
    until(|| client.command("DIVVY.RESERVE by=tokens user=a AMOUNT 10 TTL 60 ID x").starts_with("[1 90 "));
    let (_, id) = client.reserve("by=tokens user=a AMOUNT 10 TTL 60 ID x");
    assert_eq!(commit(&mut client, &id, 5), commit_answer(95, "settled"));
}
