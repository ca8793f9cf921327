//! Tips for flags of other programs, such as `divvy serve --port`. clap alone would suggest a flag with a similar name.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

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

    use crate::cli::Cli;

    fn message(line: &[&str]) -> String {
        let line = std::iter::once("divvy").chain(line.iter().copied());
        Cli::parse_line(line.map(OsString::from).collect()).unwrap_err().to_string()
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
