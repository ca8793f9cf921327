//! The service manager (systemd): the listening sockets that it passes to divvy, and the notifications that it gets.
//!
//! The sockets stay open while the service restarts. New connections wait in their queues.

use anyhow::{Context, bail};
use listenfd::ListenFd;
use sd_notify::NotifyState;
use socket2::SockRef;
use tokio::net::TcpListener;

/// Names of the sockets in `FileDescriptorName=`, and the order of sockets without such names.
const FRONTS: [&str; 4] = ["line", "resp", "http", "grpc"];

/// Sockets received from the service manager, by the name of their listener.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    sockets: Vec<(&'static str, std::net::TcpListener)>,
}

impl InheritedSockets {
    /// Takes the sockets described by `LISTEN_FDS`, `LISTEN_PID` and `LISTEN_FDNAMES`.
    ///
    /// # Errors
    /// A socket is not a listening TCP socket, or cannot be assigned to a listener.
    pub fn from_env() -> anyhow::Result<Self> {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut received = ListenFd::from_env();
        let fronts = assign(&names, received.len())?;
        let mut sockets = Vec::new();
        for (index, front) in fronts.into_iter().enumerate() {
            let socket = received
                .take_tcp_listener(index)
                .with_context(|| format!("cannot use the service manager's socket for {front}"))?
                .filter(|socket| SockRef::from(socket).is_listener().unwrap_or(false));
            match socket {
                Some(socket) => sockets.push((front, socket)),
                None => bail!("the service manager's socket for {front} does not listen: divvy needs Accept=no"),
            }
        }
        Ok(Self { sockets })
    }

    /// Returns the socket named `front`, if there is one.
    ///
    /// # Errors
    /// The system reports an error.
    pub fn take(&mut self, front: &str) -> anyhow::Result<Option<TcpListener>> {
        let Some(at) = self.sockets.iter().position(|(name, _)| *name == front) else { return Ok(None) };
        let (_, socket) = self.sockets.swap_remove(at);
        socket.set_nonblocking(true)?;
        Ok(Some(TcpListener::from_std(socket)?))
    }
}

/// Assigns each of `count` sockets to a listener: by their names, which colons separate, or by their order if no name
/// is known.
fn assign(names: &str, count: usize) -> anyhow::Result<Vec<&'static str>> {
    let known = |name: &str| FRONTS.into_iter().find(|front| *front == name);
    let names: Vec<&str> = names.split(':').collect();
    if !names.iter().any(|name| known(name).is_some()) {
        if count > FRONTS.len() {
            bail!("the service manager passed {count} sockets; divvy uses {}", FRONTS.join(", "));
        }
        return Ok(FRONTS.into_iter().take(count).collect());
    }
    if names.len() != count {
        bail!("the service manager passed {count} sockets and {} names", names.len());
    }
    let mut fronts = Vec::new();
    for name in names {
        let Some(front) = known(name) else {
            bail!(
                "the service manager's socket {name:?} matches no listener: FileDescriptorName= must be one of {}",
                FRONTS.join(", ")
            );
        };
        if fronts.contains(&front) {
            bail!("the service manager passed two sockets for {front}: each listener takes one");
        }
        fronts.push(front);
    }
    Ok(fronts)
}

/// Reports that the server is ready.
pub fn ready() {
    send(&[NotifyState::Ready]);
}

/// A reload that an operator asked for. Reports the reload, and that the server is ready again when the last owner is done.
#[derive(Debug)]
pub struct AskedReload(());

impl AskedReload {
    /// Reports that files are being reloaded.
    pub fn begin() -> Self {
        match NotifyState::monotonic_usec_now() {
            // Since systemd 253, the time is required.
            Ok(now) => send(&[NotifyState::Reloading, now]),
            Err(error) => {
                tracing::warn!(%error, "cannot notify the service manager of the reload: cannot read the clock");
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_assigned_by_name() {
        assert_eq!(assign("http:line", 2).unwrap(), ["http", "line"]);
        assert!(assign("", 0).unwrap().is_empty());
    }

    #[test]
    fn sockets_without_names_are_assigned_by_order() {
        assert_eq!(assign("", 1).unwrap(), ["line"]);
        assert_eq!(assign("divvy.socket:divvy.socket:divvy.socket", 3).unwrap(), ["line", "resp", "http"]);
    }

    #[test]
    fn ambiguous_sockets_are_an_error() {
        for (names, count) in [("", 5), ("line:unknown", 2), ("line:line", 2), ("line", 2)] {
            assert!(assign(names, count).is_err(), "{names:?} for {count}");
        }
    }
}
