//! The table on a terminal: refreshed, and switched by keys.

use std::time::Duration;

use super::question::Question;
use super::ranking::Ranking;
use super::screen::{Key, Screen};
use crate::cli::resp::RespClient;
use crate::cli::rules::rules;
use crate::limiter::top::{MAX_COUNT, Order, Window};

const KEYS: &str = "n/p: rule   o: order   w: window   q: quit";
/// Lines of the screen that show no actor: the keys, the title and the header.
const OTHER_LINES: usize = 3;

/// The table, and what it shows.
pub struct View {
    client: RespClient,
    question: Question,
    count: Option<usize>,
    interval: Duration,
}

impl View {
    pub fn new(client: RespClient, question: Question, count: Option<usize>, interval: Duration) -> Self {
        Self { client, question, count, interval }
    }

    /// Shows the table until the operator leaves.
    ///
    /// # Errors
    /// The server does not answer, or the terminal cannot be used.
    pub fn run(mut self) -> anyhow::Result<()> {
        // Asked before the terminal is taken over, so that a mistake leaves the message where it is read.
        let mut ranking = self.ask(usize::from(u8::MAX))?;
        let screen = Screen::enter()?;
        loop {
            let mut lines = ranking.lines();
            lines.insert(0, KEYS.to_owned());
            screen.draw(&lines)?;
            for key in screen.keys(self.interval)? {
                match key {
                    Key::Quit => return Ok(()),
                    Key::NextRule => self.switch_rule(true)?,
                    Key::PreviousRule => self.switch_rule(false)?,
                    Key::Order => self.question.order = other(self.question.order, Order::ALL),
                    Key::Window => self.question.window = other(self.question.window, Window::ALL),
                }
            }
            ranking = self.ask(screen.size().0.saturating_sub(OTHER_LINES))?;
        }
    }

    /// Asks for as many actors as there is room for.
    fn ask(&mut self, room: usize) -> anyhow::Result<Ranking> {
        self.question.ask(&mut self.client, self.count.unwrap_or(room).clamp(1, MAX_COUNT))
    }

    /// Switches to the next rule, or to the previous one. All rules together come before the first. The rules may have changed
    /// since the last time.
    fn switch_rule(&mut self, forward: bool) -> anyhow::Result<()> {
        let rules = rules(&mut self.client)?.into_iter().map(|rule| Some(vec![rule.name]));
        let all: Vec<_> = std::iter::once(None).chain(rules).collect();
        let shown = all.iter().position(|rule| *rule == self.question.rule).unwrap_or(0);
        let place = (shown + if forward { 1 } else { all.len() - 1 }) % all.len();
        self.question.rule = all.into_iter().nth(place).flatten();
        Ok(())
    }
}

/// Returns the value after this one, round and round.
fn other<T: PartialEq + Copy>(value: T, all: [T; 2]) -> T {
    let [first, second] = all;
    if value == first { second } else { first }
}
