//! `divvy backup`: has a running server take a backup of its counters.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;

use super::resp::{ServerArgs, text};

/// A backup on another file system is a copy of every file.
const PATIENCE: Duration = Duration::from_secs(3600);

#[derive(Debug, clap::Args)]
pub struct BackupArgs {
    /// A name for the backup, in the server's --backup-dir; or the path of a directory there, which must be new or empty
    #[arg(value_name = "NAME|DIR")]
    name: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// Prints where the backup is, on the server's machine.
pub fn run(args: BackupArgs) -> anyhow::Result<ExitCode> {
    let name = name_for_server(&args.name)?;
    let reply = args.server.connect(PATIENCE)?.ask(&["DIVVY.BACKUP", &name])?;
    println!("{}", text(&reply).context("the server's answer is no path")?);
    Ok(ExitCode::SUCCESS)
}

/// The server has a working directory of its own, so a path is sent as an absolute one.
fn name_for_server(name: &str) -> anyhow::Result<String> {
    let name = name.trim_end_matches('/');
    if !name.contains('/') {
        return Ok(name.to_owned());
    }
    let path = std::path::absolute(Path::new(name)).context("cannot tell the working directory")?;
    path.into_os_string().into_string().ok().context("the path is not UTF-8")
}
