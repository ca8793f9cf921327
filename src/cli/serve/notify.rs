//! Notifies the service manager, if there is one (systemd's NOTIFY_SOCKET).

use sd_notify::NotifyState;

/// Reports that the server is ready.
pub fn ready() {
    send(&[NotifyState::Ready]);
}

fn reloading() {
    match NotifyState::monotonic_usec_now() {
        // Since systemd 253, the time is required.
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "cannot notify the service manager of the reload: cannot read the clock"),
    }
}

/// A reload that an operator asked for. Reports the reload, and that the server is ready again when the last owner is done.
#[derive(Debug)]
pub struct AskedReload(());

impl AskedReload {
    /// Reports that files are being reloaded.
    pub fn begin() -> Self {
        reloading();
        Self(())
    }
}

impl Drop for AskedReload {
    fn drop(&mut self) {
        ready();
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
