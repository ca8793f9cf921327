//! A stand-in for a CrowdSec server, which answers badly.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

/// A server that ends with the test process.
pub struct Fake {
    pub address: SocketAddr,
    requests: Arc<AtomicUsize>,
}

impl Fake {
    /// Answers the request of each connection with `answer`, which gets its first line.
    pub fn start(answer: impl Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, requests) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let (count, answer) = (Arc::clone(&requests), Arc::new(answer));
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let (count, answer) = (Arc::clone(&count), Arc::clone(&answer));
                thread::spawn(move || {
                    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                    let first = lines.next().unwrap_or_default();
                    lines.find(String::is_empty);
                    count.fetch_add(1, SeqCst);
                    // The client may leave at any time.
                    let _ = answer(&first, &mut stream);
                });
            }
        });
        Self { address, requests }
    }

    /// Returns the number of requests so far.
    pub fn requests(&self) -> usize {
        self.requests.load(SeqCst)
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Writes an answer with this body.
pub fn answer(stream: &mut TcpStream, body: &str) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat())
}

/// Returns a decision to ban an address for an hour.
pub fn ban(address: &str) -> String {
    format!(
        r#"{{"duration":"1h","id":1,"origin":"CAPI","scenario":"ssh:bruteforce","scope":"Ip","type":"ban","value":"{address}"}}"#
    )
}
