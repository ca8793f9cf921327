//! `divvy counters`: lists or forgets the counters of a rule on a running server.
//!
//! Each page is printed before the next one is requested, so a million counters need no more memory than a thousand.

use std::io::{self, BufRead, BufWriter, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, bail};

use super::closed_pipe::accept_closed_pipe;
use super::pairs::Pair;
use super::progress::Progress;
use super::resp::{RespClient, ServerArgs, integer, number, parts, text};
use divvy_server::protocol::command::START;
use divvy_server::protocol::resp::client::Frame;

/// Maximum time for a page. The server may have to skip many expired counters.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of counters in a page.
const COUNT: &str = "1000";

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("named").required(true).args(["rule", "operation"]))]
pub struct CountersArgs {
    /// Name of the rule: its label, `default`, or its position, as in rule-1. --delete needs a label, `default`, or --operation
    #[arg(long, value_name = "NAME")]
    rule: Option<String>,
    /// Operation of a rule without a label, as in the rules file: --operation method=GET 'ip=*'
    #[arg(long, value_name = "KEY=VALUE", num_args = 1..)]
    operation: Vec<Pair>,
    /// Only the counter of this actor
    #[arg(long)]
    actor: Option<String>,
    /// Forget the counters instead of listing them, and print how many there were. Asks first, unless --actor is given
    #[arg(long)]
    delete: bool,
    /// Do not ask before deleting
    #[arg(long, short, requires = "delete")]
    yes: bool,
    /// Print one JSON object per line for each counter
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Prints a table, or the number of counters forgotten.
pub fn run(args: CountersArgs) -> anyhow::Result<ExitCode> {
    let is_sure = args.yes || !args.delete || args.actor.is_some();
    if !is_sure && !confirm(&format!("Forget every counter of {} on {}", rule(&args), args.server.server))? {
        writeln!(io::stderr(), "nothing was forgotten")?;
        return Ok(ExitCode::FAILURE);
    }
    let mut client = args.server.connect(PATIENCE)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let printed = if args.delete { delete(&args, &mut client, &mut out) } else { list(&args, &mut client, &mut out) };
    accept_closed_pipe(printed.and_then(|()| Ok(out.flush()?)).map(|()| ExitCode::SUCCESS))
}

/// Asks whether to do `what`, which cannot be undone. Returns the answer.
///
/// # Errors
/// There is no terminal to ask on, so `--yes` is required.
fn confirm(what: &str) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        bail!("{what}? There is no terminal on which to confirm this: add --yes to proceed");
    }
    let mut err = io::stderr().lock();
    write!(err, "{what}? [y/N] ")?;
    err.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(["y", "yes"].iter().any(|yes| answer.trim().eq_ignore_ascii_case(yes)))
}

/// Returns the rule as the operator named it.
fn rule(args: &CountersArgs) -> String {
    match &args.rule {
        Some(label) => format!("rule {label}"),
        None => format!("rule [{}]", args.operation.iter().map(Pair::to_string).collect::<Vec<_>>().join(" ")),
    }
}

fn list(args: &CountersArgs, client: &mut RespClient, out: &mut impl Write) -> anyhow::Result<()> {
    let mut has_header = args.json;
    let listed = Arc::new(AtomicU64::new(0));
    // On a terminal, the list itself shows the progress.
    let _progress = (!io::stdout().is_terminal()).then(|| {
        let listed = Arc::clone(&listed);
        Progress::show(move || format!("{} listed", counters(listed.load(Relaxed))))
    });
    each_page(args, client, "DIVVY.COUNTERS", |page| {
        for counter in parts(page)? {
            let [actor, remaining, reset, balance] = parts(counter)? else { return None };
            let (actor, remaining, reset) = (text(actor)?, number(remaining)?, number(reset)?);
            if !has_header {
                has_header = true;
                if let Err(error) = writeln!(out, "{:>12} {:>12}  actor", "remaining", "reset") {
                    return Some(Err(error.into()));
                }
            }
            let written = if args.json {
                writeln!(
                    out,
                    "{}",
                    serde_json::json!({
                        "actor": actor, "remaining": remaining, "balance": integer(balance)?, "reset": reset
                    })
                )
            } else {
                writeln!(out, "{remaining:>12} {reset:>12}  {}", actor.escape_debug())
            };
            if let Err(error) = written {
                return Some(Err(error.into()));
            }
            listed.fetch_add(1, Relaxed);
        }
        Some(Ok(()))
    })
}

fn delete(args: &CountersArgs, client: &mut RespClient, out: &mut impl Write) -> anyhow::Result<()> {
    let forgotten = Arc::new(AtomicU64::new(0));
    let progress = Progress::show({
        let forgotten = Arc::clone(&forgotten);
        move || format!("{} forgotten", counters(forgotten.load(Relaxed)))
    });
    let ended = each_page(args, client, "DIVVY.FORGET", |count| {
        forgotten.fetch_add(number(count)?, Relaxed);
        Some(Ok(()))
    });
    drop(progress);
    let forgotten = forgotten.load(Relaxed);
    ended.with_context(|| format!("{} forgotten, perhaps not all of them", counters(forgotten)))?;
    if args.json {
        writeln!(out, "{}", serde_json::json!({ "forgotten": forgotten }))?;
    } else {
        writeln!(out, "forgot {}", counters(forgotten))?;
    }
    Ok(())
}

fn counters(count: u64) -> String {
    if count == 1 { "1 counter".to_owned() } else { format!("{count} counters") }
}

/// Calls `take` with the content of each page, without its cursor. `take` returns `None` if the content is invalid.
fn each_page(
    args: &CountersArgs,
    client: &mut RespClient,
    command: &str,
    mut take: impl FnMut(&Frame) -> Option<anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let foreign = "the server's answer is not a page of counters";
    let mut cursor = START.to_owned();
    loop {
        let reply = client.ask(&request(args, command, &cursor))?;
        let Some([next, page]) = parts(&reply) else { anyhow::bail!(foreign) };
        take(page).context(foreign)??;
        cursor = text(next).context(foreign)?;
        if cursor == START {
            return Ok(());
        }
    }
}

fn request(args: &CountersArgs, command: &str, cursor: &str) -> Vec<String> {
    let mut request = vec![command.to_owned()];
    request.extend(args.rule.clone());
    request.extend(args.operation.iter().map(Pair::to_string));
    if let Some(actor) = &args.actor {
        request.extend(["ACTOR".to_owned(), actor.clone()]);
    }
    request.extend(["CURSOR", cursor, "COUNT", COUNT].map(str::to_owned));
    request
}
