//! The environment of envoyproxy/ratelimit as arguments of `divvy serve`, and as options that have no flag.
//!
//! The variables become `--flag=value`, in front of the arguments of the command line, which replace them. So clap checks both
//! alike. Values are read as ratelimit reads them. All mistakes are reported at once.
//!
//! Source: `src/settings/settings.go` of <https://github.com/envoyproxy/ratelimit>.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::Path;

use clap::ArgMatches;
use clap::parser::ValueSource;
use hyper::header::HeaderName;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use divvy_core::config::ratelimit::options::{HeaderNames, Options};
use divvy_core::units::parse_duration;

/// The name of the program that always reads the environment.
const PROGRAM: &str = "ratelimit";
/// ratelimit's default for `REDIS_URL`: the socket of a proxy.
const NO_REDIS: &str = "/var/run/nutcracker/ratelimit.sock";

/// Variables without an effect, and what divvy does.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "divvy reconnects after pauses of its own"),
    ("EXPIRATION_JITTER_MAX_SECONDS", "counters expire at different times without it"),
    ("EXTRA_TAGS", "metrics have no further tags: add them where they are collected"),
    ("FORCE_START_WITHOUT_INITIAL_CONFIG", "divvy always listens at once, and /readyz says when it can answer"),
    ("GRPC_MAX_CONNECTION_AGE", "connections may have any age; --idle-timeout ends those without requests"),
    ("GRPC_MAX_CONNECTION_AGE_GRACE", "connections may have any age"),
    ("GRPC_SERVER_TLS_CA_CERT", "ratelimit ignores it, too; GRPC_CLIENT_TLS_CACERT requires certificates of clients"),
    ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "/healthcheck follows /readyz"),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "--denial-cache is the number of denials that divvy remembers"),
    ("PROMETHEUS_MAPPER_YAML", "the names of metrics are fixed"),
    ("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "response times are in seconds"),
    ("REDIS_CLUSTER_PIPELINE_PARALLELISM", "divvy asks all nodes at the same time"),
    ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "/healthcheck always asks Redis"),
    ("REDIS_PERSECOND", "all counters are in the Redis of REDIS_URL"),
    ("REDIS_PIPELINE_LIMIT", "divvy always sends requests together"),
    ("REDIS_PIPELINE_WINDOW", "divvy always sends requests together"),
    ("REDIS_POOL_ON_EMPTY_BEHAVIOR", "divvy needs no pool"),
    ("REDIS_POOL_SIZE", "divvy needs no pool"),
    ("REDIS_STARTUP_INITIAL_INTERVAL", "divvy starts without Redis, and reconnects"),
    ("REDIS_STARTUP_MAX_ELAPSED_TIME", "divvy starts without Redis, and reconnects"),
    ("REDIS_STARTUP_MAX_INTERVAL", "divvy starts without Redis, and reconnects"),
    ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "divvy always compares the name with the certificate"),
    ("STATS_FLUSH_INTERVAL", "divvy sends metrics every second"),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "divvy also counts what it denies"),
    ("TRACING_ENABLED", "divvy exports no traces"),
    ("USE_DOG_STATSD", "USE_STATSD sends metrics without tags"),
    ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "divvy reconnects after pauses of its own"),
    ("XDS_CLIENT_BACKOFF_JITTER", "divvy reconnects after pauses of its own"),
    ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "divvy reconnects after pauses of its own"),
    ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "divvy reconnects after pauses of its own"),
];

/// Variables that must not be set, because nothing in divvy does the same, and what to write.
const REFUSED: &[(&str, &str)] = &[
    ("GRPC_UDS", "divvy serves gRPC over TCP: remove it, and set GRPC_HOST and GRPC_PORT"),
    (
        "GRPC_CLIENT_TLS_SAN",
        "remove it, and name the clients' certificates in an access file (--access-file) with `cert:` words",
    ),
];

/// The settings in ratelimit's environment.
#[derive(Default)]
pub struct RatelimitEnvironment {
    arguments: Vec<Argument>,
    /// Settings without a flag.
    pub options: Options,
    /// Warnings about variables without an effect.
    pub warnings: Vec<String>,
}

/// An argument of `divvy serve`.
struct Argument {
    /// `--flag=value`, or `--flag`.
    text: String,
    /// Flags that replace the argument if the command line has one of them.
    replaced_by: &'static [&'static str],
}

/// Inserts `serve --ratelimit-env` in the command line of a program that is called `ratelimit`.
pub fn serve_if_called_ratelimit(line: &mut Vec<OsString>) {
    let is_ratelimit = |program: &OsString| Path::new(program).file_name().is_some_and(|name| name == PROGRAM);
    if line.first().is_some_and(is_ratelimit) {
        line.splice(1..1, ["serve", "--ratelimit-env"].map(Into::into));
    }
}

impl RatelimitEnvironment {
    /// Reads the environment.
    ///
    /// # Errors
    /// A line for each mistake, with the variable's name and what to write.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Vec<String>> {
        let mut reader = Reader { variable, read: Self::default(), problems: Vec::new(), replaced_by: &[] };
        reader.read_listeners();
        reader.read_tls();
        reader.read_configuration();
        reader.read_redis();
        reader.read_statsd();
        reader.read_log();
        reader.read_options();
        reader.read_others();
        if reader.problems.is_empty() { Ok(reader.read) } else { Err(reader.problems) }
    }

    /// Inserts the arguments after `divvy serve`, but for those that the command line replaces. `given` has what it says.
    pub fn insert(&self, line: &mut Vec<OsString>, given: &ArgMatches) {
        let ids = given.ids().map(clap::Id::as_str);
        let given: HashSet<_> = ids
            .filter(|id| given.value_source(id) == Some(ValueSource::CommandLine))
            .map(|id| id.replace('_', "-"))
            .collect();
        let is_kept = |argument: &&Argument| {
            let own = argument.text.trim_start_matches('-').split('=').next().unwrap_or_default();
            !argument.replaced_by.iter().chain([&own]).any(|flag| given.contains(*flag))
        };
        let kept: Vec<_> =
            self.arguments.iter().filter(is_kept).map(|argument| argument.text.as_str().into()).collect();
        line.splice(2..2, kept);
    }
}

/// Reads variables, and collects what is wrong with them.
struct Reader<F> {
    variable: F,
    read: RatelimitEnvironment,
    problems: Vec<String>,
    /// Flags that replace the arguments of the section that is being read.
    replaced_by: &'static [&'static str],
}

impl<F: Fn(&str) -> Option<String>> Reader<F> {
    fn read_listeners(&mut self) {
        let mut http = vec![self.address("HOST", "PORT", "8080"), self.address("DEBUG_HOST", "DEBUG_PORT", "6070")];
        if self.flag("USE_PROMETHEUS") {
            let address = self.text("PROMETHEUS_ADDR").unwrap_or_else(|| ":9090".to_owned());
            // Go listens on all addresses if there is no host.
            http.push(if address.starts_with(':') { format!("0.0.0.0{address}") } else { address });
        }
        let mut seen = HashSet::new();
        http.retain(|address| seen.insert(address.clone()));
        self.pass("http-listen", &http.join(","));
        let grpc = self.address("GRPC_HOST", "GRPC_PORT", "8081");
        self.pass("grpc-listen", &grpc);
        // ratelimit has no such listeners.
        self.pass("listen", "none");
        self.pass("resp-listen", "none");
        self.pass_text("PROMETHEUS_PATH", "metrics-path");
    }

    fn address(&mut self, host: &str, port: &str, default_port: &str) -> String {
        let port = self.port(port, default_port);
        match self.text(host).as_deref() {
            Some(host) if host.contains(':') && !host.starts_with('[') => format!("[{host}]:{port}"),
            Some(host) => format!("{host}:{port}"),
            None => format!("0.0.0.0:{port}"),
        }
    }

    fn read_tls(&mut self) {
        self.replaced_by = &["tls-cert"];
        if !self.flag("GRPC_SERVER_USE_TLS") {
            return;
        }
        for (name, flag) in [("GRPC_SERVER_TLS_CERT", "tls-cert"), ("GRPC_SERVER_TLS_KEY", "tls-key")] {
            if !self.pass_text(name, flag) {
                self.problems
                    .push(format!("{name} is missing, but GRPC_SERVER_USE_TLS needs it: write the path of a file"));
            }
        }
        self.pass("tls-fronts", "grpc");
        self.pass_text("GRPC_CLIENT_TLS_CACERT", "tls-client-ca");
    }

    fn read_configuration(&mut self) {
        self.replaced_by = &["ratelimit-config", "ratelimit-xds"];
        // divvy notices any change, and ignores dot files.
        self.flag_or("RUNTIME_WATCH_ROOT", true);
        self.flag("RUNTIME_IGNOREDOTFILES");
        match self.word("CONFIG_TYPE", &["FILE", "GRPC_XDS_SOTW"]).as_deref() {
            Some("GRPC_XDS_SOTW") => self.read_xds(),
            _ => {
                let root = self.text("RUNTIME_ROOT").unwrap_or_else(|| "/srv/runtime_data/current".to_owned());
                let below = self.text("RUNTIME_SUBDIRECTORY").unwrap_or_default();
                let name = (self.variable)("RUNTIME_APPDIRECTORY").unwrap_or_else(|| "config".to_owned());
                let below =
                    [&below, &name].map(|part| part.trim_matches('/')).into_iter().filter(|part| !part.is_empty());
                let parts: Vec<_> = [root.trim_end_matches('/')].into_iter().chain(below).collect();
                self.pass("ratelimit-config", &parts.join("/"));
            }
        }
    }

    fn read_xds(&mut self) {
        let is_tls = self.flag("CONFIG_GRPC_XDS_SERVER_USE_TLS");
        let server = self.text("CONFIG_GRPC_XDS_SERVER_URL").unwrap_or_else(|| "localhost:18000".to_owned());
        self.pass("ratelimit-xds", &format!("{}://{server}", if is_tls { "https" } else { "http" }));
        let node = self.text("CONFIG_GRPC_XDS_NODE_ID").unwrap_or_else(|| "default".to_owned());
        self.pass("ratelimit-xds-node", &node);
        self.pass_text("CONFIG_GRPC_XDS_NODE_METADATA", "ratelimit-xds-node-metadata");
        let headers = self.checked("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "NAME:VALUE,NAME:VALUE", |text| {
            text.trim().is_empty() || text.split(',').all(|header| header.matches(':').count() == 1)
        });
        for header in headers.iter().flat_map(|headers| headers.split(',')).filter(|header| !header.trim().is_empty()) {
            self.pass("ratelimit-xds-header", header);
        }
        if is_tls {
            self.pass_text("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "ratelimit-xds-ca");
            self.pass_text("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "ratelimit-xds-cert");
            self.pass_text("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "ratelimit-xds-key");
            self.pass_text("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "ratelimit-xds-server-name");
        }
        if let Some(bytes) = self.checked("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "a number of bytes", is_decimal) {
            self.pass("ratelimit-xds-max-message", &bytes);
        }
    }

    fn read_redis(&mut self) {
        self.replaced_by = &["redis-url", "store"];
        if let Some(backend) = self.text("BACKEND_TYPE").filter(|backend| backend != "redis") {
            self.problems.push(format!("BACKEND_TYPE is {backend:?}, which divvy does not have: write redis"));
        }
        let is_tls = self.flag("REDIS_TLS");
        let kind = self.word("REDIS_TYPE", &["SINGLE", "SENTINEL", "CLUSTER"]);
        let is_tcp = self.checked("REDIS_SOCKET_TYPE", "tcp or unix", |text| ["tcp", "unix"].contains(&text));
        let is_tcp = is_tcp.is_some_and(|socket| socket == "tcp");
        let timeout =
            self.checked("REDIS_TIMEOUT", "a time such as 500ms or 1h30m", |text| parse_duration(text).is_some());
        let Some(url) = self.text("REDIS_URL").filter(|url| url != NO_REDIS) else { return };
        let servers: Vec<_> = url.split(',').map(str::trim).collect();
        let urls: Vec<_> = match (kind.as_deref(), servers.split_first()) {
            (Some("SENTINEL"), Some((_, []))) => {
                self.problems.push("REDIS_URL has no sentinels: write MASTER_NAME,HOST:PORT,HOST:PORT".to_owned());
                return;
            }
            (Some("SENTINEL"), Some((master, sentinels))) => {
                self.pass("redis-sentinel-master", master);
                self.pass_text("REDIS_SENTINEL_AUTH", "redis-sentinel-auth");
                sentinels.iter().map(|server| self.redis_url(server, is_tls)).collect()
            }
            // Several nodes show that there is a cluster.
            (Some("CLUSTER"), Some((node, []))) => vec![self.redis_url(node, is_tls); 2],
            (Some("CLUSTER"), _) => servers.iter().map(|server| self.redis_url(server, is_tls)).collect(),
            _ => {
                let is_path = url.starts_with('/');
                if is_path == is_tcp && !url.contains("://") {
                    let needed = if is_path { "unix" } else { "tcp" };
                    self.problems.push(format!("REDIS_SOCKET_TYPE does not fit REDIS_URL: write {needed}"));
                }
                vec![self.redis_url(&url, is_tls)]
            }
        };
        self.pass("redis-url", &urls.join(","));
        if let Some(timeout) = timeout {
            self.pass("redis-timeout", &timeout);
        }
        if is_tls {
            self.pass_text("REDIS_TLS_CACERT", "redis-ca");
            self.pass_text("REDIS_TLS_CLIENT_CERT", "redis-cert");
            self.pass_text("REDIS_TLS_CLIENT_KEY", "redis-key");
        }
    }

    /// Returns the URL of a server, with the password for all of them.
    fn redis_url(&self, server: &str, is_tls: bool) -> String {
        if server.contains("://") {
            return server.to_owned();
        }
        let auth = self.text("REDIS_AUTH").map(|auth| {
            let (user, password) = auth.split_once(':').unwrap_or(("", &auth));
            [user, password].map(|text| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string())
        });
        match (server.starts_with('/'), auth) {
            (true, None) => format!("redis+unix://{server}"),
            (true, Some([user, password])) if user.is_empty() => format!("redis+unix://{server}?pass={password}"),
            (true, Some([user, password])) => format!("redis+unix://{server}?user={user}&pass={password}"),
            (false, auth) => {
                let auth = auth.map(|[user, password]| format!("{user}:{password}@")).unwrap_or_default();
                format!("{}://{auth}{server}", if is_tls { "rediss" } else { "redis" })
            }
        }
    }

    fn read_statsd(&mut self) {
        self.replaced_by = &["statsd-host"];
        let port = self.port("STATSD_PORT", "8125");
        let (is_on, is_off) = (self.flag_or("USE_STATSD", true), self.flag("DISABLE_STATS"));
        if !is_on || is_off {
            // The flag without a value also turns off the variable of Button's Divvy.
            return self.pass("statsd-host", "");
        }
        let host = self.text("STATSD_HOST").unwrap_or_else(|| "localhost".to_owned());
        self.pass("statsd-host", &host);
        self.pass("statsd-port", &port);
        self.push("--statsd-tcp".to_owned());
    }

    fn read_log(&mut self) {
        self.replaced_by = &[];
        let levels = ["PANIC", "FATAL", "ERROR", "WARN", "WARNING", "INFO", "DEBUG", "TRACE"];
        match self.word("LOG_LEVEL", &levels).as_deref() {
            Some("PANIC" | "FATAL") => self.pass("log-level", "error"),
            Some("WARNING") => self.pass("log-level", "warn"),
            Some(level) => self.pass("log-level", &level.to_lowercase()),
            None => {}
        }
        if let Some(format) = self.text("LOG_FORMAT") {
            self.pass("log-format", if format.eq_ignore_ascii_case("json") { "json" } else { "human" });
        }
    }

    fn read_options(&mut self) {
        let is_ratio = |text: &str| text.parse().is_ok_and(|ratio| (0.0..=1.0_f32).contains(&ratio));
        let ratio = self.checked("NEAR_LIMIT_RATIO", "a number from 0 to 1", is_ratio);
        let default = Options::default();
        let HeaderNames { limit, remaining, reset } = HeaderNames::default();
        let headers = HeaderNames {
            limit: self.header("LIMIT_LIMIT_HEADER", limit),
            remaining: self.header("LIMIT_REMAINING_HEADER", remaining),
            reset: self.header("LIMIT_RESET_HEADER", reset),
        };
        self.read.options = Options {
            merges_domains: self.flag("MERGE_DOMAIN_CONFIG"),
            key_prefix: self.text("CACHE_KEY_PREFIX").unwrap_or_default(),
            near_limit_ratio: ratio.and_then(|ratio| ratio.parse().ok()).unwrap_or(default.near_limit_ratio),
            shadow_mode: self.flag("SHADOW_MODE"),
            quota_mode: self.flag("QUOTA_MODE"),
            dynamic_metadata: self.flag("RESPONSE_DYNAMIC_METADATA"),
            headers: self.flag("LIMIT_RESPONSE_HEADERS_ENABLED").then_some(headers),
        };
    }

    fn header(&mut self, name: &str, default: String) -> String {
        let is_header = |text: &str| HeaderName::from_bytes(text.as_bytes()).is_ok();
        self.checked(name, "the name of a header", is_header).unwrap_or(default)
    }

    fn read_others(&mut self) {
        for (name, remedy) in REFUSED {
            if self.text(name).is_some() {
                self.problems.push(format!("{name}: {remedy}"));
            }
        }
        for (name, instead) in WITHOUT_EFFECT {
            if self.text(name).is_some_and(|value| parse_bool(&value) != Some(false)) {
                self.read.warnings.push(format!("{name} has no effect: {instead}"));
            }
        }
    }

    /// Returns the value of a variable. An empty one counts as missing.
    fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    /// Returns the value of a variable, which must be valid if it is set, even if it is empty.
    fn checked(&mut self, name: &str, expected: &str, is_valid: impl FnOnce(&str) -> bool) -> Option<String> {
        let value = (self.variable)(name)?;
        if is_valid(&value) {
            return Some(value);
        }
        self.problems.push(format!("{name} is {value:?}: write {expected}"));
        None
    }

    /// Returns the value of a variable in upper case, which must be one of `words` in any case.
    fn word(&mut self, name: &str, words: &[&str]) -> Option<String> {
        let is_known = |text: &str| words.iter().any(|word| word.eq_ignore_ascii_case(text));
        self.checked(name, &words.join(" or "), is_known).map(|word| word.to_uppercase())
    }

    fn flag(&mut self, name: &str) -> bool {
        self.flag_or(name, false)
    }

    fn flag_or(&mut self, name: &str, default: bool) -> bool {
        let value = self.checked(name, "true or false", |text| parse_bool(text).is_some());
        value.and_then(|value| parse_bool(&value)).unwrap_or(default)
    }

    fn port(&mut self, name: &str, default: &str) -> String {
        let port =
            self.checked(name, "a port number from 0 to 65535", |text| is_decimal(text) && text.parse::<u16>().is_ok());
        port.unwrap_or_else(|| default.to_owned())
    }

    fn pass(&mut self, flag: &str, value: &str) {
        self.push(format!("--{flag}={value}"));
    }

    fn push(&mut self, text: String) {
        self.read.arguments.push(Argument { text, replaced_by: self.replaced_by });
    }

    /// Passes the value of a variable on. Returns whether there is one.
    fn pass_text(&mut self, name: &str, flag: &str) -> bool {
        let value = self.text(name);
        value.iter().for_each(|value| self.pass(flag, value));
        value.is_some()
    }
}

/// Reads a boolean as Go does.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// Returns whether a text is a decimal number. Go reads a number that begins with 0 as octal.
fn is_decimal(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'))
}

#[cfg(test)]
mod tests;
