//! Shared by subcommands that speak RESP with a running server: the address, and sending commands one by one.

use std::io::{Read, Write};
use std::time::Duration;

use anyhow::{Context, bail};

use super::access::{Connection, PasswordArgs, TlsArgs, connect, explain_no_answer, tls_hint};
use super::address::ServerAddress;
use divvy_access::TokenKeys;
use divvy_server::protocol::resp::Version;
use divvy_server::protocol::resp::client::{Frame, decode_reply, write_request};

#[derive(Debug, clap::Args)]
pub struct ServerArgs {
    // Not a doc comment, because rustdoc would take the brackets for links.
    #[arg(
        long,
        env = "DIVVY_SERVER",
        value_name = "ADDR",
        default_value = "127.0.0.1:9049",
        hide_env_values = true,
        help = "RESP address of the server: HOST:PORT, redis://[[USER]:PASSWORD@]HOST[:PORT], or rediss:// for TLS"
    )]
    pub server: ServerAddress,
    /// User of the server's access file, whose password is --password [default: default]
    #[arg(long, env = "DIVVY_USER", value_name = "NAME")]
    pub user: Option<String>,
    #[command(flatten)]
    pub password: PasswordArgs,
    #[command(flatten)]
    pub tls: TlsArgs,
}

/// A connection to a server.
pub struct RespClient {
    address: ServerAddress,
    patience: Duration,
    stream: Box<dyn Connection>,
    input: Vec<u8>,
}

impl ServerArgs {
    /// Connects, and sends the password if there is one. Answers may take up to `patience`.
    ///
    /// # Errors
    /// No server answers, or it rejects the password.
    pub fn connect(&self, patience: Duration) -> anyhow::Result<RespClient> {
        let unreachable = || {
            format!(
                "cannot reach {}; does `divvy serve` listen there for RESP? --server names another address",
                self.server
            )
        };
        let stream = connect(self.server.host_and_port(), patience).with_context(unreachable)?;
        let stream = self.tls.secure(stream, self.server.host_and_port(), self.server.is_tls)?;
        let mut client = RespClient { address: self.server.clone(), patience, stream, input: Vec::new() };
        if let Some(password) = self.password.password_or(self.server.password.as_ref())? {
            let login = match self.user.as_ref().or(self.server.user.as_ref()) {
                Some(user) => client.ask(&["AUTH", user, password]),
                None => client.ask(&["AUTH", password]),
            };
            match TokenKeys::is_token(password.as_bytes()) {
                true => login.context("a token for one actor is for GET /v1/status over HTTP")?,
                false => login?,
            };
        }
        Ok(client)
    }
}

impl RespClient {
    /// Sends a command, and returns the reply.
    ///
    /// # Errors
    /// The server answers with an error, or not at all.
    pub fn ask(&mut self, command: &[impl AsRef<[u8]>]) -> anyhow::Result<Frame> {
        let mut request = Vec::new();
        write_request(&mut request, command);
        let lost = || format!("cannot send to {}", self.address);
        self.stream.write_all(&request).and_then(|()| self.stream.flush()).with_context(lost)?;
        match self.read()? {
            Frame::SimpleError { data, .. } if data.starts_with("NOAUTH") => {
                bail!(
                    "{} requires a password: set DIVVY_PASSWORD, or give --password; a user other than `default` is named \
                     by DIVVY_USER or --user",
                    self.address
                )
            }
            Frame::SimpleError { data, .. } if data.starts_with("WRONGPASS") => {
                bail!(
                    "{} rejects the password ({data}): check DIVVY_PASSWORD or --password, and DIVVY_USER or --user",
                    self.address
                )
            }
            Frame::SimpleError { data, .. } => bail!("{} answered: {data}", self.address),
            reply => Ok(reply),
        }
    }

    fn read(&mut self) -> anyhow::Result<Frame> {
        let mut buffer = [0; 16 * 1024];
        loop {
            let reply = decode_reply(&self.input, Version::Resp2)
                .with_context(|| format!("{} does not speak RESP{}", self.address, tls_hint(&self.input)))?;
            if let Some((frame, consumed)) = reply {
                self.input.drain(..consumed);
                return Ok(frame);
            }
            let count = self.stream.read(&mut buffer);
            let count = count.map_err(|error| explain_no_answer(self.address.host_and_port(), self.patience, error))?;
            if count == 0 {
                bail!("{} closed the connection without an answer{}", self.address, tls_hint(&self.input));
            }
            self.input.extend_from_slice(buffer.get(..count).unwrap_or_default());
        }
    }
}

/// Returns the text of a reply; `None` if it is not text.
pub fn text(reply: &Frame) -> Option<String> {
    match reply {
        Frame::BlobString { data, .. } | Frame::SimpleString { data, .. } => {
            Some(String::from_utf8_lossy(data).into_owned())
        }
        _ => None,
    }
}

/// Returns the number in a reply; `None` if it is not a number.
pub fn integer(reply: &Frame) -> Option<i64> {
    match reply {
        Frame::Number { data, .. } => Some(*data),
        _ => None,
    }
}

/// Returns the number in a reply; `None` if it is negative or not a number.
pub fn number(reply: &Frame) -> Option<u64> {
    integer(reply).and_then(|number| u64::try_from(number).ok())
}

/// Returns the elements of a reply; `None` if it has none.
pub fn parts(reply: &Frame) -> Option<&[Frame]> {
    match reply {
        Frame::Array { data, .. } => Some(data),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        server: ServerArgs,
    }

    fn ask(address: &str) -> String {
        let args = Line::parse_from(["divvy", "--server", address]).server;
        let reply = args.connect(Duration::from_millis(20)).and_then(|mut client| client.ask(&["PING"]));
        format!("{:#}", reply.unwrap_err())
    }

    #[test]
    fn silent_and_missing_servers_are_reported_differently() {
        // The connection is established but never accepted, so nothing answers.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap().to_string();
        assert_eq!(ask(&address), format!("{address} did not answer within 0.02 s"));
        drop(silent);
        let error = ask(&address);
        assert!(error.starts_with(&format!("cannot reach {address}")) && error.contains("refused"), "{error}");
    }
}
