//! Hints for operators who mean a flag or a variable that divvy does not have: environment variables that look like settings, and
//! flags of other programs.

use clap::Command;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use divvy_core::suggestion::nearest;

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

/// Flags of other programs, and their equivalents in `divvy serve`.
const SERVE_FLAGS: &[(&[&str], &str)] = &[
    (&["--port", "-p", "--host", "--bind", "--addr", "--address"], LISTENERS),
    (&["--config", "--rules", "-c"], RULES),
    (&["--memory"], "write --store memory"),
    (&["--redis"], "write --redis-url redis://HOST:PORT"),
    (&["--password"], "write --requirepass PASSWORD, or set DIVVY_REQUIREPASS"),
    (&["--aclfile", "--users", "--user"], "name the file with the users: --access-file FILE"),
    (&["--tls"], "write --tls-cert FILE and --tls-key FILE"),
    (&["--verbose", "-v"], "write --log-level debug"),
    (&["--daemonize"], "divvy runs in the foreground: let systemd or a container run it"),
];
/// Flags of other programs, and their equivalents in the subcommands that talk to a server.
const CLIENT_FLAGS: &[(&[&str], &str)] =
    &[(&["--port", "-p", "--host", "-h", "--address", "--url"], "name the server with --server HOST:PORT")];
/// Flags of `divvy reserve` under their names in other subcommands.
const RESERVE_FLAGS: &[(&[&str], &str)] =
    &[(&["--cost", "--credits"], "write --amount N: the number of credits to reserve")];
/// Flags of `divvy commit` and of corrections under their names in other subcommands.
const COST_FLAGS: &[(&[&str], &str)] = &[(&["--amount", "--credits"], "write --cost N: the number of credits")];
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
    let (tips, others): (_, &[_]) = match subcommand {
        Some("serve") => (SERVE_FLAGS, &[]),
        Some("reserve") => (CLIENT_FLAGS, RESERVE_FLAGS),
        Some(name) if WITH_COST.contains(&name) => (CLIENT_FLAGS, COST_FLAGS),
        _ => (CLIENT_FLAGS, &[]),
    };
    let tip = tips.iter().chain(others).find(|(flags, _)| flags.contains(&flag.as_str())).map(|(_, tip)| *tip);
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
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn variable_that_is_no_setting_causes_a_suggestion() {
        let known = variables(&Cli::command());
        let of_kubernetes = "";
        for (name, value, expected) in [
            // Settings of all subcommands, and other variables.
            ("DIVVY_CONFIG", "x", ""),
            ("DIVVY_DURABILITY", "x", ""),
            ("DIVVY_LOG", "x", ""),
            ("DIVVY_SERVER", "x", ""),
            ("DIVVY_PASSWORD", "x", ""),
            ("DIVVY_ADDR", "x", ""),
            ("PATH", "x", ""),
            ("DIVVY_DURABILTY", "x", "did you mean DIVVY_DURABILITY?"),
            ("DIVVY_MAX_COUNTER", "x", "did you mean DIVVY_MAX_COUNTERS?"),
            ("DIVVY_REQUIRE_PASS", "x", "did you mean DIVVY_REQUIREPASS?"),
            ("DIVVY_data_dir", "x", "did you mean DIVVY_DATA_DIR?"),
            ("DIVVY_QQQ", "x", "see `divvy help` and the --help of its subcommands"),
            ("DIVVY_PORT", "8321", "set DIVVY_LISTEN to HOST:PORT"),
            ("DIVVY_RESP_PORT", "9049", "set DIVVY_RESP_LISTEN to HOST:PORT"),
            ("DIVVY_HTTP_HOST", "0.0.0.0", "set DIVVY_HTTP_LISTEN to HOST:PORT"),
            ("DIVVY_GRPC_BIND", "0.0.0.0", "set DIVVY_GRPC_LISTEN to HOST:PORT"),
            ("DIVVY_GRPC_PORT", "8323", "set DIVVY_GRPC_LISTEN to HOST:PORT"),
            ("DIVVY_SERVICE_HOST", "10.0.0.11", of_kubernetes),
            ("DIVVY_SERVICE_PORT_RESP", "9049", of_kubernetes),
            ("DIVVY_PORT", "tcp://10.0.0.11:9049", of_kubernetes),
            ("DIVVY_PORT_9049_TCP_ADDR", "10.0.0.11", of_kubernetes),
            ("DIVVY_GRPC_SERVICE_HOST", "10.0.0.12", of_kubernetes),
            ("DIVVY_GRPC_SERVICE_PORT", "8323", of_kubernetes),
            ("DIVVY_GRPC_PORT", "tcp://10.0.0.12:8323", of_kubernetes),
            ("DIVVY_GRPC_PORT_8323_TCP_PROTO", "tcp", of_kubernetes),
        ] {
            let warning = warning(&known, name, value).unwrap_or_default();
            assert_eq!(warning.is_empty(), expected.is_empty(), "{name}: {warning}");
            assert!(warning.ends_with(expected) && (warning.is_empty() || warning.starts_with(name)), "{warning}");
        }
    }

    #[test]
    fn wrong_command_line_has_a_tip() {
        for (line, expected, absent) in [
            // Flags of other programs.
            ("serve --port 80", "--http-listen", "similar argument"),
            ("serve --port=80", "--http-listen", "similar argument"),
            ("serve -p 80", "--http-listen", "similar argument"),
            ("serve --config rules.ini", "divvy serve rules.ini", "similar argument"),
            ("serve --aclfile users.acl", "--access-file FILE", "similar argument"),
            ("hit --port 9049 a=b", "--server HOST:PORT", "similar argument"),
            // Flags of other subcommands.
            ("reserve --cost 2 a=b", "write --amount N", "-- --"),
            ("commit --amount 2 id", "write --cost N", "-- --"),
            ("hit --amount 2 a=b", "write --cost N", "-- --"),
            ("token user=ann --ttl 1h --token-key-file keys", "--actor user=ann", "-- --"),
            // No tip to write the flag as a value.
            ("hit --colour a=b", "unexpected argument", "-- -"),
            ("check --fast rules.ini", "unexpected argument", "-- -"),
            ("explain rules.ini -x", "unexpected argument", "-- -"),
            ("serve --http-listem none", "--http-listen", "-- -"),
            // A negative number is out of range.
            ("hit --cost -1 a=b", "must be a whole number from 0 to 9223372036854775807", "-- -"),
            ("reserve --amount -1 a=b", "must be a whole number from 1 to", "-- -"),
            ("limit set free ann -5", "must be a whole number from 0 to", "-- -"),
            ("serve --max-counters -1", "must be", "-- -"),
            ("serve --reload-interval -1", "is not a time", "-- -"),
            ("hit -1", "expected key=value", "-- -"),
        ] {
            let words = ["divvy"].into_iter().chain(line.split_whitespace());
            let message = Cli::parse_line(words.map(Into::into).collect()).err().unwrap().to_string();
            assert!(message.contains(expected) && !message.contains(absent), "{line}: {message}");
        }
    }
}
