//! Finds environment variables that look like settings but are not, so that the operator notices a misspelled one.
//!
//! clap has the names of the valid ones.

use clap::Command;

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

#[cfg(test)]
mod tests {
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
}
