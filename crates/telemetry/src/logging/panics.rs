//! Logs panics as ordinary lines. The standard library's own report on standard error would block on a full pipe. With
//! debug assertions, as in tests, a panic also ends the process.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{self, PanicHookInfo};
use std::{process, thread};

use super::Escaped;

/// Logs all panics from now on.
pub fn log_panics() {
    panic::set_hook(Box::new(log));
}

fn log(panic: &PanicHookInfo<'_>) {
    let reason = panic.payload_as_str().unwrap_or("no reason was given");
    let location = panic.location().map(ToString::to_string);
    // Only captured if RUST_BACKTRACE asks for it, as in the standard library.
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    let thread = thread::current();
    tracing::error!(
        thread = thread.name().unwrap_or("unnamed"),
        location,
        backtrace,
        "bug in divvy: panic: {}",
        Escaped::error(reason)
    );
    if cfg!(debug_assertions) {
        // This is a server under test. Its clients might not notice the panic, and the queued line would be lost.
        eprintln!("bug in divvy: {panic}");
        process::abort();
    }
}
