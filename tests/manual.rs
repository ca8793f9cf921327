//! Completions and manual pages that packages generate with the binary.

use clap::CommandFactory;
use divvy::cli::Cli;

use crate::support::{divvy, done};

fn subcommands() -> Vec<String> {
    Cli::command().get_subcommands().map(|command| command.get_name().to_owned()).collect()
}

#[test]
fn completions_include_every_subcommand_in_every_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = done(&["completions", shell]);
        for name in subcommands() {
            assert!(script.contains(&name), "{shell}: {name}");
        }
        assert!(script.contains("durability"), "{shell}");
    }
    let refused = divvy().args(["completions", "tcsh"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
}

/// Checks in bash that `divvy ser` has exactly one completion.
#[test]
fn bash_completes_with_the_script() {
    let script = done(&["completions", "bash"]);
    let ask = "COMP_WORDS=(divvy ser) COMP_CWORD=1; _divvy divvy ser divvy; echo \"${COMPREPLY[@]}\"";
    let output = std::process::Command::new("bash").args(["-c", &format!("{script}\n{ask}")]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "serve", "{output:?}");
}

#[test]
fn manual_has_a_page_for_each_subcommand() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(done(&["man", "--dir", dir.path().to_str().unwrap()]), "");
    let read = |page: &str| std::fs::read_to_string(dir.path().join(format!("{page}.1"))).unwrap();
    // In roff, a literal hyphen is escaped.
    let main = read("divvy").replace("\\-", "-");
    assert_eq!(main, done(&["man"]).replace("\\-", "-"));
    for name in subcommands().into_iter().filter(|name| name != "help") {
        assert!(main.contains(&format!("divvy-{name}(1)")), "{name} is not on the main page");
        assert!(read(&format!("divvy-{name}")).contains(&format!(".TH divvy-{name} 1")), "{name}");
    }
}
