//! What the subcommands that talk RESP to a running server have in common: where it is, and one command at a time.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, bail};

use super::access::{Connection, PasswordArgs, TlsArgs};
use crate::protocol::resp::Version;
use crate::protocol::resp::client::{Frame, decode_reply, write_request};

/// How long the server may take to be reached.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub struct ServerArgs {
    /// The server's RESP address
    #[arg(long, env = "DIVVY_SERVER", value_name = "ADDR", default_value = "127.0.0.1:9049")]
    server: String,
    #[command(flatten)]
    password: PasswordArgs,
    #[command(flatten)]
    tls: TlsArgs,
}

/// A connection to a server.
pub struct RespClient {
    address: String,
    stream: Box<dyn Connection>,
    input: Vec<u8>,
}

impl ServerArgs {
    /// Connects, and shows the password if there is one. `patience`: how long an answer may take.
    ///
    /// # Errors
    /// When nobody answers there, or the password is not the server's.
    pub fn connect(&self, patience: Duration) -> anyhow::Result<RespClient> {
        let unreachable = || format!("cannot reach {}; does `divvy serve` listen there for RESP?", self.server);
        let mut resolved = self.server.to_socket_addrs().with_context(unreachable)?;
        // A name may stand for several addresses (IPv6 and IPv4), of which the server listens on one.
        let connected = resolved.find_map(|address| TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).ok());
        let stream = connected.with_context(unreachable)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_nodelay(true)?;
        let stream = self.tls.secure(stream, &self.server)?;
        let mut client = RespClient { address: self.server.clone(), stream, input: Vec::new() };
        if let Some(password) = self.password.password()? {
            client.ask(&["AUTH", password])?;
        }
        Ok(client)
    }
}

impl RespClient {
    /// The reply to a command.
    ///
    /// # Errors
    /// When the server answers with an error, or not at all.
    pub fn ask(&mut self, command: &[impl AsRef<[u8]>]) -> anyhow::Result<Frame> {
        let mut request = Vec::new();
        write_request(&mut request, command);
        let lost = || format!("cannot send to {}", self.address);
        self.stream.write_all(&request).and_then(|()| self.stream.flush()).with_context(lost)?;
        match self.read()? {
            Frame::SimpleError { data, .. } => bail!("{} answered: {data}", self.address),
            reply => Ok(reply),
        }
    }

    fn read(&mut self) -> anyhow::Result<Frame> {
        let mut buffer = [0; 16 * 1024];
        loop {
            let reply = decode_reply(&self.input, Version::Resp2)
                .with_context(|| format!("{} does not speak RESP", self.address))?;
            if let Some((frame, consumed)) = reply {
                self.input.drain(..consumed);
                return Ok(frame);
            }
            let count = self.stream.read(&mut buffer).with_context(|| format!("{} did not answer", self.address))?;
            if count == 0 {
                bail!("{} closed the connection without an answer", self.address);
            }
            self.input.extend_from_slice(buffer.get(..count).unwrap_or_default());
        }
    }
}

/// The text of a reply that is one.
pub fn text(reply: &Frame) -> Option<String> {
    match reply {
        Frame::BlobString { data, .. } | Frame::SimpleString { data, .. } => {
            Some(String::from_utf8_lossy(data).into_owned())
        }
        _ => None,
    }
}

/// The number of a reply that is one and not negative.
pub fn number(reply: &Frame) -> Option<u64> {
    match reply {
        Frame::Number { data, .. } => u64::try_from(*data).ok(),
        _ => None,
    }
}

/// The parts of a reply that has any.
pub fn parts(reply: &Frame) -> Option<&[Frame]> {
    match reply {
        Frame::Array { data, .. } => Some(data),
        _ => None,
    }
}
