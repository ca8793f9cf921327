//! Calls: the commands that divvy sends to Redis.

use redis::cluster_routing::Slot;

use super::arguments::{Arguments, write_argument, write_head};
use super::script::Script;

/// A call of a script, or any other command.
pub struct Call {
    /// `None` if the arguments are the whole command.
    pub script: Option<&'static Script>,
    /// Whether the script is sent with its text at once, so that Redis cannot have forgotten it.
    pub brings_text: bool,
    /// The first key decides which node of a cluster is asked. Without a key, any node will do.
    pub keys: Vec<Vec<u8>>,
    pub arguments: Arguments,
    /// The number of a batch's actions that the call applies.
    pub actions: usize,
}

impl Call {
    pub fn script(script: &'static Script, keys: Vec<Vec<u8>>, arguments: Arguments, actions: usize) -> Self {
        Self { script: Some(script), brings_text: false, keys, arguments, actions }
    }

    /// A command without a key.
    pub fn command(words: &[&[u8]]) -> Self {
        Self { script: None, brings_text: false, keys: Vec::new(), arguments: words.iter().collect(), actions: 0 }
    }

    /// A command whose second word is its key.
    pub fn command_on_key(words: &[&[u8]]) -> Self {
        let keys = words.get(1).map(|key| key.to_vec()).into_iter().collect();
        Self { keys, ..Self::command(words) }
    }

    pub fn slot(&self) -> Slot {
        Slot::for_key(self.keys.first().map_or(&[][..], Vec::as_slice))
    }

    /// Returns whether all keys are in one slot.
    pub fn is_in_one_slot(&self) -> bool {
        self.keys.iter().all(|key| Slot::for_key(key) == self.slot())
    }

    /// Writes the command. Redis may have forgotten a script (after a restart, a failover, SCRIPT FLUSH). `with_text` brings it
    /// along.
    pub fn write(&self, with_text: bool, out: &mut Vec<u8>) {
        match self.script {
            None => write_head(self.arguments.len(), out),
            Some(script) => {
                let start = if with_text || self.brings_text { &script.with_text } else { &script.by_hash };
                write_head(start.len() + 1 + self.keys.len() + self.arguments.len(), out);
                out.extend_from_slice(start.as_bytes());
                write_argument(itoa::Buffer::new().format(self.keys.len()).as_bytes(), out);
                self.keys.iter().for_each(|key| write_argument(key, out));
            }
        }
        out.extend_from_slice(self.arguments.as_bytes());
    }
}
