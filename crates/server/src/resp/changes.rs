//! Commands as the audit log sees them: which of them ask for a change, and refused ones.

use std::fmt::Display;

use super::client::Client;
use super::counts;
use super::error::count_limit;
use super::info::RespState;
use divvy_access::audit::{Action, Change};
use divvy_telemetry::metrics::Bound;
use crate::protocol::command::{Command, CommandError, CountersAsk, LimitAsk, NamedRule, OverrideAsk, Pairs};
use crate::protocol::resp::{Arguments, ReplyWriter};
use crate::operations::{of_limit, override_action};

/// Records a refused request, if it asks for a change.
pub fn record_refusal(shared: &RespState, client: &Client, request: Arguments, error: impl Display) {
    let Some(action) = action_of(request) else { return };
    let change = Command::parse(request).ok().and_then(|command| change_of(&command));
    let change = change.unwrap_or_else(|| Change::new(action));
    shared.changes.audit().refuse(client.caller(), change, error);
}

/// Counts an invalid request, records it if it asks for a change, and writes the error.
pub fn write_error(shared: &RespState, client: &Client, request: Arguments, error: CommandError, output: &mut Vec<u8>) {
    let limiter = &shared.limiter;
    if let CommandError::TooManyPairs { .. } = error {
        count_limit(limiter, Some(Bound::Pairs));
    }
    counts::count_command_error(limiter, client, request, &error);
    record_refusal(shared, client, request, &error);
    ReplyWriter::new(output, client.version).error(error);
}

/// Returns the change that a command asks for, if it does.
pub fn change_of(command: &Command<'_>) -> Option<Change> {
    Some(match command {
        Command::SetLimit { of: LimitAsk { rule, actor }, credits, seconds } => {
            of_limit(Action::LimitSet, rule, actor).with_limit(*credits, *seconds)
        }
        Command::RemoveLimit(LimitAsk { rule, actor }) => of_limit(Action::LimitDelete, rule, actor),
        Command::SetOverride(OverrideAsk { kind, of: LimitAsk { rule, actor }, seconds, reason }) => {
            of_limit(override_action(*kind, false), rule, actor).with_override(*seconds, *reason)
        }
        Command::RemoveOverride(kind, LimitAsk { rule, actor }) => of_limit(override_action(*kind, true), rule, actor),
        Command::Forget(pairs) => with_pairs(Change::new(Action::CountersReset), pairs),
        Command::ForgetCounters(CountersAsk { rule, actor, .. }) => {
            let change = Change::new(Action::CountersForget);
            let change = match rule {
                NamedRule::Name(name) => change.with_rule(name),
                NamedRule::Operation(pairs) => with_pairs(change, pairs),
            };
            if let Some(actor) = actor { change.with_actor(actor) } else { change }
        }
        Command::Backup(name) => Change::new(Action::Backup).with_name(name),
        _ => return None,
    })
}

fn with_pairs(change: Change, pairs: &Pairs<'_>) -> Change {
    change.with_operation(pairs.arguments().map(String::from_utf8_lossy))
}

/// Returns the kind of change that a request asks for by its name, even if its arguments are wrong.
fn action_of(request: Arguments) -> Option<Action> {
    let is = |place, name: &str| request.get(place).is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes()));
    let of_actors = [
        ("divvy.limit", "set", Action::LimitSet),
        ("divvy.limit", "del", Action::LimitDelete),
        ("divvy.block", "set", Action::BlockSet),
        ("divvy.block", "del", Action::BlockDelete),
        ("divvy.allow", "set", Action::AllowSet),
        ("divvy.allow", "del", Action::AllowDelete),
    ];
    let others = [
        ("divvy.reset", Action::CountersReset),
        ("divvy.forget", Action::CountersForget),
        ("divvy.backup", Action::Backup),
    ];
    let of_actors = of_actors.into_iter().filter(|(name, subcommand, _)| is(0, name) && is(1, subcommand));
    let others = others.into_iter().filter(|(name, _)| is(0, name)).map(|(_, action)| action);
    of_actors.map(|(.., action)| action).chain(others).next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::command::table::{COMMANDS, offered};
    use crate::protocol::resp::Decoder;

    /// Commands that take or give back credits. Applications send them, and operators audit none of them.
    const OF_APPLICATIONS: [&str; 12] = [
        "divvy.hit",
        "divvy.charge",
        "divvy.refund",
        "divvy.reserve",
        "divvy.commit",
        "divvy.release",
        "divvy.renew",
        "rl.reduce",
        "rl.sessionize",
        "rl.preduce",
        "rl.psessionize",
        "cl.throttle",
    ];

    #[test]
    fn every_command_that_writes_is_a_change_or_for_applications() {
        let rows = offered(COMMANDS).map(|spec| (None, spec));
        let nested =
            offered(COMMANDS).flat_map(|parent| offered(parent.subcommands).map(move |spec| (Some(parent), spec)));
        for (parent, spec) in rows.chain(nested) {
            let name = spec.full_name(parent);
            let writes = spec.flags.contains(&"write") || spec.flags.contains(&"admin");
            let request = format!("{}\r\n", name.replace('|', " ").to_uppercase());
            let mut decoder = Decoder::default();
            decoder.decode(request.as_bytes()).unwrap();
            let is_change = action_of(decoder.arguments(request.as_bytes())).is_some();
            assert_eq!(is_change, writes && !OF_APPLICATIONS.contains(&name.as_str()), "{name}");
        }
    }
}
