//! `divvy hit` over the line protocol.

use std::io::{BufRead, BufReader, Write};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use crate::cli::access::{connect, explain_no_answer, tls_hint};
use crate::cli::pairs::Pair;
use crate::cli::server::ServerArgs;
use divvy_server::protocol::line::{ErrorCode, Reply, format_auth, format_hit, is_welcome, parse_reply};

/// Maximum time to connect, and maximum time for an answer.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// Default address of the line protocol.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:8321";

/// Sends the hit to `address`, preceded by the password if there is one. `server` has the password and the TLS
/// settings.
///
/// # Errors
/// The server cannot be reached, answers with an error, or does not speak the protocol.
pub fn hit(server: &ServerArgs, pairs: &[Pair], address: &str) -> anyhow::Result<Value> {
    let request = format_hit(pairs.iter().map(Pair::as_strs))?;
    let line = send_line(server, address, &request)?;
    ensure!(!is_resp(&line), "{}", resp_port(address, &line));
    match parse_reply(&line).with_context(|| format!("{address} does not speak divvy's line protocol"))? {
        Reply::Error { code, .. } if code == ErrorCode::Unauthenticated.as_str() => {
            bail!("{address} requires a password: set DIVVY_PASSWORD, or give --password")
        }
        Reply::Error { code, reason } => bail!("{address} answered with an error: {code}: {reason}"),
        Reply::Verdict { allowed, credit, reset_seconds } => {
            Ok(json!({ "allowed": allowed, "remaining": credit, "reset": reset_seconds }))
        }
    }
}

/// Returns whether an answer is of RESP, whose replies begin with a mark. RESP also reads requests of one line.
fn is_resp(answer: &str) -> bool {
    answer.starts_with(['+', '-'])
}

/// Describes the port of a server that answered over RESP.
fn resp_port(address: &str, answer: &str) -> String {
    let name =
        if answer.contains("DIVVY.") { "is divvy's RESP port" } else { "speaks RESP, as divvy's RESP port does" };
    format!(
        "{address} {name}: use the line protocol's port (8321 by default), or --server with the port of HTTP (8322)"
    )
}

fn send_line(server: &ServerArgs, address: &str, request: &str) -> anyhow::Result<String> {
    let unreachable =
        || format!("cannot reach {address}; is `divvy serve` running there? --addr names another address");
    let stream = connect(address, TIMEOUT).with_context(unreachable)?;
    let mut stream = BufReader::new(server.tls.secure(stream, address, false)?);
    let mut ask = |request: &str| -> anyhow::Result<String> {
        let mut line = Vec::new();
        let sent = stream.get_mut().write_all(request.as_bytes()).and_then(|()| stream.get_mut().flush());
        let answered = sent.and_then(|()| stream.read_until(b'\n', &mut line));
        answered.map_err(|error| explain_no_answer(address, TIMEOUT, error))?;
        if !line.ends_with(b"\n") {
            bail!("{address} closed the connection without an answer{}", tls_hint(&line));
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    };
    if let Some(password) = server.password.password()? {
        let answer = ask(&format_auth(password))?;
        ensure!(!is_resp(&answer), "{}", resp_port(address, &answer));
        if !is_welcome(&answer) {
            bail!("{address} refused the password: {answer}");
        }
    }
    ask(request)
}
