//! Ids that clients derive from a real one are rejected. They cause no request to the store, and load no calendars.
//! Real ids work on every server that shares the store, regardless of its rules.

use base64_simd::URL_SAFE_NO_PAD;
use serde_json::json;
use siphasher::sip128::SipHasher13;

use super::*;
use crate::support::grpc::{Caller, descriptor};
use crate::support::http::HttpClient;
use crate::support::redis::RedisServer;

const CALENDAR: &str = "year 00:00 Asia/Tokyo";
/// Zone names as long as the one above, so that nothing else in an id changes.
const OTHER_ZONES: [&str; 4] = ["Asia/Dhaka", "Asia/Kabul", "Asia/Qatar", "Asia/Seoul"];

/// Returns ids derived from the id of a reservation with the calendar above: with other calendars, with a flipped bit,
/// truncated, and with a checksum in place of the seal.
fn forged(id: &str) -> Vec<String> {
    const SEAL: usize = 16;
    let sealed = URL_SAFE_NO_PAD.decode_to_vec(id).unwrap();
    let unsealed = &sealed[..sealed.len() - SEAL];
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

fn reserve(server: &Server) -> String {
    Client::of(server).reserve("by=year user=a", 30, "TTL 60").1
}

/// Checks every front. A gateway's commit becomes a charge instead.
fn forged_ids_are_refused(server: &Server) {
    let ids = forged(&reserve(server));
    let before = calendars(server);
    let mut client = RespClient::connect(server.resp);
    for (command, options) in [("COMMIT", " COST 1"), ("RELEASE", ""), ("RENEW", "")] {
        client.send(ids.iter().map(|id| format!("DIVVY.{command} {id}{options}\r\n")).collect::<String>().as_bytes());
        for id in &ids {
            let reply = client.read_reply();
            assert!(reply.contains("unknown reservation id"), "{command} {id}: {reply}");
        }
    }
    let mut http = HttpClient::connect(server.http);
    let mut gateway = Caller::generated(server, "kuadrantrls.proto");
    for id in ids.iter().step_by(19) {
        assert_eq!(http.post(&format!("/v1/reservations/{id}/commit"), r#"{"cost": 1}"#).status, 404);
        let request = json!({"domain": "free", "descriptors": [descriptor("free=yes")], "reservation_id": id, "actual_amount": "1"});
        let reply = gateway.call("kuadrant.service.ratelimit.v1.RateLimitService/Commit", &request);
        assert_eq!(reply["reservation_released"], false);
    }
    assert_eq!(calendars(server), before);
    assert_eq!(Client::of(server).left("by=year user=a"), 70);
}

#[test]
fn forged_ids_are_refused_on_any_store() {
    let (rules, data) = (rules(), tempfile::tempdir().unwrap());
    for server in Server::on_each_store(rules.path(), data.path()) {
        forged_ids_are_refused(&server);
    }
    let redis = RedisServer::start();
    forged_ids_are_refused(&Server::start(&[rules.path(), "--store", "redis", "--redis-url", &redis.url()]));
}

#[test]
fn redis_is_not_asked_about_a_forged_id() {
    let (rules, mut redis) = (rules(), RedisServer::start());
    let server = Server::start(&[rules.path(), "--store", "redis", "--redis-url", &redis.url()]);
    let id = reserve(&server);
    redis.kill();
    let mut client = Client::of(&server);
    assert!(!client.ask(&format!("DIVVY.RELEASE {id}")).contains("reservation id"), "that one is known");
    for id in forged(&id) {
        assert!(client.ask(&format!("DIVVY.RELEASE {id}")).contains("unknown reservation id"), "{id}");
    }
}
