//! The last reloads of the rules, for the live page.

use std::fmt::Display;

use serde::Serialize;
use tokio::sync::watch;

use divvy_core::units::shorten;

/// Number of reloads that are kept.
const MAX_RELOADS: usize = 20;
/// Number of lines of a reload that are kept. The server's log has all of them.
const MAX_LINES: usize = 50;
/// Maximum length of a line (bytes).
const MAX_LINE: usize = 256;

/// The last reloads, the newest first. Their text has at most 280 KiB.
pub type RecentReloads = watch::Sender<Vec<RulesReload>>;

/// A reload of the rules.
#[derive(Debug, Serialize)]
pub struct RulesReload {
    /// Unix time in seconds.
    time: u64,
    /// Whether the new rules are in force.
    ok: bool,
    /// The differences, or the mistakes in the file.
    lines: Vec<String>,
}

impl RulesReload {
    /// Returns a reload that put rules in force, with these differences from the rules before. `time` is Unix time in seconds.
    pub fn succeeded(time: u64, differences: impl ExactSizeIterator<Item = impl Display>) -> Self {
        Self { time, ok: true, lines: bounded(differences) }
    }

    /// Returns a reload that was refused because of these mistakes.
    pub fn refused(time: u64, mistakes: impl ExactSizeIterator<Item = impl Display>) -> Self {
        Self { time, ok: false, lines: bounded(mistakes.map(|mistake| format!("problem {mistake}"))) }
    }

    /// Adds it to the last reloads, in place of the oldest one if there are too many.
    pub fn add_to(self, reloads: &RecentReloads) {
        reloads.send_modify(|reloads| {
            reloads.insert(0, self);
            reloads.truncate(MAX_RELOADS);
        });
    }
}

fn bounded(lines: impl ExactSizeIterator<Item = impl Display>) -> Vec<String> {
    let more = lines.len().saturating_sub(MAX_LINES);
    let shortened = lines.take(MAX_LINES).map(|line| shorten(line.to_string(), MAX_LINE));
    let rest = (more > 0).then(|| format!("and {more} more, which the server's log has"));
    shortened.chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_reloads_are_kept_within_bounds() {
        let log = RecentReloads::default();
        for time in 0..100 {
            RulesReload::succeeded(time, (0..1_000).map(|_| "ö".repeat(1_000))).add_to(&log);
        }
        RulesReload::refused(100, ["a mistake"].iter()).add_to(&log);
        let reloads = log.borrow();
        assert_eq!(reloads.iter().map(|reload| reload.time).collect::<Vec<_>>(), (81..=100).rev().collect::<Vec<_>>());
        assert_eq!((reloads[0].ok, &reloads[0].lines[..]), (false, &["problem a mistake".to_owned()][..]));
        assert_eq!(reloads[1].lines.len(), MAX_LINES + 1);
        assert_eq!(reloads[1].lines[MAX_LINES], "and 950 more, which the server's log has");
        assert!(serde_json::to_string(&*reloads).unwrap().len() <= 280 << 10);
    }
}
