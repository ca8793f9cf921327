//! Draws `docs/burst.svg`: `cargo run --release --example burst_plot > docs/burst.svg`.

mod plot;

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    print!("{}", plot::burst_plot()?);
    Ok(())
}
