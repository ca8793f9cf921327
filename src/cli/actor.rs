//! `divvy actor`: shows what one actor has used and has left, under every rule that counts by its fields.

use std::collections::{HashMap, HashSet};
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;

use super::closed_pipe::accept_closed_pipe;
use super::pairs::Pair;
use super::resp::{RespClient, ServerArgs, integer, number, parts, text};
use super::text::printable;
use divvy_core::rules::OverrideKind;
use divvy_core::rules::explain::ActorOverride;
use divvy_server::protocol::command::START;
use divvy_server::protocol::resp::client::Frame;

/// Maximum time for a page.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of counters that the server reads for a page.
const COUNT: &str = "1000";
const FOREIGN: &str = "the server's answer is not the status of an actor";

/// Show what one actor has used and has left on a running server, under each rule.
///
/// Give all fields of a rule's actorField, and no others. A rule is shown if the actor has used some of its credits lately, has
/// reserved some, has a limit of its own, or is blocked or allowed. Takes no credit. Exits with 1 if there is no such rule.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  divvy actor user=ann\n  divvy actor tenant=acme user=ann --json")]
pub struct ActorArgs {
    /// The fields of the actor, with their values
    #[arg(value_name = "FIELD=VALUE", required = true)]
    actor: Vec<Pair>,
    /// Print one JSON object per line for each rule
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Prints a table of the actor's counters.
///
/// # Errors
/// A field is given twice, there is no answer, or it is an error.
pub fn run(args: &ActorArgs) -> anyhow::Result<ExitCode> {
    let mut fields = HashSet::new();
    for (field, _) in args.actor.iter().map(Pair::as_strs) {
        ensure!(fields.insert(field), "the actor has the field {field:?} twice");
    }
    let mut client = args.server.connect(PATIENCE)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let shown = match print_all(args, &mut client, &mut out).and_then(|shown| Ok((shown, out.flush()?))) {
        Ok((shown, ())) => shown,
        Err(error) => return accept_closed_pipe(Err(error)),
    };
    if shown > 0 {
        return Ok(ExitCode::SUCCESS);
    }
    let actor = args.actor.iter().map(|pair| pair.to_string().escape_debug().to_string()).collect::<Vec<_>>().join(" ");
    writeln!(
        io::stderr(),
        "{actor} is unknown: under every rule that counts by it, it has all credits, no limit of its own, and no block or allow\n\
         a block of another field may still deny its requests: to see that, send DIVVY.EXPLAIN with a whole request"
    )?;
    Ok(ExitCode::FAILURE)
}

/// Prints all pages. Returns the number of rules.
fn print_all(args: &ActorArgs, client: &mut RespClient, out: &mut impl Write) -> anyhow::Result<usize> {
    let mut shown = 0;
    let mut cursor = START.to_owned();
    loop {
        let mut command = vec!["DIVVY.STATUS".to_owned()];
        command.extend(args.actor.iter().map(Pair::to_string));
        command.extend(["CURSOR", &cursor, "COUNT", COUNT].map(str::to_owned));
        let reply = client.ask(&command)?;
        let Some([next, page]) = parts(&reply) else { anyhow::bail!(FOREIGN) };
        for rule in parts(page).context(FOREIGN)? {
            let status = RuleStatus::read(rule).context(FOREIGN)?;
            if shown == 0 && !args.json {
                RuleStatus::print_header(out)?;
            }
            if args.json {
                status.print_json(out)?
            } else {
                status.print(out)?
            }
            shown += 1;
        }
        cursor = text(next).context(FOREIGN)?;
        if cursor == START {
            return Ok(shown);
        }
    }
}

struct RuleStatus {
    rule: String,
    limit: u64,
    used: u64,
    reserved: u64,
    in_flight: u64,
    remaining: u64,
    balance: i64,
    /// In seconds.
    reset: u64,
    own_limit: Option<u64>,
    actor_override: Option<ActorOverride>,
}

impl RuleStatus {
    /// Reads the map of a rule. Names that a later server may add are ignored.
    fn read(rule: &Frame) -> Option<Self> {
        let pairs = named(rule)?;
        let count = |name| number(pairs.get(name)?);
        Some(Self {
            rule: text(pairs.get("rule")?)?,
            limit: count("limit")?,
            used: count("used")?,
            reserved: count("reserved")?,
            in_flight: count("inFlight")?,
            remaining: count("remaining")?,
            balance: integer(pairs.get("balance")?)?,
            reset: count("reset")?,
            own_limit: count("ownLimit"),
            // Earlier servers do not send it.
            actor_override: pairs.get("override").and_then(|found| Self::read_override(found)),
        })
    }

    /// Reads a block or an allow.
    fn read_override(entry: &Frame) -> Option<ActorOverride> {
        let pairs = named(entry)?;
        let kind = text(pairs.get("kind")?)?;
        Some(ActorOverride {
            kind: OverrideKind::ALL.into_iter().find(|known| known.name() == kind)?,
            ends_in: number(pairs.get("endsIn")?),
            reason: text(pairs.get("reason")?),
            entry: text(pairs.get("entry")?),
        })
    }

    fn print_header(out: &mut impl Write) -> io::Result<()> {
        let [limit, own, used] = ["limit", "own limit", "used"];
        let [reserved, in_flight, left, reset] = ["reserved", "in flight", "left", "reset"];
        writeln!(out, "{limit:>12} {own:>12} {used:>12} {reserved:>12} {in_flight:>12} {left:>12} {reset:>12}  rule")
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { rule, limit, used, reserved, in_flight, balance, reset, actor_override, .. } = self;
        let actor_override = actor_override.as_ref().map_or_else(String::new, |found| format!("  {found}"));
        let own = self.own_limit.map_or_else(|| "-".to_owned(), |credits| credits.to_string());
        writeln!(
            out,
            "{limit:>12} {own:>12} {used:>12} {reserved:>12} {in_flight:>12} {balance:>12} {reset:>12}  {rule}{}",
            printable(&actor_override)
        )
    }

    fn print_json(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { rule, limit, used, reserved, in_flight, remaining, balance, reset, own_limit, actor_override } =
            self;
        let status = json!({
            "rule": rule, "limit": limit, "used": used, "reserved": reserved, "inFlight": in_flight,
            "remaining": remaining, "balance": balance, "resetSeconds": reset, "ownLimit": own_limit,
            "override": actor_override,
        });
        writeln!(out, "{status}")
    }
}

/// Reads a map, which is an array of names and values in RESP2.
fn named(map: &Frame) -> Option<HashMap<String, &Frame>> {
    let pairs = parts(map)?.chunks_exact(2).filter_map(|pair| match pair {
        [name, value] => Some((text(name)?, value)),
        _ => None,
    });
    Some(pairs.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &str) -> Frame {
        Frame::BlobString { data: text.as_bytes().to_vec(), attributes: None }
    }

    fn number(data: i64) -> Frame {
        Frame::Number { data, attributes: None }
    }

    fn array(data: Vec<Frame>) -> Frame {
        Frame::Array { data, attributes: None }
    }

    /// Returns the map of a rule as servers of the first version with this command send it, and these names and values.
    fn rule(more: Vec<Frame>) -> Frame {
        let numbers = ["limit", "used", "reserved", "inFlight", "remaining", "reset", "balance", "ownLimit"];
        let mut pairs = vec![word("rule"), word("calls")];
        pairs.extend(numbers.into_iter().zip(1..).flat_map(|(name, value)| [word(name), number(value)]));
        pairs.extend(more);
        array(pairs)
    }

    #[test]
    fn status_of_an_earlier_server_is_read() {
        let status = RuleStatus::read(&rule(Vec::new())).unwrap();
        assert_eq!((status.limit, status.own_limit, status.actor_override), (1, Some(8), None));
    }

    #[test]
    fn override_is_read_by_its_names() {
        let override_of =
            |pairs: Vec<Frame>| RuleStatus::read(&rule(vec![word("override"), array(pairs)])).unwrap().actor_override;
        let block = |ends| {
            let [kind, reason, entry] = ["kind", "reason", "entry"].map(word);
            vec![
                word("later"),
                number(1),
                kind,
                word("block"),
                word("endsIn"),
                number(ends),
                reason,
                Frame::Null,
                entry,
                word("a=b"),
            ]
        };
        let expected = |ends_in| {
            let entry = Some("a=b".to_owned());
            Some(ActorOverride { kind: OverrideKind::Block, ends_in, reason: None, entry })
        };
        assert_eq!(override_of(block(5)), expected(Some(5)));
        assert_eq!(override_of(block(-1)), expected(None));
        assert_eq!(RuleStatus::read(&rule(vec![word("override"), Frame::Null])).unwrap().actor_override, None);
    }
}
