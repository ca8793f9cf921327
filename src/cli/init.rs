//! `divvy init`: writes a rules file and its test cases, from a template or from answers to three questions.

mod draft;
mod questions;
mod starter_cases;
mod template;
mod window;

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;

use self::draft::Draft;
use self::template::Template;
use super::shell::quote;
use super::{output_file, test};

/// Write a rules file and its test cases, from a template or from answers to three questions.
///
/// Without --template, it asks about the requests, the actors and the limit. The test cases are in a file next to the rules:
/// rules.test.json for rules.ini. `divvy test` runs them.
#[derive(Debug, clap::Args)]
pub struct InitArgs {
    /// Rules file to write (.ini)
    #[arg(default_value = "rules.ini")]
    file: PathBuf,
    /// Write these rules instead of asking
    #[arg(long, value_name = "NAME")]
    template: Option<Template>,
    /// Overwrite the files if they exist
    #[arg(long)]
    force: bool,
}

/// Writes the rules file and its test cases, from the template or from the answers to the questions. Prints the next steps.
///
/// # Errors
/// A file exists or cannot be written, or there is no terminal for the questions.
pub fn run(args: InitArgs) -> anyhow::Result<ExitCode> {
    let InitArgs { file, template, force } = args;
    if file.extension().is_none_or(|extension| extension != "ini") {
        bail!("{}: rules with comments are written as INI; name the file *.ini", file.display());
    }
    let cases = test::cases_path(&file);
    // Checked before the questions, so that no answers are lost.
    for path in [&file, &cases] {
        if !force && path.symlink_metadata().is_ok() {
            return Err(output_file::already_exists(path));
        }
    }
    let draft = match template {
        Some(template) => template.draft(),
        None => ask()?,
    };
    output_file::write_together(&[(&file, &draft.rules), (&cases, &draft.cases)], force)?;
    print_next_steps(&file, &cases)?;
    Ok(ExitCode::SUCCESS)
}

fn ask() -> anyhow::Result<Draft> {
    if !io::stdin().is_terminal() {
        bail!("there is no terminal for the questions: add --template with one of {}", template::names());
    }
    questions::ask(&mut io::stdin().lock(), &mut io::stderr().lock())
}

fn print_next_steps(file: &Path, cases: &Path) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "wrote {} and {}", file.display(), cases.display())?;
    let file = quote(&file.display().to_string());
    writeln!(out, "test the rules: divvy test {file}")?;
    writeln!(out, "serve them:     divvy serve {file}")
}
