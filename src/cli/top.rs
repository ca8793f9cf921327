//! `divvy top`: ranks the actors of one rule or of all rules on a running server, once or again and again.

mod ranking;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;

use self::ranking::Ranking;
use super::closed_pipe::accept_closed_pipe;
use super::pairs::Pair;
use super::resp::{RespClient, ServerArgs};
use super::rules::rules;
use divvy_core::units::{self, Time};
use divvy_limiter::top::{MAX_COUNT, Order, Window};

/// Maximum time for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Number of actors: with it, the table fits into a terminal of 24 lines.
const DEFAULT_COUNT: usize = 20;
/// Maximum time between two tables (seconds).
const MAX_INTERVAL: u64 = 3_600;
/// Moves a terminal's cursor to the first line, and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Show the actors that are denied the most, or that take the most credits, in the last minute or hour
///
/// Without a rule, the actors of all rules but canaries are shown, the worst first. Counts are those of this server, even if
/// several share a store.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("named").args(["rule", "operation"]))]
pub struct TopArgs {
    /// Name of the rule: its label, `default`, or its position, as in rule-1 [default: all rules]
    #[arg(long, value_name = "NAME")]
    rule: Option<String>,
    /// Operation of a rule without a label, as in the rules file: --operation method=GET 'ip=*'
    #[arg(long, value_name = "KEY=VALUE", num_args = 1..)]
    operation: Vec<Pair>,
    /// What is counted
    #[arg(long, value_enum, default_value_t = OrderName::Denied)]
    order: OrderName,
    /// The time over which it is counted, in seconds
    #[arg(long, value_enum, default_value_t = WindowName::Minute)]
    last: WindowName,
    /// Number of actors
    #[arg(long, value_name = "N", default_value_t = DEFAULT_COUNT, value_parser = units::count::<usize>(1..=MAX_COUNT as u64))]
    count: usize,
    /// Keep printing, with this time between two tables. On a terminal, each table replaces the one before
    #[arg(long, value_name = "SECONDS", value_parser = units::seconds(1..=MAX_INTERVAL))]
    watch: Option<Time>,
    /// Print a JSON object on one line in place of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OrderName {
    /// Denied requests
    Denied,
    /// Credits that were taken
    Taken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum WindowName {
    /// The last minute
    #[value(name = "60", alias = "1m")]
    Minute,
    /// The last hour
    #[value(name = "3600", alias = "1h")]
    Hour,
}

impl From<OrderName> for Order {
    fn from(name: OrderName) -> Self {
        match name {
            OrderName::Denied => Self::Denied,
            OrderName::Taken => Self::Taken,
        }
    }
}

impl From<WindowName> for Window {
    fn from(name: WindowName) -> Self {
        match name {
            WindowName::Minute => Self::Minute,
            WindowName::Hour => Self::Hour,
        }
    }
}

pub fn run(args: TopArgs) -> anyhow::Result<ExitCode> {
    let rule = match &args.rule {
        Some(name) => Some(vec![name.clone()]),
        None if args.operation.is_empty() => None,
        None => Some(args.operation.iter().map(Pair::to_string).collect()),
    };
    let question = Question { rule, order: args.order.into(), window: args.last.into() };
    let mut client = args.server.connect(PATIENCE)?;
    accept_closed_pipe(print(&args, &question, &mut client).map(|()| ExitCode::SUCCESS))
}

fn print(args: &TopArgs, question: &Question, client: &mut RespClient) -> anyhow::Result<()> {
    let clear = if args.watch.is_some() && !args.json && io::stdout().is_terminal() { CLEAR } else { "" };
    loop {
        let ranking = question.ask(client, args.count)?;
        let text = if args.json { ranking.to_json().to_string() } else { ranking.lines().join("\n") };
        let mut out = io::stdout().lock();
        writeln!(out, "{clear}{text}")?;
        out.flush()?;
        let Some(Time(interval)) = args.watch else { return Ok(()) };
        thread::sleep(interval);
    }
}

/// The question for a ranking.
struct Question {
    /// The rule's name, or its pairs. `None` for all rules.
    rule: Option<Vec<String>>,
    order: Order,
    window: Window,
}

impl Question {
    /// Sends the question, and returns the answer.
    ///
    /// # Errors
    /// The server answers with an error, or with something else.
    fn ask(&self, client: &mut RespClient, count: usize) -> anyhow::Result<Ranking> {
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
