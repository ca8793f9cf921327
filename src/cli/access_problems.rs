//! Prints the problems of an access file or a key file on standard error.

use std::io::{self, Write};

use crate::access::Problem;

/// Prints each problem on its own line. `severity` is `error` or `warning`.
///
/// # Errors
/// Standard error cannot be written.
pub fn print(problems: &[Problem], severity: &str) -> io::Result<()> {
    let mut err = io::BufWriter::new(io::stderr().lock());
    for problem in problems {
        writeln!(err, "{severity}: {problem}")?;
    }
    err.flush()
}
