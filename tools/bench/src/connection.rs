//! A non-blocking connection to the server.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use divvy_server::protocol::{line, resp};

use crate::args::Protocol;
use crate::reply::{FirstNumber, ReplyCounter, ReplyCounts, StreamError};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of reply bytes in one read, and maximum length of a line in a reply.
const INPUT_BYTES: usize = 64 * 1024;

/// A connection to the server. It borrows its socket, so that the list of sockets to wait for can be kept apart from
/// the connections.
#[derive(Debug)]
pub struct Connection<'a> {
    socket: &'a TcpStream,
    output: Vec<u8>,
    /// Bytes of `output` that have been sent.
    written: usize,
    input: Box<[u8]>,
    /// Bytes of `input` that hold the start of a line.
    filled: usize,
    replies: ReplyCounter,
}

/// An error that makes a connection unusable.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    #[error("the server closed the connection")]
    Closed,
    #[error("the server sent a reply without a request")]
    Unasked,
    #[error("a reply has a line of more than {INPUT_BYTES} bytes")]
    LongLine,
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A user, and its password.
#[derive(Debug, Clone, Copy)]
pub struct Login<'a> {
    /// `None` for the user `default`.
    pub user: Option<&'a str>,
    pub password: &'a str,
}

/// Connects a non-blocking socket, and logs in if there is a login.
pub fn connect(address: SocketAddr, protocol: Protocol, login: Option<Login<'_>>) -> io::Result<TcpStream> {
    let mut socket = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
    socket.set_nodelay(true)?;
    if let Some(login) = login {
        authenticate(&mut socket, protocol, login)?;
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn authenticate(socket: &mut TcpStream, protocol: Protocol, Login { user, password }: Login<'_>) -> io::Result<()> {
    let (request, welcome) = match protocol {
        Protocol::Line => (line::format_auth(password).into_bytes(), "OK"),
        Protocol::Resp => {
            let mut request = Vec::new();
            let words: Vec<_> = ["AUTH"].into_iter().chain(user).chain([password]).collect();
            resp::write_request(&mut request, &words);
            (request, "+OK")
        }
    };
    socket.set_read_timeout(Some(CONNECT_TIMEOUT))?;
    socket.write_all(&request)?;
    let mut answer = String::new();
    // Buffering is safe, because nothing follows the answer: no other request has been sent.
    BufReader::new(socket).read_line(&mut answer)?;
    if answer.trim_end() == welcome {
        return Ok(());
    }
    Err(io::Error::other(format!("the server refused the password: {}", answer.trim_end())))
}

impl<'a> Connection<'a> {
    pub fn new(socket: &'a TcpStream, protocol: Protocol, first_number: FirstNumber) -> Self {
        Self {
            socket,
            output: Vec::new(),
            written: 0,
            input: vec![0; INPUT_BYTES].into_boxed_slice(),
            filled: 0,
            replies: ReplyCounter::new(protocol, first_number),
        }
    }

    pub fn socket(&self) -> &'a TcpStream {
        self.socket
    }

    /// Returns the buffer for requests. [`send`](Self::send) sends them.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    pub fn has_unsent_output(&self) -> bool {
        self.written < self.output.len()
    }

    /// Returns the first reply that was an error.
    pub fn first_error(&self) -> Option<&str> {
        self.replies.first_error()
    }

    /// Sends as much as the socket accepts. The rest waits until it is writable.
    pub fn send(&mut self) -> Result<(), ConnectionError> {
        while let Some(unsent @ [_, ..]) = self.output.get(self.written..) {
            match self.socket.write(unsent) {
                Ok(written) => self.written += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.output.clear();
        self.written = 0;
        Ok(())
    }

    /// Reads once, and counts the replies that are complete.
    pub fn receive(&mut self) -> Result<ReplyCounts, ConnectionError> {
        let Some(free @ [_, ..]) = self.input.get_mut(self.filled..) else { return Err(ConnectionError::LongLine) };
        match self.socket.read(free) {
            Ok(0) => return Err(ConnectionError::Closed),
            Ok(read) => self.filled += read,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error.into()),
        }
        let (counts, used) = self.replies.count(self.input.get(..self.filled).unwrap_or_default())?;
        self.input.copy_within(used..self.filled, 0);
        self.filled -= used;
        Ok(counts)
    }
}
