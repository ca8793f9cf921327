//! The certificates for TLS to Redis that the operator gave as files.

use std::path::{Path, PathBuf};

use redis::{ClientTlsConfig, TlsCertificates};

use super::invalid_target::InvalidRedisTarget;
use crate::files;

/// The largest file: room for thousands of certificates.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Files in PEM, for servers whose certificates no public authority has signed, and for those that demand one from
/// their clients.
#[derive(Debug, Clone, Default)]
pub struct RedisTls {
    /// The authorities that are trusted, in place of the system's.
    pub ca: Option<PathBuf>,
    /// divvy's own certificate, and the key that goes with it.
    pub client: Option<(PathBuf, PathBuf)>,
}

impl RedisTls {
    /// The files' content; `None` when there are none.
    pub(super) fn read(&self) -> Result<Option<TlsCertificates>, InvalidRedisTarget> {
        if self.ca.is_none() && self.client.is_none() {
            return Ok(None);
        }
        let root_cert = self.ca.as_deref().map(|path| read(path, "CERTIFICATE")).transpose()?;
        let client_tls = match &self.client {
            None => None,
            Some((cert, key)) => {
                Some(ClientTlsConfig { client_cert: read(cert, "CERTIFICATE")?, client_key: read(key, "PRIVATE KEY")? })
            }
        };
        Ok(Some(TlsCertificates { client_tls, root_cert }))
    }
}

/// The file, which must have a section of that kind: the library takes an empty file for one that trusts no authority.
fn read(path: &Path, kind: &'static str) -> Result<Vec<u8>, InvalidRedisTarget> {
    let content = files::read(path, MAX_FILE_BYTES)
        .map_err(|reason| InvalidRedisTarget::Unreadable { path: path.to_owned(), reason })?;
    let end = format!("{kind}-----");
    let is_there = String::from_utf8_lossy(&content)
        .lines()
        .any(|line| line.starts_with("-----BEGIN ") && line.trim_end().ends_with(&end));
    if is_there { Ok(content) } else { Err(InvalidRedisTarget::NotPem { path: path.to_owned(), kind }) }
}
