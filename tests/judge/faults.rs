//! Servers that are killed, and networks that fail.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus as Rng;
use rand::{RngExt, SeedableRng};

use super::fronts::Addresses;
use super::history::History;
use super::models::Model;
use super::workload::{Course, RULES};
use crate::support::redis::pass_on;
use crate::support::{Place, Server, divvy, lasting_port};

/// A divvy that starts again at the same addresses, with the same data.
pub struct Host {
    place: Place,
    command: fn() -> Command,
    flags: Vec<String>,
    server: Mutex<Option<Server>>,
    pub addresses: Addresses,
}

impl Host {
    pub fn start(flags: &[&str]) -> Self {
        Self::start_as(divvy, Ipv4Addr::LOCALHOST, flags)
    }

    /// Starts a divvy with a command, and with fronts at this address. In its flags, `DIR` stands for a directory.
    pub fn start_as(command: fn() -> Command, address: Ipv4Addr, flags: &[&str]) -> Self {
        let [line, resp, http, grpc] = [(); 4].map(|()| SocketAddr::from((address, lasting_port())));
        let fronts = [("", line), ("resp-", resp), ("http-", http), ("grpc-", grpc)];
        let fronts = fronts.map(|(front, address)| format!("--{front}listen={address}"));
        // Resets are changes by an operator.
        let quiet = ["--audit-log", "DIR/audit.log"].map(str::to_owned);
        let flags = flags.iter().map(|flag| (*flag).to_owned()).chain(fronts).chain(quiet).collect();
        let place = Place::new(RULES);
        let host =
            Self { place, command, flags, server: Mutex::default(), addresses: Addresses { line, resp, http, grpc } };
        host.restart();
        host
    }

    pub fn kill(&self) {
        if let Some(server) = self.server.lock().unwrap().take() {
            server.kill();
        }
    }

    pub fn restart(&self) {
        let flags: Vec<_> = self.flags.iter().map(String::as_str).collect();
        let server = self.place.serve_as(&mut (self.command)(), &flags);
        *self.server.lock().unwrap() = Some(server);
    }
}

/// Records histories while a fault occurs again and again.
pub fn record_during(
    course: &Course<'_>,
    count: usize,
    mut fault: impl FnMut(&mut Rng) + Send,
) -> Vec<(Model, History)> {
    let is_over = AtomicBool::new(false);
    let mut rng = Rng::seed_from_u64(course.seed);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                thread::sleep(Duration::from_millis(rng.random_range(50..300)));
                fault(&mut rng);
            }
        });
        let histories = course.record(count);
        is_over.store(true, SeqCst);
        histories
    })
}

/// A way to a Redis that can fail. It ends with the test process.
pub struct Link {
    pub port: u16,
    state: Arc<AtomicU8>,
}

const PASSING: u8 = 0;
const HELD: u8 = 1;
const CUT: u8 = 2;

impl Link {
    pub fn to(redis: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, state) = (listener.local_addr().unwrap().port(), Arc::new(AtomicU8::new(PASSING)));
        let states = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", redis)) else { continue };
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let (Ok(from), Ok(to)) = (client.try_clone(), server.try_clone()) else { continue };
                for (from, to) in [(from, to), (server, client)] {
                    let state = Arc::clone(&states);
                    thread::spawn(move || pass_on(from, to, || may_pass(&state)));
                }
            }
        });
        Self { port, state }
    }

    /// Holds what is sent, as a network that drops packets does, or closes connections. Ends after `length`.
    pub fn fail(&self, is_cut: bool, length: Duration) {
        self.state.store(if is_cut { CUT } else { HELD }, SeqCst);
        thread::sleep(length);
        self.state.store(PASSING, SeqCst);
    }
}

/// Waits while bytes are held. Returns whether they may pass.
fn may_pass(state: &AtomicU8) -> bool {
    while state.load(SeqCst) == HELD {
        thread::sleep(Duration::from_millis(1));
    }
    state.load(SeqCst) == PASSING
}

/// A network namespace with two cables to this one: for clients, and for Redis.
pub struct Namespace {
    /// Address of the namespace's end of the first cable.
    pub inside: Ipv4Addr,
    /// Address of this end of the second cable.
    pub outside: Ipv4Addr,
}

const NAMESPACE: &str = "divvy-judge";

impl Namespace {
    /// Creates the namespace. An error says what the system does not allow.
    pub fn create() -> Result<Self, String> {
        let delete = Command::new("ip").args(["netns", "delete", NAMESPACE]).output();
        delete.map_err(|error| format!("ip: {error}"))?;
        ip(&format!("netns add {NAMESPACE}"))?;
        let namespace = Self { inside: Ipv4Addr::new(10, 213, 71, 2), outside: Ipv4Addr::new(10, 213, 72, 1) };
        for (cable, net) in [("divvyc", 71), ("divvyr", 72)] {
            ip(&format!("link add {cable}0 type veth peer name {cable}1 netns {NAMESPACE}"))?;
            ip(&format!("address add 10.213.{net}.1/30 dev {cable}0"))?;
            ip(&format!("link set {cable}0 up"))?;
            ip(&format!("-n {NAMESPACE} address add 10.213.{net}.2/30 dev {cable}1"))?;
            ip(&format!("-n {NAMESPACE} link set {cable}1 up"))?;
        }
        Ok(namespace)
    }

    /// Returns a divvy in the namespace.
    pub fn divvy() -> Command {
        let divvy = divvy();
        let mut command = Command::new("ip");
        command.args(["netns", "exec", NAMESPACE]).arg(divvy.get_program());
        for (name, value) in divvy.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// Unplugs the cable to Redis for a while.
    pub fn unplug(&self, length: Duration) {
        ip("link set divvyr0 down").unwrap();
        thread::sleep(length);
        ip("link set divvyr0 up").unwrap();
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = ip(&format!("netns delete {NAMESPACE}"));
    }
}

fn ip(words: &str) -> Result<(), String> {
    let output = Command::new("ip").args(words.split(' ')).output().map_err(|error| format!("ip: {error}"))?;
    let error = || format!("ip {words}: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    output.status.success().then_some(()).ok_or_else(error)
}
