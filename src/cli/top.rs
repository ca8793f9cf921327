//! `divvy top`: ranks the actors of one rule or of all rules on a running server.
//!
//! On a terminal, the table is refreshed until the operator leaves. Otherwise it is printed once.

mod question;
mod ranking;
mod screen;
mod stop_signal;
mod view;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;

use self::question::Question;
use self::view::View;
use super::closed_pipe::accept_closed_pipe;
use super::pairs::Pair;
use super::resp::ServerArgs;
use super::units::{self, Time};
use crate::limiter::top::{MAX_COUNT, Order, Window};

/// Maximum time for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Number of actors in a table that is printed once.
const DEFAULT_COUNT: usize = 20;
/// Maximum time between two refreshes (seconds).
const MAX_INTERVAL: u64 = 3_600;

/// Show the actors that are denied the most, or that take the most credits, in the last minute or hour
///
/// Without a rule, the actors of all rules but canaries are shown, the worst first. On a terminal, the table is refreshed. Keys: n
/// and p (or the arrows) switch the rule, o the order, w the window, and q
/// leaves. Counts are those of this server, even if several share a store.
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
    /// Number of actors [default: 20, or as many as the terminal has room for]
    #[arg(long, value_name = "N", value_parser = units::count::<usize>(1..=MAX_COUNT as u64))]
    count: Option<usize>,
    /// Time between two refreshes, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = Time(Duration::from_secs(2)), value_parser = units::seconds(1..=MAX_INTERVAL))]
    interval: Time,
    /// Print the table once, even on a terminal
    #[arg(long)]
    once: bool,
    /// Print one JSON object, once
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
    let mut client = args.server.connect(PATIENCE)?;
    let is_interactive = !args.once && !args.json && io::stdout().is_terminal() && io::stdin().is_terminal();
    let rule = match &args.rule {
        Some(name) => Some(vec![name.clone()]),
        None if args.operation.is_empty() => None,
        None => Some(args.operation.iter().map(Pair::to_string).collect()),
    };
    let question = Question { rule, order: args.order.into(), window: args.last.into() };
    if is_interactive {
        View::new(client, question, args.count, args.interval.0).run()?;
        return Ok(ExitCode::SUCCESS);
    }
    let ranking = question.ask(&mut client, args.count.unwrap_or(DEFAULT_COUNT))?;
    let text = if args.json { ranking.to_json().to_string() } else { ranking.lines().join("\n") };
    let mut out = io::stdout().lock();
    let printed = writeln!(out, "{text}").and_then(|()| out.flush());
    accept_closed_pipe(printed.map(|()| ExitCode::SUCCESS).map_err(Into::into))
}
