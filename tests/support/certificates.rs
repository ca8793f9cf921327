//! Certificates and their authorities, created for each test.

use std::fs;
use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair, SanType};
use tempfile::TempDir;

/// A directory of PEM files: two independent authorities, a server certificate from the first one, and a client
/// certificate from each.
pub struct Certificates {
    dir: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Certificates {
    pub fn new() -> Self {
        let certificates = Self { dir: tempfile::tempdir().unwrap(), authority: authority("an authority") };
        let foreign = authority("a foreign authority");
        certificates.write("ca.pem", &certificates.authority.pem());
        certificates.write("foreign-ca.pem", &foreign.pem());
        certificates.issue("server");
        certificates.issue("client");
        certificates.issue_from(&foreign, "foreign");
        certificates
    }

    /// Returns the path of a file in this directory.
    pub fn path(&self, name: &str) -> String {
        self.file(name).to_str().unwrap().to_owned()
    }

    pub fn write(&self, name: &str, content: &str) {
        fs::write(self.file(name), content).unwrap();
    }

    /// Creates NAME.pem and NAME.key for this machine. Returns the certificate's DER.
    pub fn issue(&self, name: &str) -> Vec<u8> {
        self.issue_from(&self.authority, name)
    }

    /// Creates FILE.pem and FILE.key with these names only.
    pub fn issue_named(&self, file: &str, common_name: Option<&str>, alternatives: Vec<SanType>) {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        if let Some(name) = common_name {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        params.subject_alt_names = alternatives;
        self.sign(&self.authority, file, params);
    }

    fn issue_from(&self, authority: &CertifiedIssuer<'static, KeyPair>, name: &str) -> Vec<u8> {
        let mut params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        self.sign(authority, name, params)
    }

    fn sign(&self, authority: &CertifiedIssuer<'static, KeyPair>, name: &str, params: CertificateParams) -> Vec<u8> {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, authority).unwrap();
        self.write(&format!("{name}.key"), &key.serialize_pem());
        self.write(&format!("{name}.pem"), &certificate.pem());
        certificate.der().to_vec()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}
