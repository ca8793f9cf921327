//! Calls to the system and the allocator without a safe wrapper in another crate.
//!
//! This crate contains all of divvy's `unsafe`, so that the `divvy` crate can forbid it. Each function is safe to call.
//! A function is removed as soon as a crate wraps its call. Nothing else belongs here.

#[cfg(all(target_os = "linux", target_env = "gnu", not(target_feature = "crt-static")))]
mod clock;

use std::ffi::{c_int, c_long};
use std::io;
use std::os::fd::AsFd;

use mimalloc as _;
use rustix::ioctl::{Getter, Opcode, ioctl};

#[expect(unsafe_code, reason = "the allocator's crate does not wrap these functions")]
// SAFETY: the declarations match mimalloc.h. The functions take no pointers, and any thread may call them at any time.
unsafe extern "C" {
    safe fn mi_collect(force: bool);
    safe fn mi_option_set(option: c_int, value: c_long);
}

/// `mi_option_purge_delay` (mimalloc.h, version 3): the time in milliseconds that freed memory is kept.
const PURGE_DELAY: c_int = 15;

/// Makes the allocator return empty pages to the system at once, instead of after a second.
pub fn keep_no_freed_pages() {
    mi_option_set(PURGE_DELAY, 0);
}

/// Returns memory to the system that the calling thread freed a while ago. Takes microseconds if there is little.
pub fn return_freed_memory() {
    mi_collect(false);
}

/// Returns the number of bytes that were written to a TCP socket and not acknowledged by its peer.
///
/// # Errors
/// The system's error if `socket` is not a TCP socket, or is listening.
pub fn unacknowledged(socket: impl AsFd) -> io::Result<usize> {
    const UNSENT: Opcode = libc::TIOCOUTQ as Opcode;
    #[expect(unsafe_code, reason = "no crate wraps this request")]
    // SAFETY: SIOCOUTQ, which has the same number as TIOCOUTQ, writes one int (tcp(7)).
    let bytes = unsafe { ioctl(socket, Getter::<UNSENT, c_int>::new()) }?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn bytes_that_the_peer_does_not_read_stay_unacknowledged() -> io::Result<()> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let mut writer = TcpStream::connect(listener.local_addr()?)?;
        let (_reader, _) = listener.accept()?;
        assert_eq!(unacknowledged(&writer)?, 0);
        writer.set_nonblocking(true)?;
        while writer.write(&[0; 65536]).is_ok() {}
        assert!(unacknowledged(&writer)? > 0);
        Ok(())
    }

    #[test]
    fn unacknowledged_fails_without_a_tcp_socket() -> io::Result<()> {
        assert!(unacknowledged(std::fs::File::open("/dev/null")?).is_err());
        Ok(())
    }
}
