//! Output to a pipe that its reader has closed, as in `divvy counters … | head`.

use std::error::Error;
use std::io;
use std::process::ExitCode;

/// Returns success if standard output was a pipe that its reader has closed. Errors of a connection have a context, and stay
/// errors.
pub fn accept_closed_pipe(printed: anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
    printed.or_else(|error| if is_closed_pipe(error.as_ref()) { Ok(ExitCode::SUCCESS) } else { Err(error) })
}

fn is_closed_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn only_a_closed_pipe_without_context_is_no_error() {
        let failed = |kind: io::ErrorKind| Err(io::Error::from(kind).into());
        assert!(accept_closed_pipe(failed(io::ErrorKind::BrokenPipe)).is_ok());
        assert!(accept_closed_pipe(failed(io::ErrorKind::StorageFull)).is_err());
        assert!(accept_closed_pipe(failed(io::ErrorKind::BrokenPipe).context("the connection is lost")).is_err());
    }
}
