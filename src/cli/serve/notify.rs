//! What the service manager is told, when there is one (systemd's NOTIFY_SOCKET).

use sd_notify::NotifyState;

/// The server serves.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// The server is about to end.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(states: &[NotifyState]) {
    // Without a service manager there is nobody to tell, and that is no error.
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot tell the service manager: is NOTIFY_SOCKET right?");
    }
}
