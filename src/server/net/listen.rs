//! Listening sockets.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

/// Maximum number of connections that wait to be accepted. The kernel's own bound (net.core.somaxconn, usually 4096)
/// may be lower.
pub const BACKLOG: u32 = 4096;

/// Binds a listening socket. With `reuse_port`, other processes of the same user may listen on the same port if they set
/// it too, and the kernel distributes the connections.
///
/// # Errors
/// The name cannot be resolved, or the system refuses the socket.
pub async fn bind(address: &str, reuse_port: bool) -> io::Result<TcpListener> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in tokio::net::lookup_host(address).await? {
        match listen(address, reuse_port) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn listen(address: SocketAddr, reuse_port: bool) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restarted server can bind before the connections of the old one have ended.
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(reuse_port)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
