//! Asks the operator before an irreversible action.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::bail;

/// Asks whether to do `what`, such as "Forget every counter of rule \"a\"". Returns the answer.
///
/// # Errors
/// There is no terminal to ask on, so `--yes` is required.
pub fn confirm(what: &str) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        bail!("{what}? There is no terminal on which to confirm this: add --yes to proceed");
    }
    let mut err = io::stderr().lock();
    write!(err, "{what}? [y/N] ")?;
    err.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(["y", "yes"].iter().any(|yes| answer.trim().eq_ignore_ascii_case(yes)))
}
