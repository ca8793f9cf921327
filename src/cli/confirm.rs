//! Asks the operator before something is done that cannot be undone.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::bail;

/// Whether the operator wants what `what` says, such as "Forget every counter of rule \"a\"".
///
/// # Errors
/// When there is no terminal to ask on: `--yes` must say it then.
pub fn confirm(what: &str) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        bail!("{what}? There is no terminal to ask on: add --yes if that is what you want");
    }
    let mut err = io::stderr().lock();
    write!(err, "{what}? [y/N] ")?;
    err.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(["y", "yes"].iter().any(|yes| answer.trim().eq_ignore_ascii_case(yes)))
}
