//! The OpenAI SDK and a model that streams, with divvy in between. The code, its packages and its rules are those of
//! config/examples/openai/budget.py.

use std::io::{BufRead, BufReader, Lines};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::clients::{PYTHON, installed, run};
use crate::support::{Gateway, Killed, RulesFile, Server, free_address, metrics, until};

const CODE: &str = include_str!("../config/examples/openai/budget.py");
const BUDGET: i64 = 10_000;
/// Number of streams whose answers end, and of streams whose client dies.
const STREAMS: usize = 70;
const ABORTED: usize = 30;
/// Tokens that each stream reserves.
const RESERVED: i64 = 150;
const ABORTED_RESERVED: i64 = 100;

/// Returns the rules in the code's documentation, which are its only indented lines.
fn rules() -> RulesFile {
    let documentation = CODE.split("\"\"\"").nth(1).unwrap();
    let lines: Vec<_> = documentation.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    RulesFile::ini(&lines.join("\n"))
}

/// A Python environment with only the packages that the code names, kept until they or the pinned versions change.
static CODE_PYTHON: LazyLock<PathBuf> = LazyLock::new(|| {
    let (_, from) = CODE.split_once("`pip install ").expect("the code says what to install");
    let (packages, _) = from.split_once('`').unwrap();
    let pinned = Path::new(PYTHON).join("requirements.txt");
    let content = format!("{packages}\n{}", std::fs::read_to_string(&pinned).unwrap());
    let environment = Path::new(env!("CARGO_TARGET_TMPDIR")).join("language-models");
    let complete = environment.join(".installed");
    if std::fs::read_to_string(&complete).is_ok_and(|installed| installed == content) {
        return environment.join("bin/python");
    }
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv", "--clear"]).arg(&environment);
    run(venv);
    let mut install = Command::new(environment.join("bin/pip"));
    install.args(["install", "--quiet", "--constraint"]).arg(pinned).args(packages.split(' '));
    run(install);
    std::fs::write(complete, content).unwrap();
    environment.join("bin/python")
});

fn python(interpreter: &Path, program: &str) -> Command {
    let mut command = Command::new(interpreter);
    command.arg("-B").arg(Path::new(PYTHON).join(program));
    command
}

fn language_model() -> (Gateway, SocketAddr) {
    let address = free_address();
    let interpreter = installed(Path::new(PYTHON).join(".venv/bin/python"));
    let child = python(&interpreter, "language_model.py").arg(address.port().to_string()).spawn().unwrap();
    (Gateway::new(child, address, tempfile::tempdir().unwrap()), address)
}

/// A process that spends tokens on many streams at once. It is killed when this is dropped.
struct Spender {
    child: Killed,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Spender {
    fn start(divvy: SocketAddr, model: SocketAddr, arguments: [&str; 4]) -> Self {
        let code = concat!(env!("CARGO_MANIFEST_DIR"), "/config/examples/openai/budget.py");
        let mut command = python(&CODE_PYTHON, "spend_tokens.py");
        command.arg(code).args([format!("http://{divvy}"), format!("http://{model}")]).args(arguments);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child: Killed(child), lines }
    }

    /// Waits until this many streams have started.
    fn await_streams(&mut self, count: usize) {
        for _ in 0..count {
            assert_eq!(self.lines.next().unwrap().unwrap(), "reserved");
        }
    }

    /// Returns the result of each stream.
    fn results(&mut self) -> Vec<Value> {
        let last = self.lines.next().unwrap().unwrap();
        assert!(self.child.0.wait().unwrap().success());
        serde_json::from_str(&last).unwrap()
    }
}

fn balance(server: &Server) -> i64 {
    server.resp().balance("service=chat tenant=acme")
}

#[test]
fn answer_stopped_early_is_closed_and_counts_its_prompt() {
    let rules = rules();
    let (server, (_model, model_at)) = (Server::in_memory(rules.path()), language_model());
    let mut spender = Spender::start(server.http, model_at, ["1", "150", "60", "stopped"]);
    let results = spender.results();
    assert_eq!(balance(&server), BUDGET - results[0]["spent"].as_i64().unwrap());
}

#[test]
#[cfg_attr(not(feature = "rocksdb"), ignore = "needs the embedded store")]
fn hundred_streams_stay_within_budget_despite_dying_clients_and_kills() {
    let (rules, data) = (rules(), tempfile::tempdir().unwrap());
    let http = free_address().to_string();
    let store = data.path().join("store");
    let serve = || Server::start(&[rules.path(), "--http-listen", &http, "--data-dir", store.to_str().unwrap()]);
    let (mut server, (_model, model_at)) = (serve(), language_model());

    let mut aborted = Spender::start(server.http, model_at, ["30", "100", "30", "never_ends"]);
    aborted.await_streams(ABORTED);
    assert_eq!(balance(&server), BUDGET - ABORTED as i64 * ABORTED_RESERVED);
    let mut spender = Spender::start(server.http, model_at, ["70", "150", "60", "ends"]);
    let granted = usize::try_from((BUDGET - ABORTED as i64 * ABORTED_RESERVED) / RESERVED).unwrap();
    spender.await_streams(granted);
    // Some commits are answered, some are lost, and some arrive later.
    thread::sleep(Duration::from_millis(500));
    drop(aborted);
    server.kill();
    thread::sleep(Duration::from_millis(300));
    server = serve();
    assert_eq!(metrics::scrape(server.http).sum("divvy_reservations"), (ABORTED + granted) as f64);

    let results = spender.results();
    assert_eq!(results.len(), STREAMS);
    let number = |result: &Value, field: &str| result[field].as_i64().unwrap_or(0);
    let denied = results.iter().filter(|result| result["denied"] == true).count();
    assert_eq!(denied, STREAMS - granted);
    let spent: i64 = results.iter().map(|result| number(result, "spent")).sum();
    let over: i64 = results.iter().map(|result| (number(result, "spent") - number(result, "reserved")).max(0)).sum();
    assert!(spent > 0 && spent <= BUDGET + over, "{spent} spent, {over} more than reserved");
    // The credits reserved by killed clients are free again, and every token spent is counted once.
    until(|| balance(&server) == BUDGET - spent);
    assert_eq!(balance(&server), BUDGET - spent);
}
