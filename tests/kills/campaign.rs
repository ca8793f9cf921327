//! The course of a campaign: clients work, a server is killed at a random moment, and its successor is checked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus as Rng;
use rand::{RngExt, SeedableRng};

use crate::support::{Place, RedisServer, RespClient, Server, on_redis, seed, setting, until};

const CLIENTS: usize = 4;
/// The default number of kills.
const KILLS: usize = 4;

/// What clients do, and what a server must know after a kill.
pub trait Campaign: Sized {
    /// The variable with the number of kills.
    const VARIABLE: &'static str;
    /// A command whose reply is a list once Redis answers again.
    const PROBE: &'static str;
    /// What one client did.
    type Work: Send + 'static;

    fn begin(server: &Server) -> Self;

    /// Starts a client, which works until the flag is set, or the server is gone.
    fn work(stop: Arc<AtomicBool>, client: RespClient, rng: Rng) -> JoinHandle<Self::Work>;

    fn verify(&mut self, server: &Server, work: Vec<Self::Work>);
}

fn start_clients<C: Campaign>(stop: &Arc<AtomicBool>, server: &Server, rng: &mut Rng) -> Vec<JoinHandle<C::Work>> {
    let client = |_| {
        let client_rng = Rng::seed_from_u64(rng.random());
        C::work(Arc::clone(stop), server.resp(), client_rng)
    };
    (0..CLIENTS).map(client).collect()
}

fn join<T>(clients: Vec<JoinHandle<T>>) -> Vec<T> {
    clients.into_iter().map(|client| client.join().unwrap()).collect()
}

/// Kills divvy again and again, in two durability modes by turns. The table is small and the journal short, so counters
/// are evicted, and records outlive the journal.
pub fn kill_divvy<C: Campaign>(rules: &str, flags: &[&str]) -> C {
    let (place, mut rng) = (Place::new(rules), Rng::seed_from_u64(seed()));
    let serve = |durability: &str| {
        let store = ["--durability", durability, "--cache-memory", "1Mi", "--max-journal", "1Mi"];
        place.on_disk(&[&store, flags].concat())
    };
    let never = Arc::new(AtomicBool::new(false));
    let mut server = serve("wal");
    let mut campaign = C::begin(&server);
    for round in 0..setting(C::VARIABLE, KILLS) {
        let clients = start_clients::<C>(&never, &server, &mut rng);
        thread::sleep(Duration::from_millis(rng.random_range(20..250)));
        server.kill();
        server = serve(["sync", "wal"][round % 2]);
        campaign.verify(&server, join(clients));
    }
    campaign
}

/// Kills a Redis that keeps everything that it acknowledges, again and again. divvy waits for Redis's disk, even if it is
/// busy, because a late answer must not look like a lost one.
pub fn kill_redis<C: Campaign>(rules: &str, flags: &[&str]) -> C {
    let (mut redis, mut rng) = (RedisServer::durable(), Rng::seed_from_u64(seed()));
    let server = Server::serving(rules, &[&on_redis(&redis.url()), flags].concat());
    let mut campaign = C::begin(&server);
    for _ in 0..setting(C::VARIABLE, KILLS) {
        let stop = Arc::new(AtomicBool::new(false));
        let clients = start_clients::<C>(&stop, &server, &mut rng);
        thread::sleep(Duration::from_millis(rng.random_range(20..250)));
        redis.kill();
        thread::sleep(Duration::from_millis(20));
        stop.store(true, Relaxed);
        redis.restart();
        let work = join(clients);
        until(|| server.resp().command(C::PROBE).starts_with('['));
        campaign.verify(&server, work);
    }
    campaign
}

/// Sends these commands at once, each in one line.
pub fn send(client: &mut RespClient, commands: impl IntoIterator<Item = String>) {
    client.try_send(commands.into_iter().map(|command| command + "\r\n").collect::<String>().as_bytes());
}

/// Returns the words of a reply that is a list.
pub fn words(reply: &str) -> Option<Vec<String>> {
    Some(reply.strip_prefix('[')?.strip_suffix(']')?.split(' ').map(str::to_owned).collect())
}
