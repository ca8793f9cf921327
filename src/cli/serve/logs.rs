//! Flags and variables of the log, the audit log and the metrics. The variables of Button's Divvy keep their meaning. Flags and divvy's
//! own variables take precedence.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{ArgMatches, ValueEnum};
use tokio_util::sync::CancellationToken;

use super::limiter::ticks;
use crate::cli::values::is_given;
use divvy_access::audit::AuditLog;
use divvy_core::clock::Clock;
use divvy_core::units;
use divvy_server::{self as server, DEFAULT_METRICS_PATH};
use divvy_telemetry::logging::{self, Format, Log};
use divvy_telemetry::metrics::{DEFAULT_STATSD_PORT, Metrics, StatsdOptions};

/// Changes by operators are logged at any level, unless the operator says otherwise.
const AUDIT_DIRECTIVE: &str = "audit=info";
/// How often refused attempts without a line in the audit log are reported.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
#[command(next_help_heading = "Metrics and logs")]
pub struct LogArgs {
    /// Path of the metrics on the HTTP listener. PROMETHEUS_METRICS_PATH also sets it [default: /metrics]
    #[arg(long, value_name = "PATH")]
    metrics_path: Option<String>,
    /// Send metrics to statsd on this host. STATSD_HOST also sets it
    #[arg(long, value_name = "HOST")]
    statsd_host: Option<String>,
    /// Port of statsd. STATSD_PORT also sets it [default: 8125]
    #[arg(long, value_name = "PORT", value_parser = units::count::<u16>(1..=u16::MAX.into()))]
    statsd_port: Option<u16>,
    /// Prefix of metric names in statsd, followed by a dot. STATSD_PREFIX also sets it [default: none]
    #[arg(long, value_name = "PREFIX")]
    statsd_prefix: Option<String>,
    /// Use TCP instead of UDP for statsd. Any value of STATSD_USE_TCP also sets it
    #[arg(long)]
    statsd_tcp: bool,
    /// Format of log lines
    #[arg(long, value_enum, default_value_t = Format::Human)]
    log_format: Format,
    /// Lowest level to log. RUST_LOG refines it. DEBUG=divvy sets debug, which shows the rules at every load
    #[arg(long, env = "DIVVY_LOG", value_parser = ["error", "warn", "info", "debug", "trace"], default_value = "info")]
    log_level: String,
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

impl LogArgs {
    /// Starts the log. `variable` reads the environment.
    ///
    /// # Errors
    /// RUST_LOG is invalid, or the system refuses a thread.
    pub fn start(&self, variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<Log> {
        let is_coloured = io::stderr().is_terminal() && allows_colors(&variable);
        Ok(logging::begin(self.log_format, is_coloured, &self.filter(variable))?)
    }

    /// Returns whether log lines are JSON.
    pub fn is_json(&self) -> bool {
        self.log_format == Format::Json
    }

    /// Returns the directives. More specific ones are last, because they take precedence.
    fn filter(&self, variable: impl Fn(&str) -> Option<String>) -> String {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        let mut directives = [self.log_level.as_str(), AUDIT_DIRECTIVE].map(str::to_owned).to_vec();
        directives.extend(set("DEBUG").filter(|names| names_divvy(names)).map(|_| "divvy=debug".to_owned()));
        directives.extend(set("RUST_LOG"));
        directives.join(",")
    }

    /// Starts the audit log. A file that cannot be written is reported, and does not stop the server. Refused attempts that
    /// have no line are reported a second after the last one, until `draining` is cancelled.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start_audit(
        &self,
        clock: Clock,
        metrics: &Arc<Metrics>,
        draining: CancellationToken,
    ) -> anyhow::Result<Arc<AuditLog>> {
        let is_required = self.audit == Need::Required;
        let audit = AuditLog::new(self.audit_log.clone(), is_required, clock, Arc::clone(metrics));
        let audit = audit.context("cannot start a thread")?;
        let reported = Arc::clone(&audit);
        tokio::spawn(async move {
            let mut ticks = ticks(REPORT_INTERVAL);
            while draining.run_until_cancelled(ticks.tick()).await.is_some() {
                reported.report_omitted(clock.now());
            }
        });
        Ok(audit)
    }

    /// Returns the path of the metrics on the HTTP listener. `variable` reads the environment.
    ///
    /// # Errors
    /// It is not a valid path, or belongs to another page.
    pub fn metrics_path(&self, variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<String> {
        let path = flag_or_variable(&self.metrics_path, "PROMETHEUS_METRICS_PATH", variable);
        let path = path.unwrap_or_else(|| DEFAULT_METRICS_PATH.to_owned());
        server::check_metrics_path(&path).with_context(|| format!("--metrics-path is {path:?}"))?;
        Ok(path)
    }

    /// Returns the statsd server to send to, if any. `given` has the flags.
    ///
    /// # Errors
    /// A flag is invalid or lacks the host, or STATSD_PORT is not a port number.
    pub fn statsd(
        &self,
        given: &ArgMatches,
        variable: impl Fn(&str) -> Option<String>,
    ) -> anyhow::Result<Option<StatsdOptions>> {
        let Some(host) = flag_or_variable(&self.statsd_host, "STATSD_HOST", &variable) else {
            // Variables of Button's Divvy are ignored without a host.
            let others = ["statsd_port", "statsd_prefix", "statsd_tcp"];
            if let Some(flag) = others.iter().find(|flag| is_given(given, flag)) {
                bail!(
                    "--{} (or its DIVVY_ variable) has no effect without --statsd-host: add it",
                    flag.replace('_', "-")
                );
            }
            return Ok(None);
        };
        let port = match (self.statsd_port, flag_or_variable(&None, "STATSD_PORT", &variable)) {
            (Some(port), _) => port,
            (None, None) => DEFAULT_STATSD_PORT,
            (None, Some(text)) => {
                text.parse().with_context(|| format!("STATSD_PORT is {text:?}, but must be a port number"))?
            }
        };
        let prefix = flag_or_variable(&self.statsd_prefix, "STATSD_PREFIX", &variable).unwrap_or_default();
        if prefix.chars().any(|c| c.is_whitespace() || c.is_control() || ":|@#".contains(c)) {
            bail!("--statsd-prefix is {prefix:?}, but must not contain white space or any of : | @ #");
        }
        let is_tcp = self.statsd_tcp || flag_or_variable(&None, "STATSD_USE_TCP", &variable).is_some();
        Ok(Some(StatsdOptions { host, port, prefix, is_tcp }))
    }
}

/// Returns whether output to a terminal may have colors. It may not if <https://no-color.org> applies, or if the
/// terminal has none.
fn allows_colors(variable: impl Fn(&str) -> Option<String>) -> bool {
    let is_refused = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
    !is_refused && variable("TERM").is_none_or(|terminal| terminal != "dumb")
}

/// Returns whether `DEBUG`, a list of names as in Node's `debug` package, includes this program.
fn names_divvy(names: &str) -> bool {
    names.split([',', ' ']).any(|name| name == "divvy" || name == "*")
}

/// Returns the value of a flag, or else of Button's Divvy's variable. Empty values count as missing.
fn flag_or_variable(
    flag: &Option<String>,
    original: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    flag.clone().or_else(|| variable(original)).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches, Parser};

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        logs: LogArgs,
    }

    fn args(flags: &[&str]) -> LogArgs {
        Line::parse_from([&["divvy"], flags].concat()).logs
    }

    #[test]
    fn debug_names_divvy_as_in_node() {
        for names in ["divvy", "*", "app,divvy", "app divvy"] {
            assert!(names_divvy(names), "{names}");
        }
        for names in ["", "app", "divvyd", "-divvy"] {
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
        let args = args(&["--log-level", "warn"]);
        let environment = |rust_log: &'static str, debug: &'static str| {
            args.filter(move |name| Some(if name == "DEBUG" { debug } else { rust_log }.to_owned()))
        };
        assert_eq!(environment("", ""), "warn,audit=info");
        assert_eq!(environment("", "other"), "warn,audit=info");
        assert_eq!(environment("", "divvy"), "warn,audit=info,divvy=debug");
        assert_eq!(environment("error,hyper=trace", "*"), "warn,audit=info,divvy=debug,error,hyper=trace");
    }

    fn statsd(flags: &[&str], variables: &[(&str, &str)]) -> Result<Option<StatsdOptions>, String> {
        let given = Line::command().get_matches_from([&["divvy"], flags].concat());
        let logs = Line::from_arg_matches(&given).unwrap().logs;
        logs.statsd(&given, |name| lookup(variables, name)).map_err(|error| format!("{error:#}"))
    }

    fn lookup(variables: &[(&str, &str)], name: &str) -> Option<String> {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn variables_of_buttons_divvy_keep_their_meaning() {
        let variables = [("STATSD_HOST", "stats"), ("STATSD_PORT", "9125"), ("STATSD_PREFIX", "api")];
        let options = statsd(&[], &variables).unwrap().unwrap();
        assert_eq!((options.host.as_str(), options.port, options.prefix.as_str()), ("stats", 9125, "api"));
        assert!(!options.is_tcp);
        let options = statsd(&[], &[("STATSD_HOST", "stats"), ("STATSD_USE_TCP", "no")]).unwrap().unwrap();
        assert_eq!((options.port, options.is_tcp), (8125, true));
        assert_eq!(statsd(&[], &[("STATSD_PORT", "9125"), ("STATSD_HOST", "")]), Ok(None));
        assert!(statsd(&[], &[("STATSD_HOST", "stats"), ("STATSD_PORT", "high")]).unwrap_err().contains("\"high\""));
    }

    #[test]
    fn flags_take_precedence_and_must_have_an_effect() {
        let variables = [("STATSD_HOST", "stats"), ("STATSD_PORT", "9125")];
        let flags = ["--statsd-host", "other", "--statsd-port", "1", "--statsd-tcp"];
        let options = statsd(&flags, &variables).unwrap().unwrap();
        assert_eq!((options.host.as_str(), options.port, options.is_tcp), ("other", 1, true));
        assert!(statsd(&["--statsd-port", "1"], &[]).unwrap_err().contains("--statsd-host"));
        assert!(statsd(&["--statsd-prefix", "a:b"], &variables).unwrap_err().contains("\"a:b\""));
    }

    #[test]
    fn metrics_path_is_configurable() {
        let path = |flags: &[&str], variables: &[(&str, &str)]| {
            args(flags).metrics_path(|name| lookup(variables, name)).map_err(|error| format!("{error:#}"))
        };
        assert_eq!(path(&[], &[]).as_deref(), Ok("/metrics"));
        assert_eq!(path(&[], &[("PROMETHEUS_METRICS_PATH", "/a/b")]).as_deref(), Ok("/a/b"));
        assert_eq!(path(&["--metrics-path", "/"], &[("PROMETHEUS_METRICS_PATH", "/a/b")]).as_deref(), Ok("/"));
        for refused in ["metrics", "/healthz", "/v1", "/v1/hit", "/{a}", "/a b", "/*a", "//"] {
            assert!(path(&["--metrics-path", refused], &[]).unwrap_err().contains(refused), "{refused}");
        }
    }
}
