//! Returns freed memory to the system.
//!
//! The allocator keeps memory that a thread has freed for the same thread. It only checks whether the thread has been
//! idle when the thread allocates again. After a burst, an idle server would keep all of that memory.

use std::time::Duration;

/// Interval at which a thread returns memory that it does not use.
const INTERVAL: Duration = Duration::from_secs(5);

/// Returns freed memory of the thread that polls this, at intervals. Never ends.
pub async fn return_freed_memory() {
    loop {
        tokio::time::sleep(INTERVAL).await;
        divvy_sys::return_freed_memory();
    }
}
