//! `divvy explain`: the text of an explanation, and explanations of a rules file.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::pairs::Pair;
use super::rules_file;
use super::text::printable;
use divvy_core::config::Serving;
use divvy_core::rules::Operation;
use divvy_core::rules::explain::{ActorExceptions, Explanation, explain};
use divvy_server::http::CheckOperation;

/// Prints how the rules in a file answer the operation.
///
/// # Errors
/// A field is given twice, or standard output cannot be written.
pub fn explain_file(file: &Path, pairs: &[Pair]) -> anyhow::Result<ExitCode> {
    let mut operation = Operation::new();
    for (field, value) in pairs.iter().map(Pair::as_strs) {
        ensure!(operation.set(field, value), "the field '{field}' is given twice");
    }
    let serving = Serving { spellings: CheckOperation::default().spellings(), ..Serving::default() };
    let Some(rules) = rules_file::load_for(file, &serving, false)? else { return Ok(ExitCode::FAILURE) };
    let explanation = explain(&rules, &operation, |_, _| ActorExceptions::default());
    let mut out = io::stdout().lock();
    write!(out, "{}", printable(&explanation.to_string()))?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the text of a server's explanation: a line for each rule.
///
/// # Errors
/// It is not an explanation.
pub fn text_of(answer: &Value) -> anyhow::Result<String> {
    let explanation = Explanation::deserialize(answer).context("the server's answer is not an explanation")?;
    Ok(printable(&explanation.to_string()).into_owned())
}
