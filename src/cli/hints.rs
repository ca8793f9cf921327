//! Hints for operators who mean a flag or a variable that divvy does not have: environment variables that look like settings, and
//! flags of other programs.

use clap::Command;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use divvy_core::nearest::nearest;

/// Common prefix of all flags' variables.
const PREFIX: &str = "DIVVY_";
/// Suffixes that other programs use for the name of an address. divvy uses [`LISTEN`].
const ADDRESSES: [&str; 5] = ["PORT", "HOST", "ADDRESS", "BIND", "ADDR"];
/// Suffix of the names of listen addresses.
const LISTEN: &str = "LISTEN";

/// Returns a warning for each environment variable that starts with the prefix and belongs to no flag of `divvy`, in
/// the order of their names.
pub fn unknown_settings(divvy: &Command) -> Vec<String> {
    let known = variables(divvy);
    let mut lines: Vec<_> = std::env::vars_os()
        .filter_map(|(name, value)| warning(&known, name.to_str()?, &value.to_string_lossy()))
        .collect();
    lines.sort();
    lines
}

/// Returns the variables of a command's flags, and of its subcommands'.
fn variables(command: &Command) -> Vec<String> {
    let own = command.get_arguments().filter_map(|arg| Some(arg.get_env()?.to_str()?.to_owned()));
    own.chain(command.get_subcommands().flat_map(variables)).collect()
}

fn warning(known: &[String], name: &str, value: &str) -> Option<String> {
    let rest = name.strip_prefix(PREFIX)?;
    if known.iter().any(|known| known == name) || is_of_a_service(rest, value) {
        return None;
    }
    let upper = rest.to_uppercase();
    if let Some(meant) = listen_address(known, &upper) {
        return Some(format!("{name} is not a setting and has no effect: set {meant} to HOST:PORT"));
    }
    let names: Vec<_> = known.iter().filter_map(|known| known.strip_prefix(PREFIX)).collect();
    Some(match nearest(rest, &names) {
        Some(meant) => format!("{name} is not a setting and has no effect: did you mean {PREFIX}{meant}?"),
        None => format!(
            "{name} is not a setting and has no effect: see `divvy help` and the --help of its \
             subcommands"
        ),
    })
}

/// Returns the variable of the listen address that `upper` probably stands for, such as `DIVVY_RESP_LISTEN` for
/// `RESP_PORT`.
fn listen_address<'a>(known: &'a [String], upper: &str) -> Option<&'a String> {
    let front = ADDRESSES.iter().find_map(|end| upper.strip_suffix(end))?;
    let meant = format!("{PREFIX}{front}{LISTEN}");
    known.iter().find(|known| **known == meant)
}

/// Returns whether Kubernetes sets the variable in pods that run next to a Service called `divvy` or `divvy-…`. `rest`
/// is its name after the prefix. Such variables are `DIVVY_SERVICE_HOST`, `DIVVY_SERVICE_PORT`, `DIVVY_PORT`, and those
/// that start with either of the latter two
/// (<https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables>).
fn is_of_a_service(rest: &str, value: &str) -> bool {
    let is_link = |part: &str| part.starts_with("TCP") || part.starts_with("UDP") || part.starts_with("SCTP");
    let is_port = |(number, protocol): (&str, &str)| number.parse::<u16>().is_ok() && is_link(protocol);
    rest.starts_with("SERVICE_")
        || rest.starts_with("PORT_")
        || rest == "PORT" && value.contains("://")
        || rest.ends_with("_SERVICE_HOST")
        || rest.contains("_SERVICE_PORT")
        || rest.ends_with("_PORT") && value.contains("://")
        || rest.split_once("_PORT_").and_then(|(_, port)| port.split_once('_')).is_some_and(is_port)
}

const LISTENERS: &str = "each protocol has its own address: --listen (line protocol), --resp-listen, --http-listen and \
                         --grpc-listen, as in --http-listen 0.0.0.0:8322";
const RULES: &str = "the rules file is an argument without a flag: divvy serve rules.ini";
const ACCESS: &str = "name the file with the users: --access-file FILE";
const SERVER: &str = "name the server with --server HOST:PORT";

/// Flags of other programs, and their equivalents in `divvy serve`.
const SERVE_FLAGS: [(&str, &str); 19] = [
    ("--port", LISTENERS),
    ("-p", LISTENERS),
    ("--host", LISTENERS),
    ("--bind", LISTENERS),
    ("--addr", LISTENERS),
    ("--address", LISTENERS),
    ("--config", RULES),
    ("--rules", RULES),
    ("-c", RULES),
    ("--memory", "write --store memory"),
    ("--redis", "write --redis-url redis://HOST:PORT"),
    ("--password", "write --requirepass PASSWORD, or set DIVVY_REQUIREPASS"),
    ("--aclfile", ACCESS),
    ("--users", ACCESS),
    ("--user", ACCESS),
    ("--tls", "write --tls-cert FILE and --tls-key FILE"),
    ("--verbose", "write --log-level debug"),
    ("-v", "write --log-level debug"),
    ("--daemonize", "divvy runs in the foreground: let systemd or a container run it"),
];
/// Flags of other programs, and their equivalents in the subcommands that talk to a server.
const CLIENT_FLAGS: [(&str, &str); 6] =
    [("--port", SERVER), ("-p", SERVER), ("--host", SERVER), ("-h", SERVER), ("--address", SERVER), ("--url", SERVER)];

/// Flags of `divvy reserve` under their names in other subcommands.
const RESERVE_FLAGS: [(&str, &str); 2] = [("--cost", AMOUNT), ("--credits", AMOUNT)];
const AMOUNT: &str = "write --amount N: the number of credits to reserve";
/// Flags of `divvy commit` and of corrections under their names in other subcommands.
const COST_FLAGS: [(&str, &str); 2] = [("--amount", COST), ("--credits", COST)];
const COST: &str = "write --cost N: the number of credits";
/// Subcommands with [`COST_FLAGS`].
const WITH_COST: [&str; 5] = ["hit", "peek", "charge", "refund", "commit"];

/// Adds a tip to the error of the command line of `subcommand`.
pub fn add_tip(mut error: clap::Error, subcommand: Option<&str>) -> clap::Error {
    if let Some(ContextValue::String(pair)) = error.get(ContextKind::InvalidSubcommand)
        && subcommand == Some("token")
        && pair.contains('=')
    {
        let tip = StyledStr::from(format!("write --actor before the fields of the actor: --actor {pair}"));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
        return error;
    }
    let flag = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag)) if error.kind() == ErrorKind::UnknownArgument => flag,
        _ => return error,
    };
    let (tips, others): (&[_], &[_]) = match subcommand {
        Some("serve") => (&SERVE_FLAGS, &[]),
        Some("reserve") => (&CLIENT_FLAGS, &RESERVE_FLAGS),
        Some(name) if WITH_COST.contains(&name) => (&CLIENT_FLAGS, &COST_FLAGS),
        _ => (&CLIENT_FLAGS, &[]),
    };
    let tip = tips.iter().chain(others).find(|(known, _)| known == flag).map(|(_, tip)| *tip);
    // clap's own tip is to write `--` before the flag, which makes it a value. No value begins with a hyphen.
    error.remove(ContextKind::Suggested);
    if let Some(tip) = tip {
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    }
    error
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    fn warning_for(name: &str, value: &str) -> Option<String> {
        warning(&variables(&Cli::command()), name, value)
    }

    #[test]
    fn variables_of_all_subcommands_are_known() {
        for name in ["DIVVY_CONFIG", "DIVVY_DURABILITY", "DIVVY_LOG", "DIVVY_SERVER", "DIVVY_PASSWORD", "DIVVY_ADDR"] {
            assert_eq!(warning_for(name, "x"), None, "{name}");
        }
        assert_eq!(warning_for("PATH", "x"), None);
    }

    #[test]
    fn misspelled_variable_causes_a_suggestion() {
        for (name, meant) in [
            ("DIVVY_DURABILTY", "DIVVY_DURABILITY"),
            ("DIVVY_MAX_COUNTER", "DIVVY_MAX_COUNTERS"),
            ("DIVVY_LOG_LEVEL", "DIVVY_LOG"),
            ("DIVVY_REQUIRE_PASS", "DIVVY_REQUIREPASS"),
            ("DIVVY_data_dir", "DIVVY_DATA_DIR"),
        ] {
            let warning = warning_for(name, "x").unwrap_or_default();
            assert!(warning.starts_with(name) && warning.ends_with(&format!("did you mean {meant}?")), "{warning}");
        }
        let warning = warning_for("DIVVY_QQQ", "x").unwrap_or_default();
        assert!(warning.contains("DIVVY_QQQ") && !warning.contains("did you mean"), "{warning}");
    }

    #[test]
    fn port_or_host_causes_the_listen_address() {
        for (name, value, meant) in [
            ("DIVVY_PORT", "8321", "set DIVVY_LISTEN to HOST:PORT"),
            ("DIVVY_RESP_PORT", "9049", "set DIVVY_RESP_LISTEN to HOST:PORT"),
            ("DIVVY_HTTP_HOST", "0.0.0.0", "set DIVVY_HTTP_LISTEN to HOST:PORT"),
            ("DIVVY_GRPC_BIND", "0.0.0.0", "set DIVVY_GRPC_LISTEN to HOST:PORT"),
        ] {
            let warning = warning_for(name, value).unwrap_or_default();
            assert!(warning.ends_with(meant), "{name}: {warning}");
        }
    }

    #[test]
    fn variables_from_kubernetes_are_ignored() {
        for (name, value) in [
            ("DIVVY_SERVICE_HOST", "10.0.0.11"),
            ("DIVVY_SERVICE_PORT_RESP", "9049"),
            ("DIVVY_PORT", "tcp://10.0.0.11:9049"),
            ("DIVVY_PORT_9049_TCP_ADDR", "10.0.0.11"),
            ("DIVVY_GRPC_SERVICE_HOST", "10.0.0.12"),
            ("DIVVY_GRPC_SERVICE_PORT", "8323"),
            ("DIVVY_GRPC_PORT", "tcp://10.0.0.12:8323"),
            ("DIVVY_GRPC_PORT_8323_TCP_PROTO", "tcp"),
        ] {
            assert_eq!(warning_for(name, value), None, "{name}");
        }
        assert!(warning_for("DIVVY_GRPC_PORT", "8323").is_some(), "a person's wish");
    }

    fn message(line: &[&str]) -> String {
        let line = std::iter::once("divvy").chain(line.iter().copied());
        Cli::parse_line(line.map(OsString::from).collect()).err().unwrap().to_string()
    }

    #[test]
    fn flag_of_another_program_has_a_tip() {
        for (line, expected) in [
            (&["serve", "--port", "80"][..], "--http-listen"),
            (&["serve", "--port=80"], "--http-listen"),
            (&["serve", "-p", "80"], "--http-listen"),
            (&["serve", "--config", "rules.ini"], "divvy serve rules.ini"),
            (&["serve", "--aclfile", "users.acl"], "--access-file FILE"),
            (&["hit", "--port", "9049", "a=b"], "--server HOST:PORT"),
        ] {
            let message = message(line);
            assert!(message.contains(expected) && !message.contains("similar argument"), "{line:?}: {message}");
        }
    }

    #[test]
    fn flag_of_another_subcommand_has_a_tip() {
        for (line, expected) in [
            (&["reserve", "--cost", "2", "a=b"][..], "write --amount N"),
            (&["commit", "--amount", "2", "id"], "write --cost N"),
            (&["hit", "--amount", "2", "a=b"], "write --cost N"),
        ] {
            let message = message(line);
            assert!(message.contains(expected) && !message.contains("-- --"), "{line:?}: {message}");
        }
    }

    #[test]
    fn actor_without_its_flag_has_a_tip() {
        let line = ["token", "user=ann", "--ttl", "1h", "--token-key-file", "keys"];
        assert!(message(&line).contains("--actor user=ann"), "{}", message(&line));
    }

    #[test]
    fn unknown_flag_has_no_tip_to_write_it_as_a_value() {
        for line in
            [&["hit", "--colour", "a=b"][..], &["check", "--fast", "rules.ini"], &["explain", "rules.ini", "-x"]]
        {
            let message = message(line);
            assert!(message.contains("unexpected argument") && !message.contains("-- -"), "{line:?}: {message}");
        }
    }

    #[test]
    fn negative_number_is_out_of_range() {
        for (line, expected) in [
            (&["hit", "--cost", "-1", "a=b"][..], "must be a whole number from 0 to 9223372036854775807"),
            (&["reserve", "--amount", "-1", "a=b"], "must be a whole number from 1 to"),
            (&["limit", "set", "free", "ann", "-5"], "must be a whole number from 0 to"),
            (&["serve", "--max-counters", "-1"], "must be"),
            (&["serve", "--reload-interval", "-1"], "is not a time"),
            (&["hit", "-1"], "expected key=value"),
        ] {
            let message = message(line);
            assert!(message.contains(expected) && !message.contains("-- -"), "{line:?}: {message}");
        }
    }

    #[test]
    fn misspelled_flag_keeps_the_similar_name() {
        assert!(message(&["serve", "--http-listem", "none"]).contains("--http-listen"));
    }
}
