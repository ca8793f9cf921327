//! Traces: what a server did to its files, in order, as `interpose.c` wrote it down.

use std::fs;
use std::ops::Range;
use std::path::Path;

/// `struct header` of interpose.c.
const HEADER: usize = 40;
pub const O_CREAT: u32 = 0o100;
pub const O_TRUNC: u32 = 0o1000;
/// Of fallocate: the file keeps its size.
pub const KEEP_SIZE: u32 = 1;

/// One call that succeeded. Paths are whole; `None` is a place that is not watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The processes before are gone, and with them their descriptors.
    NewProcess,
    Open {
        fd: i32,
        flags: u32,
        path: String,
    },
    Close {
        fd: i32,
    },
    /// `data` lies in [`Trace::bytes`].
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

/// What one server process after the other did.
#[derive(Debug, Default)]
pub struct Trace {
    pub bytes: Vec<u8>,
    pub events: Vec<Event>,
    /// Of each process: its first event, and where the record of each of its events ends in its own file.
    processes: Vec<(usize, Vec<u64>)>,
}

/// When something was known to have happened: so many bytes of that process's trace had been written by then.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub process: usize,
    pub position: u64,
}

impl Trace {
    /// Adds the trace of one more process. A record that its end cut short is left out: at most that one call is unknown,
    /// and nothing was acknowledged after it.
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

    /// How many events had been recorded by then. One more may have happened by then, but not two: they happen under the
    /// lock under which they are recorded.
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
