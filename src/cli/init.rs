//! `divvy init`: writes a rules file for a common purpose, and its test cases.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use clap::ValueEnum;

use super::text::quote;
use super::{output_file, test};

/// Write a rules file for a common purpose, and its test cases
///
/// The test cases are in a file next to the rules: rules.test.json for rules.ini. `divvy test` runs them.
#[derive(Debug, clap::Args)]
pub struct InitArgs {
    /// Rules file to write (.ini)
    #[arg(default_value = "rules.ini")]
    file: PathBuf,
    // The name of the value lists the templates in the error of a command line without one.
    /// Purpose of the rules
    #[arg(long, value_name = "api-keys|login|llm|gateway")]
    template: Template,
    /// Overwrite the files if they exist
    #[arg(long)]
    force: bool,
}

/// Rules for a common purpose.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Template {
    /// Requests of API keys: a burst and a daily quota
    ApiKeys,
    /// Login attempts, by account and by address
    Login,
    /// Tokens of a language model, and concurrent answers
    Llm,
    /// Requests that a gateway asks about: logins, static files, and the rest
    Gateway,
}

impl Template {
    /// Returns the text of the rules file, and of its test cases.
    fn files(self) -> (&'static str, &'static str) {
        match self {
            Self::ApiKeys => (include_str!("init/api-keys.ini"), include_str!("init/api-keys.test.json")),
            Self::Login => (include_str!("init/login.ini"), include_str!("init/login.test.json")),
            Self::Llm => (include_str!("init/llm.ini"), include_str!("init/llm.test.json")),
            Self::Gateway => (include_str!("init/gateway.ini"), include_str!("init/gateway.test.json")),
        }
    }
}

/// Writes the files, and prints the next steps.
///
/// # Errors
/// A file exists or cannot be written.
pub fn run(args: InitArgs) -> anyhow::Result<ExitCode> {
    let InitArgs { file, template, force } = args;
    if file.extension().is_none_or(|extension| extension != "ini") {
        bail!("{}: rules with comments are written as INI; name the file *.ini", file.display());
    }
    let cases = test::cases_path(&file);
    let (rules_text, cases_text) = template.files();
    output_file::write_together(&[(&file, rules_text), (&cases, cases_text)], force)?;
    print_next_steps(&file, &cases)?;
    Ok(ExitCode::SUCCESS)
}

fn print_next_steps(file: &Path, cases: &Path) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "wrote {} and {}", file.display(), cases.display())?;
    let file = quote(&file.display().to_string());
    writeln!(out, "test the rules: divvy test {file}")?;
    writeln!(out, "serve them:     divvy serve {file}")
}
