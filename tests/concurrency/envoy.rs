//! The real Envoy before a slow application: config/examples/envoy/concurrency.yaml as it is, but for the ports and the times.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::envoy::{EXAMPLE, start};
use crate::support::gateway::Gateway;
use crate::support::redis::{lasting_port, until};
use crate::support::slow_application::SlowApplication;
use crate::support::{RespClient, RulesFile, Server, http};

/// Leases of a user, as in the example.
const LEASES: usize = 10;

/// The example's rules, with leases that last so many seconds.
fn rules(seconds: u64) -> RulesFile {
    let rules = std::fs::read_to_string(Path::new(EXAMPLE).join("concurrency.ini")).unwrap();
    assert!(rules.contains("resetSeconds = 60"), "{rules}");
    RulesFile::ini(&rules.replacen("resetSeconds = 60", &format!("resetSeconds = {seconds}"), 1))
}

fn envoy(application: &SlowApplication, divvy: &Server) -> Gateway {
    start("concurrency.yaml", ("8323", divvy.grpc), application.address, &[])
}

/// Starts a server, as often as it is called, with the same data and at the same addresses.
fn restartable(rules: &RulesFile, data: &TempDir) -> impl Fn() -> Server {
    let [resp, grpc] = [lasting_port(), lasting_port()].map(|port| format!("127.0.0.1:{port}"));
    move || {
        let store = data.path().to_str().unwrap();
        Server::start(&[rules.path(), "--data-dir", store, "--resp-listen", &resp, "--grpc-listen", &grpc])
    }
}

/// How many more requests the user may have under way.
fn free(server: &Server, user: &str) -> usize {
    let reply = RespClient::connect(server.resp)
        .command(&format!("DIVVY.PEEK domain=edge api=reports user={user} request_id=x"));
    reply.split(' ').nth(1).and_then(|word| word.parse().ok()).expect(&reply)
}

fn head(path: &str) -> String {
    // Two requests with an id of the client's own must not share a lease.
    format!("GET {path} HTTP/1.1\r\nhost: app\r\nx-user: ann\r\nx-request-id: mine\r\nconnection: close\r\n\r\n")
}

fn get(gateway: &Gateway, path: &str) -> u16 {
    http::request(gateway.address(), head(path)).status
}

/// A request whose answer is not waited for. The client is there until it is dropped.
fn send(gateway: &Gateway, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(gateway.address()).unwrap();
    stream.write_all(head(path).as_bytes()).unwrap();
    stream
}

/// So many requests that are worked on until they are finished.
fn held(gateway: &Gateway, application: &SlowApplication, count: usize) -> Vec<TcpStream> {
    let clients = (0..count).map(|_| send(gateway, "/hold")).collect();
    until(|| application.under_way() == count);
    clients
}

/// Two hundred clients at once, each of which comes back until it has been served twice; some hang up in between. When that is
/// just while divvy's answer is on its way, Envoy never tells that the request is over, and the lease ends by itself.
#[test]
fn the_application_never_sees_more_than_there_are_leases() {
    let (rules, application) = (rules(5), SlowApplication::start());
    let server = Server::in_memory(rules.path());
    let gateway = envoy(&application, &server);
    let (denied, cancelled) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for client in 0..200 {
            let (gateway, denied, cancelled) = (&gateway, &denied, &cancelled);
            scope.spawn(move || {
                let mut served = 0;
                while served < 2 {
                    if client % 4 == 0 && served == 1 {
                        let stream = send(gateway, "/200");
                        thread::sleep(Duration::from_millis(20 + client % 50));
                        let _ = stream.shutdown(Shutdown::Both);
                        cancelled.fetch_add(1, Relaxed);
                    }
                    match get(gateway, &format!("/{}", 20 + client % 60)) {
                        200 => served += 1,
                        429 => drop(denied.fetch_add(1, Relaxed)),
                        other => panic!("{other}"),
                    }
                    thread::sleep(Duration::from_millis(5));
                }
            });
        }
    });
    let most = application.most_at_once();
    assert!((LEASES / 2..=LEASES).contains(&most), "{most} at once");
    assert!(denied.into_inner() > 200 && cancelled.into_inner() >= 50);
    until(|| free(&server, "ann") == LEASES);
}

/// What Envoy lets through while divvy does not answer holds no lease: when it ends, nobody else's is freed.
#[test]
fn requests_that_passed_without_divvy_free_nothing() {
    let (rules, data, application) = (rules(60), tempfile::tempdir().unwrap(), SlowApplication::start());
    let serve = restartable(&rules, &data);
    let server = serve();
    let gateway = envoy(&application, &server);
    let clients = held(&gateway, &application, LEASES);
    assert_eq!(get(&gateway, "/1"), 429);

    server.kill();
    let passed: Vec<_> = (0..5).map(|_| send(&gateway, "/1500")).collect();
    until(|| application.under_way() == LEASES + passed.len());
    let server = serve();
    assert_eq!(free(&server, "ann"), 0, "no lease was lost");
    until(|| application.under_way() == LEASES);
    // Envoy has told that they are over.
    until(|| get(&gateway, "/1") == 429);
    assert_eq!(free(&server, "ann"), 0, "none was doubled");

    application.finish();
    drop(clients);
    until(|| free(&server, "ann") == LEASES);
    application.most_at_once();
    let clients = held(&gateway, &application, LEASES);
    assert_eq!((get(&gateway, "/1"), application.most_at_once()), (429, LEASES));
    application.finish();
    drop(clients);
}

/// Nobody tells that its requests are over.
#[test]
fn the_leases_of_an_envoy_that_is_killed_are_free_after_their_time() {
    let (rules, application) = (rules(3), SlowApplication::start());
    let server = Server::in_memory(rules.path());
    let gateway = envoy(&application, &server);
    let clients = held(&gateway, &application, LEASES);
    assert_eq!((get(&gateway, "/1"), free(&server, "ann")), (429, 0));
    drop(gateway);
    assert_eq!(free(&server, "ann"), 0);
    until(|| free(&server, "ann") == LEASES);
    drop(clients);
}

/// The ends of these requests are lost.
#[test]
fn the_leases_of_requests_that_end_while_divvy_is_gone_are_free_after_their_time() {
    let (rules, data, application) = (rules(3), tempfile::tempdir().unwrap(), SlowApplication::start());
    let serve = restartable(&rules, &data);
    let server = serve();
    let gateway = envoy(&application, &server);
    let clients = held(&gateway, &application, LEASES);
    server.kill();
    application.finish();
    until(|| application.under_way() == 0);
    let server = serve();
    until(|| free(&server, "ann") == LEASES);
    assert_eq!(get(&gateway, "/1"), 200);
    drop(clients);
}
