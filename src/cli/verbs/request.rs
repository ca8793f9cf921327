//! The operation that a verb is about, the command that it sends over RESP, and the call that prints the answer.

use std::fmt::Display;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;

use super::answer::{Answer, Verdict, exit_code, explain_denial, explains_denials, print};
use crate::cli::pairs::Pair;
use crate::cli::resp::ServerArgs;

/// The operation on the command line of a verb.
#[derive(Debug, clap::Args)]
pub struct OperationArgs {
    /// The operation: each argument is one pair, split at its first `=`
    #[arg(value_name = "KEY=VALUE")]
    operation: Vec<Pair>,
}

impl OperationArgs {
    pub fn pairs(&self) -> impl Iterator<Item = &Pair> {
        self.operation.iter()
    }
}

/// A command of the RESP protocol.
#[derive(Debug)]
pub struct Request {
    words: Vec<String>,
    /// The words that are pairs of the operation; `None` if the request is not about an operation.
    pairs: Option<Vec<String>>,
    /// The credits that it needs, if it is not the rule that says so.
    cost: Option<u64>,
}

impl Request {
    pub fn new(command: &str) -> Self {
        Self { words: vec![command.to_owned()], pairs: None, cost: None }
    }

    /// Adds a word.
    pub fn word(mut self, word: &str) -> Self {
        self.words.push(word.to_owned());
        self
    }

    /// Adds the pairs of an operation.
    pub fn operation(mut self, operation: &OperationArgs) -> Self {
        let pairs: Vec<_> = operation.pairs().map(ToString::to_string).collect();
        self.words.extend_from_slice(&pairs);
        self.pairs = Some(pairs);
        self
    }

    /// Sets the credits that it needs, for a peek that asks why it was denied.
    pub fn costing(mut self, credits: u64) -> Self {
        self.cost = Some(credits);
        self
    }

    /// Returns the peek that has the same answer as this request about an operation; `None` for other requests.
    pub fn peek(&self) -> Option<Self> {
        let pairs = self.pairs.as_ref()?;
        let peek = Self { words: [&["DIVVY.PEEK".to_owned()], pairs.as_slice()].concat(), pairs: None, cost: None };
        Some(peek.option("COST", self.cost).option("REPLY", Some("JSON")))
    }

    /// Adds an option and its value, if there is a value.
    pub fn option(mut self, name: &str, value: Option<impl Display>) -> Self {
        if let Some(value) = value {
            self.words.extend([name.to_owned(), value.to_string()]);
        }
        self
    }

    pub fn command(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    pub fn words(&self) -> &[String] {
        &self.words
    }

    pub fn pairs(&self) -> Option<&[String]> {
        self.pairs.as_deref()
    }
}

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
            && explains_denials(self.json)
        {
            match answer.denial() {
                Some(denial) => explain_denial(denial, pairs),
                // The reply names no rule. A failure to ask why must not fail the command.
                None => {
                    let asked = request.peek().and_then(|peek| client.ask(peek.words()).ok());
                    let verdict = asked.and_then(|reply| Verdict::read(&reply));
                    verdict.iter().filter_map(Verdict::denial).for_each(|denial| explain_denial(denial, pairs));
                }
            }
        }
        Ok(exit_code(&answer, reports_refusal))
    }
}
