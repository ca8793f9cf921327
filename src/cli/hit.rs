//! `divvy hit`: one HIT to a running server.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};

use super::access::{PasswordArgs, TlsArgs};
use super::pairs::Pair;
use crate::protocol::line::{Reply, format_auth, format_hit, is_welcome, parse_reply};

/// How long the server may take to be reached and to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub struct HitArgs {
    /// The server's line protocol
    #[arg(long, env = "DIVVY_ADDR", default_value = "127.0.0.1:8321")]
    addr: String,
    #[command(flatten)]
    password: PasswordArgs,
    #[command(flatten)]
    tls: TlsArgs,
    /// Print a JSON object instead of the server's line
    #[arg(long)]
    json: bool,
    /// The operation
    #[arg(value_name = "KEY=VALUE")]
    operation: Vec<Pair>,
}

/// Prints the answer; a server that answers with an error makes this fail.
pub fn run(args: HitArgs) -> anyhow::Result<ExitCode> {
    let request = format_hit(args.operation.iter().map(Pair::as_strs))?;
    let line = send(&args, &request)?;
    match parse_reply(&line).with_context(|| format!("{} does not speak divvy's line protocol", args.addr))? {
        Reply::Error { code, reason } => bail!("{} answered with an error: {code}: {reason}", args.addr),
        Reply::Verdict { allowed, credit, reset_seconds } if args.json => {
            let answer = serde_json::json!({ "allowed": allowed, "credit": credit, "resetSeconds": reset_seconds });
            println!("{answer}");
        }
        Reply::Verdict { .. } => println!("{line}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// The answer to `request`, after the password where there is one.
fn send(args: &HitArgs, request: &str) -> anyhow::Result<String> {
    let address = args.addr.as_str();
    let mut stream = BufReader::new(args.tls.secure(connect(address)?, address)?);
    let mut ask = |request: &str| -> anyhow::Result<String> {
        let lost = || format!("{address} did not answer");
        stream.get_mut().write_all(request.as_bytes()).with_context(lost)?;
        stream.get_mut().flush().with_context(lost)?;
        let mut line = String::new();
        stream.read_line(&mut line).with_context(lost)?;
        if !line.ends_with('\n') {
            bail!("{address} closed the connection without an answer");
        }
        Ok(line.trim_end().to_owned())
    };
    if let Some(password) = args.password.password()? {
        let answer = ask(&format_auth(password))?;
        if !is_welcome(&answer) {
            bail!("{address} refused the password: {answer}");
        }
    }
    ask(request)
}

fn connect(address: &str) -> anyhow::Result<TcpStream> {
    let unreachable = || format!("cannot reach {address}; is `divvy serve` running there?");
    let mut resolved = address.to_socket_addrs().with_context(unreachable)?;
    // A name may stand for several addresses (IPv6 and IPv4), of which the server listens on one.
    let connected = resolved.find_map(|address| TcpStream::connect_timeout(&address, TIMEOUT).ok());
    let stream = connected.with_context(unreachable)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}
