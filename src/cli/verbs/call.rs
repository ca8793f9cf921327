//! Sends the request of a verb over RESP, and prints the answer.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;

use super::answer::{Answer, exit_code, print};
use super::denial;
use super::request::Request;
use super::verdict::Verdict;
use crate::cli::resp::ServerArgs;

/// Maximum time to connect, and maximum time for an answer.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// The server, and the form of the answer.
#[derive(Debug, clap::Args)]
pub struct CallArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    /// Print a JSON object instead of a line
    #[arg(long)]
    pub json: bool,
}

impl CallArgs {
    /// Sends the request, and prints the answer, which has type `A`. If `reports_refusal` is set, a refusal has its own
    /// exit code.
    ///
    /// # Errors
    /// There is no answer, or it is an error.
    pub fn run<A: Answer>(&self, request: &Request, reports_refusal: bool) -> anyhow::Result<ExitCode> {
        let mut client = self.server.connect(TIMEOUT)?;
        let reply = client.ask(request.words())?;
        let is_foreign = || {
            let (server, command) = (&self.server.server, request.command());
            format!("{server}: this is not the answer to {command}: is the server divvy?")
        };
        let answer = A::read(&reply).with_context(is_foreign)?;
        print(&answer, self.json)?;
        if let Some(pairs) = request.pairs()
            && answer.is_refusal()
            && denial::is_explained(self.json)
        {
            match answer.denial() {
                Some(denial) => denial::explain(denial, pairs),
                // The reply names no rule. A failure to ask why must not fail the command.
                None => {
                    let asked = request.peek().and_then(|peek| client.ask(peek.words()).ok());
                    let verdict = asked.and_then(|reply| Verdict::read(&reply));
                    verdict.iter().filter_map(Verdict::denial).for_each(|denial| denial::explain(denial, pairs));
                }
            }
        }
        Ok(exit_code(&answer, reports_refusal))
    }
}
