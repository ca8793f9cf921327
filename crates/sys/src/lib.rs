//! Calls to the system and the allocator without a safe wrapper in another crate.
//!
//! This crate contains all of divvy's `unsafe`, so that the `divvy` crate can forbid it. Each function is safe to call.
//! A function is removed as soon as a crate wraps its call. Nothing else belongs here.

#[cfg(all(target_os = "linux", target_env = "gnu", not(target_feature = "crt-static")))]
mod clock;

use std::ffi::{c_int, c_long};

use mimalloc as _;

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
