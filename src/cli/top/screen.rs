//! The terminal: its size, the keys that the operator presses, and a screen that is drawn again and again.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use rustix::time::Timespec;

use super::stop_signal::stop_signal;

/// The alternate screen, without a cursor. Lines that are too long because of wide characters are cut, not continued below.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
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
    /// It ends when a signal asks the program to stop.
    stop: UnixStream,
}

impl Screen {
    /// Takes over the terminal.
    ///
    /// # Errors
    /// Standard input is not a terminal, or standard output cannot be written.
    pub fn enter() -> io::Result<Self> {
        let stop = stop_signal()?;
        let modes = tcgetattr(io::stdin())?;
        let mut raw = modes.clone();
        raw.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        let screen = Self { modes, stop };
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

    /// Waits for keys, but no longer than `patience`. Returns those with a meaning. A signal to stop is a key that quits.
    ///
    /// # Errors
    /// Standard input cannot be read.
    pub fn keys(&self, patience: Duration) -> io::Result<Vec<Key>> {
        let stdin = io::stdin();
        let timeout = Timespec::try_from(patience).map_err(io::Error::other)?;
        let mut awaited = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(&self.stop, PollFlags::IN)];
        // A signal interrupts the wait, and then ends the stream.
        if retry_on_intr(|| poll(&mut awaited, Some(&timeout)))? == 0 {
            return Ok(Vec::new());
        }
        let [_, stop] = awaited;
        if !stop.revents().is_empty() {
            return Ok(vec![Key::Quit]);
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
        match found {
            Some((rest, Key::Quit)) if is_sequence(bytes) => bytes = after_sequence(rest),
            Some((rest, key)) => {
                bytes = rest;
                keys.push(key);
            }
            None => bytes = after_one,
        }
    }
    keys
}

/// Returns whether these bytes begin a key of several bytes, such as Page Down.
fn is_sequence(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x1b[") || bytes.starts_with(b"\x1bO")
}

/// Returns the bytes after such a key. `rest` follows its Escape.
fn after_sequence(rest: &[u8]) -> &[u8] {
    let Some((_, rest)) = rest.split_first() else { return rest };
    let is_last = |byte: &u8| matches!(byte, 0x40..=0x7e);
    let end = rest.iter().position(is_last).map_or(rest.len(), |last| last + 1);
    rest.get(end..).unwrap_or_default()
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

    #[test]
    fn only_escape_alone_quits() {
        for (sent, keys) in [
            (&b"\x1b"[..], &[Key::Quit][..]),
            (b"\x1b\x1b", &[Key::Quit, Key::Quit]),
            // Page Down, F1, F5, Home, Ctrl and an arrow: nothing in them is a key of its own.
            (b"\x1b[6~\x1bOP\x1b[15~\x1b[H\x1b[1;5C", &[]),
            (b"\x1b[6~n", &[Key::NextRule]),
            (b"\x1b[", &[]),
            (b"\x1bO", &[]),
            (b"\x1b[1;", &[]),
        ] {
            assert_eq!(keys_in(sent), keys, "{}", sent.escape_ascii());
        }
    }
}
