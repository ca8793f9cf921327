//! The settings of the page, the state that all of its routes share, and the open streams: their maximum, and the share of
//! one user.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use super::assets::Assets;
use super::health::PageHealth;
use super::history::Sampler;
use super::values::StoreBounds;
use crate::net::auth::Guard;
use crate::net::work::WorkSlots;
use crate::reload_log::ReloadLog;
use divvy_limiter::Limiter;

/// Default maximum number of open streams of all pages.
pub const DEFAULT_STREAMS: usize = 64;

/// Settings of the page.
#[derive(Debug, Clone)]
pub struct UiSettings {
    /// Maximum number of open streams of all pages.
    pub max_streams: usize,
    /// Name of the rules file, without its directories.
    pub rules_file: Option<String>,
    /// The durability of a hit, in words.
    pub durability: &'static str,
    /// Bounds of the store.
    pub bounds: StoreBounds,
    /// The last reloads of the rules.
    pub reloads: Arc<ReloadLog>,
}

/// The state that all routes of the page share.
pub struct Ui {
    pub limiter: Arc<Limiter>,
    pub settings: UiSettings,
    /// Logs users in. Without a guard, the page is read-only, and for this machine alone.
    pub guard: Option<Arc<Guard>>,
    pub sampler: Arc<Sampler>,
    pub health: Arc<PageHealth>,
    pub slots: WorkSlots,
    pub assets: Assets,
    /// Maximum length of a login (bytes).
    pub max_body: usize,
    pub streams: Arc<Streams>,
    /// Cancelled when the server accepts no more connections, so that streams end.
    pub stopping: CancellationToken,
}

impl Ui {
    /// Creates the page. `slots` bound the searches at a time.
    #[expect(clippy::too_many_arguments, reason = "all of them are what the page is made of, each given once")]
    pub fn new(
        settings: UiSettings,
        limiter: Arc<Limiter>,
        guard: Option<Arc<Guard>>,
        sampler: Arc<Sampler>,
        health: Arc<PageHealth>,
        slots: WorkSlots,
        max_body: usize,
        stopping: CancellationToken,
    ) -> Arc<Self> {
        let streams = Streams::new(settings.max_streams);
        let assets = Assets::new();
        Arc::new(Self { limiter, settings, guard, sampler, health, slots, assets, max_body, streams, stopping })
    }
}

/// The open streams.
#[derive(Debug)]
pub struct Streams {
    max: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    all: usize,
    /// The streams of each user who has any.
    of_users: HashMap<Box<str>, usize>,
}

/// No further stream may be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TooManyStreams {
    /// All places are taken.
    #[error("{0} streams are open, which is the maximum (--ui-streams)")]
    OfAll(usize),
    /// The user has its share of the places.
    #[error("this user has {0} open streams, which is the share of one user (half of --ui-streams)")]
    OfUser(usize),
}

/// The place of an open stream, until it is dropped.
#[derive(Debug)]
pub struct StreamPlace {
    streams: Arc<Streams>,
    user: Option<Box<str>>,
}

impl Streams {
    /// Allows this number of streams.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, open: Mutex::default() })
    }

    /// Returns the share of one user: half, so that no user takes the streams of all others.
    fn share(&self) -> usize {
        self.max.div_ceil(2)
    }

    /// Takes a place. Without a `user`, all viewers share one account, and there is no share.
    ///
    /// # Errors
    /// All places are taken, or the user has its share of them.
    pub fn open(self: &Arc<Self>, user: Option<&str>) -> Result<StreamPlace, TooManyStreams> {
        let mut open = self.open.lock();
        if open.all >= self.max {
            return Err(TooManyStreams::OfAll(self.max));
        }
        if let Some(user) = user {
            let of_user = open.of_users.get(user).copied().unwrap_or_default();
            if of_user >= self.share() {
                return Err(TooManyStreams::OfUser(of_user));
            }
            open.of_users.insert(user.into(), of_user + 1);
        }
        open.all += 1;
        Ok(StreamPlace { streams: Arc::clone(self), user: user.map(Into::into) })
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut open = self.streams.open.lock();
        open.all -= 1;
        let Some(user) = self.user.take() else { return };
        if let Entry::Occupied(mut of_user) = open.of_users.entry(user) {
            *of_user.get_mut() -= 1;
            if *of_user.get() == 0 {
                of_user.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_takes_half_of_the_streams() {
        let streams = Streams::new(3);
        let of_ann = [streams.open(Some("ann")).unwrap(), streams.open(Some("ann")).unwrap()];
        assert_eq!(streams.open(Some("ann")).unwrap_err(), TooManyStreams::OfUser(2));
        let of_bob = streams.open(Some("bob")).unwrap();
        assert_eq!(streams.open(Some("carl")).unwrap_err(), TooManyStreams::OfAll(3));
        drop(of_ann);
        let again = [streams.open(Some("ann")).unwrap(), streams.open(Some("carl")).unwrap()];
        assert!(streams.open(None).is_err());
        drop((of_bob, again));
        let open = streams.open.lock();
        assert_eq!((open.all, open.of_users.len()), (0, 0));
    }

    #[test]
    fn viewers_without_accounts_share_all_streams() {
        let streams = Streams::new(2);
        let places = [streams.open(None).unwrap(), streams.open(None).unwrap()];
        assert_eq!(streams.open(None).unwrap_err(), TooManyStreams::OfAll(2));
        drop(places);
        assert!(streams.open(None).is_ok());
    }
}
