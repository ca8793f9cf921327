//! The clients of the RESP front: their number, and their lines in `CLIENT LIST`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::protocol::command::ClientFilter;
use crate::protocol::command::table::Spec;
use crate::protocol::resp::Version;
use divvy_access::DEFAULT_USER;

/// The connected clients, by number.
#[derive(Debug, Default)]
pub struct Clients {
    connected: Mutex<BTreeMap<u64, Arc<ClientRecord>>>,
    seen: AtomicU64,
}

/// A connected client.
#[derive(Debug)]
struct ClientRecord {
    id: u64,
    peer: SocketAddr,
    /// The server's address of the connection; `None` if the system does not know it.
    local: Option<SocketAddr>,
    since: Instant,
    /// Time of the last command, in milliseconds after `since`.
    active: AtomicU64,
    activity: Mutex<Activity>,
    profile: Mutex<Profile>,
}

/// The activity of a client.
#[derive(Debug, Clone, Copy, Default)]
struct Activity {
    /// The last command.
    command: Option<&'static Spec>,
    /// Number of requests that wait for `EXEC`; `None` without a `MULTI`.
    queued: Option<usize>,
}

/// A client's description of itself.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    /// Name of the user; `None` for a client without one.
    pub user: Option<Arc<str>>,
    pub version: Version,
    pub name: Vec<u8>,
    pub library: Vec<u8>,
    pub library_version: Vec<u8>,
}

/// Lists a client as connected until this is dropped.
#[derive(Debug)]
pub struct Registration {
    clients: Arc<Clients>,
    record: Arc<ClientRecord>,
    /// The last activity in the record. It rarely changes.
    activity: Activity,
}

impl Clients {
    /// Lists a new client.
    #[expect(clippy::disallowed_methods, reason = "the age of a connection")]
    pub fn register(self: &Arc<Self>, peer: SocketAddr, local: Option<SocketAddr>) -> Registration {
        let since = Instant::now();
        let id = self.seen.fetch_add(1, Relaxed) + 1;
        let (active, activity, profile) = Default::default();
        let record = Arc::new(ClientRecord { id, peer, local, since, active, activity, profile });
        self.connected.lock().insert(id, Arc::clone(&record));
        Registration { clients: Arc::clone(self), record, activity: Activity::default() }
    }

    /// Returns the number of clients since the start.
    pub fn seen(&self) -> u64 {
        self.seen.load(Relaxed)
    }

    /// Returns the number of connected clients.
    pub fn connected(&self) -> usize {
        self.connected.lock().len()
    }

    /// Returns a line for each client, in Redis's format.
    #[expect(clippy::disallowed_methods, reason = "the age of a connection")]
    pub fn list(&self, filter: &ClientFilter<'_>) -> String {
        // The lines are written without the lock: connecting clients wait for the lock.
        let listed: Vec<_> =
            self.connected.lock().values().filter(|record| filter.lists(record.id)).map(Arc::clone).collect();
        let now = Instant::now();
        let mut lines = String::new();
        listed.iter().for_each(|record| record.write(now, &mut lines));
        lines
    }
}

impl Registration {
    pub fn id(&self) -> u64 {
        self.record.id
    }

    /// Records the client's activity. Without a command, the last command stays.
    #[expect(clippy::disallowed_methods, reason = "how long a client has been idle")]
    pub fn record_activity(&mut self, command: Option<&'static Spec>, queued: Option<usize>) {
        let active = Instant::now().saturating_duration_since(self.record.since);
        self.record.active.store(u64::try_from(active.as_millis()).unwrap_or(u64::MAX), Relaxed);
        let activity = Activity { command: command.or(self.activity.command), queued };
        if !activity.is_same(self.activity) {
            self.activity = activity;
            *self.record.activity.lock() = activity;
        }
    }

    /// Changes the client's description of itself.
    pub fn update(&self, change: impl FnOnce(&mut Profile)) {
        change(&mut self.record.profile.lock());
    }

    /// Returns the client's line.
    #[expect(clippy::disallowed_methods, reason = "the age of a connection")]
    pub fn line(&self) -> String {
        let mut line = String::new();
        self.record.write(Instant::now(), &mut line);
        line
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.clients.connected.lock().remove(&self.record.id);
    }
}

impl Activity {
    fn is_same(self, other: Self) -> bool {
        let spec = |activity: Self| activity.command.map(std::ptr::from_ref);
        (spec(self), self.queued) == (spec(other), other.queued)
    }
}

impl ClientRecord {
    fn write(&self, now: Instant, out: &mut String) {
        let profile = self.profile.lock().clone();
        let activity = *self.activity.lock();
        let age = now.saturating_duration_since(self.since);
        let idle = age.saturating_sub(Duration::from_millis(self.active.load(Relaxed)));
        let local = self.local.map_or_else(String::new, |local| local.to_string());
        let queued = activity.queued.map_or(-1, |queued| i64::try_from(queued).unwrap_or(i64::MAX));
        // Clients require all fields of Redis. Fields about descriptors and buffers, which are unknown here, are 0 or -1.
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "id={} addr={} laddr={local} fd=-1 name={} age={} idle={} flags={} db=0 sub=0 psub=0 ssub=0 multi={queued} \
             qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem=0 tot-mem=0 events=r cmd={} \
             user={} redir=-1 resp={} lib-name={} lib-ver={}",
            self.id,
            self.peer,
            text(&profile.name),
            age.as_secs(),
            idle.as_secs(),
            if activity.queued.is_some() { "x" } else { "N" },
            activity.command.map_or("NULL".into(), Spec::full_name),
            profile.user.as_deref().unwrap_or(DEFAULT_USER),
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
