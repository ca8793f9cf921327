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

/// Returns the process on this machine that listens on the port of `addr`.
pub fn listener_on(addr: &str) -> anyhow::Result<u32> {
    let (_, port) = addr.rsplit_once(':').context("an address has a port")?;
    let port = format!(":{:04X}", port.parse::<u16>()?);
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let sockets = tables.iter().flat_map(|table| table.lines()).filter_map(|line| {
        let columns: Vec<_> = line.split_whitespace().collect();
        // Its own address, the state LISTEN, and the inode.
        let is_it = columns.get(1)?.ends_with(&port) && *columns.get(3)? == "0A";
        is_it.then_some(format!("socket:[{}]", columns.get(9)?).into())
    });
    let sockets: Vec<std::path::PathBuf> = sockets.collect();
    let has_socket = |pid: &u32| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.filter_map(|file| std::fs::read_link(file.path()).ok()).any(|link| sockets.contains(&link))
    };
    let processes = std::fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    processes
        .into_iter()
        .find(has_socket)
        .with_context(|| format!("no process of yours on this machine listens on {addr}"))
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
