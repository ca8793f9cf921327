//! Ids that clients make up from a real one: they load no calendars. Ids of real reservations work wherever a server has
//! written their records.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;
use siphasher::sip128::SipHasher13;

use super::*;
use crate::support::grpc::{Caller, descriptor};
use crate::support::redis::{RedisCluster, RedisServer};

const CALENDAR: &str = "year 00:00 Asia/Tokyo";
/// As long as the one above, so that nothing else of an id changes.
const OTHER_ZONES: [&str; 4] = ["Asia/Dhaka", "Asia/Kabul", "Asia/Qatar", "Asia/Seoul"];

/// Ids like this one of a reservation by the calendar above, for every time of the day in four other zones.
fn forged(id: &str) -> Vec<String> {
    const CHECKSUM: usize = 4;
    let mut bytes = URL_SAFE_NO_PAD.decode(id).unwrap();
    bytes.truncate(bytes.len() - CHECKSUM);
    let at = bytes.windows(CALENDAR.len()).position(|text| text == CALENDAR.as_bytes()).unwrap();
    let times = (0..24).flat_map(|hour| (0..60).map(move |minute| format!("{hour:02}:{minute:02}")));
    let texts = times.flat_map(|time| OTHER_ZONES.map(|zone| format!("year {time} {zone}")));
    let forge = |text: String| {
        let mut bytes = bytes.clone();
        bytes[at..at + text.len()].copy_from_slice(text.as_bytes());
        let checksum = (SipHasher13::new_with_keys(0, 0).hash(&bytes).h1 as u32).to_le_bytes();
        URL_SAFE_NO_PAD.encode([&bytes[..], &checksum].concat())
    };
    texts.map(forge).collect()
}

fn calendars(server: &Server) -> f64 {
    metrics::scrape(server.http).value("divvy_calendars", &[])
}

fn reserve(server: &Server) -> String {
    Client::of(server).reserve("by=year user=a", 30, "TTL 60").1
}

fn forged_ids_load_no_calendar(server: &Server) {
    let ids = forged(&reserve(server));
    let before = calendars(server);
    let mut client = RespClient::connect(server.resp);
    for (command, expected) in [("COMMIT", "has ended"), ("RELEASE", "0"), ("RENEW", "0")] {
        let options = if command == "COMMIT" { " COST 1" } else { "" };
        for some in ids.chunks(100) {
            let commands = some.iter().map(|id| format!("DIVVY.{command} {id}{options}\r\n"));
            client.send(commands.collect::<String>().as_bytes());
            for _ in some {
                let reply = client.read_reply();
                assert!(reply.contains(expected), "{command}: {reply}");
            }
        }
    }
    let mut gateway = Caller::generated(server, "kuadrantrls.proto");
    for id in ids.iter().step_by(19) {
        let request = json!({"domain": "free", "descriptors": [descriptor("free=yes")], "reservation_id": id, "actual_amount": "1"});
        let reply = gateway.call("kuadrant.service.ratelimit.v1.RateLimitService/Commit", &request);
        assert_eq!(reply["reservation_released"], false);
    }
    assert_eq!(calendars(server), before);
}

#[test]
fn forged_ids_load_no_calendar_on_any_store() {
    let (rules, data) = (rules(), tempfile::tempdir().unwrap());
    for server in Server::on_each_store(rules.path(), data.path()) {
        forged_ids_load_no_calendar(&server);
    }
    let redis = RedisServer::start();
    forged_ids_load_no_calendar(&Server::start(&[rules.path(), "--store", "redis", "--redis-url", &redis.url()]));
}

#[test]
#[cfg_attr(not(feature = "rocksdb"), ignore = "needs the embedded store")]
fn a_reservation_commits_after_a_restart_without_its_calendar_rule() {
    let (rules, data) = (rules(), tempfile::tempdir().unwrap());
    let others = RulesFile::ini("[default]\ncreditLimit = 0\n");
    let serve = |rules: &RulesFile| Server::on_disk(rules.path(), data.path(), "wal");
    let server = serve(&rules);
    let [one, two, three] = [0, 1, 2].map(|_| reserve(&server));
    server.kill();

    // The journal has their records, and then the database.
    let server = serve(&others);
    assert_eq!(calendars(&server), 1.0);
    assert_eq!(Client::of(&server).commit(&one, 10), came_to(30, "settled"));
    assert!(server.terminate().success());

    let server = serve(&others);
    let mut client = Client::of(&server);
    assert_eq!(client.commit(&two, 20), came_to(40, "settled"));
    assert_eq!(client.ask(&format!("DIVVY.RELEASE {three}")), "1");
    server.kill();

    assert_eq!(Client::of(&serve(&rules)).left("by=year user=a"), 70);
}

fn commits_on_another_server(options: &[&str]) {
    let (rules, others) = (rules(), RulesFile::ini("[default]\ncreditLimit = 0\n"));
    let serve = |rules: &RulesFile| {
        Server::start(&[&[rules.path(), "--store", "redis", "--redis-timeout", "20000"], options].concat())
    };
    let (first, other) = (serve(&rules), serve(&others));
    assert_eq!(calendars(&other), 0.0);
    let id = reserve(&first);
    let mut client = Client::of(&other);
    for made_up in forged(&id).iter().step_by(500) {
        assert_eq!(client.ask(&format!("DIVVY.RELEASE {made_up}")), "0");
    }
    assert_eq!(calendars(&other), 0.0);
    assert_eq!(client.commit(&id, 10), came_to(90, "settled"));
    assert_eq!((calendars(&other), client.commit(&id, 10)), (1.0, came_to(90, "repeated")));
    assert_eq!(Client::of(&first).left("by=year user=a"), 90);
}

#[test]
fn a_reservation_commits_on_a_server_without_its_calendar_rule() {
    let (redis, cluster) = (RedisServer::start(), RedisCluster::start());
    commits_on_another_server(&["--redis-url", &redis.url()]);
    commits_on_another_server(&["--redis-url", &cluster.urls().join(",")]);
}
