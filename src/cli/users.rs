//! `divvy access`: checks an access file, and hashes passwords for it.

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};

use divvy_access::{self as access, AccessFile, Digest, MAX_PASSWORD_BYTES, SlowHash, check_password};
use divvy_core::config::Problem;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  divvy access hash\n  echo \"$token\" | divvy access hash --sha256\n  \
                  divvy access check users.acl")]
pub struct AccessArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Validate an access file: print its users, or every mistake in it
    Check(CheckArgs),
    /// Read a password without showing it, and print its hash for an access file
    ///
    /// Reads standard input, which must be one line, if that is not a terminal.
    Hash(HashArgs),
}

#[derive(Debug, clap::Args)]
struct CheckArgs {
    /// Access file
    file: PathBuf,
}

#[derive(Debug, clap::Args)]
struct HashArgs {
    /// Print a SHA-256 hash, for a long random token, which clients may send alone as a bearer token. The default is
    /// argon2id, for passwords that people choose
    #[arg(long)]
    sha256: bool,
}

/// Runs the subcommand.
///
/// # Errors
/// The password is not valid, or standard output cannot be written.
pub fn run(args: &AccessArgs) -> anyhow::Result<ExitCode> {
    match &args.action {
        Action::Check(args) => check(args),
        Action::Hash(args) => hash(args),
    }
}

fn check(CheckArgs { file }: &CheckArgs) -> anyhow::Result<ExitCode> {
    let AccessFile { users, warnings } = match access::load(file, None) {
        Ok(loaded) => loaded,
        Err(report) => {
            print_problems(&report.errors, "error")?;
            print_problems(&report.warnings, "warning")?;
            return Ok(ExitCode::FAILURE);
        }
    };
    print_problems(&warnings, "warning")?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    let noun = if users.len() == 1 { "user" } else { "users" };
    writeln!(out, "{}: {} {noun}, no errors", file.display(), users.len())?;
    for user in &users {
        writeln!(out, "{user}")?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Prints each problem of an access file or a key file on standard error. `severity` is `error` or `warning`.
///
/// # Errors
/// Standard error cannot be written.
pub fn print_problems(problems: &[Problem], severity: &str) -> io::Result<()> {
    let mut err = io::BufWriter::new(io::stderr().lock());
    for problem in problems {
        writeln!(err, "{severity}: {problem}")?;
    }
    err.flush()
}

fn hash(HashArgs { sha256 }: &HashArgs) -> anyhow::Result<ExitCode> {
    let password = read_password()?;
    check_password(&password).context("this is not a valid password")?;
    let word = match sha256 {
        true => Digest::of(password.as_bytes()).to_word(),
        false => SlowHash::of(&password).map_err(anyhow::Error::msg).context("cannot hash the password")?.to_string(),
    };
    writeln!(io::stdout(), "{word}")?;
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
