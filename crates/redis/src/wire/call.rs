//! Calls: the commands that divvy sends to Redis.

use redis::Cmd;
use redis::cluster_routing::Slot;

use super::script::Script;

/// A call of a script, or any other command.
pub struct Call {
    /// The script. `None` if the arguments are the whole command.
    pub script: Option<&'static Script>,
    /// Whether the script is sent with its text, so that Redis cannot have forgotten it.
    pub brings_text: bool,
    /// The first key determines the node of a cluster. A call without keys can go to any node.
    pub keys: Vec<Vec<u8>>,
    pub arguments: Vec<Vec<u8>>,
    /// The number of a batch's actions that the call applies.
    pub actions: usize,
}

impl Call {
    pub fn script(script: &'static Script, keys: Vec<Vec<u8>>, arguments: Vec<Vec<u8>>, actions: usize) -> Self {
        Self { script: Some(script), brings_text: false, keys, arguments, actions }
    }

    /// Creates a command without a key, or one for a node that the caller chooses.
    pub fn command(words: &[&[u8]]) -> Self {
        let arguments = words.iter().map(|word| word.to_vec()).collect();
        Self { script: None, brings_text: false, keys: Vec::new(), arguments, actions: 0 }
    }

    /// Creates a command whose second word is its key.
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

    /// Writes the command. `with_text` includes the script's text, because Redis may have forgotten it (after a
    /// restart, a failover, SCRIPT FLUSH).
    pub fn write(&self, with_text: bool, out: &mut Vec<u8>) {
        let mut command = Cmd::new();
        if let Some(script) = self.script {
            let brings_text = with_text || self.brings_text;
            let start = if brings_text { ("EVAL", &script.text) } else { ("EVALSHA", &script.hash) };
            command.arg(start).arg(self.keys.len()).arg(&self.keys);
        }
        command.arg(&self.arguments).write_packed_command(out);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    fn written(call: &Call, with_text: bool) -> String {
        let mut out = Vec::new();
        call.write(with_text, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn command_is_encoded_for_redis() {
        let call = Call::command(&[b"SET", b"", b"a b"]);
        assert_eq!(written(&call, true), "*3\r\n$3\r\nSET\r\n$0\r\n\r\n$3\r\na b\r\n");
    }

    #[test]
    fn script_runs_by_its_hash_or_its_text() {
        static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new("one", "return 1"));
        let call = Call::script(&SCRIPT, vec![b"key".to_vec()], vec![b"take 1 now".to_vec()], 1);
        let rest = "$1\r\n1\r\n$3\r\nkey\r\n$10\r\ntake 1 now\r\n";
        let hash = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
        assert_eq!(written(&call, false), format!("*5\r\n$7\r\nEVALSHA\r\n$40\r\n{hash}\r\n{rest}"));
        let text = format!("*5\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n{rest}");
        assert_eq!(written(&call, true), text);
        assert_eq!(written(&Call { brings_text: true, ..call }, false), text);
    }
}
