//! The name in a client's certificate.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::der::{Decode, Tag, Tagged};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// Returns the first DNS name or URI among the alternative names, or else the common name. `None` if the certificate has
/// none of them, or the name is no plain text.
pub fn certificate_name(certificate: &CertificateDer<'_>) -> Option<Arc<str>> {
    let certificate = Certificate::from_der(certificate).ok()?;
    let certificate = certificate.tbs_certificate();
    // An error: the extension is there twice, or cannot be decoded.
    let alternatives = certificate.get_extension::<SubjectAltName>().ok()?;
    let names = alternatives.iter().flat_map(|(_, names)| &names.0);
    let alternative = names.filter_map(|name| match name {
        GeneralName::DnsName(name) | GeneralName::UniformResourceIdentifier(name) => Some(name.as_str()),
        _ => None,
    });
    let subject = certificate.subject().as_ref().iter().flat_map(|names| names.iter());
    let common = subject.filter(|name| name.oid == COMMON_NAME).filter_map(|name| {
        let is_text =
            matches!(name.value.tag(), Tag::NumericString | Tag::PrintableString | Tag::Utf8String | Tag::Ia5String);
        str::from_utf8(name.value.value()).ok().filter(|_| is_text)
    });
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
