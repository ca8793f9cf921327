//! Tips for flags of other programs, such as `divvy serve --port`. clap alone would suggest a flag with a similar name.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

const LISTENERS: &str = "each protocol has its own address: --listen (line protocol), --resp-listen, --http-listen and \
                         --grpc-listen, as in --http-listen 0.0.0.0:8322";
const RULES: &str = "the rules file is an argument without a flag: divvy serve rules.ini";
const SERVER: &str = "name the server with --server HOST:PORT";

/// Flags of other programs, and their equivalents in `divvy serve`.
const SERVE_FLAGS: [(&str, &str); 16] = [
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
    ("--tls", "write --tls-cert FILE and --tls-key FILE"),
    ("--verbose", "write --log-level debug"),
    ("-v", "write --log-level debug"),
    ("--daemonize", "divvy runs in the foreground: let systemd or a container run it"),
];
/// Flags of other programs, and their equivalents in the subcommands that talk to a server.
const CLIENT_FLAGS: [(&str, &str); 6] =
    [("--port", SERVER), ("-p", SERVER), ("--host", SERVER), ("-h", SERVER), ("--address", SERVER), ("--url", SERVER)];

/// Adds a tip to the error of the command line of `subcommand`.
pub fn add_tip(mut error: clap::Error, subcommand: Option<&str>) -> clap::Error {
    let flag = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag)) if error.kind() == ErrorKind::UnknownArgument => flag,
        _ => return error,
    };
    let tips = if subcommand == Some("serve") { SERVE_FLAGS.as_slice() } else { CLIENT_FLAGS.as_slice() };
    let Some((_, tip)) = tips.iter().find(|(known, _)| known == flag) else { return error };
    error.remove(ContextKind::SuggestedArg);
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(*tip)]));
    error
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    fn message(line: &[&str]) -> String {
        let error = Cli::try_parse_from([&["divvy"], line].concat()).unwrap_err();
        add_tip(error, line.first().copied()).to_string()
    }

    #[test]
    fn flag_of_another_program_has_a_tip() {
        for (line, expected) in [
            (&["serve", "--port", "80"][..], "--http-listen"),
            (&["serve", "--port=80"], "--http-listen"),
            (&["serve", "-p", "80"], "--http-listen"),
            (&["serve", "--config", "rules.ini"], "divvy serve rules.ini"),
            (&["hit", "--port", "9049", "a=b"], "--server HOST:PORT"),
        ] {
            let message = message(line);
            assert!(message.contains(expected) && !message.contains("similar argument"), "{line:?}: {message}");
        }
    }

    #[test]
    fn misspelled_flag_keeps_the_similar_name() {
        assert!(message(&["serve", "--http-listem", "none"]).contains("--http-listen"));
    }
}
