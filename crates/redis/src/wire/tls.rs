//! TLS to Redis, with certificates from the operator's files.

use std::io;
use std::path::{Path, PathBuf};

use redis::{ClientTlsConfig, RedisError, TlsCertificates};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::invalid_target::InvalidRedisTarget;
use divvy_core::files;

/// Maximum size of a file. It has room for thousands of certificates.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// PEM files, for servers whose certificate is not signed by a public authority, and for servers that require client
/// certificates.
#[derive(Debug, Clone, Default)]
pub struct RedisTls {
    /// The trusted authorities, in place of the system's.
    pub ca: Option<PathBuf>,
    /// divvy's own certificate, and its private key.
    pub client: Option<(PathBuf, PathBuf)>,
}

impl RedisTls {
    /// Reads the files. Returns `None` if there are no files.
    pub fn read(&self) -> Result<Option<TlsCertificates>, InvalidRedisTarget> {
        if self.ca.is_none() && self.client.is_none() {
            return Ok(None);
        }
        let root_cert = self.ca.as_deref().map(|path| read(path, "CERTIFICATE")).transpose()?;
        let read_both = |(cert, key): &(PathBuf, PathBuf)| -> Result<_, InvalidRedisTarget> {
            Ok(ClientTlsConfig { client_cert: read(cert, "CERTIFICATE")?, client_key: read(key, "PRIVATE KEY")? })
        };
        let client_tls = self.client.as_ref().map(read_both).transpose()?;
        Ok(Some(TlsCertificates { client_tls, root_cert }))
    }
}

/// Reads a file, which must have a section of that kind. The library would accept an empty file, and would then trust
/// no authority.
fn read(path: &Path, kind: &'static str) -> Result<Vec<u8>, InvalidRedisTarget> {
    let content = files::read(path, MAX_FILE_BYTES)
        .map_err(|reason| InvalidRedisTarget::Unreadable { path: path.to_owned(), reason })?;
    let end = format!("{kind}-----");
    let is_there = String::from_utf8_lossy(&content)
        .lines()
        .any(|line| line.starts_with("-----BEGIN ") && line.trim_end().ends_with(&end));
    if is_there { Ok(content) } else { Err(InvalidRedisTarget::NotPem { path: path.to_owned(), kind }) }
}

/// Returns the settings of a connection: the given authorities, or else the system's, and divvy's own certificate if it has one.
pub fn client_config(certificates: Option<&TlsCertificates>) -> Result<ClientConfig, RedisError> {
    let given = certificates.and_then(|certificates| certificates.root_cert.as_deref());
    let builder = ClientConfig::builder().with_root_certificates(authorities(given)?);
    let config = match certificates.and_then(|certificates| certificates.client_tls.as_ref()) {
        None => Ok(builder.with_no_client_auth()),
        Some(own) => {
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&own.client_cert).collect();
            let key = PrivateKeyDer::from_pem_slice(&own.client_key).map_err(io::Error::other)?;
            builder.with_client_auth_cert(chain.map_err(io::Error::other)?, key)
        }
    };
    Ok(config.map_err(io::Error::other)?)
}

fn authorities(given: Option<&[u8]>) -> io::Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    let Some(given) = given else {
        let system = rustls_native_certs::load_native_certs();
        if let Some(error) = system.errors.into_iter().next() {
            return Err(io::Error::other(error));
        }
        store.add_parsable_certificates(system.certs);
        return Ok(store);
    };
    for certificate in CertificateDer::pem_slice_iter(given) {
        store.add(certificate.map_err(io::Error::other)?).map_err(io::Error::other)?;
    }
    Ok(store)
}
