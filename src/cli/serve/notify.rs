//! Notifies the service manager, if there is one (systemd's NOTIFY_SOCKET).

use sd_notify::NotifyState;

/// The server serves.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// The rules are loaded again; [`ready`] tells when that is over, whether or not they were good.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        // Since systemd 253 it wants to know when.
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "cannot tell the service manager about the reload: cannot read the clock"),
    }
}

/// The server is about to end.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(states: &[NotifyState]) {
    // Without a service manager there is nothing to notify, which is not an error.
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify the service manager: check NOTIFY_SOCKET");
    }
}
