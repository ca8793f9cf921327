//! Standard error, as the log uses it.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};

/// A separate descriptor for standard error. The standard library's handle has a lock, which would be held while a pipe
/// is full. Everything else that prints there would then have to wait.
#[derive(Debug)]
pub struct Stderr(File);

impl Stderr {
    /// Opens standard error.
    ///
    /// # Errors
    /// The process may not open another file.
    pub fn open() -> io::Result<Self> {
        Ok(Self(io::stderr().as_fd().try_clone_to_owned()?.into()))
    }
}

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                // Another process that shares the terminal or pipe has made it non-blocking.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    poll(&mut [PollFd::new(&self.0, PollFlags::OUT)], None)?;
                }
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
