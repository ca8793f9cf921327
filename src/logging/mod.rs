//! temporary
mod escaped;
mod sometimes;

pub use escaped::Escaped;
pub use sometimes::{MESSAGES_PER_SECOND, Sometimes};
