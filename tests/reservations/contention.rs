//! Many connections reserve of one bucket at the same time: never more than there is.

use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::thread;

use rand::rngs::Xoshiro256PlusPlus as Rng;
use rand::{RngExt, SeedableRng};

use crate::support::redis::RedisServer;
use crate::support::seed::seed;
use crate::support::{RespClient, RulesFile, Server};

const CONNECTIONS: u64 = 64;
const ROUNDS: usize = 40;
const CREDITS: i64 = 2_000;

const RULES: &str = "[user=*]\ncreditLimit = 2000\nresetSeconds = 2592000\nactorField = user\nlabel = one\n\n\
    [default]\ncreditLimit = 0\n";

fn never_more_is_reserved_than_there_is(server: &Server) {
    // What clients know to be set aside, and what was used: both are told only after the server's answer, or before it is
    // asked to give back.
    let (held, used) = (AtomicI64::new(0), AtomicI64::new(0));
    let seed = seed();
    thread::scope(|scope| {
        for connection in 0..CONNECTIONS {
            let (held, used) = (&held, &used);
            scope.spawn(move || {
                let mut rng = Rng::seed_from_u64(seed ^ connection);
                let mut client = RespClient::connect(server.resp);
                for _ in 0..ROUNDS {
                    let amount = rng.random_range(1..120);
                    let reply = client.command(&format!("DIVVY.RESERVE user=u AMOUNT {amount} TTL 60"));
                    let words: Vec<_> = reply.trim_matches(['[', ']']).split(' ').collect();
                    if words[0] == "0" {
                        continue;
                    }
                    // In this order: between the two, others move from what is held to what is used.
                    let now_used = used.load(SeqCst);
                    let now_held = held.fetch_add(amount, SeqCst) + amount;
                    assert!(now_held + now_used <= CREDITS, "{now_held} held, {now_used} used");
                    let cost = if rng.random_bool(0.1) { rng.random_range(0..=amount.min(9)) } else { 0 };
                    held.fetch_sub(amount, SeqCst);
                    match rng.random_range(0..3) {
                        0 => assert_eq!(client.command(&format!("DIVVY.RELEASE {}", words[3])), "1"),
                        _ => {
                            used.fetch_add(cost, SeqCst);
                            let reply = client.command(&format!("DIVVY.COMMIT {} COST {cost}", words[3]));
                            assert!(reply.ends_with("settled]"), "{reply}");
                        }
                    }
                }
            });
        }
    });
    let reply = RespClient::connect(server.resp).command("DIVVY.CHARGE user=u COST 0");
    let balance = CREDITS - used.load(SeqCst);
    assert!(reply.starts_with(&format!("[{balance} ")), "{reply}, not {balance}");
}

#[test]
fn sixty_four_connections_share_a_bucket() {
    let (rules, data) = (RulesFile::ini(RULES), tempfile::tempdir().unwrap());
    for server in Server::on_each_store(rules.path(), data.path()) {
        never_more_is_reserved_than_there_is(&server);
    }
}

#[test]
fn sixty_four_connections_share_a_bucket_in_redis() {
    let (rules, redis) = (RulesFile::ini(RULES), RedisServer::start());
    let server = Server::start(&[rules.path(), "--store", "redis", "--redis-url", &redis.url()]);
    never_more_is_reserved_than_there_is(&server);
}
