//! Calls: the commands that divvy sends to Redis.

use redis::cluster_routing::Slot;

use super::arguments::Arguments;
use super::command::{write_argument, write_command, write_head};
use super::failure::Failure;
use super::reply::Reply;
use super::script::Script;

/// The key that tells whether writes are taken.
pub const PROBE: &[u8] = b"divvy.probe";

/// One call.
pub enum Call {
    Script {
        script: &'static Script,
        /// Sent by its text at once, so that Redis cannot have forgotten it.
        brings_text: bool,
        key: Vec<u8>,
        /// Of a group's other buckets.
        other_keys: Vec<Vec<u8>>,
        arguments: Arguments,
        /// How many of a batch's actions it takes.
        actions: usize,
    },
    /// Whether a server takes writes: this key is gone after a millisecond.
    Probe { key: Vec<u8> },
    /// Reads the value under this name.
    Get { key: &'static [u8] },
    /// Writes a value under this name, unless there is one.
    SetIfNone { key: &'static [u8], value: String },
    /// How many keys a server has.
    Count,
    /// Which process it is, among other things.
    ServerInfo,
    /// A page of the keys that match.
    Scan { cursor: u64, pattern: Vec<u8>, count: usize },
    /// Which nodes of a cluster have which slots.
    Slots,
}

impl Call {
    /// The key that says which node of a cluster is to be asked; empty where any node will do.
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Script { key, .. } | Self::Probe { key } => key,
            Self::Get { key } | Self::SetIfNone { key, .. } => key,
            Self::Count | Self::ServerInfo | Self::Scan { .. } | Self::Slots => &[],
        }
    }

    /// Whether all of its keys are in the slot of the first.
    pub fn is_in_one_slot(&self) -> bool {
        let Self::Script { key, other_keys, .. } = self else { return true };
        other_keys.iter().all(|other| Slot::for_key(other) == Slot::for_key(key))
    }

    /// How many of a batch's actions it takes.
    pub fn actions(&self) -> usize {
        if let Self::Script { actions, .. } = self { *actions } else { 0 }
    }

    /// The script that it runs.
    pub fn script(&self) -> Option<&'static Script> {
        if let Self::Script { script, .. } = self { Some(script) } else { None }
    }

    /// Writes the command; a script by its hash, which Redis may have forgotten (after a restart, a failover, SCRIPT FLUSH).
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Script { script, brings_text: false, .. } => self.write_script(script.by_hash(), out),
            Self::Script { script, brings_text: true, .. } => self.write_script(script.with_text(), out),
            Self::Probe { key } => write_command(&[b"SET", key, b"1", b"PX", b"1"], out),
            Self::Get { key } => write_command(&[b"GET", key], out),
            Self::SetIfNone { key, value } => write_command(&[b"SET", key, value.as_bytes(), b"NX"], out),
            Self::Count => write_command(&[b"DBSIZE"], out),
            Self::ServerInfo => write_command(&[b"INFO", b"server"], out),
            Self::Scan { cursor, pattern, count } => {
                let (cursor, count) = (cursor.to_string(), count.to_string());
                write_command(&[b"SCAN", cursor.as_bytes(), b"MATCH", pattern, b"COUNT", count.as_bytes()], out);
            }
            Self::Slots => write_command(&[b"CLUSTER", b"SLOTS"], out),
        }
    }

    /// Writes the command; a script with its text, so that Redis remembers it.
    pub fn write_with_text(&self, out: &mut Vec<u8>) {
        match self {
            Self::Script { script, .. } => self.write_script(script.with_text(), out),
            _ => self.write(out),
        }
    }

    /// Writes a call of a script, which begins with `start`.
    fn write_script(&self, start: &[u8], out: &mut Vec<u8>) {
        let Self::Script { key, other_keys, arguments, .. } = self else { return };
        write_head(4 + other_keys.len() + arguments.len(), out);
        out.extend_from_slice(start);
        write_keys(key, other_keys, out);
        out.extend_from_slice(arguments.as_bytes());
    }
}

/// How many there are, and the keys.
fn write_keys(key: &[u8], other_keys: &[Vec<u8>], out: &mut Vec<u8>) {
    write_argument(itoa::Buffer::new().format(1 + other_keys.len()).as_bytes(), out);
    write_argument(key, out);
    other_keys.iter().for_each(|key| write_argument(key, out));
}

/// Reads the reply to [`Call::Count`].
pub fn number_of_keys(reply: Reply) -> Result<u64, Failure> {
    redis::from_redis_value(reply.value()?).map_err(|_| Failure::Foreign("the number of keys is not a number"))
}
