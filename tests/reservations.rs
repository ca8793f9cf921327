//! Ids of reservations, and the key that seals them: servers on one Redis share it, restarts and backups keep it, and it may be
//! lost or damaged. The commands and requests are in tests/wire/reservations.txt.

use base64_simd::URL_SAFE_NO_PAD;
use serde_json::json;
use siphasher::sip128::SipHasher13;

use crate::support::grpc::descriptor;
use crate::support::{Caller, RedisServer, RespClient, RulesFile, Server, metrics, on_redis, until, words};

/// Returns rules with a hundred credits per user, without a counter, and a default that denies.
fn rules() -> String {
    "[by=fixed user=*] creditLimit=100 resetSeconds=2592000 actorField=user label=fixed
[by=year user=*] creditLimit=100 window=year timezone=Asia/Tokyo actorField=user
[by=tokens user=*] creditLimit=100 resetSeconds=2592000 algorithm=token-bucket actorField=user label=tokens
[free=yes] creditLimit=7 resetSeconds=0
[default] creditLimit=0"
        .to_owned()
}

/// Commits a reservation. Returns the balance, and the result.
fn commit(client: &mut RespClient, id: &str, cost: u64) -> (i64, String) {
    let reply = client.command(&format!("DIVVY.COMMIT {id} COST {cost}"));
    let [balance, _, result] = words(&reply)[..] else { panic!("{reply}") };
    (balance.parse().unwrap(), result.to_owned())
}

fn commit_answer(balance: i64, word: &str) -> (i64, String) {
    (balance, word.to_owned())
}

const CALENDAR: &str = "year 00:00 Asia/Tokyo";
/// Zone names as long as the one above, so that nothing else in an id changes.
const OTHER_ZONES: [&str; 4] = ["Asia/Dhaka", "Asia/Kabul", "Asia/Qatar", "Asia/Seoul"];

/// Returns ids derived from the id of a reservation with the calendar above: with other calendars, with a flipped bit,
/// truncated, and with a checksum in place of the seal.
fn forged(id: &str) -> Vec<String> {
    const SEAL_LENGTH: usize = 16;
    let sealed = URL_SAFE_NO_PAD.decode_to_vec(id).unwrap();
    let unsealed = &sealed[..sealed.len() - SEAL_LENGTH];
    let place = sealed.windows(CALENDAR.len()).position(|text| text == CALENDAR.as_bytes()).unwrap();
    let with_zone = |zone: &str| {
        let mut bytes = sealed.clone();
        bytes[place..place + CALENDAR.len()].copy_from_slice(format!("year 00:00 {zone}").as_bytes());
        bytes
    };
    let with_bit = |bit: usize| {
        let mut bytes = sealed.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        bytes
    };
    let mut earlier = [&[1], &unsealed[1..]].concat();
    earlier.extend((SipHasher13::new_with_keys(0, 0).hash(&earlier).h1 as u32).to_le_bytes());
    let zones = OTHER_ZONES.map(with_zone);
    let flipped = (0..8 * sealed.len()).step_by(5).map(with_bit);
    let cut = (0..sealed.len()).step_by(7).map(|length| sealed[..length].to_vec());
    let forged = zones.into_iter().chain(flipped).chain(cut).chain([earlier, unsealed.to_vec()]);
    forged.map(|bytes| URL_SAFE_NO_PAD.encode_to_string(bytes)).filter(|text| !text.is_empty()).collect()
}

fn calendars(server: &Server) -> f64 {
    metrics::scrape(server.http).value("divvy_calendars", &[])
}

/// Ids that clients derive from a real one cause no request to the store, and load no calendars. A gateway's commit becomes a
/// charge instead.
#[test]
fn forged_ids_are_refused_without_a_question_to_redis() {
    let mut redis = RedisServer::start();
    let server = &Server::serving(&rules(), &["--redis-url", &redis.url()]);
    let known = server.resp().reserve("by=year user=a AMOUNT 30 TTL 60").1;
    let ids = forged(&known);
    let before = calendars(server);
    for (command, options) in [("COMMIT", " COST 1"), ("RELEASE", ""), ("RENEW", "")] {
        for id in ids.iter().step_by(7) {
            let reply = server.resp().command(&format!("DIVVY.{command} {id}{options}"));
            assert!(reply.contains("unknown reservation id"), "{command} {id}: {reply}");
        }
    }
    assert_eq!(server.resp().left("by=year user=a"), 70);
    redis.kill();
    let mut client = server.resp();
    let reply = client.command(&format!("DIVVY.RELEASE {known}"));
    assert!(!reply.contains("reservation id"), "this one is known: {reply}");
    for (command, options) in [("COMMIT", " COST 1"), ("RELEASE", ""), ("RENEW", "")] {
        let replies = client.pipeline(ids.iter().map(|id| format!("DIVVY.{command} {id}{options}")));
        for (id, reply) in ids.iter().zip(replies) {
            assert!(reply.contains("unknown reservation id"), "{command} {id}: {reply}");
        }
    }
    let mut http = server.http();
    let mut gateway = Caller::generated(server, "kuadrantrls.proto");
    for id in ids.iter().step_by(19) {
        assert_eq!(http.post(&format!("/v1/reservations/{id}/commit"), r#"{"cost": 1}"#).status, 404);
        let request = json!({"domain": "free", "descriptors": [descriptor("free=yes")], "reservation_id": id, "actual_amount": "1"});
        let reply = gateway.call("kuadrant.service.ratelimit.v1.RateLimitService/Commit", &request);
        assert_eq!(reply["reservation_released"], false);
    }
    assert_eq!(calendars(server), before);
}

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
    log.await_line(&["cannot read the key for reservation ids", "cannot read divvy.seal in Redis"]);
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
