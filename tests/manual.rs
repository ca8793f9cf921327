//! Completions and manual pages that packages generate with the binary.

use clap::CommandFactory;
use divvy::cli::Cli;

use crate::support::divvy;

fn run(args: &[&str]) -> String {
    let output = divvy().args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn subcommands() -> Vec<String> {
    Cli::command().get_subcommands().map(|command| command.get_name().to_owned()).collect()
}

#[test]
fn completions_include_every_subcommand_in_every_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = run(&["completions", shell]);
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
    let script = run(&["completions", "bash"]);
    let ask = "COMP_WORDS=(divvy ser) COMP_CWORD=1; _divvy divvy ser divvy; echo \"${COMPREPLY[@]}\"";
    let output = std::process::Command::new("bash").args(["-c", &format!("{script}\n{ask}")]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "serve", "{output:?}");
}

#[test]
fn manual_has_a_page_with_every_flag_for_each_subcommand() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(run(&["man", "--dir", dir.path().to_str().unwrap()]), "");
    let main = std::fs::read_to_string(dir.path().join("divvy.1")).unwrap();
    assert_eq!(main, run(&["man"]));
    assert!(main.contains(".TH divvy 1"), "{main}");
    // In roff, a literal hyphen is escaped.
    let plain = |page: String| page.replace("\\-", "-");
    let mut cli = Cli::command();
    cli.build();
    for command in cli.get_subcommands().filter(|command| command.get_name() != "help") {
        let name = command.get_name();
        assert!(plain(main.clone()).contains(&format!("divvy-{name}(1)")), "{name} is not on the main page");
        let page = plain(std::fs::read_to_string(dir.path().join(format!("divvy-{name}.1"))).unwrap());
        assert!(page.contains(&format!(".TH divvy-{name} 1")), "{page}");
        let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
        for flag in shown.filter_map(|arg| arg.get_long()) {
            assert!(page.contains(&format!("--{flag}")), "--{flag} is not in divvy-{name}(1)");
        }
    }
}
