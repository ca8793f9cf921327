//! Flags and variables of the log and of the audit log.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use divvy_access::audit::AuditLog;
use divvy_core::clock::Clock;
use divvy_telemetry::logging::{self, Format, Log};
use divvy_telemetry::metrics::Metrics;

/// This program's name in `DEBUG`, and the log directive that it implies.
const DEBUG_NAME: &str = "divvy";
const DEBUG_DIRECTIVE: &str = "divvy=debug";
/// The HTTP/2 library logs a line for each client that exceeds a bound, so clients could flood the log.
const HTTP_2_DIRECTIVE: &str = "h2=error";
/// Changes by operators are logged at any level, unless the operator says otherwise.
const AUDIT_DIRECTIVE: &str = "audit=info";

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Metrics and logs")]
pub struct LogArgs {
    /// Format of log lines
    #[arg(long, value_enum, default_value_t = LogFormat::Human)]
    log_format: LogFormat,
    /// Lowest level to log. RUST_LOG refines it. DEBUG=divvy sets debug, which shows the rules at every load
    #[arg(long, env = "DIVVY_LOG", value_parser = ["error", "warn", "info", "debug", "trace"], default_value = "info")]
    log_level: String,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    /// Text for people
    Human,
    /// One JSON object per line
    Json,
}

impl LogArgs {
    /// Starts the log. `variable` reads the environment.
    ///
    /// # Errors
    /// RUST_LOG is invalid, or the system refuses a thread.
    pub fn start(&self, variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<Log> {
        let format = match self.log_format {
            LogFormat::Human => Format::Human { is_coloured: io::stderr().is_terminal() && allows_colors(&variable) },
            LogFormat::Json => Format::Json,
        };
        Ok(logging::begin(format, &self.filter(variable))?)
    }

    /// Returns whether log lines are JSON.
    pub fn is_json(&self) -> bool {
        matches!(self.log_format, LogFormat::Json)
    }

    /// Returns the directives. More specific ones are last, because they take precedence.
    fn filter(&self, variable: impl Fn(&str) -> Option<String>) -> String {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        let mut directives = [self.log_level.as_str(), HTTP_2_DIRECTIVE, AUDIT_DIRECTIVE].map(str::to_owned).to_vec();
        directives.extend(set("DEBUG").filter(|names| names_divvy(names)).map(|_| DEBUG_DIRECTIVE.to_owned()));
        directives.extend(set("RUST_LOG"));
        directives.join(",")
    }
}

/// Returns whether output to a terminal may have colors. It may not if <https://no-color.org> applies, or if the
/// terminal has none.
fn allows_colors(variable: impl Fn(&str) -> Option<String>) -> bool {
    let is_refused = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
    !is_refused && variable("TERM").is_none_or(|terminal| terminal != "dumb")
}

/// Returns whether `DEBUG` includes this program. As in Node's `debug` package, it is a list of names; a name may end
/// in `*`, and a name after `-` is excluded.
fn names_divvy(names: &str) -> bool {
    let means = |name: &str| match name.strip_suffix('*') {
        Some(start) => DEBUG_NAME.starts_with(start.trim_end_matches(':')),
        None => name == DEBUG_NAME,
    };
    let names = || names.split([',', ' ']).filter(|name| !name.is_empty());
    names().any(means) && !names().filter_map(|name| name.strip_prefix('-')).any(means)
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Metrics and logs")]
pub struct AuditArgs {
    /// File for the lines about changes by operators, one JSON object each. Without it, they are in the log
    #[arg(long, value_name = "FILE")]
    audit_log: Option<PathBuf>,
    /// Whether operators can change something while the audit log cannot be written
    #[arg(long, value_enum, default_value_t = Need::Optional, requires_if("required", "audit_log"))]
    audit: Need,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Need {
    /// They can, and the lost lines are counted
    Optional,
    /// They cannot. Each change waits until a line about it is on disk. Needs --audit-log
    Required,
}

/// How often refused attempts without a line are reported.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

impl AuditArgs {
    /// Starts the audit log. A file that cannot be written is reported, and does not stop the server. Refused attempts that
    /// have no line are reported a second after the last one, until `draining` is cancelled.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(
        &self,
        clock: Clock,
        metrics: &Arc<Metrics>,
        draining: CancellationToken,
    ) -> anyhow::Result<Arc<AuditLog>> {
        let metrics = Arc::clone(metrics);
        let audit = match &self.audit_log {
            None => AuditLog::in_log(clock, metrics),
            Some(path) => {
                let is_required = self.audit == Need::Required;
                AuditLog::in_file(path.clone(), is_required, clock, metrics).context("cannot start a thread")?
            }
        };
        let reported = Arc::clone(&audit);
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(REPORT_INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    _ = ticks.tick() => reported.report_omitted(clock.now()),
                    () = draining.cancelled() => return,
                }
            }
        });
        Ok(audit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_names_divvy_as_in_node() {
        for names in ["divvy", "*", "app,divvy", "app divvy", "div*", "divvy:*"] {
            assert!(names_divvy(names), "{names}");
        }
        for names in ["", "app", "divvyd", "app*", "*,-divvy", "-*"] {
            assert!(!names_divvy(names), "{names}");
        }
    }

    #[test]
    fn no_color_and_a_dumb_terminal_disable_colors() {
        let allowed = |no_color: Option<&str>, term: Option<&str>| {
            allows_colors(|name| if name == "NO_COLOR" { no_color } else { term }.map(str::to_owned))
        };
        assert!(allowed(None, None) && allowed(None, Some("xterm")) && allowed(Some(""), Some("xterm")));
        assert!(!allowed(Some("1"), Some("xterm")) && !allowed(None, Some("dumb")));
    }

    #[test]
    fn more_specific_directive_comes_last() {
        let args = LogArgs { log_format: LogFormat::Human, log_level: "warn".to_owned() };
        let environment = |rust_log: &'static str, debug: &'static str| {
            args.filter(move |name| Some(if name == "DEBUG" { debug } else { rust_log }.to_owned()))
        };
        assert_eq!(environment("", ""), "warn,h2=error,audit=info");
        assert_eq!(environment("", "other"), "warn,h2=error,audit=info");
        assert_eq!(environment("", "divvy"), "warn,h2=error,audit=info,divvy=debug");
        assert_eq!(environment("error,hyper=trace", "*"), "warn,h2=error,audit=info,divvy=debug,error,hyper=trace");
    }
}
