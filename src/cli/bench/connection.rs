//! One connection to the server: bytes out, bytes in, never blocking.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::args::Protocol;
use super::reply::{FirstNumber, ReplyCounter, StreamError, Tally};
use crate::protocol::{line, resp};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of replies read at once; the longest line of a reply.
const INPUT_BYTES: usize = 64 * 1024;

/// Borrows its socket, so that the list of sockets to wait for can be kept beside the connections.
#[derive(Debug)]
pub struct Connection<'a> {
    socket: &'a TcpStream,
    output: Vec<u8>,
    /// How much of `output` the socket has taken.
    written: usize,
    input: Box<[u8]>,
    /// How much of `input` holds the start of a line.
    filled: usize,
    replies: ReplyCounter,
}

/// Why a connection is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    #[error("the server closed the connection")]
    Closed,
    #[error("the server sent a reply that nothing asked for")]
    Unasked,
    #[error("a reply has a line of more than {INPUT_BYTES} bytes")]
    LongLine,
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Connects a socket that does not block, and gives the password if there is one.
pub fn connect(address: SocketAddr, protocol: Protocol, password: Option<&str>) -> io::Result<TcpStream> {
    let mut socket = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
    socket.set_nodelay(true)?;
    if let Some(password) = password {
        authenticate(&mut socket, protocol, password)?;
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn authenticate(socket: &mut TcpStream, protocol: Protocol, password: &str) -> io::Result<()> {
    let (request, welcome) = match protocol {
        Protocol::Line => (line::format_auth(password).into_bytes(), "OK"),
        Protocol::Resp => {
            let mut request = Vec::new();
            resp::client::write_request(&mut request, &["AUTH", password]);
            (request, "+OK")
        }
    };
    socket.set_read_timeout(Some(CONNECT_TIMEOUT))?;
    socket.write_all(&request)?;
    let mut answer = String::new();
    // Nothing follows the answer: nothing was asked.
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

    /// Where to append requests; [`send`](Self::send) sends them.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    pub fn has_unsent_output(&self) -> bool {
        self.written < self.output.len()
    }

    /// The first reply that was an error.
    pub fn first_error(&self) -> Option<&str> {
        self.replies.first_error()
    }

    /// Sends what the socket takes; the rest waits until it can be written.
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
    pub fn receive(&mut self) -> Result<Tally, ConnectionError> {
        let Some(free @ [_, ..]) = self.input.get_mut(self.filled..) else { return Err(ConnectionError::LongLine) };
        match self.socket.read(free) {
            Ok(0) => return Err(ConnectionError::Closed),
            Ok(read) => self.filled += read,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error.into()),
        }
        let (tally, used) = self.replies.count(self.input.get(..self.filled).unwrap_or_default())?;
        self.input.copy_within(used..self.filled, 0);
        self.filled -= used;
        Ok(tally)
    }
}
