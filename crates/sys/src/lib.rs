//! The calls to the system and the allocator for which divvy found no safe wrapper.
//!
//! All of divvy's `unsafe` is here, so that the `divvy` crate forbids it. Each function is safe to call. A call goes
//! away as soon as a crate wraps it; nothing else ever lives here.

#[cfg(all(target_os = "linux", target_env = "gnu", not(target_feature = "crt-static")))]
mod clock;

use std::ffi::{c_int, c_long};
use std::io;
use std::os::fd::AsFd;

use mimalloc as _;
use rustix::ioctl::{Getter, Opcode, ioctl};

#[expect(unsafe_code, reason = "the allocator's crate does not wrap these functions")]
// SAFETY: these are mimalloc's declarations (mimalloc.h). They take no pointers, and any thread may call them at any time.
unsafe extern "C" {
    safe fn mi_collect(force: bool);
    safe fn mi_option_set(option: c_int, value: c_long);
}

/// `mi_option_purge_delay` (mimalloc.h, version 3): milliseconds for which freed memory is kept.
const PURGE_DELAY: c_int = 15;

/// From now on, pages that hold nothing go back to the system at once, not a second later.
pub fn keep_no_freed_pages() {
    mi_option_set(PURGE_DELAY, 0);
}

/// Returns to the system what the calling thread has freed and has not used for a while. Takes microseconds when there
/// is little.
pub fn return_freed_memory() {
    mi_collect(false);
}

/// Bytes that were written to a TCP socket and that the other side has not acknowledged.
///
/// # Errors
/// The system's: `socket` is not a TCP socket, or is only listening.
pub fn unacknowledged(socket: impl AsFd) -> io::Result<usize> {
    const UNSENT: Opcode = libc::TIOCOUTQ as Opcode;
    #[expect(unsafe_code, reason = "no crate wraps this request")]
    // SAFETY: SIOCOUTQ, which has TIOCOUTQ's number, writes one int (tcp(7)).
    let bytes = unsafe { ioctl(socket, Getter::<UNSENT, c_int>::new()) }?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn what_a_peer_does_not_read_stays_unacknowledged() -> io::Result<()> {
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
    fn what_is_no_tcp_socket_is_an_error() -> io::Result<()> {
        assert!(unacknowledged(std::fs::File::open("/dev/null")?).is_err());
        Ok(())
    }
}
