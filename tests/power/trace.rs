//! Traces: the file operations of a server in order, as `interpose.c` recorded them.

use std::fs;
use std::ops::Range;
use std::path::Path;

/// Size of `struct header` in interpose.c.
const HEADER: usize = 40;
pub const O_CREAT: u32 = 0o100;
pub const O_TRUNC: u32 = 0o1000;
/// Flag of fallocate: the size of the file does not change.
pub const KEEP_SIZE: u32 = 1;

/// A successful call. Paths are complete; `None` is a path that is not observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The earlier processes have ended, and their descriptors are closed.
    NewProcess,
    Open {
        fd: i32,
        flags: u32,
        path: String,
    },
    Close {
        fd: i32,
    },
    /// A write. `data` is a range of [`Trace::bytes`].
    Write {
        fd: i32,
        offset: u64,
        data: Range<usize>,
    },
    Truncate {
        fd: i32,
        length: u64,
    },
    Allocate {
        fd: i32,
        mode: u32,
        end: u64,
    },
    Link {
        from: Option<String>,
        to: Option<String>,
    },
    Rename {
        from: Option<String>,
        to: Option<String>,
    },
    Unlink {
        path: String,
    },
    MakeDirectory,
    RemoveDirectory,
    SyncBegins {
        fd: i32,
    },
    SyncEnds {
        fd: i32,
    },
}

/// The calls of successive server processes.
#[derive(Debug, Default)]
pub struct Trace {
    pub bytes: Vec<u8>,
    pub events: Vec<Event>,
    /// For each process: its first event, and the end of each event's record in the process's file.
    processes: Vec<(usize, Vec<u64>)>,
}

/// A moment, given by the number of bytes of a process's trace that had been written.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub process: usize,
    pub position: u64,
}

impl Trace {
    /// Adds the trace of another process. An incomplete last record is dropped: that call's result is unknown, and
    /// nothing was acknowledged after it.
    pub fn add(&mut self, file: &Path) {
        let base = self.bytes.len();
        self.bytes.extend(fs::read(file).unwrap());
        self.processes.push((self.events.len(), Vec::new()));
        self.events.push(Event::NewProcess);
        let mut at = base;
        while let Some((event, end)) = self.read(at) {
            at = end;
            self.events.push(event);
            self.processes.last_mut().unwrap().1.push((end - base) as u64);
        }
    }

    /// Returns the number of events recorded at that moment. One more may have happened, but not two, because events
    /// happen while the recording lock is held.
    pub fn events_by(&self, moment: Moment) -> usize {
        let (first, ends) = &self.processes[moment.process];
        first + 1 + ends.partition_point(|&end| end <= moment.position)
    }

    fn read(&self, at: usize) -> Option<(Event, usize)> {
        let header = self.bytes.get(at..at + HEADER)?;
        let word = |index: usize| u32::from_le_bytes(header[4 * index..4 * index + 4].try_into().unwrap());
        let long = |index: usize| u64::from_le_bytes(header[8 * index..8 * index + 8].try_into().unwrap());
        let (fd, flags, offset, length) = (word(1) as i32, word(2), long(3), long(4));
        let first = at + HEADER..at + HEADER + word(3) as usize;
        let second = first.end..first.end + word(4) as usize;
        let data = second.end..second.end + word(5) as usize;
        let end = data.end;
        let text = |range: Range<usize>| Some(String::from_utf8(self.bytes.get(range)?.to_vec()).unwrap());
        let (path, second) = (text(first)?, text(second)?);
        self.bytes.get(data.clone())?;
        let watched = |path: String| Some(path).filter(|path| !path.is_empty());
        let event = match word(0) {
            1 => Event::Open { fd, flags, path },
            2 => Event::Close { fd },
            3 => Event::Write { fd, offset, data },
            4 => Event::Truncate { fd, length },
            5 => Event::Allocate { fd, mode: flags, end: offset + length },
            6 => Event::Link { from: watched(path), to: watched(second) },
            7 => Event::Rename { from: watched(path), to: watched(second) },
            8 => Event::Unlink { path },
            9 => Event::MakeDirectory,
            10 => Event::RemoveDirectory,
            11 => Event::SyncBegins { fd },
            12 => Event::SyncEnds { fd },
            other => panic!("interpose.c records no operation {other}"),
        };
        Some((event, end))
    }
}
