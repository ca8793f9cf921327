//! The worker threads that serve connections, each with its own single-threaded runtime.
//!
//! A connection stays on its thread, so waking it costs no other thread anything; with tokio's work-stealing scheduler a
//! hit that was not pipelined cost half as much again (docs/performance.md has the figures). Nothing here knows what
//! connections do.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::freed_memory;

/// Threads that one runtime may have for work that blocks: commits, one after the other; what
/// [`WorkSlots`](super::work_slots::WorkSlots) let run; looking up names.
pub const MAX_BLOCKING_THREADS: usize = 8;
/// How long such a thread is kept for more: each keeps some memory to itself.
pub const BLOCKING_KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Tasks that a runtime runs before it takes one that another thread passed to it: a new connection, or a waiter of a commit
/// that was made there. With tokio's 31, a new connection waited for 31 busy ones, and a thousand of them for each other.
const TASKS_BEFORE_PASSED_ONES: u32 = 4;

/// The threads, until this is dropped.
pub struct Workers {
    handles: Vec<Handle>,
    next: AtomicUsize,
    _running: DropGuard,
}

impl Workers {
    /// Starts so many threads, at least one.
    ///
    /// # Errors
    /// The system's, when it refuses a thread.
    pub fn start(threads: usize) -> io::Result<Self> {
        let ended = CancellationToken::new();
        let handles = (0..threads.max(1)).map(|_| start_one(ended.clone())).collect::<io::Result<_>>()?;
        Ok(Self { handles, next: AtomicUsize::new(0), _running: ended.drop_guard() })
    }

    /// The threads in turn.
    #[expect(
        clippy::indexing_slicing,
        reason = "a remainder is below the number of threads, and there is at least one"
    )]
    pub fn next(&self) -> &Handle {
        let turn = self.next.fetch_add(1, Relaxed) % self.handles.len();
        &self.handles[turn]
    }
}

fn start_one(ended: CancellationToken) -> io::Result<Handle> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        .thread_keep_alive(BLOCKING_KEEP_ALIVE)
        .global_queue_interval(TASKS_BEFORE_PASSED_ONES)
        .build()?;
    let handle = runtime.handle().clone();
    handle.spawn(freed_memory::return_freed_memory());
    thread::Builder::new().name("divvy-worker".into()).spawn(move || runtime.block_on(ended.cancelled()))?;
    Ok(handle)
}

/// Half of the processors, at least one: the other half is RocksDB's background work's, and the kernel's.
pub fn default_threads() -> usize {
    thread::available_parallelism().map_or(1, |processors| processors.get() / 2).max(1)
}
