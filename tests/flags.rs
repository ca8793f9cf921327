//! Every numeric flag of `divvy serve` at 0, at 1 and at its maximum: the server either rejects it and names the flag,
//! or it serves and then idles.
//!
//! The flags come from clap, so new ones are tested automatically.

use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use clap::builder::StyledStr;
use clap::error::ErrorKind;
use clap::{Arg, Command, CommandFactory};
use divvy::cli::Cli;

use crate::support::{COMPAT_RULES, LineClient, Log, RespClient, Server, divvy, eventually, http, run};

/// Numbers that are given to flags to recognize numeric ones: each flag's range contains one of them.
const NUMBERS: [u64; 6] = [0, 1, 100, 500, 1_000, 1_000_000];
/// How long a server is observed while idle.
const REST: Duration = Duration::from_millis(250);
/// Maximum share of a processor that an idle server may use.
const MAX_USE_AT_REST: f64 = 0.1;

/// A numeric flag.
struct Flag {
    name: String,
    /// The stores that support it, according to its help; all of them if the help does not say.
    stores: Vec<String>,
}

impl Flag {
    /// Returns the flag, if it accepts nothing but a number.
    fn of(arg: &Arg, stores: &[String]) -> Option<Self> {
        let name = format!("--{}", arg.get_long()?);
        let is_number = parse(&name, "x").is_err() && NUMBERS.iter().any(|number| takes(&name, *number));
        let help = arg.get_help().map(StyledStr::to_string).unwrap_or_default();
        let supporting = help.split_once(':').map_or("", |(stores, _)| stores);
        let stores = stores.iter().filter(|store| supporting.split(", ").any(|name| name == *store)).cloned().collect();
        is_number.then_some(Self { name, stores })
    }

    /// Returns the greatest number that clap accepts.
    fn greatest(&self) -> u64 {
        let taken = NUMBERS.into_iter().find(|number| takes(&self.name, *number)).unwrap();
        let (mut least, mut beyond) = (taken, u64::MAX);
        if takes(&self.name, beyond) {
            return beyond;
        }
        while beyond - least > 1 {
            let middle = least + (beyond - least) / 2;
            if takes(&self.name, middle) {
                least = middle;
            } else {
                beyond = middle;
            }
        }
        least
    }

    fn is_known_to(&self, store: &str) -> bool {
        self.stores.is_empty() && store == "memory" || self.stores.iter().any(|known| known == store)
    }
}

fn serve_command() -> Command {
    let mut cli = Cli::command();
    cli.build();
    let serve = cli.find_subcommand("serve").unwrap();
    // Variables in the environment of the tests must not have an effect.
    serve.clone().mut_args(|arg| arg.env(None))
}

/// Returns clap's verdict on a value. `Err` has its message.
fn parse(flag: &str, value: &str) -> Result<(), String> {
    match serve_command().try_get_matches_from(["serve", &format!("{flag}={value}")]) {
        Err(error) if matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue) => {
            Err(error.to_string())
        }
        _ => Ok(()),
    }
}

fn takes(flag: &str, number: u64) -> bool {
    parse(flag, &number.to_string()).is_ok()
}

/// Returns arguments for a server of this store that accepts every flag.
fn base(store: &str, data_dir: &str) -> Vec<String> {
    let own: &[&str] = match store {
        "rocksdb" => &["--data-dir", data_dir],
        // Nothing listens on that port, so the server counts locally.
        "redis" => &["--redis-url", "redis://127.0.0.1:1", "--on-store-error", "local"],
        _ => &[],
    };
    let all = [COMPAT_RULES, "--store", store, "--statsd-host", "127.0.0.1"];
    all.iter().chain(own).map(|arg| (*arg).to_owned()).collect()
}

/// Returns the problem with a server that has these flags, if there is one.
fn trouble(store: &str, flags: &[(String, u64)]) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    let mut args = base(store, dir.path().to_str().unwrap());
    args.extend(flags.iter().map(|(name, value)| format!("{name}={value}")));
    // One flag has a meaning only with another.
    let has = |flag: &str| flags.iter().any(|(name, _)| name == flag);
    if has("--redis-ack-timeout") && !has("--redis-min-replicas-ack") {
        args.push("--redis-min-replicas-ack=1".to_owned());
    }
    let mut command = divvy();
    let log = Log::of(&mut command);
    let Ok(server) = Server::try_start_as(&mut command, &args.iter().map(String::as_str).collect::<Vec<_>>()) else {
        let is_named = flags.iter().all(|(name, _)| log.text().contains(name.as_str()));
        return (!is_named).then(|| format!("it ends without a word of the flag: {}", log.text()));
    };
    if !answers(&server) {
        return Some("it does not answer".into());
    }
    (!rests(&server)).then(|| "it does not rest".into())
}

/// Returns whether every front answers, each on its own connection, one after the other.
fn answers(server: &Server) -> bool {
    let fronts: [(SocketAddr, &dyn Fn(SocketAddr) -> bool); 3] = [
        (server.resp, &|address| {
            let mut client = RespClient::connect(address);
            client.try_send(b"*1\r\n$4\r\nPING\r\n").is_some() && client.try_read_reply().as_deref() == Some("PONG")
        }),
        (server.line, &|address| LineClient::connect(address).try_hit("a=b").is_some()),
        (server.http, &|address| http::try_get(address, "/healthz").is_some_and(|response| response.status == 200)),
    ];
    // A flag may allow only one connection, and the server needs a moment to notice that one has ended.
    fronts.into_iter().all(|(address, answers)| eventually(|| answers(address)))
}

/// Returns whether the process becomes idle.
fn rests(server: &Server) -> bool {
    eventually(|| {
        let (began, before) = (Instant::now(), cpu_time(server.pid()));
        thread::sleep(REST);
        let used = cpu_time(server.pid()) - before;
        used.as_secs_f64() <= MAX_USE_AT_REST * began.elapsed().as_secs_f64()
    })
}

/// Returns the CPU time of a process since its start (proc(5), fields 14 and 15 of `stat`).
fn cpu_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit_once(") ").unwrap().1;
    let ticks: u64 = after_name.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Returns the problems of servers of this store with interesting values of its flags.
fn troubles(store: &str, flags: &[Flag]) -> Vec<String> {
    let values = [("0", Some(0)), ("1", Some(1)), ("the greatest", None)];
    let mut troubles = Vec::new();
    for (what, value) in values {
        let known = flags.iter().filter(|flag| flag.is_known_to(store));
        let given = known.map(|flag| (flag.name.clone(), value.unwrap_or_else(|| flag.greatest())));
        let (taken, refused): (Vec<_>, Vec<_>) = given.partition(|(name, value)| takes(name, *value));
        for (name, value) in refused {
            let reported = parse(&name, &value.to_string()).unwrap_err();
            if !(reported.contains(&name) && reported.contains("from ")) {
                troubles.push(format!("{name} at {what} is refused with: {reported}"));
            }
        }
        // All flags at once are fast to test. If that fails, each one is tested separately.
        if trouble(store, &taken).is_some() {
            let alone = taken.into_iter().filter_map(|flag| Some((flag.0.clone(), trouble(store, &[flag])?)));
            troubles.extend(alone.map(|(name, why)| format!("{store}: {name} at {what}: {why}")));
        }
    }
    troubles
}

#[test]
fn every_number_is_rejected_by_name_or_served() {
    let serve = serve_command();
    let stores = serve.get_arguments().find(|arg| arg.get_id() == "store").unwrap().get_possible_values();
    let stores: Vec<_> = stores.iter().map(|store| store.get_name().to_owned()).collect();
    let flags: Vec<_> = serve.get_arguments().filter_map(|arg| Flag::of(arg, &stores)).collect();
    assert!(flags.len() > 25, "clap's flags were not found");
    let flags = &flags;
    let troubles: Vec<String> = thread::scope(|scope| {
        let tried: Vec<_> = stores.iter().map(|store| scope.spawn(move || troubles(store, flags))).collect();
        tried.into_iter().flat_map(|store| store.join().unwrap()).collect()
    });
    assert!(troubles.is_empty(), "{}", troubles.join("\n"));
}

/// The exit code is the command line's own, because the program never started.
#[test]
fn rejected_number_ends_the_program_with_2_and_its_range() {
    let nowhere = "--store memory --listen none --resp-listen none --http-listen none --grpc-listen none";
    let (code, _, error) = run(&format!("serve --max-connections 0 {nowhere}"));
    assert!(code == 2 && error.contains("--max-connections") && error.contains("from 1 to "), "{error}");
}
