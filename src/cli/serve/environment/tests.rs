use clap::{CommandFactory, Parser};

use super::*;

type Variables<'a> = &'a [(&'a str, &'a str)];

fn try_read(variables: Variables) -> Result<RatelimitEnvironment, Vec<String>> {
    let find = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    RatelimitEnvironment::read(find)
}

fn read(variables: Variables) -> RatelimitEnvironment {
    try_read(variables).unwrap_or_else(|problems| panic!("{problems:?}"))
}

/// Returns the arguments that an empty environment does not have, with spaces between them.
fn added(variables: Variables) -> String {
    let without = texts(&read(&[]));
    texts(&read(variables)).into_iter().filter(|text| !without.contains(text)).collect::<Vec<_>>().join(" ")
}

fn texts(environment: &RatelimitEnvironment) -> Vec<String> {
    environment.arguments.iter().map(|argument| argument.text.clone()).collect()
}

const DEFAULTS: &str = "--http-listen=0.0.0.0:8080,0.0.0.0:6070 --grpc-listen=0.0.0.0:8081 --listen=none --resp-listen=none \
    --ratelimit-config=/srv/runtime_data/current/config --statsd-host=localhost --statsd-port=8125 --statsd-tcp";

#[test]
fn empty_environment_means_the_defaults_of_ratelimit() {
    let environment = read(&[("PATH", "/bin"), ("SHADOW", "x")]);
    assert_eq!(texts(&environment).join(" "), DEFAULTS);
    assert_eq!((environment.options, environment.warnings), (Options::default(), Vec::new()));
}

#[test]
fn each_variable_becomes_a_flag() {
    for (variables, expected) in [
        (
            &[("HOST", "10.0.0.1"), ("PORT", "80"), ("DEBUG_HOST", "::1"), ("DEBUG_PORT", "0")][..],
            "--http-listen=10.0.0.1:80,[::1]:0",
        ),
        (&[("DEBUG_PORT", "8080"), ("HOST", "")], "--http-listen=0.0.0.0:8080"),
        (&[("USE_PROMETHEUS", "1")], "--http-listen=0.0.0.0:8080,0.0.0.0:6070,0.0.0.0:9090"),
        (
            &[("USE_PROMETHEUS", "T"), ("PROMETHEUS_ADDR", "[::]:1"), ("PROMETHEUS_PATH", "/m")],
            "--http-listen=0.0.0.0:8080,0.0.0.0:6070,[::]:1 --metrics-path=/m",
        ),
        (&[("USE_PROMETHEUS", "F"), ("PROMETHEUS_ADDR", ":1")], ""),
        (&[("GRPC_HOST", "localhost"), ("GRPC_PORT", "81")], "--grpc-listen=localhost:81"),
        (
            &[("GRPC_SERVER_USE_TLS", "true"), ("GRPC_SERVER_TLS_CERT", "/c"), ("GRPC_SERVER_TLS_KEY", "/k")],
            "--tls-cert=/c --tls-key=/k --tls-fronts=grpc",
        ),
        (
            &[
                ("GRPC_SERVER_USE_TLS", "true"),
                ("GRPC_SERVER_TLS_CERT", "/c"),
                ("GRPC_SERVER_TLS_KEY", "/k"),
                ("GRPC_CLIENT_TLS_CACERT", "/ca"),
            ],
            "--tls-cert=/c --tls-key=/k --tls-fronts=grpc --tls-client-ca=/ca",
        ),
        (&[("GRPC_SERVER_TLS_CERT", "/c")], ""),
        (
            &[
                ("CONFIG_TYPE", "FILE"),
                ("RUNTIME_ROOT", "/data/"),
                ("RUNTIME_SUBDIRECTORY", "ratelimit/"),
                ("RUNTIME_IGNOREDOTFILES", "true"),
                ("RUNTIME_WATCH_ROOT", "false"),
            ],
            "--ratelimit-config=/data/ratelimit/config",
        ),
        (&[("RUNTIME_ROOT", "/data"), ("RUNTIME_APPDIRECTORY", "")], "--ratelimit-config=/data"),
        (&[("CONFIG_TYPE", "GRPC_XDS_SOTW")], "--ratelimit-xds=http://localhost:18000 --ratelimit-xds-node=default"),
        (
            &[
                ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
                ("CONFIG_GRPC_XDS_SERVER_URL", "gateway:18001"),
                ("CONFIG_GRPC_XDS_NODE_ID", "n"),
                ("CONFIG_GRPC_XDS_NODE_METADATA", "a=b,c=d"),
                ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "x-a:1,x-b:2"),
                ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
                ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/c"),
                ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/k"),
                ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/ca"),
                ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "gw"),
                ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "9000000"),
            ],
            "--ratelimit-xds=https://gateway:18001 --ratelimit-xds-node=n --ratelimit-xds-node-metadata=a=b,c=d \
          --ratelimit-xds-header=x-a:1 --ratelimit-xds-header=x-b:2 --ratelimit-xds-ca=/ca --ratelimit-xds-cert=/c \
          --ratelimit-xds-key=/k --ratelimit-xds-server-name=gw --ratelimit-xds-max-message=9000000",
        ),
        (&[("CONFIG_GRPC_XDS_SERVER_URL", "gateway:18001")], ""),
        (&[("REDIS_URL", NO_REDIS), ("REDIS_AUTH", "x")], ""),
        (&[("REDIS_URL", ""), ("REDIS_TIMEOUT", "1s")], ""),
        (
            &[("REDIS_URL", "/run/redis.sock"), ("REDIS_AUTH", "p?")],
            "--redis-url=redis+unix:///run/redis.sock?pass=p%3F",
        ),
        (
            &[("REDIS_URL", "/r"), ("REDIS_AUTH", "u:p"), ("REDIS_SOCKET_TYPE", "unix")],
            "--redis-url=redis+unix:///r?user=u&pass=p",
        ),
        (
            &[
                ("REDIS_URL", "redis:6379"),
                ("REDIS_SOCKET_TYPE", "tcp"),
                ("REDIS_TYPE", "single"),
                ("REDIS_TIMEOUT", "1m0.5s"),
            ],
            "--redis-url=redis://redis:6379 --redis-timeout=1m0.5s",
        ),
        (
            &[("REDIS_URL", "redis:6379"), ("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_AUTH", "u:a:b,@")],
            "--redis-url=redis://u:a%3Ab%2C%40@redis:6379",
        ),
        (
            &[
                ("REDIS_URL", "redis:6379"),
                ("REDIS_SOCKET_TYPE", "tcp"),
                ("REDIS_TLS", "true"),
                ("REDIS_TLS_CACERT", "/ca"),
                ("REDIS_TLS_CLIENT_CERT", "/c"),
                ("REDIS_TLS_CLIENT_KEY", "/k"),
            ],
            "--redis-url=rediss://redis:6379 --redis-ca=/ca --redis-cert=/c --redis-key=/k",
        ),
        (&[("REDIS_URL", "redis://redis:6379/2")], "--redis-url=redis://redis:6379/2"),
        (
            &[
                ("REDIS_URL", "main, a:1,b:2"),
                ("REDIS_TYPE", "Sentinel"),
                ("REDIS_AUTH", "p"),
                ("REDIS_SENTINEL_AUTH", "s"),
            ],
            "--redis-sentinel-master=main --redis-sentinel-auth=s --redis-url=redis://:p@a:1,redis://:p@b:2",
        ),
        (&[("REDIS_URL", "a:1,b:2"), ("REDIS_TYPE", "CLUSTER")], "--redis-url=redis://a:1,redis://b:2"),
        (&[("REDIS_URL", "a:1"), ("REDIS_TYPE", "cluster")], "--redis-url=redis://a:1,redis://a:1"),
        (&[("BACKEND_TYPE", "redis")], ""),
        (&[("STATSD_HOST", "stats"), ("STATSD_PORT", "9125")], "--statsd-host=stats --statsd-port=9125"),
        (&[("USE_STATSD", "false"), ("STATSD_HOST", "stats")], "--statsd-host="),
        (&[("DISABLE_STATS", "true")], "--statsd-host="),
        (&[("LOG_LEVEL", "WARNING"), ("LOG_FORMAT", "JSON")], "--log-level=warn --log-format=json"),
        (&[("LOG_LEVEL", "debug"), ("LOG_FORMAT", "text")], "--log-level=debug --log-format=human"),
        (&[("LOG_LEVEL", "panic")], "--log-level=error"),
    ] {
        assert_eq!(added(variables), expected, "{variables:?}");
    }
}

/// The variables of Envoy Gateway, with TLS to Redis and with Prometheus.
#[test]
fn environment_of_envoy_gateway_is_complete() {
    let environment = read(&[
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("LOG_LEVEL", "info"),
        ("USE_STATSD", "false"),
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", "envoy-gateway:18001"),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", "/certs/tls.crt"),
        ("GRPC_SERVER_TLS_KEY", "/certs/tls.key"),
        ("GRPC_SERVER_TLS_CA_CERT", "/certs/ca.crt"),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/certs/tls.crt"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/certs/tls.key"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/certs/ca.crt"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", "redis.redis:6379"),
        ("REDIS_TLS", "true"),
        ("REDIS_TLS_CLIENT_CERT", "/redis-certs/tls.crt"),
        ("REDIS_TLS_CLIENT_KEY", "/redis-certs/tls.key"),
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", ":19001"),
        ("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml"),
    ]);
    let expected = [
        "--http-listen=0.0.0.0:8080,0.0.0.0:6070,0.0.0.0:19001",
        "--grpc-listen=0.0.0.0:8081",
        "--listen=none",
        "--resp-listen=none",
        "--tls-cert=/certs/tls.crt",
        "--tls-key=/certs/tls.key",
        "--tls-fronts=grpc",
        "--ratelimit-xds=https://envoy-gateway:18001",
        "--ratelimit-xds-node=envoy-ratelimit",
        "--ratelimit-xds-ca=/certs/ca.crt",
        "--ratelimit-xds-cert=/certs/tls.crt",
        "--ratelimit-xds-key=/certs/tls.key",
        "--redis-url=rediss://redis.redis:6379",
        "--redis-cert=/redis-certs/tls.crt",
        "--redis-key=/redis-certs/tls.key",
        "--statsd-host=",
        "--log-level=info",
    ];
    assert_eq!(texts(&environment), expected);
    let warned: Vec<_> = environment.warnings.iter().filter_map(|warning| warning.split(' ').next()).collect();
    assert_eq!(warned, ["FORCE_START_WITHOUT_INITIAL_CONFIG", "GRPC_SERVER_TLS_CA_CERT", "PROMETHEUS_MAPPER_YAML"]);
}

#[test]
fn settings_of_all_domains_become_options() {
    let options = read(&[
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("LIMIT_LIMIT_HEADER", "X-Limit"),
        ("LIMIT_RESET_HEADER", "X-Reset"),
        ("SHADOW_MODE", "t"),
        ("QUOTA_MODE", "True"),
        ("RESPONSE_DYNAMIC_METADATA", "1"),
        ("MERGE_DOMAIN_CONFIG", "TRUE"),
        ("NEAR_LIMIT_RATIO", "0.95"),
        ("CACHE_KEY_PREFIX", "edge:"),
    ]);
    let headers = HeaderNames { limit: "X-Limit".into(), reset: "X-Reset".into(), ..HeaderNames::default() };
    let expected = Options {
        merges_domains: true,
        key_prefix: "edge:".into(),
        near_limit_ratio: 0.95,
        shadow_mode: true,
        quota_mode: true,
        dynamic_metadata: true,
        headers: Some(headers),
    };
    assert_eq!(options.options, expected);
    assert_eq!(read(&[("LIMIT_LIMIT_HEADER", "X-Limit")]).options.headers, None);
}

#[test]
fn all_mistakes_are_reported_with_the_variable_and_what_to_write() {
    let variables = [
        ("PORT", "http"),
        ("DEBUG_PORT", "0x50"),
        ("GRPC_PORT", ""),
        ("STATSD_PORT", "65536"),
        ("USE_PROMETHEUS", "yes"),
        ("RUNTIME_WATCH_ROOT", ""),
        ("CONFIG_TYPE", "GRPC_XDS"),
        ("BACKEND_TYPE", "memcache"),
        ("REDIS_TYPE", "ring"),
        ("REDIS_SOCKET_TYPE", "udp"),
        ("REDIS_TIMEOUT", "10"),
        ("LOG_LEVEL", "loud"),
        ("NEAR_LIMIT_RATIO", "80%"),
        ("LIMIT_RESET_HEADER", "a b"),
        ("SHADOW_MODE", "on"),
        ("GRPC_UDS", "/tmp/ratelimit.sock"),
        ("GRPC_CLIENT_TLS_SAN", "edge"),
    ];
    let problems = try_read(&variables).err().unwrap();
    assert_eq!(problems.len(), variables.len(), "{problems:#?}");
    for (name, _) in variables {
        assert!(problems.iter().any(|problem| problem.starts_with(name)), "{name}: {problems:#?}");
    }
    for (variables, expected) in [
        (&[("PORT", "http")][..], r#"PORT is "http": write a port number from 0 to 65535"#),
        (&[("SHADOW_MODE", "yes")], r#"SHADOW_MODE is "yes": write true or false"#),
        (&[("GRPC_SERVER_USE_TLS", "1"), ("GRPC_SERVER_TLS_KEY", "/k")], "GRPC_SERVER_TLS_CERT is missing"),
        (&[("BACKEND_TYPE", "memcache")], "which divvy does not have: write redis"),
        (&[("REDIS_URL", "redis:6379")], "REDIS_SOCKET_TYPE does not fit REDIS_URL: write tcp"),
        (&[("REDIS_URL", "/r"), ("REDIS_SOCKET_TYPE", "tcp")], "REDIS_SOCKET_TYPE does not fit REDIS_URL: write unix"),
        (&[("REDIS_URL", "a:1"), ("REDIS_TYPE", "sentinel")], "write MASTER_NAME,HOST:PORT,HOST:PORT"),
        (
            &[("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "a:b:c")],
            "write NAME:VALUE",
        ),
        (&[("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "4Mi")], "write a number of bytes"),
    ] {
        let problems = try_read(variables).err().unwrap_or_default();
        assert!(problems.len() == 1 && problems[0].contains(expected), "{variables:?}: {problems:?}");
    }
    // A password is in no message.
    let problems =
        try_read(&[("REDIS_URL", "redis:6379"), ("REDIS_AUTH", "secret"), ("REDIS_TLS", "x")]).err().unwrap();
    assert!(!problems.concat().contains("secret"), "{problems:?}");
}

#[test]
fn variables_without_an_effect_cause_a_warning() {
    let warnings = read(&[
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("REDIS_POOL_SIZE", "10"),
        ("TRACING_ENABLED", "false"),
        ("LOCAL_CACHE_SIZE_IN_BYTES", "0"),
    ])
    .warnings;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].starts_with("FORCE_START_WITHOUT_INITIAL_CONFIG has no effect: "), "{warnings:?}");
    assert!(warnings[1].starts_with("REDIS_POOL_SIZE has no effect: "), "{warnings:?}");
}

#[test]
fn program_called_ratelimit_serves() {
    let called = |line: &str| {
        let mut line: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
        serve_if_called_ratelimit(&mut line);
        line.join(" ".as_ref()).into_string().unwrap()
    };
    assert_eq!(called("/bin/ratelimit"), "/bin/ratelimit serve --ratelimit-env");
    assert_eq!(called("ratelimit --threads 1"), "ratelimit serve --ratelimit-env --threads 1");
    for other in ["/ratelimit/divvy serve", "divvy serve ratelimit", ""] {
        assert_eq!(called(other), other);
    }
}

#[derive(Parser)]
struct Line {
    #[arg(long)]
    log_level: Option<String>,
    #[arg(long)]
    store: Option<String>,
    #[arg(long, default_value = "a")]
    http_listen: String,
}

#[test]
fn flags_of_the_command_line_replace_the_environment() {
    let environment = read(&[("LOG_LEVEL", "warn"), ("REDIS_URL", "/r"), ("REDIS_TIMEOUT", "1s"), ("USE_STATSD", "0")]);
    let inserted = |flags: &[&str]| {
        let given = Line::command().get_matches_from([&["divvy"], flags].concat());
        let mut line: Vec<OsString> = [&["divvy", "serve"], flags].concat().into_iter().map(Into::into).collect();
        environment.insert(&mut line, &given);
        line.join(" ".as_ref()).into_string().unwrap()
    };
    let all = texts(&environment).join(" ");
    assert_eq!(inserted(&[]), format!("divvy serve {all}"));
    let without_level = all.replace(" --log-level=warn", "");
    assert_eq!(inserted(&["--log-level=info"]), format!("divvy serve {without_level} --log-level=info"));
    let without_redis = all.replace(" --redis-url=redis+unix:///r --redis-timeout=1s", "");
    assert_eq!(inserted(&["--store", "memory"]), format!("divvy serve {without_redis} --store memory"));
}
