//! Flags of the live page, and the conditions for it.

use std::path::Path;
use std::sync::Arc;

use anyhow::{bail, ensure};

use super::access::is_loopback;
use super::store::StoreChoice;
use crate::server::auth::Access;
use crate::server::sessions::Sessions;
use crate::server::{DEFAULT_STREAMS, Fronts, ReloadLog, StoreBounds, UiSettings};
use crate::units;

/// Upper bound for open streams.
const MAX_STREAMS: u64 = 10_000;
/// Path of the page.
const PATH: &str = "/ui";

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "HTTP and gateways")]
pub struct UiArgs {
    /// Serve the live page at /ui/ on the HTTP listener. Without a password or users, it is read-only, and only for
    /// browsers on this machine
    #[arg(long, value_parser = clap::builder::BoolishValueParser::new())]
    ui: bool,
    /// Maximum number of open live pages, over all browsers. One user may open half of them [default: 64]
    #[arg(long, value_name = "N", value_parser = units::count::<usize>(1..=MAX_STREAMS))]
    ui_streams: Option<usize>,
}

impl UiArgs {
    /// Returns whether the page is served.
    ///
    /// # Errors
    /// A flag has no effect, or the metrics have a path of the page.
    pub fn is_on(&self, metrics_path: &str) -> anyhow::Result<bool> {
        if !self.ui {
            ensure!(self.ui_streams.is_none(), "--ui-streams (or DIVVY_UI_STREAMS) has no effect without --ui: add it");
            return Ok(false);
        }
        let is_of_page = metrics_path.strip_prefix(PATH).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        ensure!(!is_of_page, "--metrics-path is {metrics_path:?}, but the live page has this path: choose another one");
        Ok(true)
    }

    /// Returns the settings of the page.
    pub fn settings(
        &self,
        config: Option<&Path>,
        store: &StoreChoice,
        actor_limits: usize,
        reloads: Arc<ReloadLog>,
    ) -> UiSettings {
        UiSettings {
            max_streams: self.ui_streams.unwrap_or(DEFAULT_STREAMS),
            rules_file: config.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned()),
            durability: store.describe_durability(),
            bounds: StoreBounds { actor_limits: actor_limits as u64, ..store.bounds() },
            reloads,
        }
    }

    /// Returns the sessions of the page; `None` if it is not served. `is_secure` says that HTTP is served over TLS. `has_users`
    /// says that there are users besides `default`.
    ///
    /// # Errors
    /// The system does not know the listener's address.
    pub fn sessions(&self, fronts: &Fronts, is_secure: bool, has_users: bool) -> anyhow::Result<Option<Arc<Sessions>>> {
        let Some(listener) = fronts.http.as_ref().filter(|_| self.ui) else { return Ok(None) };
        Ok(Some(Arc::new(Sessions::new(listener.local_addr()?.port(), is_secure, has_users))))
    }

    /// Checks that only viewers who may see the page can reach it.
    ///
    /// # Errors
    /// The page has no listener, or anybody in the network could see it.
    pub fn check(&self, fronts: &Fronts, access: &Access) -> anyhow::Result<()> {
        if !self.ui {
            return Ok(());
        }
        let Some(listener) = &fronts.http else {
            bail!("--ui needs the HTTP listener, but --http-listen is `none`");
        };
        let address = listener.local_addr()?;
        ensure!(
            access.http.is_some() || is_loopback(address.ip()),
            "--ui on {address} needs users, because other machines can reach it: set --requirepass or --access-file, or \
             listen on 127.0.0.1 with --http-listen"
        );
        Ok(())
    }
}
