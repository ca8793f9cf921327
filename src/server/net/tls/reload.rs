//! Reloads TLS files that were replaced while the server runs.
//!
//! The files are compared by contents, not by dates: certificates arrive by symbolic links, copies and mounts that keep any
//! date. New contents are loaded once two readings agree, because the second of two files may be written after the first.

use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::files::{Contents, Files, TlsError};
use super::{Configs, Tls};
use crate::metrics::Counter;

/// The files, and their contents at the last reading.
pub struct Reloader {
    tls: Arc<Tls>,
    files: Files,
    /// Contents of the last reading, or the reason why the files could not be read.
    seen: Result<Contents, String>,
    /// Whether those contents have been loaded or refused.
    is_judged: bool,
}

impl Reloader {
    /// Loads the files. `failed` will count failed handshakes.
    ///
    /// # Errors
    /// [`TlsError`] names the file and the reason.
    pub fn start(files: Files, failed: Counter) -> Result<Self, TlsError> {
        let contents = files.read()?;
        let configs = Configs::new(files.configure(&contents)?);
        let requires_certificates = files.client_ca.is_some();
        let tls = Arc::new(Tls { current: ArcSwap::from_pointee(configs), failed, requires_certificates });
        Ok(Self { tls, files, seen: Ok(contents), is_judged: true })
    }

    /// Returns the path of the certificate.
    pub fn certificate(&self) -> &Path {
        &self.files.certificate
    }

    /// Returns the configuration of handshakes.
    pub fn tls(&self) -> Arc<Tls> {
        Arc::clone(&self.tls)
    }

    /// Reads the files, and loads them if they are new. Returns `None` if there was nothing to do. Blocks while reading.
    ///
    /// `at_once` means that an operator has declared the files complete, and wants to know whether they are valid.
    ///
    /// # Errors
    /// The files cannot be used. Returned once for the same contents. The previous files stay in use.
    pub fn reload_if_changed(&mut self, at_once: bool) -> Option<Result<(), String>> {
        let seen = self.files.read().map_err(|error| error.to_string());
        let is_new = seen != self.seen;
        if is_new {
            self.seen = seen;
            self.is_judged = false;
        }
        let is_due = at_once || !is_new && !self.is_judged;
        if !is_due {
            return None;
        }
        self.is_judged = true;
        Some(self.load())
    }

    fn load(&self) -> Result<(), String> {
        let contents = self.seen.as_ref().map_err(String::clone)?;
        let config = self.files.configure(contents).map_err(|error| error.to_string())?;
        self.tls.current.store(Arc::new(Configs::new(config)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::metrics::Metrics;

    fn renew(files: &Files) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(&files.certificate, made.cert.pem()).unwrap();
        fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    }

    #[test]
    fn new_files_are_loaded_once_they_are_stable_and_bad_ones_are_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let files =
            Files { certificate: dir.path().join("server.pem"), key: dir.path().join("server.key"), client_ca: None };
        renew(&files);
        let mut reloader = Reloader::start(files.clone(), Metrics::new().access.tls_handshakes_failed.clone()).unwrap();
        let current = |reloader: &Reloader| reloader.tls.current.load_full();
        let first = current(&reloader);
        assert_eq!([reloader.reload_if_changed(false), reloader.reload_if_changed(false)], [None, None]);

        renew(&files);
        assert_eq!(
            [reloader.reload_if_changed(false), reloader.reload_if_changed(false), reloader.reload_if_changed(false)],
            [None, Some(Ok(())), None]
        );
        let second = current(&reloader);
        assert!(!Arc::ptr_eq(&first, &second));

        fs::remove_file(&files.key).unwrap();
        assert_eq!(reloader.reload_if_changed(false), None);
        assert!(matches!(reloader.reload_if_changed(false), Some(Err(reason)) if reason.contains("cannot read")));
        assert_eq!([reloader.reload_if_changed(false), reloader.reload_if_changed(false)], [None, None]);
        assert!(matches!(reloader.reload_if_changed(true), Some(Err(_))), "a requested check reports the error again");
        assert!(Arc::ptr_eq(&second, &current(&reloader)));

        renew(&files);
        assert_eq!(reloader.reload_if_changed(true), Some(Ok(())));
        assert!(!Arc::ptr_eq(&second, &current(&reloader)));
    }
}
