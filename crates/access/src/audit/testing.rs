//! A way for tests to hold up the audit log.

use std::sync::mpsc;

use super::AuditLog;

impl AuditLog {
    /// Holds up the thread that writes the file until the sender is dropped.
    pub fn hold_up(&self) -> mpsc::Sender<()> {
        let (hold, held) = mpsc::channel();
        if let Some(writer) = &self.writer {
            writer.push(String::new(), Some(Box::new(move |_| _ = held.recv())));
        }
        hold
    }
}
