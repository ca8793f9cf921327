//! The terminal: its size, the keys that the operator presses, and a screen that is drawn again and again.

use std::io::{self, Read, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use rustix::time::Timespec;

/// The alternate screen, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";
/// The size of a terminal that does not know its own.
const DEFAULT_SIZE: (usize, usize) = (24, 80);

/// A key with a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    NextRule,
    PreviousRule,
    Order,
    Window,
    Quit,
}

/// The bytes that keys send. The bytes of arrows begin with those of Escape, so they come first.
const KEYS: [(&[u8], Key); 16] = [
    (b"n", Key::NextRule),
    (b"\x1b[C", Key::NextRule),
    (b"\x1b[B", Key::NextRule),
    (b"\x1bOC", Key::NextRule),
    (b"\x1bOB", Key::NextRule),
    (b"p", Key::PreviousRule),
    (b"\x1b[D", Key::PreviousRule),
    (b"\x1b[A", Key::PreviousRule),
    (b"\x1bOD", Key::PreviousRule),
    (b"\x1bOA", Key::PreviousRule),
    (b"o", Key::Order),
    (b"w", Key::Window),
    (b"q", Key::Quit),
    (b"\x1b", Key::Quit),
    // Ctrl-C and Ctrl-D.
    (b"\x03", Key::Quit),
    (b"\x04", Key::Quit),
];

/// The terminal, in a mode that passes each key on at once and shows none. Dropping it restores the terminal.
pub struct Screen {
    modes: Termios,
}

impl Screen {
    /// Takes over the terminal.
    ///
    /// # Errors
    /// Standard input is not a terminal, or standard output cannot be written.
    pub fn enter() -> io::Result<Self> {
        let modes = tcgetattr(io::stdin())?;
        let mut raw = modes.clone();
        raw.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        let screen = Self { modes };
        write(ENTER)?;
        Ok(screen)
    }

    /// Returns the number of rows and of columns.
    pub fn size(&self) -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row.into(), size.ws_col.into()),
            _ => DEFAULT_SIZE,
        }
    }

    /// Draws these lines, as far as there is room.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn draw(&self, lines: &[String]) -> io::Result<()> {
        let (rows, columns) = self.size();
        let mut text = HOME.to_owned();
        for (row, line) in lines.iter().take(rows).enumerate() {
            if row > 0 {
                text.push('\n');
            }
            text.extend(line.chars().take(columns));
            text.push_str(CLEAR_LINE);
        }
        write(&(text + CLEAR_BELOW))
    }

    /// Waits for keys, but no longer than `patience`. Returns those with a meaning.
    ///
    /// # Errors
    /// Standard input cannot be read.
    pub fn keys(&self, patience: Duration) -> io::Result<Vec<Key>> {
        let stdin = io::stdin();
        let timeout = Timespec::try_from(patience).map_err(io::Error::other)?;
        if poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&timeout))? == 0 {
            return Ok(Vec::new());
        }
        let mut bytes = [0; 64];
        let count = stdin.lock().read(&mut bytes)?;
        // The terminal is gone.
        if count == 0 {
            return Ok(vec![Key::Quit]);
        }
        Ok(keys_in(bytes.get(..count).unwrap_or_default()))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If the terminal is gone, nothing needs to be restored.
        let _ = write(LEAVE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.modes);
    }
}

/// Returns the keys that send these bytes.
fn keys_in(mut bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while let Some((_, after_one)) = bytes.split_first() {
        let found = KEYS.iter().find_map(|(sent, key)| Some((bytes.strip_prefix(*sent)?, *key)));
        bytes = found.map_or(after_one, |(rest, _)| rest);
        keys.extend(found.map(|(_, key)| key));
    }
    keys
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_may_arrive_together() {
        let keys = keys_in(b"no\x1b[Dx\x1bOBw\x1b");
        assert_eq!(keys, [Key::NextRule, Key::Order, Key::PreviousRule, Key::NextRule, Key::Window, Key::Quit]);
    }
}
