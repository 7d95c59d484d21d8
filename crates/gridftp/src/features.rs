//! What a server says that it can: the reply to `FEAT` (RFC 2389).
//!
//! In: a reply. Out: a set of features with their parameters, asked without regard to case.
//! Invariants: at most [`FEATURES_MAX`] features, none longer than [`FEATURE_LEN_MAX`].
//! A server that has no `FEAT` (500, 502) has said nothing: that is [`Features::default`], and every feature
//! may still be there. globus-url-copy tries them all the same.
//! Left out: which of them is wanted, and what else `SITE HELP` says.

use crate::FtpError;
use crate::reply::{Class, Reply};
use crate::text::{number, split_at_byte, trim};

/// Most features of a server.
pub const FEATURES_MAX: usize = 1_024;
/// Longest line of a feature.
pub const FEATURE_LEN_MAX: usize = 4_096;

/// The features of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Name in capitals, parameters as they came.
    list: Vec<(Box<[u8]>, Box<[u8]>)>,
}

/// A fact that the server can tell in listings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MlstFact<'a> {
    pub name: &'a [u8],
    /// Told unless `OPTS MLST` says otherwise: a `*` stands behind the name.
    pub is_on: bool,
}

impl Features {
    /// Reads the reply to `FEAT`.
    ///
    /// # Errors
    /// If it says that there is no such command, or a maximum is exceeded.
    pub fn parse(reply: &Reply) -> Result<Features, FtpError> {
        if reply.class() != Class::Completed {
            return Err(FtpError::BadValue { what: "reply to FEAT", value: reply.code().into() });
        }
        let mut list = Vec::new();
        for line in reply.inner().map(trim).filter(|line| !line.is_empty()) {
            if list.len() == FEATURES_MAX {
                return Err(FtpError::TooMany { what: "features", max: FEATURES_MAX as u64 });
            }
            if line.len() > FEATURE_LEN_MAX {
                return Err(FtpError::TooMany { what: "feature", max: FEATURE_LEN_MAX as u64 });
            }
            let (name, parameters) = split_at_byte(line, b' ').unwrap_or((line, b""));
            list.push((name.to_ascii_uppercase().into(), trim(parameters).into()));
        }
        Ok(Features { list })
    }

    /// The server has the feature, with whatever parameters.
    pub fn has(&self, name: &str) -> bool {
        self.parameters(name).next().is_some()
    }

    /// The parameters of the feature, once for each line that names it: `AUTH` may have several.
    pub fn parameters(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.list.iter().filter(move |(n, _)| n.eq_ignore_ascii_case(name.as_bytes())).map(|(_, p)| &**p)
    }

    /// One of the feature's parameters is `word`: between blanks, `;` or `,`.
    pub fn has_parameter(&self, name: &str, word: &str) -> bool {
        let is_gap = |b: &u8| matches!(b, b' ' | b';' | b',');
        let mut words = self.parameters(name).flat_map(|text| text.split(is_gap));
        words.any(|w| w.eq_ignore_ascii_case(word.as_bytes()))
    }

    /// The facts of `MLST`. None if there is no such feature: then `MLSD` is no command either.
    pub fn mlst(&self) -> impl Iterator<Item = MlstFact<'_>> {
        let facts = self.parameters("MLST").flat_map(|text| text.split(|b| *b == b';')).map(trim);
        facts.filter(|fact| !fact.is_empty()).map(|fact| match fact.strip_suffix(b"*") {
            Some(name) => MlstFact { name, is_on: true },
            None => MlstFact { name: fact, is_on: false },
        })
    }

    /// The algorithms of `CKSM` and what each costs, as the server rates it: `MD5:10;ADLER32:10;`. One whose
    /// rating is no number is an algorithm all the same.
    pub fn sums(&self) -> impl Iterator<Item = (&[u8], Option<u64>)> {
        let sums = self.parameters("CKSM").flat_map(|text| text.split(|b| matches!(b, b';' | b',' | b' ')));
        sums.filter(|sum| !sum.is_empty()).map(|sum| match split_at_byte(sum, b':') {
            Some((name, cost)) => (name, number("cost of a sum", cost, u64::MAX).ok()),
            None => (sum, None),
        })
    }

    /// `REST` takes an offset in stream mode.
    pub fn has_rest_stream(&self) -> bool {
        self.has_parameter("REST", "STREAM")
    }

    /// `PASV` may be answered after the name is known.
    pub fn has_delayed_passive(&self) -> bool {
        self.has_parameter("PASV", "AllowDelayed")
    }

    /// Data connections lead to the client's host alone, by what was set there (haul's own).
    pub fn has_no_third_party(&self) -> bool {
        self.has_parameter("THIRD-PARTY", "NO")
    }

    /// Whoever sends files is told sessions of TLS to go on with, if he hears data connections out (haul's
    /// own).
    pub fn has_stor_tickets(&self) -> bool {
        self.has_parameter("STOR", "Tickets")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features(lines: &[&str]) -> Result<Features, FtpError> {
        Features::parse(&Reply::new(211, lines.iter().map(|line| line.as_bytes())).expect("a reply"))
    }

    /// Goal: features are found whatever the case, with each of their parameters.
    /// Method: the lines of a Globus server and some of others.
    #[test]
    fn features_have_parameters() {
        let features = features(&[
            "Extensions supported",
            " AUTH GSSAPI",
            " auth TLS",
            " MLST Type*;Size*;Modify*;Perm;Unique*;UNIX.mode*;",
            " CKSM MD5:10;ADLER32:10;SHA1:10;SHA256:11;SHA512:12;odd:x",
            " REST STREAM",
            " Parallel",
            " PASV AllowDelayed;",
            " STOR Tickets;",
            " THIRD-PARTY NO",
            "ESTO",
            " ",
            "211-SIZE",
            "End.",
        ])
        .expect("features");
        assert!(features.has("PARALLEL") && features.has("esto") && features.has("Size"));
        assert!(!features.has("ERET") && !features.has("END."));
        assert_eq!(features.parameters("AUTH").collect::<Vec<_>>(), [&b"GSSAPI"[..], b"TLS"]);
        assert!(features.has_parameter("Auth", "tls") && !features.has_parameter("AUTH", "SSL"));
        assert!(features.has_rest_stream() && features.has_delayed_passive());
        assert!(features.has_stor_tickets() && features.has_no_third_party());
        let facts: Vec<_> = features.mlst().collect();
        assert_eq!(facts.len(), 6);
        assert_eq!(facts[0], MlstFact { name: b"Type", is_on: true });
        assert_eq!(facts[3], MlstFact { name: b"Perm", is_on: false });
        let sums: Vec<_> = features.sums().collect();
        assert_eq!(sums[..2], [(&b"MD5"[..], Some(10)), (b"ADLER32", Some(10))]);
        assert_eq!(sums[5], (&b"odd"[..], None));
    }

    /// Goal: a server without features has none, and too many are refused.
    /// Method: a reply of one line; a refusal; one more than the maximum.
    #[test]
    fn features_are_bounded() {
        assert_eq!(features(&["no features"]), Ok(Features::default()));
        assert!(Features::parse(&Reply::new(500, [&b"?"[..]]).expect("a reply")).is_err());
        let mut lines = vec![" X"; FEATURES_MAX + 2];
        assert!(features(&lines).is_ok());
        lines.push(" X");
        assert!(features(&lines).is_err());
        assert!(features(&["x", &"y".repeat(FEATURE_LEN_MAX + 1), "End"]).is_err());
    }
}
