//! The process's limit of open files. Each connection is an open file.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files other than connections: listening sockets, and the store's files of about 8 MiB each.
const OTHER_FILES: u64 = 4_096;

/// Raises the soft limit to the hard limit. Warns if the hard limit is too low for `connections`.
pub fn raise_open_files_limit(connections: usize) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!(%error, "cannot raise the open files limit");
    }
    let needed = connections as u64 + OTHER_FILES;
    // `None` means unlimited.
    if let Some(limit) = getrlimit(Resource::Nofile).current.filter(|limit| *limit < needed) {
        tracing::warn!(
            limit,
            "the open files limit is too low for --max-connections {connections}: raise it to {needed} \
             (ulimit -n; LimitNOFILE= for systemd), or lower --max-connections"
        );
    }
}
