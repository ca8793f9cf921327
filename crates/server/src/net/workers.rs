//! The worker threads that serve connections, each with its own single-threaded runtime.
//!
//! A connection stays on its thread, so waking it costs no other thread anything. With tokio's work-stealing scheduler, hits
//! without pipelining cost half as much again.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use std::{io, thread};

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Maximum number of threads of a runtime for blocking work: one commit at a time, the work in
/// [`WorkSlots`](super::work_slots::WorkSlots), and name resolution.
pub const MAX_BLOCKING_THREADS: usize = 8;
/// How long an idle blocking thread is kept. Each keeps some memory for itself.
pub const BLOCKING_KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Number of tasks that a runtime runs before it takes one that another thread has passed to it, such as a new
/// connection, or a waiter of a commit that another thread made. Tokio's default is 31: a new connection would wait for
/// 31 busy ones.
const TASKS_BEFORE_PASSED_ONES: u32 = 4;

/// The threads. They stop when this is dropped.
pub struct Workers {
    handles: Vec<Handle>,
    next: AtomicUsize,
    _running: DropGuard,
}

impl Workers {
    /// Starts this number of threads, but at least one.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(threads: usize) -> io::Result<Self> {
        let ended = CancellationToken::new();
        let handles = (0..threads.max(1)).map(|_| start_one(ended.clone())).collect::<io::Result<_>>()?;
        Ok(Self { handles, next: AtomicUsize::new(0), _running: ended.drop_guard() })
    }

    /// Returns the next thread, in rotation.
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
    handle.spawn(return_freed_memory());
    thread::Builder::new().name("divvy-worker".into()).spawn(move || runtime.block_on(ended.cancelled()))?;
    Ok(handle)
}

/// Returns half of the number of processors, but at least one. The other half is for the kernel and RocksDB's background work.
pub fn default_threads() -> usize {
    thread::available_parallelism().map_or(1, |processors| processors.get() / 2).max(1)
}

/// Interval at which a thread returns memory that it does not use.
const RETURN_MEMORY_EVERY: Duration = Duration::from_secs(5);

/// Returns freed memory of the thread that polls this, at intervals. Never ends.
///
/// The allocator keeps memory that a thread has freed for the same thread. It only checks whether the thread has been idle when
/// the thread allocates again. After a burst, an idle server would keep all of that memory.
async fn return_freed_memory() {
    loop {
        tokio::time::sleep(RETURN_MEMORY_EVERY).await;
        divvy_sys::return_freed_memory();
    }
}
