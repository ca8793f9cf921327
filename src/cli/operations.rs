//! The operators' subcommands, which follow from the table of operations: their arguments, the request for a running server, and
//! its reply as a table or as JSON.

mod arguments;
mod printer;

use std::io::{self, BufRead, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use hyper::Method;
use serde_json::Value;
use url::form_urlencoded;

use self::arguments::Argument;
pub use self::arguments::OperationArgs;
use self::printer::{COLUMNS_OF_RULES, Printer};
use super::check::{describe_explanation, explain_file};
use super::client::Request;
use super::terminal::accept_closed_pipe;
use super::values::operation_of;
use divvy_api::{ENDPOINTS, Edit, Endpoint, Inspection, Kind, Shape, Task};
use divvy_core::rules::operation;

/// Maximum time for an answer. The server may have to skip many expired counters before a page is full.
const PATIENCE: Duration = Duration::from_secs(60);
/// The same for a backup: one to another file system copies every file.
const PATIENCE_FOR_BACKUP: Duration = Duration::from_secs(3600);
/// Number of entries in a page.
const PAGE: &str = "1000";
/// Moves a terminal's cursor to the first line, and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

impl OperationArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// There is no answer, it is an error, or standard output cannot be written.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(file) = &self.file {
            return explain_file(file, self.pairs());
        }
        let is_sure =
            !matches!(self.endpoint.task, Task::Change(Edit::ForgetCounters, _)) || self.yes || self.has("actor");
        if !is_sure && !confirm(&format!("Forget every counter of {} on {}", self.rule(), self.server.server))? {
            writeln!(io::stderr(), "nothing was forgotten")?;
            return Ok(ExitCode::FAILURE);
        }
        accept_closed_pipe(self.print())
    }

    /// Prints the reply, again and again if it is watched.
    fn print(&self) -> anyhow::Result<ExitCode> {
        loop {
            let code = self.print_once()?;
            let Some(interval) = self.watch else { return Ok(code) };
            thread::sleep(interval.0);
        }
    }

    fn print_once(&self) -> anyhow::Result<ExitCode> {
        let mut request = self.request(None)?;
        // Each time anew: a server may end a connection without a request between two tables.
        let mut client = self.server.connect(match self.endpoint.task {
            Task::Change(Edit::BackUp, _) => PATIENCE_FOR_BACKUP,
            _ => PATIENCE,
        })?;
        let shape = &row_over_http(self.endpoint).reply;
        let columns: &[&str] =
            if self.endpoint.task == Task::Read(Inspection::Rules) { &COLUMNS_OF_RULES } else { &[] };
        let mut printer = Printer::new(BufWriter::new(io::stdout().lock()), self.json, columns);
        if self.watch.is_some() && !self.json && io::stdout().is_terminal() {
            printer.write(CLEAR)?;
        }
        let last = loop {
            let reply = client.ask(request).map_err(|error| match shape {
                Shape::Page { name, of: Shape::Number, .. } => {
                    error.context(format!("{} {name}, perhaps not all", printer.count))
                }
                _ => error,
            })?;
            match self.endpoint.task {
                Task::Read(Inspection::Explanation) if !self.json => printer.write(&describe_explanation(&reply)?)?,
                _ => printer.print(shape, &reply)?,
            }
            match reply.get("next").and_then(Value::as_str) {
                Some(cursor) => request = self.request(Some(cursor))?,
                None => break reply,
            }
        };
        printer.finish(shape)?;
        let is_missing = match self.endpoint.task {
            Task::Change(Edit::RemoveException(_), _) => last.get("removed") == Some(&Value::Bool(false)),
            Task::Read(Inspection::Status) => printer.count == 0,
            _ => false,
        };
        if is_missing {
            writeln!(io::stderr(), "{}", self.endpoint.missing)?;
        }
        Ok(if is_missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// Returns the request for the page at this cursor.
    fn request(&self, cursor: Option<&str>) -> anyhow::Result<Request> {
        let row = row_over_http(self.endpoint);
        let (method, path) = row.http.context("this is not available over HTTP")?;
        let mut query = form_urlencoded::Serializer::new(String::new());
        let mut body = Vec::new();
        for (field, given) in &self.given {
            let value: Value = match given {
                Argument::Pairs(pairs) if field.kind == Kind::Rule => {
                    let text = operation::write(pairs.iter().map(|(field, value)| (field.as_str(), value.as_str())));
                    text.context("--operation is not that of a rule")?.into()
                }
                Argument::Pairs(pairs) if field.is_in_body => operation_of(pairs)?.into(),
                Argument::Pairs(pairs) => {
                    query.extend_pairs(pairs);
                    continue;
                }
                Argument::Value(Value::String(name)) if matches!(self.endpoint.task, Task::Change(Edit::BackUp, _)) => {
                    name_for_server(name)?.into()
                }
                Argument::Value(value) => value.clone(),
            };
            if field.is_in_body {
                body.push((field.name, value));
            } else {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                query.append_pair(field.name, &text);
            }
        }
        if matches!(row.reply, Shape::Page { .. }) {
            query.append_pair("count", PAGE).extend_pairs(cursor.map(|cursor| ("cursor", cursor)));
        }
        let query = query.finish();
        let target = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
        let request = Request::new(Method::from_bytes(method.as_bytes())?, target);
        let request = if row.has_body() { request.with_body() } else { request };
        Ok(body.into_iter().fold(request, |request, (name, value)| request.with(name, value)))
    }
}

/// Returns the row with the request over HTTP: its own, or the row of the list, which can be asked for one entry.
fn row_over_http(endpoint: &'static Endpoint) -> &'static Endpoint {
    let is_same = |row: &&&Endpoint| row.task == endpoint.task && row.http.is_some();
    ENDPOINTS.iter().find(is_same).copied().filter(|_| endpoint.http.is_none()).unwrap_or(endpoint)
}

/// Asks whether to do `what`, which cannot be undone. Returns the answer.
///
/// # Errors
/// There is no terminal to ask on, so `--yes` is required.
fn confirm(what: &str) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        bail!("{what}? There is no terminal on which to confirm this: add --yes to proceed");
    }
    let mut err = io::stderr().lock();
    write!(err, "{what}? [y/N] ")?;
    err.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(["y", "yes"].iter().any(|yes| answer.trim().eq_ignore_ascii_case(yes)))
}

/// Returns the name of a backup to send. Paths become absolute, because the server has its own working directory.
fn name_for_server(name: &str) -> anyhow::Result<String> {
    let name = name.trim_end_matches('/');
    if !name.contains('/') {
        return Ok(name.to_owned());
    }
    let path = std::path::absolute(Path::new(name)).context("cannot determine the working directory")?;
    path.into_os_string().into_string().ok().context("the path is not UTF-8")
}
