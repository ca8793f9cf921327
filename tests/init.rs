//! `divvy init`: templates, questions on a terminal, and files that are never overwritten.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;

use crate::support::{DIVVY, divvy, program};

const TEMPLATES: [&str; 4] = ["api-keys", "login", "llm", "gateway"];

/// Runs `divvy` in `directory`, without a terminal. Returns its exit code, standard output and standard error.
fn run(directory: &Path, args: &[&str]) -> (i32, String, String) {
    let output = divvy().args(args).current_dir(directory).stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Checks that `rules.ini` has no warnings, and that its test cases pass.
fn assert_sound(directory: &Path) {
    for verb in ["check", "test"] {
        let (code, out, error) = run(directory, &[verb, "rules.ini"]);
        assert_eq!((code, error.as_str()), (0, ""), "{verb}: {out}");
    }
}

/// Runs `divvy init` on its own terminal, and types `answers`. Returns its exit code and the terminal's output.
fn answer(directory: &Path, answers: &str) -> (i32, String) {
    let line = shlex::try_join([DIVVY, "init"]).unwrap();
    let mut command = program("script");
    command.args(["--quiet", "--return", "--flush", "--command", &line, "/dev/null"]).current_dir(directory);
    let mut terminal = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    terminal.stdin.take().unwrap().write_all(answers.as_bytes()).unwrap();
    let mut shown = String::new();
    terminal.stdout.take().unwrap().read_to_string(&mut shown).unwrap();
    (terminal.wait().unwrap().code().unwrap(), shown)
}

#[test]
fn each_template_has_no_warnings_and_passes_its_cases() {
    for template in TEMPLATES {
        let directory = tempfile::tempdir().unwrap();
        let (code, out, error) = run(directory.path(), &["init", "--template", template]);
        assert_eq!((code, error.as_str()), (0, ""), "{template}");
        assert!(out.starts_with("wrote rules.ini and rules.test.json\n"), "{out}");
        assert!(fs::read_to_string(directory.path().join("rules.ini")).unwrap().starts_with("; "));
        assert_sound(directory.path());
    }
}

#[test]
fn answers_become_rules_that_pass_their_cases() {
    for (answers, header) in [
        ("api=search\nuser\n100 per 1m\n", "[api=search user=*]"),
        ("method=POST path=/login/*\nip, host\n5 per day\n", "[method=POST path=/login/* ip=* host=*]"),
        ("\n\n1 per 1h\n", "[default]"),
        ("user=*\n\n9007199254740991 / 100w\n", "[user=*]"),
        ("key=pk_*\nkey\n1000 per month\n", "[key=pk_*]"),
        ("path=\"/a b\"\n\n2 per year\n", "[path=\"/a b\"]"),
        ("\nuser\n7 per week\n", "[user=*]"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let (code, shown) = answer(directory.path(), answers);
        assert_eq!(code, 0, "{shown}");
        let rules = fs::read_to_string(directory.path().join("rules.ini")).unwrap();
        assert!(rules.contains(&format!("\n{header}\n")), "{rules}");
        assert_sound(directory.path());
    }
}

#[test]
fn mistake_in_an_answer_is_explained_and_asked_again() {
    let directory = tempfile::tempdir().unwrap();
    let (code, shown) = answer(directory.path(), "search\napi=search\nuser\n5 per 1y\n5 per 1m\n");
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("the answer is not an operation: \"search\" is not followed by `=` and a value"), "{shown}");
    assert!(!shown.contains("section header"), "{shown}");
    assert!(shown.contains("is not a whole number with one of the units s, m, h, d and w"), "{shown}");
    assert_eq!(shown.matches("How many").count(), 2, "{shown}");
    assert_sound(directory.path());
}

#[test]
fn without_a_terminal_a_template_is_required() {
    let directory = tempfile::tempdir().unwrap();
    let (code, out, error) = run(directory.path(), &["init"]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert_eq!(
        error,
        "divvy: there is no terminal for the questions: add --template with one of api-keys, login, llm, gateway\n"
    );
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    assert_eq!(run(directory.path(), &["init", "--template", "none"]).0, 2);
}

#[test]
fn existing_files_are_kept_without_force() {
    for existing in ["rules.ini", "rules.test.json"] {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(existing), "mine").unwrap();
        let (code, _, error) = run(directory.path(), &["init", "--template", "login"]);
        assert_eq!(code, 1);
        assert_eq!(error, format!("divvy: {existing} already exists; add --force to overwrite it\n"));
        assert_eq!(fs::read_to_string(directory.path().join(existing)).unwrap(), "mine");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "the other file is not written either");
        assert_eq!(run(directory.path(), &["init", "--template", "login", "--force"]).0, 0);
        assert_sound(directory.path());
    }
}

#[test]
fn file_that_cannot_be_written_is_an_error_that_names_it() {
    let directory = tempfile::tempdir().unwrap();
    for (file, expected) in [
        ("rules.json", "rules.json: rules with comments are written as INI; name the file *.ini"),
        ("rules", "rules: rules with comments are written as INI; name the file *.ini"),
        ("none/rules.ini", "cannot write none/rules.ini: No such file"),
    ] {
        let (code, _, error) = run(directory.path(), &["init", file, "--template", "login"]);
        assert_eq!(code, 1);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn forced_files_are_written_together_or_not_at_all() {
    for make in [(|path| fs::create_dir(path).unwrap()) as fn(&Path), |path| {
        assert!(program("mkfifo").arg(path).status().unwrap().success())
    }] {
        for (blocked, other) in [("rules.ini", "rules.test.json"), ("rules.test.json", "rules.ini")] {
            let directory = tempfile::tempdir().unwrap();
            make(&directory.path().join(blocked));
            let (code, out, error) = run(directory.path(), &["init", "--template", "login", "--force"]);
            assert_eq!((code, out.as_str()), (1, ""), "{error}");
            assert_eq!(error, format!("divvy: cannot write {blocked}: it is not a regular file\n"));
            assert!(!directory.path().join(other).exists(), "{other} is not created");
            fs::write(directory.path().join(other), "mine").unwrap();
            assert_eq!(run(directory.path(), &["init", "--template", "login", "--force"]).0, 1);
            assert_eq!(fs::read_to_string(directory.path().join(other)).unwrap(), "mine");
        }
    }
}

#[test]
fn next_steps_can_be_copied_into_a_shell() {
    let directory = tempfile::tempdir().unwrap();
    let (code, out, _) = run(directory.path(), &["init", "my rules.ini", "--template", "login"]);
    assert_eq!(code, 0);
    assert!(out.contains("divvy test 'my rules.ini'\n") && out.contains("divvy serve 'my rules.ini'\n"), "{out}");
}

#[test]
fn comments_and_commas_in_answers_are_asked_again() {
    let directory = tempfile::tempdir().unwrap();
    let answers = "api=search, user=x\napi=search\nuser\n5 per 1s ; boo\n5 per 1s\n";
    let (code, shown) = answer(directory.path(), answers);
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("of api ends with a comma"), "{shown}");
    assert!(shown.contains("`;` and `#` begin a comment"), "{shown}");
    assert_sound(directory.path());
}
