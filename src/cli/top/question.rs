//! The questions that `divvy top` asks a server.

use anyhow::Context;

use super::ranking::Ranking;
use crate::cli::resp::{RespClient, parts, text};
use crate::limiter::top::{Order, Window};

/// The question for a ranking.
#[derive(Debug, Clone)]
pub struct Question {
    /// The rule's name, or its pairs.
    pub rule: Vec<String>,
    pub order: Order,
    pub window: Window,
}

impl Question {
    /// Sends the question, and returns the answer.
    ///
    /// # Errors
    /// The server answers with an error, or with something else.
    pub fn ask(&self, client: &mut RespClient, count: usize) -> anyhow::Result<Ranking> {
        let mut request = vec!["DIVVY.TOP".to_owned()];
        request.extend(self.rule.iter().cloned());
        let (seconds, count) = (self.window.seconds().to_string(), count.to_string());
        request.extend([self.order.name(), "LAST", &seconds, "COUNT", &count].map(str::to_owned));
        Ranking::read(&client.ask(&request)?).context("the server's answer is not a ranking")
    }
}

/// Returns the names of the rules in force.
///
/// # Errors
/// The server answers with an error, or with something else.
pub fn rule_names(client: &mut RespClient) -> anyhow::Result<Vec<String>> {
    let reply = client.ask(&["DIVVY.RULES"])?;
    let name = |rule| {
        let words = parts(rule)?.chunks_exact(2);
        let mut pairs = words.filter_map(|pair| Some((text(pair.first()?)?, text(pair.get(1)?)?)));
        pairs.find(|(key, _)| key == "name").map(|(_, name)| name)
    };
    let names = parts(&reply).and_then(|rules| rules.iter().map(name).collect());
    names.context("the server's answer is not a list of rules")
}
