//! The files that say who a client is, kept up to date.

use std::sync::Arc;

use super::access_file::AccessFile;
use super::token_key_file::TokenKeyFile;
use crate::access::Authority;
use crate::audit::AuditLog;
use crate::metrics::Metrics;

/// The files that define users and tokens, and the authority that they belong to.
#[derive(Debug)]
pub struct WatchedAccess {
    pub users: Option<AccessFile>,
    pub token_keys: Option<TokenKeyFile>,
    pub authority: Arc<Authority>,
}

impl WatchedAccess {
    /// Loads the files that have changed.
    pub fn reload_if_changed(&mut self, audit: &Arc<AuditLog>, metrics: &Metrics) {
        if let Some(users) = &mut self.users {
            users.reload_if_changed(&self.authority, audit, metrics);
        }
        if let Some(token_keys) = &mut self.token_keys {
            token_keys.reload_if_changed(&self.authority, audit, metrics);
        }
    }

    /// Loads the files even if they have not changed.
    pub fn reload(&mut self, audit: &Arc<AuditLog>, metrics: &Metrics) {
        if let Some(users) = &mut self.users {
            users.reload(&self.authority, audit, metrics);
        }
        if let Some(token_keys) = &mut self.token_keys {
            token_keys.reload(&self.authority, audit, metrics);
        }
    }
}
