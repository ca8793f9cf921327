//! Restarts without refused connections: sockets that outlive the process, or that two processes share. Also the
//! notifications to the service manager.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::thread;

use crate::support::{
    COMPAT_RULES, DIVVY, LineClient, PATIENCE, SERVE, Server, connect, divvy, free_address, http, program, refused,
    until,
};

/// Passes on the sockets on standard input and standard error as systemd does: from file descriptor 3 on.
const LIKE_SYSTEMD: &str = r#"exec 3<&0 4<&2 </dev/null 2>/dev/null; LISTEN_FDS=2 LISTEN_PID=$$ exec "$0" "$@""#;

/// The sockets of a service manager.
struct Sockets {
    first: TcpListener,
    second: TcpListener,
}

impl Sockets {
    fn new() -> Self {
        let [first, second] = [0, 0].map(|port| TcpListener::bind(("127.0.0.1", port)).unwrap());
        Self { first, second }
    }

    fn addresses(&self) -> [SocketAddr; 2] {
        [&self.first, &self.second].map(|socket| socket.local_addr().unwrap())
    }

    /// Runs divvy with both sockets.
    fn run(&self, names: &str) -> Command {
        let [first, second] = [&self.first, &self.second].map(|socket| OwnedFd::from(socket.try_clone().unwrap()));
        let mut command = program("sh");
        command.args(["-c", LIKE_SYSTEMD, DIVVY]).stdin(Stdio::from(first)).stderr(Stdio::from(second));
        command.env("LISTEN_FDNAMES", names);
        command
    }
}

#[test]
fn inherited_sockets_are_served_by_name_or_order() {
    let sockets = Sockets::new();
    let [first, second] = sockets.addresses();
    let args = [COMPAT_RULES, "--store", "memory"];
    let server = Server::start_as(&mut sockets.run("http:line"), &args);
    assert_eq!((server.http, server.line), (first, second));
    assert!(server.resp.port() != 0, "the other fronts listen where their flags say");
    LineClient::connect(second).hit("method=GET path=/status");
    assert!(server.terminate().success());

    let server = Server::start_as(&mut sockets.run("divvy.socket:divvy.socket"), &args);
    assert_eq!((server.line, server.resp), (first, second));
    assert!(server.terminate().success());
}

#[test]
fn connections_wait_in_an_inherited_socket_while_the_store_changes_hands() {
    let dir = tempfile::tempdir().unwrap();
    let args = [COMPAT_RULES, "--data-dir", dir.path().to_str().unwrap()];
    let sockets = Sockets::new();
    let [line, _] = sockets.addresses();
    let old = Server::start_as(&mut sockets.run("line:resp"), &args);
    assert_eq!(LineClient::connect(line).hit("method=GET path=/status").1, 999);
    assert!(old.terminate().success());

    let mut waiting = LineClient::connect(line);
    waiting.send(b"HIT method=GET path=/status\n");
    let new = Server::start_as(&mut sockets.run("line:resp"), &args);
    assert_eq!(waiting.try_read_verdict().unwrap().1, 998, "the counter goes on");
    assert!(new.terminate().success());
}

#[test]
fn http_is_served_on_every_address() {
    let [first, second] = [(); 2].map(|()| free_address());
    let both = format!("{first},{second}");
    let server = Server::start(&[COMPAT_RULES, "--store", "memory", "--http-listen", &both]);
    for address in [first, second] {
        assert_eq!(http::get(address, "/readyz").status, 200, "{address}");
    }
    assert_eq!(server.http, second, "the server prints each address, and the last flag replaces those before");
    assert!(server.terminate().success());
}

#[test]
fn two_processes_share_the_ports_if_both_agree() {
    let old = Server::start(&[COMPAT_RULES, "--store", "memory", "--reuse-port"]);
    let line = old.line.to_string();
    // Without --reuse-port, the port is taken.
    refused(&format!("{} {COMPAT_RULES} --store memory --listen {line}", SERVE.join(" ")));

    let new = Server::start(&[COMPAT_RULES, "--store", "memory", "--reuse-port", "--listen", &line]);
    assert_eq!(new.line, old.line);
    let mut before = old.line();
    before.hit("method=GET path=/status");
    assert!(old.terminate().success());
    for _ in 0..20 {
        new.line().hit("method=GET path=/status");
    }
}

#[test]
fn new_process_waits_for_the_data_directory_and_for_clients_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().to_str().unwrap().to_owned();
    let old = Server::start(&[COMPAT_RULES, "--data-dir", &data_dir, "--reuse-port"]);
    let line = old.line;
    assert_eq!(LineClient::connect(line).hit("method=GET path=/status").1, 999);

    let answer = refused(&format!("{} {COMPAT_RULES} --data-dir {data_dir}", SERVE.join(" ")));
    assert!(answer.contains("in use by another process"), "{answer}");

    let starting = thread::spawn(move || {
        let flags = ["--data-dir", &data_dir, "--reuse-port", "--wait-for-lock", "3600"];
        Server::start(&[&[COMPAT_RULES, "--listen", &line.to_string()], &flags[..]].concat())
    });
    until(|| listeners(line) == 2);
    assert!(old.terminate().success());
    // Whether the server has already opened the store does not matter.
    assert_eq!(LineClient::connect(line).hit("method=GET path=/status").1, 998);
    assert!(starting.join().unwrap().terminate().success());
}

/// Returns how many sockets listen on an IPv4 address of this machine.
fn listeners(address: SocketAddr) -> usize {
    const LISTENING: &str = "0A";
    let port = format!(":{:04X}", address.port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let sockets = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    sockets.filter(|words| words[1].ends_with(&port) && words[3] == LISTENING).count()
}

#[test]
fn service_manager_is_notified_of_start_reload_and_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let answer = || {
        let mut message = [0; 256];
        let length = manager.recv(&mut message).unwrap();
        String::from_utf8(message[..length].to_vec()).unwrap()
    };
    let mut command = divvy();
    command.env("NOTIFY_SOCKET", &path);
    let server = Server::start_as(&mut command, &[COMPAT_RULES, "--store", "memory"]);
    assert_eq!(answer(), "READY=1\n");
    server.signal("-HUP");
    assert!(answer().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert_eq!(answer(), "READY=1\n");
    let mut stream: TcpStream = connect(server.line);
    stream.write_all(b"HIT method=GET path=/status\n").unwrap();
    assert!(server.terminate().success());
    assert_eq!(answer(), "STOPPING=1\n");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("OK true "));
}
