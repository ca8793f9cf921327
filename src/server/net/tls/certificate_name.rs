//! The name in a client's certificate.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

/// Returns the first DNS name or URI among the alternative names, or else the common name. `None` if the certificate has
/// none of them, or the name is no plain text.
pub fn certificate_name(certificate: &CertificateDer<'_>) -> Option<Arc<str>> {
    let (_, certificate) = parse_x509_certificate(certificate).ok()?;
    // An error: the extension is there twice.
    let alternatives = certificate.subject_alternative_name().ok()?;
    let names = alternatives.iter().flat_map(|names| &names.value.general_names);
    let alternative = names.filter_map(|name| match name {
        GeneralName::DNSName(name) | GeneralName::URI(name) => Some(*name),
        _ => None,
    });
    let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    let name = alternative.chain(common).next()?;
    let is_plain = !name.is_empty() && !name.chars().any(|c| c.is_control() || c.is_whitespace());
    is_plain.then(|| name.into())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

    use super::*;

    fn name(common: Option<&str>, alternatives: Vec<SanType>) -> Option<String> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        if let Some(common) = common {
            params.distinguished_name.push(DnType::CommonName, common);
        }
        params.subject_alt_names = alternatives;
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        certificate_name(certificate.der()).map(|name| name.to_string())
    }

    #[test]
    fn first_dns_name_or_uri_comes_before_the_common_name() {
        let dns = || SanType::DnsName("app.example".try_into().unwrap());
        let uri = || SanType::URI("spiffe://prod/app".try_into().unwrap());
        let address = || SanType::IpAddress([127, 0, 0, 1].into());
        for (common, alternatives, expected) in [
            (Some("common"), vec![], Some("common")),
            (Some("common"), vec![dns(), uri()], Some("app.example")),
            (None, vec![address(), uri(), dns()], Some("spiffe://prod/app")),
            (Some("common"), vec![address()], Some("common")),
            (None, vec![address()], None),
            (None, vec![], None),
            (Some("two words"), vec![], None),
            (Some("line\nbreak"), vec![], None),
        ] {
            assert_eq!(name(common, alternatives).as_deref(), expected);
        }
        assert_eq!(certificate_name(&CertificateDer::from(&b"nonsense"[..])), None);
    }
}
