//! `divvy backup`: makes a running server back up its counters.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::progress::Progress;
use super::resp::{ServerArgs, text};

/// A backup to another file system copies every file.
const PATIENCE: Duration = Duration::from_secs(3600);

#[derive(Debug, clap::Args)]
pub struct BackupArgs {
    /// Name of the backup in the server's --backup-dir, or the path of a new or empty directory there
    #[arg(value_name = "NAME|DIR")]
    name: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// Prints the path of the backup on the server's machine.
pub fn run(args: BackupArgs) -> anyhow::Result<ExitCode> {
    let name = name_for_server(&args.name)?;
    let mut client = args.server.connect(PATIENCE)?;
    let progress = Progress::show(|| "the server is taking the backup".to_owned());
    let reply = client.ask(&["DIVVY.BACKUP", &name])?;
    drop(progress);
    writeln!(io::stdout(), "{}", text(&reply).context("the server's answer is not a path")?)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the name to send. Paths become absolute, because the server has its own working directory.
fn name_for_server(name: &str) -> anyhow::Result<String> {
    let name = name.trim_end_matches('/');
    let last = name.rsplit('/').next().unwrap_or_default();
    ensure!(
        !last.starts_with('-'),
        "a backup cannot be called {last:?}: `rm` and other programs would read it as options; begin the name with a \
         letter or a digit"
    );
    if !name.contains('/') {
        return Ok(name.to_owned());
    }
    let path = std::path::absolute(Path::new(name)).context("cannot determine the working directory")?;
    path.into_os_string().into_string().ok().context("the path is not UTF-8")
}
