//! Follows docs/recipes.md as a reader would: serves each recipe's rules, runs each command in a shell, and compares
//! each reply with the page.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::clients::{PYTHON, installed};
use crate::support::{DIVVY, Server, Site, program};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/recipes.md");

/// The address in the page's commands.
const HTTP: &str = "127.0.0.1:8322";
/// The port in the page's programs.
const RESP: &str = "port=9049";

/// The parts that the page's program leaves to the reader, with their results.
const MODEL: &str = r#"
def call_model(prompt, max_tokens):
    assert left() == 4000, left()
    if not prompt:
        raise ValueError
    return prompt.upper(), 700


def left():
    return divvy.execute_command("DIVVY.PEEK", "api=chat", "user=carl")[1]


try:
    answer("carl", "", 1000)
    raise AssertionError("it was answered")
except ValueError:
    assert left() == 5000, left()
assert answer("carl", "hello", 1000) == "HELLO"
assert left() == 4300, left()
try:
    answer("carl", "hello", 4301)
    raise AssertionError("it was allowed")
except RuntimeError as error:
    assert str(error).startswith("4300 tokens left; more in "), error
"#;

/// Texts that precede a number of seconds in a reply. The last word of a line `OK …` is a number of seconds, too.
const BEFORE_SECONDS: [&str; 4] = ["\"reset\":", "\"retryAfter\":", ";t=", "retry-after: "];

struct Recipe {
    title: String,
    steps: Vec<Step>,
}

enum Step {
    /// Replaces the rules file for the following steps.
    Rules(String),
    Command {
        line: String,
        reply: String,
    },
    /// Python code, to be run with [`MODEL`].
    Program(String),
}

#[test]
fn every_recipe_works_as_the_page_shows() {
    for recipe in recipes(&page()) {
        follow(&recipe);
    }
}

fn page() -> String {
    std::fs::read_to_string(PAGE).unwrap()
}

/// Returns the page's recipes. Fails on a block that is neither rules nor commands, because nothing would test it.
fn recipes(page: &str) -> Vec<Recipe> {
    let mut recipes: Vec<Recipe> = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(title) = line.strip_prefix("## ") {
            recipes.push(Recipe { title: title.to_owned(), steps: Vec::new() });
        } else if let Some(language) = line.strip_prefix("```") {
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            let recipe = recipes.last_mut().expect("every block follows a recipe's title");
            match language {
                "ini" => recipe.steps.push(Step::Rules(block.join("\n"))),
                "python" => recipe.steps.push(Step::Program(block.join("\n"))),
                "console" => recipe.steps.extend(commands(&block)),
                _ => panic!("{}: a block in {language:?} is not run", recipe.title),
            }
        }
    }
    recipes
}

/// Returns the commands of a console block, each with the lines below it.
fn commands(block: &[&str]) -> Vec<Step> {
    let starts: Vec<usize> = (0..block.len()).filter(|&at| block[at].starts_with("$ ")).collect();
    assert_eq!(starts.first(), Some(&0), "a console block begins with a command: {block:?}");
    let ends = starts.iter().skip(1).copied().chain([block.len()]);
    let command = |(start, end): (&usize, usize)| Step::Command {
        line: block[*start]["$ ".len()..].to_owned(),
        reply: block[start + 1..end].join("\n"),
    };
    starts.iter().zip(ends).map(command).collect()
}

fn follow(Recipe { title, steps }: &Recipe) {
    let mut served: Option<Site> = None;
    let started = Instant::now();
    for step in steps {
        match (step, &served) {
            (Step::Rules(rules), None) => served = Some(Site::serving(rules, &["--store=memory"])),
            (Step::Rules(rules), Some(site)) => site.reload(rules),
            (Step::Command { line, reply }, Some(Site { server, .. })) => {
                let got = run(line, server);
                assert!(
                    agrees(reply, &got, started.elapsed()),
                    "{title}: {line}\non the page:\n{reply}\nfrom the server:\n{got}"
                );
            }
            (Step::Program(program), Some(Site { server, .. })) => run_program(program, server),
            (Step::Program(_), None) => panic!("{title}: no rules before its program"),
            (Step::Command { line, .. }, None) => panic!("{title}: no rules before {line}"),
        }
    }
}

/// Runs the command in a shell. `divvy` is the program under test, and `server` is at the page's addresses. Returns all
/// output.
fn run(line: &str, server: &Server) -> String {
    let divvy_first = format!("{}:{}", Path::new(DIVVY).parent().unwrap().display(), std::env::var("PATH").unwrap());
    let address = server.http.to_string();
    let output = program("bash")
        .args(["-c", &format!("exec 2>&1; {}", line.replace(HTTP, &address))])
        .env("PATH", divvy_first)
        .env("DIVVY_SERVER", address.as_str())
        .output()
        .unwrap_or_else(|error| panic!("bash: {error}"));
    String::from_utf8(output.stdout).unwrap().replace('\r', "").replace(&address, HTTP)
}

fn run_program(text: &str, server: &Server) {
    assert!(text.contains(RESP), "it asks the page's server");
    let python = installed(Path::new(PYTHON).join(".venv/bin/python"));
    let text = text.replace(RESP, &format!("port={}", server.resp.port())) + MODEL;
    let done = program(python.to_str().unwrap()).args(["-c", &text]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Returns whether a reply agrees with the page. Its seconds may be lower by the time since the recipe began.
fn agrees(shown: &str, got: &str, since: Duration) -> bool {
    let ((text, seconds), (got_text, got_seconds)) = (without_seconds(shown), without_seconds(got));
    let late = since.as_secs() + u64::from(since.subsec_nanos() > 0);
    let agrees = |(shown, got): (u64, u64)| got <= shown && shown - got <= late;
    text == got_text && seconds.into_iter().zip(got_seconds).all(agrees)
}

/// Replaces each number of seconds in a reply by an underscore. Returns the numbers, too.
fn without_seconds(reply: &str) -> (String, Vec<u64>) {
    let (mut text, mut seconds) = (String::new(), Vec::new());
    for line in reply.trim_end().lines() {
        let mut rest = line;
        while let Some((before, number, after)) = next_seconds(rest) {
            text.push_str(before);
            text.push('_');
            seconds.push(number);
            rest = after;
        }
        text.push_str(rest);
        text.push('\n');
    }
    (text, seconds)
}

/// Returns the next number of seconds in a line, with the text before and after it.
fn next_seconds(line: &str) -> Option<(&str, u64, &str)> {
    let last_word = || line.starts_with("OK ").then(|| line.rfind(' ')).flatten().map(|at| at + 1);
    let marked = BEFORE_SECONDS.iter().flat_map(|mark| line.match_indices(mark)).map(|(at, mark)| at + mark.len());
    // `"retryAfter":null` has no number.
    let is_number = |at: &usize| line[*at..].starts_with(|first: char| first.is_ascii_digit());
    let start = marked.chain(last_word()).filter(is_number).min()?;
    let digits = line[start..].find(|c: char| !c.is_ascii_digit()).unwrap_or(line.len() - start);
    let (before, after) = (&line[..start], &line[start + digits..]);
    Some((before, line[start..start + digits].parse().ok()?, after))
}
