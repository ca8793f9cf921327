//! The operation that a verb is about, and the command that it sends.

use std::fmt::Display;

use crate::cli::pairs::Pair;

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
