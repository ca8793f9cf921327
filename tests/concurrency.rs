//! Concurrency limits: leases of the requests of an Envoy.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::envoy::{EXAMPLE, start};
use crate::support::slow_application::SlowApplication;
use crate::support::{Gateway, RulesFile, Server, http, lasting_port, until};

/// Leases per user, as in the example.
const LEASES: usize = 10;

/// Returns the example's rules, with leases that last this many seconds.
fn rules(seconds: u64) -> RulesFile {
    let rules = std::fs::read_to_string(Path::new(EXAMPLE).join("concurrency.ini")).unwrap();
    assert!(rules.contains("resetSeconds = 60"), "{rules}");
    RulesFile::ini(&rules.replacen("resetSeconds = 60", &format!("resetSeconds = {seconds}"), 1))
}

fn envoy(application: &SlowApplication, divvy: &Server) -> Gateway {
    start("concurrency.yaml", ("8323", divvy.grpc), application.address, &[])
}

/// Returns a function that starts a server, each time with the same data and addresses.
fn restartable(rules: &RulesFile, data: &TempDir) -> impl Fn() -> Server {
    let [resp, grpc] = [lasting_port(), lasting_port()].map(|port| format!("127.0.0.1:{port}"));
    move || {
        let store = data.path().to_str().unwrap();
        Server::start(&[rules.path(), "--data-dir", store, "--resp-listen", &resp, "--grpc-listen", &grpc])
    }
}

/// Returns how many more concurrent requests the user may send.
fn free(server: &Server, user: &str) -> usize {
    server.resp().left(&format!("domain=edge api=reports user={user} request_id=x")) as usize
}

fn head(path: &str) -> String {
    // Two requests with the same client-supplied id must not share a lease.
    format!("GET {path} HTTP/1.1\r\nhost: app\r\nx-user: ann\r\nx-request-id: mine\r\nconnection: close\r\n\r\n")
}

fn get(gateway: &Gateway, path: &str) -> u16 {
    http::request(gateway.address(), head(path)).status
}

/// Sends a request without waiting for its answer. The client stays connected until it is dropped.
fn send(gateway: &Gateway, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(gateway.address()).unwrap();
    stream.write_all(head(path).as_bytes()).unwrap();
    stream
}

/// Sends `count` requests that the application holds until they are finished.
fn send_held(gateway: &Gateway, application: &SlowApplication, count: usize) -> Vec<TcpStream> {
    let clients = (0..count).map(|_| send(gateway, "/hold")).collect();
    until(|| application.under_way() == count);
    clients
}

/// Starts two hundred clients at once, which retry until they have been served twice. Some hang up in between. If a
/// client hangs up while divvy's answer is on its way, Envoy never reports the end of the request, and the lease
/// expires.
#[test]
fn application_never_has_more_requests_than_leases() {
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

/// A request that Envoy lets through while divvy does not answer has no lease. Its end must not free another request's
/// lease.
#[test]
fn requests_that_passed_without_divvy_free_no_lease() {
    let (rules, data, application) = (rules(60), tempfile::tempdir().unwrap(), SlowApplication::start());
    let serve = restartable(&rules, &data);
    let server = serve();
    let gateway = envoy(&application, &server);
    let clients = send_held(&gateway, &application, LEASES);
    assert_eq!(get(&gateway, "/1"), 429);

    server.kill();
    let passed: Vec<_> = (0..5).map(|_| send(&gateway, "/1500")).collect();
    until(|| application.under_way() == LEASES + passed.len());
    let server = serve();
    assert_eq!(free(&server, "ann"), 0, "no lease was lost");
    until(|| application.under_way() == LEASES);
    // Envoy has reported that they are over.
    until(|| get(&gateway, "/1") == 429);
    assert_eq!(free(&server, "ann"), 0, "no lease was doubled");

    application.finish();
    drop(clients);
    until(|| free(&server, "ann") == LEASES);
    application.most_at_once();
    let clients = send_held(&gateway, &application, LEASES);
    assert_eq!((get(&gateway, "/1"), application.most_at_once()), (429, LEASES));
    application.finish();
    drop(clients);
}

/// Nothing reports the end of its requests.
#[test]
fn leases_of_a_killed_envoy_expire() {
    let (rules, application) = (rules(3), SlowApplication::start());
    let server = Server::in_memory(rules.path());
    let gateway = envoy(&application, &server);
    let clients = send_held(&gateway, &application, LEASES);
    assert_eq!((get(&gateway, "/1"), free(&server, "ann")), (429, 0));
    drop(gateway);
    assert_eq!(free(&server, "ann"), 0);
    until(|| free(&server, "ann") == LEASES);
    drop(clients);
}

/// The reports that these requests ended are lost.
#[test]
fn leases_of_requests_that_end_while_divvy_is_down_expire() {
    let (rules, data, application) = (rules(3), tempfile::tempdir().unwrap(), SlowApplication::start());
    let serve = restartable(&rules, &data);
    let server = serve();
    let gateway = envoy(&application, &server);
    let clients = send_held(&gateway, &application, LEASES);
    server.kill();
    application.finish();
    until(|| application.under_way() == 0);
    let server = serve();
    until(|| free(&server, "ann") == LEASES);
    assert_eq!(get(&gateway, "/1"), 200);
    drop(clients);
}
