//! Variables of the environment that look like settings and are none: a misspelt one would go unnoticed.
//!
//! The known ones are the variables of all flags, as clap has them.

use clap::Command;

/// How the variables of flags begin.
const PREFIX: &str = "DIVVY_";
/// Names at least so much alike (Jaro-Winkler, from 0 to 1) are taken for misspellings of each other.
const ALIKE: f64 = 0.8;

/// A line for the operator for each variable in the environment that no flag of `divvy` knows, in the order of their names.
pub fn unknown_settings(divvy: &Command) -> Vec<String> {
    let known = variables(divvy);
    let mut lines: Vec<_> = std::env::vars_os()
        .filter_map(|(name, value)| complaint(&known, name.to_str()?, &value.to_string_lossy()))
        .collect();
    lines.sort();
    lines
}

/// The variables of a command's flags, and of its subcommands'.
fn variables(command: &Command) -> Vec<String> {
    let own = command.get_arguments().filter_map(|arg| Some(arg.get_env()?.to_str()?.to_owned()));
    own.chain(command.get_subcommands().flat_map(variables)).collect()
}

fn complaint(known: &[String], name: &str, value: &str) -> Option<String> {
    let rest = name.strip_prefix(PREFIX)?;
    if known.iter().any(|known| known == name) || is_of_a_service(rest, value) {
        return None;
    }
    let upper = rest.to_uppercase();
    let likeness = |known: &str| strsim::jaro_winkler(known.strip_prefix(PREFIX).unwrap_or(known), &upper);
    let likest = known.iter().map(|known| (likeness(known), known)).max_by(|a, b| a.0.total_cmp(&b.0));
    Some(match likest.filter(|(likeness, _)| *likeness >= ALIKE) {
        Some((_, meant)) => format!("{name} is no setting and has no effect: did you mean {meant}?"),
        None => format!("{name} is no setting and has no effect: `divvy help` and the subcommands' --help list them"),
    })
}

/// Whether Kubernetes sets the variable beside a Service called `divvy`, or `divvy-` and something more; `rest` is its
/// name behind the prefix. They are `DIVVY_SERVICE_HOST`, `DIVVY_SERVICE_PORT`, `DIVVY_PORT` and those that begin like
/// the latter two (<https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables>).
fn is_of_a_service(rest: &str, value: &str) -> bool {
    let is_link = |part: &str| part.starts_with("TCP") || part.starts_with("UDP") || part.starts_with("SCTP");
    let is_port = |(number, protocol): (&str, &str)| number.parse::<u16>().is_ok() && is_link(protocol);
    rest.starts_with("SERVICE_")
        || rest.starts_with("PORT")
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

    fn told(name: &str, value: &str) -> Option<String> {
        complaint(&variables(&Cli::command()), name, value)
    }

    #[test]
    fn variables_of_flags_are_known_whatever_the_subcommand() {
        for name in ["DIVVY_CONFIG", "DIVVY_DURABILITY", "DIVVY_LOG", "DIVVY_SERVER", "DIVVY_PASSWORD", "DIVVY_ADDR"] {
            assert_eq!(told(name, "x"), None, "{name}");
        }
        assert_eq!(told("PATH", "x"), None);
    }

    #[test]
    fn a_misspelt_variable_is_told_with_what_was_meant() {
        for (name, meant) in [
            ("DIVVY_DURABILTY", "DIVVY_DURABILITY"),
            ("DIVVY_MAX_COUNTER", "DIVVY_MAX_COUNTERS"),
            ("DIVVY_LOG_LEVEL", "DIVVY_LOG"),
            ("DIVVY_REQUIRE_PASS", "DIVVY_REQUIREPASS"),
            ("DIVVY_data_dir", "DIVVY_DATA_DIR"),
        ] {
            let told = told(name, "x").unwrap_or_default();
            assert!(told.starts_with(name) && told.ends_with(&format!("did you mean {meant}?")), "{told}");
        }
        let told = told("DIVVY_QQQ", "x").unwrap_or_default();
        assert!(told.contains("DIVVY_QQQ") && !told.contains("did you mean"), "{told}");
    }

    #[test]
    fn what_kubernetes_sets_is_no_mistake() {
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
            assert_eq!(told(name, value), None, "{name}");
        }
        assert!(told("DIVVY_GRPC_PORT", "8323").is_some(), "a person's wish");
    }
}
