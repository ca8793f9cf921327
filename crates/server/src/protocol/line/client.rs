//! The client's side of the line protocol: writes HIT, and reads replies.

use divvy_core::rules::operation::{self, Unwritable};

/// The answer to the right password.
pub(super) const WELCOME: &str = "OK";

/// A reply of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// `OK …`: the decision about a hit.
    Verdict {
        /// Whether the hit was counted.
        allowed: bool,
        /// Credits left.
        credit: u64,
        /// Seconds until there are more.
        reset_seconds: u64,
    },
    /// `ERR …`: the request was not decided.
    Error {
        /// Code for programs, such as `unknown-command`.
        code: String,
        /// Message for people, without its quotes.
        reason: String,
    },
}

/// A line that is not a reply of the line protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither `OK <allowed> <credit> <reset>` nor `ERR <code> \"<reason>\"`: is this a Divvy server?")]
pub struct BadReply(pub String);

/// Formats a HIT with these pairs, including its line feed.
///
/// # Errors
/// [`Unwritable`] names the first string that the protocol cannot carry.
pub fn format_hit<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<String, Unwritable> {
    let pairs = operation::write(pairs)?;
    Ok(if pairs.is_empty() { "HIT\n".to_owned() } else { format!("HIT {pairs}\n") })
}

/// Formats an AUTH, including its line feed. `password` is a line without its end.
pub fn format_auth(password: &str) -> String {
    format!("AUTH {password}\n")
}

/// Returns whether a reply line, with or without its terminator, confirms the password.
pub fn is_welcome(line: &str) -> bool {
    line.trim_end() == WELCOME
}

/// Reads a reply line, with or without its terminator.
///
/// # Errors
/// [`BadReply`]: the line is not a reply of this protocol.
pub fn parse_reply(line: &str) -> Result<Reply, BadReply> {
    let line = line.strip_suffix('\n').unwrap_or(line);
    let line = line.strip_suffix('\r').unwrap_or(line);
    let reply = match line.split_once(' ') {
        Some(("OK", verdict)) => parse_verdict(verdict),
        Some(("ERR", error)) => parse_error(error),
        _ => None,
    };
    reply.ok_or_else(|| BadReply(line.to_owned()))
}

fn parse_verdict(text: &str) -> Option<Reply> {
    let (allowed, numbers) = text.split_once(' ')?;
    let (credit, reset_seconds) = numbers.split_once(' ')?;
    Some(Reply::Verdict {
        allowed: allowed.parse().ok()?,
        credit: credit.parse().ok()?,
        reset_seconds: reset_seconds.parse().ok()?,
    })
}

fn parse_error(text: &str) -> Option<Reply> {
    let (code, quoted) = text.split_once(' ')?;
    let reason = quoted.strip_prefix('"')?.strip_suffix('"')?;
    Some(Reply::Error { code: code.to_owned(), reason: reason.to_owned() })
}
