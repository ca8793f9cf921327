//! Notifies the service manager, if there is one (systemd's NOTIFY_SOCKET).

use sd_notify::NotifyState;

/// Reports that the server is ready.
pub fn ready() {
    send(&[NotifyState::Ready]);
}

/// Reports that the rules are being reloaded. Call [`ready`] afterwards, even if the rules are invalid.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        // Since systemd 253, the time is required.
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "cannot notify the service manager of the reload: cannot read the clock"),
    }
}

/// Reports that the server is stopping.
pub fn stopping() {
    send(&[NotifyState::Stopping]);
}

fn send(states: &[NotifyState]) {
    // A missing service manager is not an error.
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify the service manager: check NOTIFY_SOCKET");
    }
}
