//! The questions that `divvy top` asks a server.

use anyhow::Context;

use super::ranking::Ranking;
use crate::cli::resp::RespClient;
use crate::cli::rules::rules;
use crate::limiter::top::{Order, Window};

/// The question for a ranking.
#[derive(Debug)]
pub struct Question {
    /// The rule's name, or its pairs. `None` for all rules.
    pub rule: Option<Vec<String>>,
    pub order: Order,
    pub window: Window,
}

impl Question {
    /// Sends the question, and returns the answer.
    ///
    /// # Errors
    /// The server answers with an error, or with something else.
    pub fn ask(&self, client: &mut RespClient, count: usize) -> anyhow::Result<Ranking> {
        if let Some(rule) = &self.rule {
            return self.ask_about(rule, client, count);
        }
        // Canaries deny nothing.
        let rules = rules(client)?.into_iter().filter(|rule| !rule.is_canary);
        let rankings: anyhow::Result<Vec<_>> = rules.map(|rule| self.ask_about(&[rule.name], client, count)).collect();
        Ranking::of_all(rankings?, count).context("the server has no rules")
    }

    fn ask_about(&self, rule: &[String], client: &mut RespClient, count: usize) -> anyhow::Result<Ranking> {
        let mut request = vec!["DIVVY.TOP".to_owned()];
        request.extend(rule.iter().cloned());
        let (seconds, count) = (self.window.seconds().to_string(), count.to_string());
        request.extend([self.order.name(), "LAST", &seconds, "COUNT", &count].map(str::to_owned));
        Ranking::read(&client.ask(&request)?).context("the server's answer is not a ranking")
    }
}
