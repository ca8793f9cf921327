//! The process's `clock_gettime`, which works before libraries are set up.
//!
//! libfaketime, which people preload to test at another time, allocates memory while it sets itself up. That is the
//! process's first allocation, so the allocator sets itself up, too. It reads the clock, which enters libfaketime for a second
//! time, and that allocates again, although mimalloc is only half set up. mimalloc 3 then makes its map of pages twice, loses
//! what it had handed out, and crashes on the first `free`.
//!
//! Until all libraries are set up, the kernel therefore tells the time. From then on, it is the function that would have
//! been called without this one: libfaketime's or C's.

use std::ffi::{c_int, c_void};
use std::mem;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{clockid_t, timespec};

type ClockGettime = unsafe extern "C" fn(clockid_t, *mut timespec) -> c_int;

/// A [`ClockGettime`].
static CLOCK_GETTIME: AtomicPtr<c_void> = AtomicPtr::new(ask_kernel as *mut c_void);

#[expect(unsafe_code, reason = "no crate takes the place of C's function")]
// SAFETY: it does what C's function of this name and type does.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    // SAFETY: nothing but functions of this type is ever stored.
    let clock_gettime: ClockGettime = unsafe { mem::transmute(CLOCK_GETTIME.load(Relaxed)) };
    // SAFETY: the caller's promises are those that every such function asks for.
    unsafe { clock_gettime(clock, time) }
}

#[expect(unsafe_code, reason = "no crate makes this call without C's function")]
unsafe extern "C" fn ask_kernel(clock: clockid_t, time: *mut timespec) -> c_int {
    // SAFETY: the caller's promises are those that the call asks for (clock_gettime(2)).
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) as c_int }
}

/// Runs before `main`, once all libraries are set up.
#[expect(unsafe_code, reason = "nothing else runs before the main function")]
#[used]
// SAFETY: the section has pointers to functions like this one.
#[unsafe(link_section = ".init_array")]
static SET_UP: extern "C" fn() = ask_libraries;

#[expect(unsafe_code, reason = "no crate wraps this call")]
extern "C" fn ask_libraries() {
    // SAFETY: the name is a C string. The function of this name has that type.
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
    fn kernel_and_libraries_tell_the_same_time() {
        let asked = CLOCK_GETTIME.load(Relaxed);
        assert_ne!(asked, ask_kernel as *mut c_void, "set up before the main function");
        let before = Instant::now();
        CLOCK_GETTIME.store(ask_kernel as *mut c_void, Relaxed);
        let between = Instant::now();
        CLOCK_GETTIME.store(asked, Relaxed);
        assert!(before <= between && between <= Instant::now());
    }
}
