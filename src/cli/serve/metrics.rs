//! Flags for metrics. The variables of Button's Divvy keep their meaning. Flags and divvy's own variables take
//! precedence.

use anyhow::{Context, bail};

use divvy_core::units;
use divvy_server::{self as server, DEFAULT_METRICS_PATH};
use divvy_telemetry::metrics::{StatsdOptions, Transport};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Metrics and logs")]
pub struct MetricsArgs {
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
}

impl MetricsArgs {
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

    /// Returns the statsd server to send to, if any.
    ///
    /// # Errors
    /// A flag is invalid or lacks the host, or STATSD_PORT is not a port number.
    pub fn statsd(&self, variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<Option<StatsdOptions>> {
        let Some(host) = flag_or_variable(&self.statsd_host, "STATSD_HOST", &variable) else {
            return self.without_statsd();
        };
        let port = match (self.statsd_port, flag_or_variable(&None, "STATSD_PORT", &variable)) {
            (Some(port), _) => port,
            (None, None) => StatsdOptions::DEFAULT_PORT,
            (None, Some(text)) => {
                text.parse().with_context(|| format!("STATSD_PORT is {text:?}, but must be a port number"))?
            }
        };
        let prefix = flag_or_variable(&self.statsd_prefix, "STATSD_PREFIX", &variable).unwrap_or_default();
        if prefix.chars().any(|c| c.is_whitespace() || c.is_control() || ":|@#".contains(c)) {
            bail!("--statsd-prefix is {prefix:?}, but must not contain white space or any of : | @ #");
        }
        let is_tcp = self.statsd_tcp || flag_or_variable(&None, "STATSD_USE_TCP", &variable).is_some();
        let transport = if is_tcp { Transport::Tcp } else { Transport::Udp };
        Ok(Some(StatsdOptions { host, port, prefix, transport }))
    }

    /// Checks that no statsd flag is given without a host. Variables of Button's Divvy are ignored without one.
    fn without_statsd(&self) -> anyhow::Result<Option<StatsdOptions>> {
        let flags = [
            ("--statsd-port", self.statsd_port.is_some()),
            ("--statsd-prefix", self.statsd_prefix.is_some()),
            ("--statsd-tcp", self.statsd_tcp),
        ];
        match flags.iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) => bail!("{flag} (or its DIVVY_ variable) has no effect without --statsd-host: add it"),
            None => Ok(None),
        }
    }
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

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        metrics: MetricsArgs,
    }

    fn args(flags: &[&str]) -> MetricsArgs {
        Line::parse_from([&["divvy"], flags].concat()).metrics
    }

    fn statsd(flags: &[&str], variables: &[(&str, &str)]) -> Result<Option<StatsdOptions>, String> {
        args(flags).statsd(|name| lookup(variables, name)).map_err(|error| format!("{error:#}"))
    }

    fn lookup(variables: &[(&str, &str)], name: &str) -> Option<String> {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn variables_of_buttons_divvy_keep_their_meaning() {
        let variables = [("STATSD_HOST", "stats"), ("STATSD_PORT", "9125"), ("STATSD_PREFIX", "api")];
        let options = statsd(&[], &variables).unwrap().unwrap();
        assert_eq!((options.host.as_str(), options.port, options.prefix.as_str()), ("stats", 9125, "api"));
        assert_eq!(options.transport, Transport::Udp);
        let options = statsd(&[], &[("STATSD_HOST", "stats"), ("STATSD_USE_TCP", "no")]).unwrap().unwrap();
        assert_eq!((options.port, options.transport), (8125, Transport::Tcp));
        assert_eq!(statsd(&[], &[("STATSD_PORT", "9125"), ("STATSD_HOST", "")]), Ok(None));
        assert!(statsd(&[], &[("STATSD_HOST", "stats"), ("STATSD_PORT", "high")]).unwrap_err().contains("\"high\""));
    }

    #[test]
    fn flags_take_precedence_and_must_have_an_effect() {
        let variables = [("STATSD_HOST", "stats"), ("STATSD_PORT", "9125")];
        let flags = ["--statsd-host", "other", "--statsd-port", "1", "--statsd-tcp"];
        let options = statsd(&flags, &variables).unwrap().unwrap();
        assert_eq!((options.host.as_str(), options.port, options.transport), ("other", 1, Transport::Tcp));
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
