//! The operation on the command line of a verb.

use crate::cli::pairs::Pair;

#[derive(Debug, clap::Args)]
pub struct OperationArgs {
    /// The operation: each argument is one pair, split at its first `=`
    #[arg(value_name = "KEY=VALUE")]
    operation: Vec<Pair>,
}

impl OperationArgs {
    pub fn pairs(&self) -> impl Iterator<Item = &Pair> {
        self.operation.iter()
    }
}
