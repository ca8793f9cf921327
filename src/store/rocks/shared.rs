//! What the public store and its threads share.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::database::Database;
use super::directory::Lock;
use super::engine::Engine;
use super::filter::Swept;
use crate::clock::Clock;
use crate::store::bounds::Bounds;
use crate::store::seal::Seal;

/// The store, as its threads see it.
pub(super) struct Shared {
    pub(super) engine: Arc<Engine<Database>>,
    pub(super) path: PathBuf,
    pub(super) seal: Seal,
    /// What compactions have dropped, by every database that was open here.
    pub(super) swept: Arc<Swept>,
    /// Kept while the database is opened again: another process may wait for it.
    pub(super) _lock: Lock,
    pub(super) bounds: Bounds,
    pub(super) clock: Clock,
    pub(super) stopping: Mutex<bool>,
    pub(super) stop: Condvar,
}
