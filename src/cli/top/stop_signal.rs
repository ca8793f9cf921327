//! The signals that stop a program. Without this, they would leave the terminal as the table needs it: without an echo.

use std::io;
use std::os::unix::net::UnixStream;
use std::thread;

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// Returns a stream that ends when a signal asks the program to stop.
///
/// # Errors
/// The system refuses it.
pub fn stop_signal() -> io::Result<UnixStream> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let [mut terminate, mut interrupt, mut quit, mut hang_up] = {
        let _within = runtime.enter();
        [
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::quit())?,
            signal(SignalKind::hangup())?,
        ]
    };
    let (stream, end) = UnixStream::pair()?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = quit.recv() => {}
                _ = hang_up.recv() => {}
            }
        });
        drop(end);
    })?;
    Ok(stream)
}
