//! Answers of a server, as a line or as JSON.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use serde_json::Value;

use crate::protocol::resp::client::Frame;

/// Exit code for a refusal with `--exit-code`. 1 stands for an error, and 2 for an invalid command line.
const REFUSED: u8 = 3;

/// An answer. Displays as the words after `OK`.
pub trait Answer: Display + Sized {
    /// Reads the reply to the command. Returns `None` if the reply has another form.
    fn read(reply: &Frame) -> Option<Self>;

    fn to_json(&self) -> Value;

    /// Returns the answer of the HTTP API, if it is known and denies the request.
    fn denial(&self) -> Option<&Value> {
        None
    }

    /// Returns whether the server refused the request.
    fn is_refusal(&self) -> bool {
        false
    }
}

/// Prints the answer on standard output.
pub fn print(answer: &impl Answer, as_json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if as_json {
        writeln!(out, "{}", answer.to_json())?
    } else {
        writeln!(out, "OK {answer}")?
    }
    out.flush()
}

/// Returns 0, or with `--exit-code` 3 for a refusal.
pub fn exit_code(answer: &impl Answer, reports_refusal: bool) -> ExitCode {
    if reports_refusal && answer.is_refusal() { ExitCode::from(REFUSED) } else { ExitCode::SUCCESS }
}
