//! Many connections reserve from one bucket at the same time, but never more credits than it has. They also settle one
//! reservation of many buckets at the same time, and the first settlement decides for all buckets.

use std::sync::Barrier;
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
    // The credits reserved and used, according to the clients. They are increased only after the server's answer, and
    // decreased before credits are given back.
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
                    // In this order, because between the two reads other clients move credits from `held` to `used`.
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

/// Returns nine rules that must all allow.
fn stack() -> RulesFile {
    let rule = |number: usize| {
        let policy = if number < 8 { "matchPolicy = and\n" } else { "" };
        format!(
            "[user=*]\ncreditLimit = 1000{number}\nresetSeconds = 2592000\nactorField = user\n{policy}label = r{number}\n\n"
        )
    };
    RulesFile::ini(&((0..9).map(rule).collect::<String>() + "[default]\ncreditLimit = 0\n"))
}

/// Makes each connection send its commands in one write, all at the same moment. Returns the replies to the first
/// command of each connection, then those to the second, and so on.
fn at_once(clients: &mut [RespClient], commands: &[Vec<String>]) -> Vec<Vec<String>> {
    let barrier = &Barrier::new(clients.len());
    let replies: Vec<Vec<String>> = thread::scope(|scope| {
        let send = |(client, commands): (&'_ mut RespClient, &Vec<String>)| -> Vec<_> {
            let text: String = commands.iter().map(|command| format!("{command}\r\n")).collect();
            barrier.wait();
            client.send(text.as_bytes());
            commands.iter().map(|_| client.read_reply()).collect()
        };
        let sent: Vec<_> = clients.iter_mut().zip(commands).map(|asked| scope.spawn(move || send(asked))).collect();
        sent.into_iter().map(|sent| sent.join().unwrap()).collect()
    });
    (0..commands[0].len()).map(|place| replies.iter().map(|replies| replies[place].clone()).collect()).collect()
}

fn first_call_settles_all_rules_of_a_stack(server: &Server, rounds: usize) {
    const IDS: usize = 20;
    let mut clients: Vec<_> = (0..8).map(|_| RespClient::connect(server.resp)).collect();
    for round in 0..rounds {
        let user = format!("u{round}");
        let reserve = |client: &mut RespClient| -> Vec<String> {
            let mut reserve = || client.command(&format!("DIVVY.RESERVE user={user} AMOUNT 10 TTL 60"));
            let replies = (0..IDS).map(|_| reserve());
            let id = |reply: String| {
                reply.trim_matches(['[', ']']).split(' ').nth(3).map(str::to_owned).unwrap_or_else(|| panic!("{reply}"))
            };
            replies.map(id).collect()
        };
        let each = |ids: &[String], what: &str, more: &str| -> Vec<_> {
            ids.iter().map(|id| format!("DIVVY.{what} {id}{more}")).collect()
        };
        let ids = reserve(&mut clients[0]);
        let commits: Vec<_> = (0..8).map(|cost| each(&ids, "COMMIT", &format!(" COST {cost}"))).collect();
        for replies in at_once(&mut clients, &commits) {
            assert_eq!(replies.iter().filter(|reply| reply.ends_with("settled]")).count(), 1, "{replies:?}");
        }
        let used = |number: usize| {
            let mut client = RespClient::connect(server.resp);
            let mut ask = || client.command(&format!("DIVVY.COUNTERS r{number} ACTOR {user}"));
            // Redis may answer too late on a busy machine.
            let mut replies = std::iter::repeat_with(&mut ask).take(20).skip_while(|reply| reply.starts_with('-'));
            let reply = replies.next().unwrap();
            let left: usize = reply.split(' ').nth(2).map_or(10_000 + number, |left| left.parse().unwrap());
            10_000 + number - left
        };
        let used: Vec<_> = (0..9).map(used).collect();
        assert!(used.iter().all(|one| *one == used[0]), "{used:?}");

        let ids = reserve(&mut clients[0]);
        for replies in at_once(&mut clients, &vec![each(&ids, "RELEASE", ""); 8]) {
            assert_eq!(replies.iter().filter(|reply| *reply == "1").count(), 1, "{replies:?}");
        }
        let ids = reserve(&mut clients[0]);
        let calls = [each(&ids, "RELEASE", ""), each(&ids, "COMMIT", " COST 1")];
        for replies in at_once(&mut clients[..2], &calls) {
            let expected = if replies[0] == "1" { "late]" } else { "settled]" };
            assert!(replies[1].ends_with(expected), "{replies:?}");
        }
    }
}

/// Event loops that share the connections. On a single one, calls take turns.
const THREADS: &str = "4";

#[test]
fn first_call_settles_all_rules_of_a_stack_in_memory_and_on_disk() {
    let (rules, data) = (stack(), tempfile::tempdir().unwrap());
    let mut stores = vec![vec!["--store", "memory"]];
    if cfg!(feature = "rocksdb") {
        stores.push(vec!["--data-dir", data.path().to_str().unwrap()]);
    }
    for store in stores {
        let server = Server::start(&[&[rules.path(), "--threads", THREADS], &store[..]].concat());
        first_call_settles_all_rules_of_a_stack(&server, 20);
    }
}

#[test]
fn first_call_settles_all_rules_of_a_stack_in_redis() {
    let (rules, redis) = (stack(), RedisServer::start());
    let url = redis.url();
    let server = Server::start(&[rules.path(), "--threads", THREADS, "--store", "redis", "--redis-url", &url]);
    first_call_settles_all_rules_of_a_stack(&server, 5);
}
