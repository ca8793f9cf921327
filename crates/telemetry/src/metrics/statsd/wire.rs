//! The socket to statsd.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket, lookup_host};
use tokio::time::{Instant, timeout};

/// Maximum length of a datagram (bytes). Most networks carry it unfragmented.
const MAX_DATAGRAM: usize = 1432;
/// Timeout for connecting and for sending.
const TIMEOUT: Duration = Duration::from_secs(1);
/// How long a resolved address is used for datagrams. It must be limited, because no error shows that the address has
/// changed.
const ADDRESS_LIFETIME: Duration = Duration::from_secs(60);

/// Transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Packets, which may be lost.
    Udp,
    /// A stream of lines.
    Tcp,
}

pub struct Wire {
    socket: Socket,
    connected: Instant,
}

enum Socket {
    Udp(UdpSocket),
    Tcp(TcpStream),
}

impl Wire {
    /// Connects to statsd.
    ///
    /// # Errors
    /// The name cannot be resolved, or none of its addresses answers.
    #[expect(clippy::disallowed_methods, reason = "when to look a name up again")]
    pub async fn connect(host: &str, port: u16, transport: Transport) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in lookup_host((host, port)).await? {
            let socket = match transport {
                Transport::Udp => udp(address).await.map(Socket::Udp),
                Transport::Tcp => in_time(TcpStream::connect(address)).await.map(Socket::Tcp),
            };
            match socket {
                Ok(socket) => return Ok(Self { socket, connected: Instant::now() }),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Returns whether the name must be resolved again.
    #[expect(clippy::disallowed_methods, reason = "when to look a name up again")]
    pub fn is_stale(&self) -> bool {
        matches!(self.socket, Socket::Udp(_)) && self.connected.elapsed() > ADDRESS_LIFETIME
    }

    /// Sends lines.
    ///
    /// # Errors
    /// The system refuses, or statsd does not read in time. A part may have arrived.
    pub async fn send(&mut self, lines: &[String]) -> io::Result<()> {
        match &mut self.socket {
            Socket::Udp(socket) => {
                for datagram in datagrams(lines) {
                    in_time(send_datagram(socket, &datagram)).await?;
                }
                Ok(())
            }
            Socket::Tcp(stream) => {
                let text = lines.iter().fold(String::new(), |text, line| text + line + "\n");
                in_time(stream.write_all(text.as_bytes())).await
            }
        }
    }
}

async fn udp(address: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr =
        if address.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(address).await?;
    Ok(socket)
}

/// Sends a datagram. A refusal belongs to an earlier datagram, and then this one was not sent, so it is sent again.
async fn send_datagram(socket: &UdpSocket, datagram: &str) -> io::Result<()> {
    match socket.send(datagram.as_bytes()).await {
        Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {
            socket.send(datagram.as_bytes()).await?;
            Err(refused)
        }
        sent => sent.map(drop),
    }
}

/// Packs lines into as few datagrams as possible. A line that is too long gets its own.
fn datagrams(lines: &[String]) -> Vec<String> {
    let mut datagrams: Vec<String> = Vec::new();
    for line in lines {
        match datagrams.last_mut().filter(|last| last.len() + 1 + line.len() <= MAX_DATAGRAM) {
            Some(last) => {
                last.push('\n');
                last.push_str(line);
            }
            None => datagrams.push(line.clone()),
        }
    }
    datagrams
}

async fn in_time<T>(action: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(TIMEOUT, action).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_full_and_not_too_long() {
        let lines: Vec<String> = (0..100).map(|number| format!("{number:0>50}")).collect();
        let datagrams = datagrams(&lines);
        assert!(datagrams.iter().all(|datagram| datagram.len() <= MAX_DATAGRAM));
        assert_eq!(datagrams.len(), 100_usize.div_ceil((MAX_DATAGRAM + 1) / 51));
        assert_eq!(datagrams.join("\n"), lines.join("\n"));
    }

    #[test]
    fn line_that_is_too_long_gets_its_own_datagram() {
        let lines = ["a".to_owned(), "b".repeat(2 * MAX_DATAGRAM), "c".to_owned()];
        assert_eq!(datagrams(&lines), lines);
    }

    #[test]
    fn peer_that_does_not_read_times_out() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let mut wire = Wire::connect("127.0.0.1", address.port(), Transport::Tcp).await.unwrap();
            // More than the kernel buffers for a connection.
            wire.send(&["x".repeat(64 << 20)]).await.unwrap_err()
        });
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
