//! A bounded queue of log lines, the thread that writes them, and standard error, as the log uses it.
//!
//! A line is queued or dropped immediately; logging never waits for a disk, a pipe or a terminal. Lines that do not fit
//! or cannot be written are counted. The queue does not depend on their content.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

/// Maximum bytes for all waiting lines: about 20,000 lines, enough for a burst.
const MAX_QUEUED: usize = 4 << 20;

/// Bytes that a line needs in addition to its text.
const LINE_OVERHEAD: usize = 32;

/// Time between two looks at whether all lines have been written.
const FLUSH_PAUSE: Duration = Duration::from_millis(1);

/// Lines that wait to be written by a thread. Clones share them.
#[derive(Debug, Clone)]
pub struct Queue {
    lines: Sender<Box<[u8]>>,
    count: Arc<Count>,
}

#[derive(Debug, Default)]
struct Count {
    /// Bytes of the waiting lines, and of the line that is being written.
    bytes: AtomicUsize,
    /// Number of lines dropped since the start.
    dropped: AtomicU64,
}

impl Queue {
    /// Starts the thread that writes to `out` for as long as the process lives. When a line can be written after others
    /// were dropped, it calls `report` with the number of lines dropped since the last report.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(out: impl Write + Send + 'static, report: impl Fn(u64) + Send + 'static) -> io::Result<Self> {
        let ((lines, waiting), count) = (mpsc::channel(), Arc::<Count>::default());
        let shared = Arc::clone(&count);
        thread::Builder::new().name("divvy-log".into()).spawn(move || shared.write(&waiting, out, &report))?;
        Ok(Self { lines, count })
    }

    /// Queues `line`, or drops it if the queue is full.
    pub fn push(&self, line: &[u8]) {
        let add = |bytes| Some(bytes + size(line)).filter(|bytes| *bytes <= MAX_QUEUED);
        let has_room = self.count.bytes.fetch_update(Relaxed, Relaxed, add).is_ok();
        if !has_room || self.lines.send(line.into()).is_err() {
            self.count.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Returns the number of lines dropped since the start.
    pub fn dropped(&self) -> u64 {
        self.count.dropped.load(Relaxed)
    }

    /// Waits up to `patience` until every line has been written or dropped.
    #[expect(clippy::disallowed_methods, reason = "how long to wait for the writer")]
    pub fn flush(&self, patience: Duration) {
        let begun = Instant::now();
        while self.count.bytes.load(Acquire) > 0 && begun.elapsed() < patience {
            thread::sleep(FLUSH_PAUSE);
        }
    }
}

impl Count {
    fn write(&self, lines: &Receiver<Box<[u8]>>, out: impl Write, report: &dyn Fn(u64)) {
        let mut writer = LineWriter { out, is_torn: false };
        let mut reported = 0;
        for line in lines {
            let is_written = writer.write(&line).is_ok();
            if !is_written {
                self.dropped.fetch_add(1, Relaxed);
            }
            let (waiting, dropped) = (self.bytes.load(Relaxed) - size(&line), self.dropped.load(Relaxed));
            // The report is a line, too, and needs room in the queue.
            if is_written && dropped > reported && waiting < MAX_QUEUED / 2 {
                report(dropped - reported);
                reported = dropped;
            }
            // A flush waits for the line until now, and from now on for the report.
            self.bytes.fetch_sub(size(&line), Release);
        }
    }
}

fn size(line: &[u8]) -> usize {
    line.len() + LINE_OVERHEAD
}

/// Writes whole lines to an output that may fail in the middle of a line.
#[derive(Debug)]
pub struct LineWriter<W> {
    /// The output.
    pub out: W,
    /// Whether the output ends with a part of a line that failed.
    pub is_torn: bool,
}

impl<W: Write> LineWriter<W> {
    /// Writes a line, in one write if the output takes it. After a part of a line that failed, it begins on a new line.
    ///
    /// # Errors
    /// The output's. A part of the line may have been written, which does not affect the next one.
    pub fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let line = if self.is_torn { Cow::Owned([b"\n", line].concat()) } else { Cow::Borrowed(line) };
        let mut rest = &*line;
        while !rest.is_empty() {
            match self.out.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => {
                    rest = rest.get(written..).unwrap_or_default();
                    self.is_torn = !rest.is_empty();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A separate descriptor for standard error. The standard library's handle has a lock, which would be held while a pipe
/// is full. Everything else that prints there would then have to wait.
#[derive(Debug)]
pub struct Stderr(File);

impl Stderr {
    /// Opens standard error.
    ///
    /// # Errors
    /// The process may not open another file.
    pub fn open() -> io::Result<Self> {
        Ok(Self(io::stderr().as_fd().try_clone_to_owned()?.into()))
    }
}

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                // Another process that shares the terminal or pipe has made it non-blocking.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    poll(&mut [PollFd::new(&self.0, PollFlags::OUT)], None)?;
                }
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// An output that handles each write as the test decides: it accepts a number of bytes, or fails.
    struct ScriptedOutput {
        steps: Receiver<io::Result<usize>>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for ScriptedOutput {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let length = self.steps.recv().unwrap_or(Ok(bytes.len()))?.min(bytes.len());
            self.written.lock().extend_from_slice(&bytes[..length]);
            Ok(length)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Fixture {
        queue: Queue,
        steps: Sender<io::Result<usize>>,
        written: Arc<Mutex<Vec<u8>>>,
        reported: Arc<Mutex<Vec<u64>>>,
    }

    /// Creates a queue whose writer waits for the test at every write.
    fn scripted() -> Fixture {
        let (steps, receiver) = mpsc::channel();
        let (written, reported) = (Arc::default(), Arc::<Mutex<Vec<u64>>>::default());
        let out = ScriptedOutput { steps: receiver, written: Arc::clone(&written) };
        let reports = Arc::clone(&reported);
        let queue = Queue::start(out, move |dropped| reports.lock().push(dropped)).unwrap();
        Fixture { queue, steps, written, reported }
    }

    impl Fixture {
        fn written(&self) -> String {
            String::from_utf8(self.written.lock().clone()).unwrap()
        }

        /// Lets all further writes succeed, and waits until everything is written.
        fn finish(self) -> (String, Vec<u64>) {
            let Self { queue, steps, written, reported } = self;
            drop(steps);
            queue.flush(PATIENCE);
            let (written, reported) = (written.lock().clone(), reported.lock().clone());
            (String::from_utf8(written).unwrap(), reported)
        }
    }

    #[test]
    fn lines_are_written_in_order_and_whole() {
        let fixture = scripted();
        (0..3).for_each(|number| fixture.queue.push(format!("line {number}\n").as_bytes()));
        for step in [Ok(3), Err(ErrorKind::Interrupted.into()), Ok(100), Ok(1)] {
            fixture.steps.send(step).unwrap();
        }
        assert_eq!(fixture.finish(), ("line 0\nline 1\nline 2\n".to_owned(), vec![]));
    }

    #[test]
    fn blocked_output_blocks_no_caller_and_dropped_lines_are_reported() {
        let fixture = scripted();
        let line = [&[b'x'; 1000][..], b"\n"].concat();
        let fitting = MAX_QUEUED / size(&line);
        (0..fitting + 7).for_each(|_| fixture.queue.push(&line));
        assert_eq!(fixture.queue.dropped(), 7);
        let begun = Instant::now();
        fixture.queue.flush(Duration::from_millis(20));
        assert!(begun.elapsed() >= Duration::from_millis(20), "nothing is written");
        let (written, reported) = fixture.finish();
        assert_eq!(written.lines().count(), fitting);
        assert_eq!(reported.iter().sum::<u64>(), 7);
    }

    #[test]
    fn failing_output_loses_lines_and_is_retried() {
        let fixture = scripted();
        fixture.queue.push(b"first\n");
        fixture.queue.push(b"second\n");
        fixture.queue.push(b"third\n");
        for step in [Err(ErrorKind::StorageFull.into()), Ok(3), Err(ErrorKind::BrokenPipe.into())] {
            fixture.steps.send(step).unwrap();
        }
        let (written, reported) = fixture.finish();
        assert_eq!(written, "sec\nthird\n", "a torn line does not swallow the next one");
        assert_eq!(reported, [2]);
    }

    #[test]
    fn dead_output_is_flushed_at_once_and_reports_nothing() {
        let fixture = scripted();
        (0..100).for_each(|_| fixture.queue.push(b"line\n"));
        (0..100).for_each(|_| fixture.steps.send(Err(ErrorKind::BrokenPipe.into())).unwrap());
        fixture.queue.flush(PATIENCE);
        assert_eq!(fixture.queue.dropped(), 100);
        assert_eq!((fixture.written(), fixture.reported.lock().len()), (String::new(), 0));
    }
}
