//! Certificates get old, and are replaced under a running server: what looks at the files again.
//!
//! It compares contents, not dates: certificates come by symbolic links, copies and mounts that keep any date. New
//! contents are loaded when two looks agree on them, so that of two files the second may be written after the first.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::files::{Contents, Files, TlsError};
use super::{Configs, Tls};

/// Remembers what it saw last.
pub struct Reloader {
    tls: Arc<Tls>,
    files: Files,
    /// Or why they could not be read.
    seen: Result<Contents, String>,
    /// Whether what was seen has been loaded or refused.
    is_judged: bool,
}

impl Reloader {
    /// Loads the files.
    ///
    /// # Errors
    /// [`TlsError`] says which file is wrong, and why.
    pub fn start(files: Files) -> Result<Self, TlsError> {
        let contents = files.read()?;
        let configs = Configs::new(files.configure(&contents)?);
        let asks_for_certificates = files.client_ca.is_some();
        let tls = Arc::new(Tls { current: ArcSwap::from_pointee(configs), asks_for_certificates });
        Ok(Self { tls, files, seen: Ok(contents), is_judged: true })
    }

    /// What handshakes go by.
    pub fn tls(&self) -> Arc<Tls> {
        Arc::clone(&self.tls)
    }

    /// Looks at the files, and loads what is new in them; what cannot be used leaves all as it was. It blocks while it
    /// reads. `at_once`: somebody says that the files are complete, and wants to know whether they are any good.
    pub fn look(&mut self, at_once: bool) {
        let seen = self.files.read().map_err(|error| error.to_string());
        let is_new = seen != self.seen;
        if is_new {
            self.seen = seen;
            self.is_judged = false;
        }
        let is_due = at_once || !is_new && !self.is_judged;
        if !is_due {
            return;
        }
        self.is_judged = true;
        match self.load() {
            Ok(()) => tracing::info!(
                certificate = %self.files.certificate.display(),
                "loaded the TLS certificate: new connections get it"
            ),
            Err(reason) => tracing::error!(%reason, "cannot load the new TLS files: the old ones stay in use"),
        }
    }

    fn load(&self) -> Result<(), String> {
        let contents = self.seen.as_ref().map_err(String::clone)?;
        let config = self.files.configure(contents).map_err(|error| error.to_string())?;
        self.tls.current.store(Arc::new(Configs::new(config)));
        Ok(())
    }
}
