//! Distinguished names: as they are encoded, and as Globus writes them.
//!
//! In: the encoding of a name. Out: the same, its text (`/C=DE/O=Grid/CN=alice`), the hash under which
//! OpenSSL keeps what is of it.
//! Invariants: two names are the same where their encodings are; a text stands for a name only where it can
//! be of no other one.
//! Source: `X509_NAME_oneline` and `X509_NAME_hash` of OpenSSL, which files of grids are written by.

use std::fmt;

use aws_lc_rs::digest;
use der::asn1::{Any, ObjectIdentifier};
use der::{Decode, Encode, Tag, Tagged};
use x509_cert::name::Name;

use crate::GsiError;

/// Most bytes of a name.
pub const NAME_LEN_MAX: usize = 16 << 10;

/// How OpenSSL calls what names consist of.
const KINDS: [(&str, &str); 26] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.4", "SN"),
    ("2.5.4.5", "serialNumber"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "street"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.12", "title"),
    ("2.5.4.13", "description"),
    ("2.5.4.15", "businessCategory"),
    ("2.5.4.17", "postalCode"),
    ("2.5.4.20", "telephoneNumber"),
    ("2.5.4.41", "name"),
    ("2.5.4.42", "GN"),
    ("2.5.4.43", "initials"),
    ("2.5.4.44", "generationQualifier"),
    ("2.5.4.46", "dnQualifier"),
    ("2.5.4.65", "pseudonym"),
    ("2.5.4.97", "organizationIdentifier"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
    ("1.2.840.113549.1.9.2", "unstructuredName"),
    ("1.2.840.113549.1.9.8", "unstructuredAddress"),
];
pub(crate) const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// The name of somebody.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Dn {
    /// Its encoding.
    der: Vec<u8>,
    /// As Globus writes it.
    text: String,
    /// No other name has this text.
    is_plain: bool,
}

impl Dn {
    /// Of an encoding.
    ///
    /// # Errors
    /// It is none, or longer than any real one.
    pub fn of_der(der: &[u8]) -> Result<Dn, GsiError> {
        if der.len() > NAME_LEN_MAX {
            return Err(GsiError::untrusted("a certificate has a name without an end"));
        }
        let name = Name::from_der(der).map_err(|_| GsiError::untrusted("a certificate's name is none"))?;
        Ok(Dn::of(der.to_vec(), &name))
    }

    /// Of a name that was decoded.
    pub(crate) fn of_name(name: &Name) -> Result<Dn, GsiError> {
        let der = name.to_der().map_err(|_| GsiError::untrusted("a certificate's name is none"))?;
        if der.len() > NAME_LEN_MAX {
            return Err(GsiError::untrusted("a certificate has a name without an end"));
        }
        Ok(Dn::of(der, name))
    }

    fn of(der: Vec<u8>, name: &Name) -> Dn {
        let (mut text, mut is_plain) = (String::new(), true);
        for rdn in name.iter_rdn() {
            is_plain &= rdn.len() == 1;
            for (i, part) in rdn.iter().enumerate() {
                text.push(if i == 0 { '/' } else { '+' });
                let oid = part.oid.to_string();
                match KINDS.iter().find(|(known, _)| *known == oid) {
                    Some((_, short)) => text.push_str(short),
                    None => text.push_str(&oid),
                }
                text.push('=');
                let (value, is_text) = shown(&part.value);
                is_plain &= is_text && !would_read_as_another(&value);
                text.push_str(&value);
            }
        }
        Dn { der, text, is_plain }
    }

    /// As it is encoded.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// As Globus writes it. For people: of two names that differ it may be the same one.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text, where it can stand for this name alone.
    pub fn plain(&self) -> Option<&str> {
        self.is_plain.then_some(&self.text)
    }

    /// Whether a file that calls somebody so means this name.
    pub fn is_called(&self, text: &str) -> bool {
        self.is_plain && normal(text) == normal(&self.text)
    }

    /// Whether it is `of` and one common name behind it; that name.
    pub(crate) fn common_name_behind(&self, of: &Dn) -> Option<Vec<u8>> {
        let (mine, its) = (Name::from_der(&self.der).ok()?, Name::from_der(&of.der).ok()?);
        let (mut mine_rdns, mut its_rdns) = (mine.iter_rdn(), its.iter_rdn());
        if its_rdns.by_ref().any(|rdn| mine_rdns.next() != Some(rdn)) {
            return None;
        }
        let last = mine_rdns.next().filter(|last| last.len() == 1 && mine_rdns.next().is_none())?;
        let part = last.iter().next().filter(|part| part.oid == COMMON_NAME)?;
        Some(part.value.value().to_vec())
    }

    /// The last of its common names.
    pub(crate) fn common_name(&self) -> Option<String> {
        let name = Name::from_der(&self.der).ok()?;
        let last = name.iter_rdn().last()?;
        let part = last.iter().next().filter(|part| last.len() == 1 && part.oid == COMMON_NAME)?;
        let (value, is_text) = shown(&part.value);
        is_text.then_some(value)
    }

    /// The hash that OpenSSL has of it: what is about an authority stands in files that are called so.
    pub fn hash(&self) -> String {
        let canonical = Name::from_der(&self.der).ok().and_then(|name| canonical(&name)).unwrap_or_default();
        let sum = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, &canonical);
        let first: [u8; 4] = sum.as_ref()[..4].try_into().expect("SHA-1 has more than four bytes");
        format!("{:08x}", u32::from_le_bytes(first))
    }
}

impl fmt::Debug for Dn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Display for Dn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A value as OpenSSL prints it, and whether it is of a kind of which that is known.
fn shown(value: &Any) -> (String, bool) {
    // A backslash could be the escape of another byte.
    let is_text = is_bytes_of_text(value.tag()) && !value.value().contains(&b'\\');
    let mut text = String::new();
    for byte in value.value() {
        match byte {
            b' '..=b'~' => text.push(char::from(*byte)),
            byte => text.push_str(&format!("\\x{byte:02X}")),
        }
    }
    (text, is_text)
}

/// Of a byte a character, or UTF-8.
fn is_bytes_of_text(tag: Tag) -> bool {
    matches!(
        tag,
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String | Tag::TeletexString | Tag::VisibleString
    )
}

/// A value in which the next part of a name seems to begin.
fn would_read_as_another(value: &str) -> bool {
    value.split(['/', '+']).skip(1).any(|rest| {
        let kind = rest.split('=').next().filter(|kind| kind.len() < rest.len());
        kind.is_some_and(|kind| {
            !kind.is_empty() && kind.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.')
        })
    })
}

/// The same part of a name under its several names, as Globus takes them.
fn normal(text: &str) -> String {
    let mut normal = text.to_owned();
    for (others, one) in [("/Email=", "/emailAddress="), ("/E=", "/emailAddress="), ("/USERID=", "/UID=")] {
        normal = normal.replace(others, one);
    }
    normal
}

/// The encoding that OpenSSL hashes: strings in lower case and UTF-8, spaces folded, without the outer head.
fn canonical(name: &Name) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    for rdn in name.iter_rdn() {
        let mut parts = Vec::new();
        for part in rdn.iter() {
            let value = match as_utf8(&part.value) {
                Some(text) => tlv(0x0c, &folded(&text)),
                None => part.value.to_der().ok()?,
            };
            let oid = part.oid.to_der().ok()?;
            parts.push(tlv(0x30, &[oid, value].concat()));
        }
        // A set is in the order of its encodings.
        parts.sort();
        all.extend(tlv(0x31, &parts.concat()));
    }
    Some(all)
}

fn as_utf8(value: &Any) -> Option<Vec<u8>> {
    let bytes = value.value();
    match value.tag() {
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String | Tag::VisibleString => Some(bytes.to_vec()),
        Tag::TeletexString => Some(bytes.iter().map(|b| char::from(*b)).collect::<String>().into_bytes()),
        Tag::BmpString => {
            let units = bytes.chunks(2).map(|pair| match pair {
                [high, low] => u16::from_be_bytes([*high, *low]),
                _ => 0xfffd,
            });
            Some(
                char::decode_utf16(units)
                    .map(|unit| unit.unwrap_or('\u{fffd}'))
                    .collect::<String>()
                    .into_bytes(),
            )
        }
        _ => None,
    }
}

fn folded(text: &[u8]) -> Vec<u8> {
    let is_space = |b: &u8| matches!(b, b' ' | b'\t' | b'\n' | b'\x0b' | b'\x0c' | b'\r');
    let words = text.split(is_space).filter(|word| !word.is_empty());
    words.map(<[u8]>::to_ascii_lowercase).collect::<Vec<_>>().join(&b' ')
}

pub(crate) fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    match content.len() {
        len @ 0..=0x7f => out.push(u8::try_from(len).expect("below 128")),
        len => {
            let bytes = len.to_be_bytes();
            let skip = bytes.iter().take_while(|b| **b == 0).count();
            out.push(0x80 | u8::try_from(bytes.len() - skip).expect("at most 8"));
            out.extend_from_slice(&bytes[skip..]);
        }
    }
    out.extend_from_slice(content);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::dn;

    fn of(hex: &str) -> Dn {
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("a byte");
        Dn::of_der(&(0..hex.len()).step_by(2).map(byte).collect::<Vec<_>>()).expect("a name")
    }

    /// Goal: files about an authority are looked for where OpenSSL looks for them.
    /// Method: names and what `openssl x509 -hash` says of them: spaces and capitals, UTF-8, several kinds of
    /// strings, a part of two.
    #[test]
    fn hashes_are_those_of_openssl() {
        for (name, hash) in [
            (
                "3036310b300906035504061302444531153013060355040a0c0c2020477269642020204f66203110300e06035504030c07526f\
                 6f74204341",
                "c9735907",
            ),
            (
                "304031133011060a0992268993f22c64011916036f726731173015060a0992268993f22c64011916074578616d706c65311030\
                 0e06035504030c074ac3b672672058",
                "ccd4295d",
            ),
            (
                "302c3114300806035504030c01783008060355040b0c01793114301206092a864886f70d01090116054140422e43",
                "816e13c0",
            ),
            ("3011310f300d060355040a0c06612f434e3d62", "de9e182f"),
        ] {
            assert_eq!(of(&name.replace(' ', "")).hash(), hash, "{name}");
        }
    }

    /// Goal: a text is that of Globus; where another name could have it, it stands for nobody.
    #[test]
    fn a_text_stands_for_one_name() {
        let plain = dn(&[("C", "DE"), ("O", "Grid"), ("CN", "host/a.example.org")]);
        assert_eq!(plain.plain(), Some("/C=DE/O=Grid/CN=host/a.example.org"));
        let special = dn(&[("O", "Grid"), ("CN", "J\u{f6}rg")]);
        assert_eq!(special.plain(), Some("/O=Grid/CN=J\\xC3\\xB6rg"));
        assert!(special.is_called("/O=Grid/CN=J\\xC3\\xB6rg"));
        for value in ["Grid/CN=x", "Grid+CN=x", "J\\xC3", "a/1.2.3=x"] {
            assert_eq!(dn(&[("O", value)]).plain(), None, "{value}");
        }
        let two = of(
            "302c3114300806035504030c01783008060355040b0c01793114301206092a864886f70d01090116054140422e43",
        );
        assert_eq!((two.text(), two.plain()), ("/CN=x+OU=y/emailAddress=A@B.C", None));
        let mail = dn(&[("O", "Grid"), ("emailAddress", "a@b")]);
        for text in ["/O=Grid/emailAddress=a@b", "/O=Grid/Email=a@b", "/O=Grid/E=a@b"] {
            assert!(mail.is_called(text), "{text}");
        }
        assert!(Dn::of_der(b"nothing").is_err());
        assert!(Dn::of_der(&tlv(0x30, &vec![0; NAME_LEN_MAX])).is_err());
    }

    /// Goal: names are the same where their encodings are, and not where only their texts are.
    #[test]
    fn names_are_compared_as_they_are_encoded() {
        let (utf8, printable) =
            (of("300f310d300b06035504030c0478797a78"), of("300f310d300b0603550403130478797a78"));
        assert_eq!(utf8.text(), printable.text());
        assert_ne!(utf8, printable);
        assert_eq!(utf8.hash(), printable.hash());
        let below = |common: &str| {
            Dn::of_der(&crate::proxy::below(utf8.der(), common).expect("one")).expect("a name")
        };
        assert_eq!(below("1").common_name_behind(&utf8).as_deref(), Some(&b"1"[..]));
        assert_eq!(below("1").common_name_behind(&printable), None);
        assert_eq!(utf8.common_name_behind(&utf8), None);
        assert_eq!(below("1").common_name_behind(&below("1")), None);
    }
}
