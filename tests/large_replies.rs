//! Requests with long replies, or that need a thread: even many at once use bounded memory and a bounded number of
//! threads.

use std::io::Write;
use std::net::TcpStream;

use crate::robustness::MIB;
use crate::support::{COMPAT_RULES, Server, connect, encode, http, until};

/// Starts a server with RocksDB, which needs system calls for INFO.
fn on_disk() -> (Server, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    (Server::on_disk(COMPAT_RULES, &dir.path().join("data"), "wal"), dir)
}

#[test]
fn info_for_many_at_once_takes_little_memory_and_frees_it() {
    let (server, _dir) = on_disk();
    server.resp().command("INFO");
    let (before, threads) = (server.resident(), server.threads());
    let mut clients: Vec<_> = (0..600).map(|_| server.resp()).collect();
    for _ in 0..3 {
        clients.iter_mut().for_each(|client| client.send(&encode(&[b"INFO"])));
        let most = server.threads();
        assert!(most < threads + 40, "{most} threads, and {threads} before");
        for client in &mut clients {
            assert!(client.read_reply().contains("divvy_version:"));
        }
    }
    let grown = server.peak_resident().saturating_sub(before);
    assert!(grown < 64 * MIB, "{grown} bytes more at the peak");
    drop(clients);
    until(|| server.resident() < before + 24 * MIB);
}

#[test]
fn unread_pages_of_counters_over_http_1_have_one_bound() {
    const BOUND: u64 = MIB;
    /// All their pages together are many times the bound.
    const CLIENTS: usize = 16;
    let flags = ["--max-buffer-memory", &BOUND.to_string()];
    let server = Server::serving(
        "[user=*]\ncreditLimit=9\nresetSeconds=3600\nactorField=user\nlabel=users\n[default]\ncreditLimit=0\nresetSeconds=0\n",
        &flags,
    );
    let mut client = server.resp();
    let long = "x".repeat(900);
    for number in 0..1000 {
        assert!(client.command(&format!("DIVVY.HIT user={number}-{long}")).starts_with("[1 8 "));
    }
    let page = "/v1/counters?rule=users&count=1000";
    assert!(http::get(server.http, page).body.len() > 900_000);
    // More than the kernel's buffers hold.
    let requests = http::encode("GET", page, &[], b"").repeat(8);
    let silent: Vec<TcpStream> = (0..CLIENTS)
        .map(|_| {
            let mut stream = connect(server.http);
            stream.write_all(&requests).unwrap();
            stream
        })
        .collect();
    until(|| {
        let metrics = http::get(server.http, "/metrics").body;
        !metrics.contains("divvy_limits_reached_total{limit=\"max-buffer-memory\"} 0\n")
    });
    drop(silent);
    until(|| http::get(server.http, "/metrics").body.contains("divvy_buffer_memory_bytes 0\n"));
}
