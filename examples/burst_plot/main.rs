//! Draws `docs/burst.svg`: `cargo run --release --example burst_plot > docs/burst.svg`.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used,
    reason = "an example may panic"
)]

mod plot;

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    print!("{}", plot::burst_plot()?);
    Ok(())
}
