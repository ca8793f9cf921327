//! Returns freed memory to the system.
//!
//! The allocator keeps what a thread freed for that thread, and checks whether it has been idle only when the thread
//! allocates again. After a burst, an idle server would keep all of it forever.

use std::time::Duration;

/// How often a thread gives back what it does not need.
const EVERY: Duration = Duration::from_secs(5);

/// Gives memory back on the thread that polls this, again and again.
pub async fn give_back() {
    loop {
        tokio::time::sleep(EVERY).await;
        divvy_sys::return_freed_memory();
    }
}
