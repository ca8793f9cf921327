//! A child process that does not outlive its owner, and unmeasured requests to it.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

const STOP_PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    pub fn start(command: &mut Command) -> anyhow::Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        Ok(Self { child: command.spawn().with_context(|| format!("starting {program}; is it installed?"))? })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends SIGTERM, and waits for the end.
    pub fn terminate(mut self) -> anyhow::Result<()> {
        let id = i32::try_from(self.id()).ok().and_then(Pid::from_raw).context("not a process id")?;
        kill_process(id, Signal::TERM)?;
        let asked = Instant::now();
        while !self.has_ended() {
            if asked.elapsed() > STOP_PATIENCE {
                bail!("process {} did not stop within {STOP_PATIENCE:?} of SIGTERM", self.id());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// Sends SIGKILL.
impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the user and system time of all threads of a process, from /proc.
pub fn cpu_seconds(pid: u32) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the program's name in parentheses, which may contain any character.
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect::<Vec<_>>());
    let ticks = |field: usize| fields.as_ref()?.get(field - 3)?.parse::<u64>().ok();
    let (user, system) = ticks(14).zip(ticks(15)).with_context(|| format!("/proc/{pid}/stat: {stat}"))?;
    Ok((user + system) as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Sends `request` on a new connection. Returns the first `lines` lines of the reply, or fewer if the server closes the
/// connection.
pub fn ask(addr: &str, request: &str, lines: usize) -> anyhow::Result<String> {
    let mut socket = TcpStream::connect(addr)?;
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    socket.write_all(request.as_bytes())?;
    let mut reader = BufReader::new(socket);
    let mut reply = String::new();
    for _ in 0..lines {
        if reader.read_line(&mut reply)? == 0 {
            break;
        }
    }
    Ok(reply)
}
