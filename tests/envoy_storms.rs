//! Users of the real Envoy hang up by the thousands: Envoy's connection to divvy survives, and so do the answers to
//! other users.
//!
//! `DIVVY_TEST_STORM_RESETS` sets the number of reset requests (default 6,000), and `DIVVY_TEST_SEED` their moments.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use h2::Reason;
use hyper::Request;
use rand::rngs::Xoshiro256PlusPlus as Rng;
use rand::{RngExt, SeedableRng};
use tokio::net::TcpStream;
use tokio::task::yield_now;

use crate::envoy::start;
use crate::support::http::encode;
use crate::support::{Gateway, HttpClient, Server, application, seed, setting};

const RULES: &str = "
[domain=edge user=ann] creditLimit=5 resetSeconds=36000
[domain=edge user=*] creditLimit=1000000 resetSeconds=36000 actorField=user
[default] creditLimit=0 resetSeconds=0
";
const CREDIT: usize = 5;
/// Clients that reset their requests, each on its own connections.
const CLIENTS: usize = 2;
/// Requests that a client resets at once.
const AT_ONCE: usize = 30;
/// Requests of a client on one connection. Envoy closes a connection after 250 resets.
const PER_CONNECTION: usize = 240;
/// Minimum number of requests of the user who waits for each answer.
const ANSWERS: usize = 35;

#[test]
fn storm_of_resets_lets_no_request_exceed_a_limit() {
    storm(false);
}

#[test]
fn storm_of_resets_denies_no_request_within_a_limit() {
    storm(true);
}

fn storm(failure_mode_deny: bool) {
    let server = Server::serving(RULES, &[]);
    let by_user = "- request_headers: { header_name: x-user, descriptor_key: user }";
    let actions = "- request_headers: { header_name: \":method\", descriptor_key: method }
                            - request_headers: { header_name: \":path\", descriptor_key: path }
                            - remote_address: {}";
    let deny = format!("failure_mode_deny: {failure_mode_deny}");
    let changes = [(actions, by_user.to_owned()), ("failure_mode_deny: false", deny)];
    let gateway = start("envoy.yaml", ("8323", server.grpc), application(), &changes);
    assert_eq!(gateway.post_as("bob", "/").status, 200);
    let before = Connections::of(&gateway);

    let resets: usize = setting("DIVVY_TEST_STORM_RESETS", 6_000);
    let mut rng = Rng::seed_from_u64(seed());
    let (begun, is_over) = (Instant::now(), AtomicBool::new(false));
    let answers = thread::scope(|scope| {
        let other = scope.spawn(|| ask(gateway.address(), &is_over));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let rng = Rng::seed_from_u64(rng.random());
                scope.spawn(|| reset(gateway.address(), resets / CLIENTS, rng))
            })
            .collect();
        let ended: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        is_over.store(true, Relaxed);
        let answers = other.join().unwrap();
        ended.into_iter().for_each(|client| client.unwrap());
        answers
    });
    let after = Connections::of(&gateway);
    let (length, reset) = (begun.elapsed(), after.resets - before.resets);
    println!(
        "failure_mode_deny {failure_mode_deny}: {resets} requests were reset in {length:?}, {reset} of them at divvy; \
         {before:?}, {after:?}; {} answers",
        answers.len()
    );
    let passed = answers.iter().filter(|status| **status == 200).count();
    let denied = answers.iter().filter(|status| **status == 429).count();
    assert_eq!((passed, passed + denied), (CREDIT, answers.len()), "{:?} …", &answers[..ANSWERS]);
    assert!(reset > resets as u64 / 4, "{reset} resets reached divvy");
    assert_eq!((after.opened, after.ended), (before.opened, before.ended), "Envoy lost its connection");
}

/// Envoy's connections to divvy.
#[derive(Debug)]
struct Connections {
    opened: u64,
    ended: u64,
    /// Requests that Envoy has reset.
    resets: u64,
}

impl Connections {
    fn of(gateway: &Gateway) -> Self {
        let stat = |name| gateway.stat(&format!("cluster.divvy.{name}"));
        Self {
            opened: stat("upstream_cx_total"),
            ended: stat("upstream_cx_destroy"),
            resets: stat("upstream_rq_tx_reset"),
        }
    }
}

/// Sends requests of one user one by one until the storm is over. Returns their statuses.
fn ask(gateway: SocketAddr, is_over: &AtomicBool) -> Vec<u16> {
    let mut client = HttpClient::connect(gateway);
    let mut statuses = Vec::new();
    while !is_over.load(Relaxed) || statuses.len() < ANSWERS {
        client.send(&encode("POST", "/", &[("x-user", "ann")], b""));
        statuses.push(client.read_response().status);
    }
    statuses
}

/// Sends requests, and resets them within a moment.
fn reset(gateway: SocketAddr, count: usize, mut rng: Rng) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut request = || {
        let user = format!("u{}", rng.random_range(0..40));
        let moment = rng.random_range(0..20);
        (Request::get("http://app/").header("x-user", user).body(()).unwrap(), moment)
    };
    runtime.block_on(async {
        for _ in 0..count.div_ceil(PER_CONNECTION) {
            let socket = TcpStream::connect(gateway).await.unwrap();
            let (mut client, connection) = h2::client::handshake(socket).await.unwrap();
            let connection = tokio::spawn(connection);
            for _ in 0..PER_CONNECTION / AT_ONCE {
                let mut streams = Vec::new();
                for _ in 0..AT_ONCE {
                    client = client.ready().await.unwrap();
                    streams.push(client.send_request(request().0, true).unwrap());
                }
                for _ in 0..request().1 {
                    yield_now().await;
                }
                streams.iter_mut().for_each(|(_, stream)| stream.send_reset(Reason::CANCEL));
            }
            // Once this request is answered, Envoy has read the others.
            client = client.ready().await.unwrap();
            client.send_request(request().0, true).unwrap().0.await.unwrap();
            connection.abort();
        }
    });
}
