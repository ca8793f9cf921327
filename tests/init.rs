//! `divvy init`: templates, and files that are never overwritten.

use std::fs;
use std::path::Path;

use crate::support::{divvy_with, output};

const TEMPLATES: [&str; 4] = ["api-keys", "login", "llm", "gateway"];

/// Runs `divvy` in `directory`, without a terminal. Returns its exit code, standard output and standard error.
fn run(directory: &Path, line: &str) -> (i32, String, String) {
    output(divvy_with(line).current_dir(directory))
}

/// Checks that `rules.ini` has no warnings, and that its test cases pass.
fn assert_sound(directory: &Path) {
    for verb in ["check", "test"] {
        let (code, out, error) = run(directory, &format!("{verb} rules.ini"));
        assert_eq!((code, error.as_str()), (0, ""), "{verb}: {out}");
    }
}

#[test]
fn each_template_has_no_warnings_and_passes_its_cases() {
    for template in TEMPLATES {
        let directory = tempfile::tempdir().unwrap();
        let (code, out, error) = run(directory.path(), &format!("init --template {template}"));
        assert_eq!((code, error.as_str()), (0, ""), "{template}");
        assert!(out.starts_with("wrote rules.ini and rules.test.json\n"), "{out}");
        assert!(fs::read_to_string(directory.path().join("rules.ini")).unwrap().starts_with("; "));
        assert_sound(directory.path());
    }
}

#[test]
fn without_a_template_the_error_names_all() {
    let directory = tempfile::tempdir().unwrap();
    for line in ["init", "init --template none"] {
        let (code, out, error) = run(directory.path(), line);
        assert_eq!((code, out.as_str()), (2, ""));
        assert!(TEMPLATES.iter().all(|template| error.contains(template)), "{error}");
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn existing_files_are_kept_without_force() {
    for existing in ["rules.ini", "rules.test.json"] {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(existing), "mine").unwrap();
        let (code, _, error) = run(directory.path(), "init --template login");
        assert_eq!(code, 1);
        assert_eq!(error, format!("divvy: {existing} already exists; add --force to overwrite it\n"));
        assert_eq!(fs::read_to_string(directory.path().join(existing)).unwrap(), "mine");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "the other file is not written either");
        assert_eq!(run(directory.path(), "init --template login --force").0, 0);
        assert_sound(directory.path());
    }
}

#[test]
fn next_steps_can_be_copied_into_a_shell() {
    let directory = tempfile::tempdir().unwrap();
    let (code, out, _) = run(directory.path(), "init 'my rules.ini' --template login");
    assert_eq!(code, 0);
    assert!(out.contains("divvy test 'my rules.ini'\n") && out.contains("divvy serve 'my rules.ini'\n"), "{out}");
}
