//! The clients of the RESP front: what `CLIENT LIST` tells of them, and how many there are.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::protocol::command::{ClientFilter, CommandMatch};
use crate::protocol::resp::Version;

/// All clients that are connected, by number.
#[derive(Debug, Default)]
pub struct Clients {
    connected: Mutex<BTreeMap<u64, Arc<ClientRecord>>>,
    seen: AtomicU64,
}

/// What is known of a client.
#[derive(Debug)]
struct ClientRecord {
    id: u64,
    peer: SocketAddr,
    /// This side's address; `None`: the system did not tell.
    local: Option<SocketAddr>,
    since: Instant,
    /// When the last command came, in milliseconds after `since`.
    active: AtomicU64,
    doing: Mutex<Activity>,
    profile: Mutex<Profile>,
}

/// What a client is doing.
#[derive(Debug, Clone, Copy, Default)]
struct Activity {
    /// The command that came last.
    command: Option<CommandMatch>,
    /// Requests that wait for `EXEC`; `None`: there was no `MULTI`.
    queued: Option<usize>,
}

/// What the client tells of itself.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    pub version: Version,
    pub name: Vec<u8>,
    pub library: Vec<u8>,
    pub library_version: Vec<u8>,
}

/// A client's place among the connected ones, until this is dropped.
#[derive(Debug)]
pub struct Registration {
    clients: Arc<Clients>,
    known: Arc<ClientRecord>,
    /// What is known of what it does: mostly the same again.
    doing: Activity,
}

impl Clients {
    /// A new client's place.
    #[expect(clippy::disallowed_methods, reason = "the age of a connection")]
    pub fn register(self: &Arc<Self>, peer: SocketAddr, local: Option<SocketAddr>) -> Registration {
        let since = Instant::now();
        let id = self.seen.fetch_add(1, Relaxed) + 1;
        let (active, doing, profile) = Default::default();
        let known = Arc::new(ClientRecord { id, peer, local, since, active, doing, profile });
        self.connected.lock().insert(id, Arc::clone(&known));
        Registration { clients: Arc::clone(self), known, doing: Activity::default() }
    }

    /// How many there have ever been.
    pub fn seen(&self) -> u64 {
        self.seen.load(Relaxed)
    }

    /// How many are connected.
    pub fn connected(&self) -> usize {
        self.connected.lock().len()
    }

    /// One line a client, as Redis writes them.
    #[expect(clippy::disallowed_methods, reason = "the age of a connection")]
    pub fn list(&self, filter: &ClientFilter<'_>) -> String {
        // Not under the lock, which connecting clients wait for.
        let listed: Vec<_> =
            self.connected.lock().values().filter(|known| filter.lists(known.id)).map(Arc::clone).collect();
        let now = Instant::now();
        let mut lines = String::new();
        listed.iter().for_each(|known| known.write(now, &mut lines));
        lines
    }
}

impl Registration {
    pub fn id(&self) -> u64 {
        self.known.id
    }

    /// Tells others what the client is doing now; the command as before where there is none.
    #[expect(clippy::disallowed_methods, reason = "how long a client has been idle")]
    pub fn is_doing(&mut self, command: Option<CommandMatch>, queued: Option<usize>) {
        let active = Instant::now().saturating_duration_since(self.known.since);
        self.known.active.store(u64::try_from(active.as_millis()).unwrap_or(u64::MAX), Relaxed);
        let doing = Activity { command: command.or(self.doing.command), queued };
        if !doing.is(self.doing) {
            self.doing = doing;
            *self.known.doing.lock() = doing;
        }
    }

    /// Changes what the client told of itself.
    pub fn update(&self, change: impl FnOnce(&mut Profile)) {
        change(&mut self.known.profile.lock());
    }

    /// The client's line.
    #[expect(clippy::disallowed_methods, reason = "the age of a connection")]
    pub fn line(&self) -> String {
        let mut line = String::new();
        self.known.write(Instant::now(), &mut line);
        line
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.clients.connected.lock().remove(&self.known.id);
    }
}

impl Activity {
    fn is(self, other: Self) -> bool {
        let spec = |doing: Self| doing.command.map(|command| std::ptr::from_ref(command.spec));
        (spec(self), self.queued) == (spec(other), other.queued)
    }
}

impl ClientRecord {
    fn write(&self, now: Instant, out: &mut String) {
        let profile = self.profile.lock().clone();
        let doing = *self.doing.lock();
        let age = now.saturating_duration_since(self.since);
        let idle = age.saturating_sub(Duration::from_millis(self.active.load(Relaxed)));
        let local = self.local.map_or_else(String::new, |local| local.to_string());
        let queued = doing.queued.map_or(-1, |queued| i64::try_from(queued).unwrap_or(i64::MAX));
        // Clients insist on all fields of Redis. Those about descriptors and buffers, which are not known here, are 0 or -1.
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "id={} addr={} laddr={local} fd=-1 name={} age={} idle={} flags={} db=0 sub=0 psub=0 ssub=0 multi={queued} \
             qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem=0 tot-mem=0 events=r cmd={} \
             user=default redir=-1 resp={} lib-name={} lib-ver={}",
            self.id,
            self.peer,
            text(&profile.name),
            age.as_secs(),
            idle.as_secs(),
            if doing.queued.is_some() { "x" } else { "N" },
            doing.command.map_or_else(|| "NULL".to_owned(), |command| command.full_name()),
            profile.version.number(),
            text(&profile.library),
            text(&profile.library_version),
        );
    }
}

fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_listed_while_they_are_connected() {
        let clients = Arc::new(Clients::default());
        let peer = SocketAddr::from(([192, 0, 2, 1], 5));
        let first = clients.register(peer, None);
        let second = clients.register(peer, Some(SocketAddr::from(([192, 0, 2, 9], 9049))));
        second.update(|profile| profile.name = b"me".to_vec());
        let lines = clients.list(&ClientFilter::All);
        let line: Vec<_> = lines.lines().nth(1).unwrap().split(' ').collect();
        assert_eq!(line[..5], ["id=2", "addr=192.0.2.1:5", "laddr=192.0.2.9:9049", "fd=-1", "name=me"]);
        assert_eq!(lines.lines().count(), 2);
        assert_eq!(clients.list(&ClientFilter::None), "");
        drop(first);
        assert_eq!(clients.list(&ClientFilter::All), second.line());
        assert_eq!((clients.seen(), clients.connected()), (2, 1));
    }
}
