//! Log lines on their way out: a bounded queue, and the thread that writes it.
//!
//! A line is queued or dropped immediately; logging never waits for a disk, a pipe or a terminal. Lines that do not fit,
//! or cannot be written, are counted. Nothing here knows what a line says.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// What all lines that wait may need (bytes): some 20,000 lines, enough for a burst.
const MAX_QUEUED: usize = 4 << 20;
/// What a line needs beside its text (bytes).
const LINE_OVERHEAD: usize = 32;
/// While lines are being dropped, the log says so once in this time.
const TELL_INTERVAL: Duration = Duration::from_secs(1);

/// Lines that wait to be written. Shared by all who log.
#[derive(Debug, Default)]
pub struct Queue {
    state: Mutex<State>,
    /// There is a line to write.
    filled: Condvar,
    /// Everything is written or dropped.
    emptied: Condvar,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<Box<[u8]>>,
    /// Of the lines, and of the one that is being written.
    bytes: usize,
    /// The writer has a line in hand, or something to tell.
    is_writing: bool,
}

impl Queue {
    /// Queues `line`, or drops it when the queue is full.
    pub fn push(&self, line: &[u8]) {
        let mut state = self.state.lock();
        let bytes = state.bytes + size(line);
        if bytes > MAX_QUEUED {
            self.dropped.fetch_add(1, Relaxed);
            return;
        }
        state.bytes = bytes;
        state.lines.push_back(line.into());
        drop(state);
        self.filled.notify_one();
    }

    /// Lines that were dropped since the start.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// Waits until every line is written or dropped, or `patience` is over.
    #[expect(clippy::disallowed_methods, reason = "how long to wait for the writer")]
    pub fn flush(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        let mut state = self.state.lock();
        let is_busy = |state: &State| state.is_writing || !state.lines.is_empty();
        while is_busy(&state) && !self.emptied.wait_until(&mut state, deadline).timed_out() {}
    }

    /// Starts the thread that writes to `out` for as long as the process lives. When lines were dropped and one could be
    /// written again, it calls `tell` with how many were dropped since the last time.
    ///
    /// # Errors
    /// The system's, when it refuses a thread.
    pub fn start_writer(
        self: &Arc<Self>,
        out: impl Write + Send + 'static,
        tell: impl Fn(u64) + Send + 'static,
    ) -> io::Result<()> {
        let queue = Arc::clone(self);
        thread::Builder::new().name("divvy-log".into()).spawn(move || queue.write_to(out, &tell))?;
        Ok(())
    }

    #[expect(clippy::disallowed_methods, reason = "how often to report what was dropped")]
    fn write_to(&self, out: impl Write, tell: &dyn Fn(u64)) {
        let mut lines = LineWriter { out, is_torn: false };
        let (mut told, mut told_at) = (0, None::<Instant>);
        loop {
            let line = self.next();
            let is_written = lines.write(&line).is_ok();
            if !is_written {
                self.dropped.fetch_add(1, Relaxed);
            }
            let waiting = self.free(&line);
            let dropped = self.dropped();
            // What is told is a line, too, and must find room.
            let is_calm = waiting < MAX_QUEUED / 2 && told_at.is_none_or(|at| at.elapsed() >= TELL_INTERVAL);
            if is_written && dropped > told && (waiting == 0 || is_calm) {
                tell(dropped - told);
                (told, told_at) = (dropped, Some(Instant::now()));
            }
        }
    }

    /// The next line, once there is one. It counts until it is [`Queue::free`].
    fn next(&self) -> Box<[u8]> {
        let mut state = self.state.lock();
        loop {
            match state.lines.pop_front() {
                Some(line) => {
                    state.is_writing = true;
                    return line;
                }
                None => {
                    state.is_writing = false;
                    self.emptied.notify_all();
                    self.filled.wait(&mut state);
                }
            }
        }
    }

    /// Gives back the line's room; the bytes that wait besides.
    fn free(&self, line: &[u8]) -> usize {
        let mut state = self.state.lock();
        state.bytes = state.bytes.saturating_sub(size(line));
        state.bytes
    }
}

fn size(line: &[u8]) -> usize {
    line.len() + LINE_OVERHEAD
}

/// Writes whole lines to an output that may fail in the middle of one.
struct LineWriter<W> {
    out: W,
    /// The output ends in the beginning of a line that failed.
    is_torn: bool,
}

impl<W: Write> LineWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.is_torn {
            self.write_all(b"\n")?;
            self.is_torn = false;
        }
        self.write_all(line)
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.out.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => {
                    bytes = bytes.get(written..).unwrap_or_default();
                    self.is_torn = !bytes.is_empty();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver, Sender};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// An output whose every write does what the test says next: so many bytes, or an error.
    struct Scripted {
        steps: Receiver<io::Result<usize>>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Scripted {
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
        queue: Arc<Queue>,
        steps: Sender<io::Result<usize>>,
        written: Arc<Mutex<Vec<u8>>>,
        told: Arc<Mutex<Vec<u64>>>,
    }

    /// A queue whose writer waits for the test at every write.
    fn scripted() -> Fixture {
        let (steps, receiver) = mpsc::channel();
        let (queue, written, told) = (Arc::<Queue>::default(), Arc::default(), Arc::<Mutex<Vec<u64>>>::default());
        let out = Scripted { steps: receiver, written: Arc::clone(&written) };
        let tells = Arc::clone(&told);
        queue.start_writer(out, move |dropped| tells.lock().push(dropped)).unwrap();
        Fixture { queue, steps, written, told }
    }

    impl Fixture {
        fn written(&self) -> String {
            String::from_utf8(self.written.lock().clone()).unwrap()
        }

        /// Lets every further write succeed, and waits until all is written.
        fn finish(self) -> (String, Vec<u64>) {
            let Self { queue, steps, written, told } = self;
            drop(steps);
            queue.flush(PATIENCE);
            let (written, told) = (written.lock().clone(), told.lock().clone());
            (String::from_utf8(written).unwrap(), told)
        }
    }

    #[test]
    fn lines_come_out_in_order_and_whole() {
        let fixture = scripted();
        (0..3).for_each(|number| fixture.queue.push(format!("line {number}\n").as_bytes()));
        for step in [Ok(3), Err(ErrorKind::Interrupted.into()), Ok(100), Ok(1)] {
            fixture.steps.send(step).unwrap();
        }
        assert_eq!(fixture.finish(), ("line 0\nline 1\nline 2\n".to_owned(), vec![]));
    }

    #[test]
    fn an_output_that_takes_nothing_blocks_no_caller_and_what_does_not_fit_is_counted_and_reported() {
        let fixture = scripted();
        let line = [&[b'x'; 1000][..], b"\n"].concat();
        let fitting = MAX_QUEUED / size(&line);
        (0..fitting + 7).for_each(|_| fixture.queue.push(&line));
        assert_eq!(fixture.queue.dropped(), 7);
        let begun = Instant::now();
        fixture.queue.flush(Duration::from_millis(20));
        assert!(begun.elapsed() >= Duration::from_millis(20), "nothing is written");
        let (written, told) = fixture.finish();
        assert_eq!(written.lines().count(), fitting);
        assert_eq!(told.iter().sum::<u64>(), 7);
    }

    #[test]
    fn an_output_that_fails_loses_lines_and_is_tried_again() {
        let fixture = scripted();
        fixture.queue.push(b"first\n");
        fixture.queue.push(b"second\n");
        fixture.queue.push(b"third\n");
        for step in [Err(ErrorKind::StorageFull.into()), Ok(3), Err(ErrorKind::BrokenPipe.into())] {
            fixture.steps.send(step).unwrap();
        }
        let (written, told) = fixture.finish();
        assert_eq!(written, "sec\nthird\n", "a torn line does not swallow the next one");
        assert_eq!(told, [2]);
    }

    #[test]
    fn an_output_that_always_fails_is_flushed_at_once_and_tells_nothing() {
        let fixture = scripted();
        (0..100).for_each(|_| fixture.queue.push(b"line\n"));
        (0..100).for_each(|_| fixture.steps.send(Err(ErrorKind::BrokenPipe.into())).unwrap());
        fixture.queue.flush(PATIENCE);
        assert_eq!(fixture.queue.dropped(), 100);
        assert_eq!((fixture.written(), fixture.told.lock().len()), (String::new(), 0));
    }
}
