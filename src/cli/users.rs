//! Users and tokens: `divvy access` checks an access file, and hashes passwords for it. `divvy token` makes tokens for one actor, and
//! keys for them.

use std::collections::BTreeMap;
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};

use super::check::report_problems;
use super::terminal::count_of;
use super::values::{Pair, pair};
use divvy_access::{
    self as access, AccessFile, Digest, MAX_PASSWORD_BYTES, MAX_TOKEN_TTL, SlowHash, TokenGrant, TokenKeys,
    check_password,
};
use divvy_core::clock::Clock;
use divvy_core::regular_file;
use divvy_core::units::{self, Time};

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  divvy access hash\n  echo \"$token\" | divvy access hash --sha256\n  \
                  divvy access check users.acl")]
pub struct AccessArgs {
    #[command(subcommand)]
    action: AccessAction,
}

#[derive(clap::Subcommand)]
enum AccessAction {
    /// Validate an access file: print its users, or every mistake in it
    Check {
        /// Access file
        file: PathBuf,
    },
    /// Read a password without showing it, and print its hash for an access file
    ///
    /// Reads standard input, which must be one line, if that is not a terminal.
    Hash {
        /// Print a SHA-256 hash, for a long random token, which clients may send alone as a bearer token. The default is
        /// argon2id, for passwords that people choose
        #[arg(long)]
        sha256: bool,
    },
}

/// Checks an access file, or hashes a password for it.
///
/// # Errors
/// The password is not valid, or standard output cannot be written.
pub fn access(args: &AccessArgs) -> anyhow::Result<ExitCode> {
    match &args.action {
        AccessAction::Check { file } => check(file),
        AccessAction::Hash { sha256 } => {
            let password = read_password()?;
            check_password(&password).context("this is not a valid password")?;
            let slow = || SlowHash::of(&password).map_err(anyhow::Error::msg).context("cannot hash the password");
            let word = if *sha256 { Digest::of(password.as_bytes()).to_word() } else { slow()?.to_string() };
            writeln!(io::stdout(), "{word}")?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn check(file: &Path) -> anyhow::Result<ExitCode> {
    let loaded = report_problems(access::load(file, None), |file| &file.warnings)?;
    let Some(AccessFile { users, .. }) = loaded else { return Ok(ExitCode::FAILURE) };
    let mut out = io::BufWriter::new(io::stdout().lock());
    writeln!(out, "{}: {}, no errors", file.display(), count_of(users.len(), "user", "users"))?;
    users.iter().try_for_each(|user| writeln!(out, "{user}"))?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Asks twice on a terminal, because the password is not shown.
fn read_password() -> anyhow::Result<String> {
    if io::stdin().is_terminal() {
        let password = rpassword::prompt_password("Password: ").context("cannot read the password")?;
        let again = rpassword::prompt_password("Again: ").context("cannot read the password")?;
        ensure!(password == again, "the passwords differ");
        return Ok(password);
    }
    let mut line = String::new();
    let mut input = io::Read::take(io::stdin().lock(), MAX_PASSWORD_BYTES as u64 + 3);
    input.read_line(&mut line).context("cannot read the password from standard input")?;
    if line.ends_with('\n') {
        input.set_limit(1);
        let rest = input.read(&mut [0]).context("cannot read the password from standard input")?;
        ensure!(rest == 0, "standard input has a second line, but a password is one line");
    }
    let line = line.strip_suffix('\n').unwrap_or(&line);
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
}

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:\n  divvy token --actor user=ann --ttl 1h --token-key-file keys\n  \
                  divvy token --actor tenant=acme user=ann --rules 'api-*' --ttl 15m --token-key-file keys\n  \
                  divvy token key >> keys"
)]
pub struct TokenArgs {
    #[command(subcommand)]
    action: Option<TokenAction>,
    /// The fields of the actor, with their values. The token is for requests with exactly these fields
    #[arg(long, value_name = "FIELD=VALUE", value_parser = pair, required = true, num_args = 1..)]
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

#[derive(clap::Subcommand)]
enum TokenAction {
    /// Print a new key for a key file, after a comment with its id
    Key,
}

/// Prints a token, or a key.
///
/// # Errors
/// The actor or a pattern is not valid, the token is too long, or standard output cannot be written.
pub fn token(args: TokenArgs) -> anyhow::Result<ExitCode> {
    let made = match args.action {
        Some(TokenAction::Key) => Some(TokenKeys::generate().context("cannot make a key")?),
        None => make(&args)?.map(|token| token + "\n"),
    };
    let Some(made) = made else { return Ok(ExitCode::FAILURE) };
    io::stdout().write_all(made.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Makes a token; `None` if the key file has mistakes, which are printed.
fn make(args: &TokenArgs) -> anyhow::Result<Option<String>> {
    let path = args.token_key_file.as_ref().context("--token-key-file is missing")?;
    let ttl = args.ttl.context("--ttl is missing")?;
    let mut actor = BTreeMap::new();
    for (field, value) in &args.actor {
        ensure!(actor.insert(field.clone(), value.clone()).is_none(), "--actor has the field {field:?} twice");
    }
    let Some(keys) = report_problems(TokenKeys::load(path), |_| &[])? else { return Ok(None) };
    if let Some(warning) = regular_file::warn_if_public(path) {
        writeln!(io::stderr(), "warning: {warning}")?;
    }
    let token =
        TokenGrant::new(actor, args.rules.clone(), Clock::system().now(), ttl.0).and_then(|grant| keys.seal(&grant));
    Ok(Some(token.context("cannot make such a token")?))
}
