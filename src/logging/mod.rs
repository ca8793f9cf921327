//! The log: where it goes, what may be printed in it, and how often.
//!
//! Every room writes to it through `tracing`. What a client or a peer sent is written [`Escaped`]; what a client can
//! cause at will is written [`Sometimes`]. Nothing here knows what happened.

mod escaped;
mod sometimes;

pub use escaped::Escaped;
pub use sometimes::{MESSAGES_PER_SECOND, Sometimes};

use std::io::{self, IsTerminal};
use std::panic;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// What a line of the log looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For people; coloured on a terminal.
    Human,
    /// One JSON object a line, nothing else.
    Json,
}

/// Begins the log of this process, on standard error: answers go to standard output, so logs do not. Once only.
///
/// `filter` is a list of directives as in `RUST_LOG`, of which a later one for the same target wins.
///
/// # Errors
/// When `filter` cannot be read.
pub fn begin(format: Format, filter: &str) -> Result<(), ParseError> {
    let filter = EnvFilter::builder().parse(filter)?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match format {
        Format::Human => log.with_ansi(io::stderr().is_terminal()).init(),
        Format::Json => {
            log.json().flatten_event(true).init();
            // The usual report of a panic is several lines of text.
            panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
        }
    }
    Ok(())
}
