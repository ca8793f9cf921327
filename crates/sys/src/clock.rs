//! The process's `clock_gettime`, which works before libraries are initialized.
//!
//! libfaketime, which is preloaded for tests at another time, allocates memory while it is initialized. That is the
//! process's first allocation, so the allocator initializes itself, too. It reads the clock, which enters libfaketime
//! for a second time, and that allocates again, although mimalloc is only half initialized. mimalloc 3 then creates its
//! map of pages twice, loses the memory that it had handed out, and crashes on the first `free`.
//!
//! Therefore the kernel provides the time until all libraries are initialized. After that, the function that would have
//! been called without this one provides it: libfaketime's or C's.

use std::ffi::{c_int, c_void};
use std::mem;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{clockid_t, timespec};

type ClockGettime = unsafe extern "C" fn(clockid_t, *mut timespec) -> c_int;

/// The [`ClockGettime`] in use.
static CLOCK_GETTIME: AtomicPtr<c_void> = AtomicPtr::new(ask_kernel as *mut c_void);

#[expect(unsafe_code, reason = "no crate takes the place of C's function")]
// SAFETY: it behaves like C's function of this name and type.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    // SAFETY: only functions of this type are stored.
    let clock_gettime: ClockGettime = unsafe { mem::transmute(CLOCK_GETTIME.load(Relaxed)) };
    // SAFETY: every such function has the same requirements, which the caller fulfills.
    unsafe { clock_gettime(clock, time) }
}

#[expect(unsafe_code, reason = "no crate makes this call without C's function")]
unsafe extern "C" fn ask_kernel(clock: clockid_t, time: *mut timespec) -> c_int {
    // SAFETY: the caller fulfills the requirements of clock_gettime(2).
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) as c_int }
}

/// Runs before `main`, once all libraries are initialized.
#[expect(unsafe_code, reason = "nothing else runs before the main function")]
#[used]
// SAFETY: the section contains pointers to functions of this type.
#[unsafe(link_section = ".init_array")]
static SET_UP: extern "C" fn() = ask_libraries;

#[expect(unsafe_code, reason = "no crate wraps this call")]
extern "C" fn ask_libraries() {
    // SAFETY: the name is a C string, and the function with this name has that type.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"clock_gettime".as_ptr()) };
    if !found.is_null() {
        CLOCK_GETTIME.store(found, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "this is about the clock itself")]
    fn kernel_and_libraries_return_the_same_time() {
        let asked = CLOCK_GETTIME.load(Relaxed);
        assert_ne!(asked, ask_kernel as *mut c_void, "set up before the main function");
        let before = Instant::now();
        CLOCK_GETTIME.store(ask_kernel as *mut c_void, Relaxed);
        let between = Instant::now();
        CLOCK_GETTIME.store(asked, Relaxed);
        assert!(before <= between && between <= Instant::now());
    }
}
