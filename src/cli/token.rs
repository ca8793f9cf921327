//! `divvy token`: makes tokens for one actor, and keys for them.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};

use super::pairs::Pair;
use super::public_file;
use super::users;
use divvy_access::{MAX_TOKEN_TTL, TokenGrant, TokenKeys};
use divvy_core::clock::Clock;
use divvy_core::units::{self, Time};

#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:\n  divvy token --actor user=ann --ttl 1h --token-key-file keys\n  \
                  divvy token --actor tenant=acme user=ann --rules 'api-*' --ttl 15m --token-key-file keys\n  \
                  divvy token key >> keys"
)]
pub struct TokenArgs {
    #[command(subcommand)]
    action: Option<Action>,
    /// The fields of the actor, with their values. The token is for requests with exactly these fields
    #[arg(long, value_name = "FIELD=VALUE", required = true, num_args = 1..)]
    actor: Vec<Pair>,
    /// Show only rules whose label matches this pattern (* stands for any text). Give the flag several times for
    /// several patterns [default: all rules]
    #[arg(long, value_name = "PATTERN")]
    rules: Vec<String>,
    /// How long the token is valid, such as 15m or 1h, at most 7d
    #[arg(long, value_name = "SECONDS", required = true, value_parser = units::seconds(1..=MAX_TOKEN_TTL.as_secs()))]
    ttl: Option<Time>,
    /// File with the keys. The first one makes the token
    #[arg(long, env = "DIVVY_TOKEN_KEY_FILE", value_name = "FILE", required = true)]
    token_key_file: Option<PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Print a new key for a key file, after a comment with its id
    Key,
}

/// Prints a token, or a key.
///
/// # Errors
/// The actor or a pattern is not valid, the token is too long, or standard output cannot be written.
pub fn run(args: TokenArgs) -> anyhow::Result<ExitCode> {
    let made = match args.action {
        Some(Action::Key) => TokenKeys::generate().context("cannot make a key")?,
        None => match make(&args)? {
            Some(token) => token + "\n",
            None => return Ok(ExitCode::FAILURE),
        },
    };
    io::stdout().write_all(made.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Makes a token; `None` if the key file has mistakes, which are printed.
fn make(args: &TokenArgs) -> anyhow::Result<Option<String>> {
    let path = args.token_key_file.as_ref().context("--token-key-file is missing")?;
    let ttl = args.ttl.context("--ttl is missing")?;
    let mut actor = BTreeMap::new();
    for (field, value) in args.actor.iter().map(Pair::as_strs) {
        ensure!(actor.insert(field.to_owned(), value.to_owned()).is_none(), "--actor has the field {field:?} twice");
    }
    let keys = match TokenKeys::load(path) {
        Ok(keys) => keys,
        Err(report) => {
            users::print_problems(&report.errors, "error")?;
            return Ok(None);
        }
    };
    if let Some(warning) = public_file::warning(path) {
        writeln!(io::stderr(), "warning: {warning}")?;
    }
    let token =
        TokenGrant::new(actor, args.rules.clone(), Clock::system().now(), ttl.0).and_then(|grant| keys.seal(&grant));
    Ok(Some(token.context("cannot make such a token")?))
}
