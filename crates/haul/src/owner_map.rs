//! Owners that the destination gets instead of the source's own.
//!
//! In: a text as rsync's `--usermap` and `--groupmap` take it, or whom all go to (`--chown`); numbers and
//! names of owners. Out: who stands at the destination in the place of one.
//! What must hold: the first pair that matches counts; who has no name matches an empty one, and what
//! matches everything; nobody matches a name by his number; whom a pair leads to is known before anything
//! is copied.
//! Left out: what numbers are called at the source (`walk/owners` of the storage) and who has a name at the
//! destination (`driver/owners`).
//! Source: rsync(1), `--usermap`.

use serde::{Deserialize, Serialize};

use haul_base::escape;
use haul_core::entry::NOBODY;

/// What makes a name a pattern.
const WILD: [char; 3] = ['*', '?', '['];

/// Whom a pair is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum From {
    /// From one number to another, both counted.
    Ids(u32, u32),
    /// Who is called so; the empty name is of those who have none.
    Name(String),
    /// Whose name fits.
    Pattern(String),
}

/// Whom a pair leads to, at the destination's host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum To {
    Id(u32),
    Name(String),
}

/// Users, or groups, that others stand for at the destination, as rsync's `--usermap` and `--groupmap` say
/// it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OwnerMap {
    pairs: Vec<(From, To)>,
}

impl OwnerMap {
    /// Understands `text`: pairs `FROM:TO` between commas. FROM is a name, a number, a range of numbers
    /// (`0-999`), a pattern of names (`*`, `?`, `[a-z]`) or empty, for who has no name at the source. TO is a
    /// name or a number of the destination's host.
    ///
    /// # Errors
    /// Says which pair is not understood.
    pub fn parse(text: &str) -> Result<OwnerMap, String> {
        let pairs = text.split(',').map(|pair| {
            let shown = escape::within(pair.as_bytes());
            let (from, to) = pair
                .split_once(':')
                .ok_or_else(|| format!("'{shown}' has no colon; write FROM:TO,FROM:TO"))?;
            let both = parse_from(from).and_then(|from| Ok((from, parse_to(to)?)));
            both.map_err(|why| format!("'{shown}': {why}"))
        });
        Ok(OwnerMap { pairs: pairs.collect::<Result<_, _>>()? })
    }

    /// Has all be `to`, a name or a number of the destination's host.
    ///
    /// # Errors
    /// It is neither.
    pub fn all_to(to: &str) -> Result<OwnerMap, String> {
        let to = parse_to(to)?;
        Ok(OwnerMap { pairs: vec![(From::Pattern("*".into()), to)] })
    }

    /// Something of it depends on what owners are called at the source.
    pub fn needs_names(&self) -> bool {
        self.pairs.iter().any(|(from, _)| match from {
            From::Ids(..) => false,
            From::Name(_) => true,
            From::Pattern(pattern) => pattern != "*",
        })
    }

    /// Whom pairs lead to.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &To> {
        self.pairs.iter().map(|(_, to)| to)
    }

    /// The number of the first pair that an owner matches, who may have no name.
    pub(crate) fn first(&self, id: u32, name: Option<&str>) -> Option<usize> {
        let name = name.unwrap_or_default();
        self.pairs.iter().position(|(from, _)| match from {
            From::Ids(least, most) => (*least..=*most).contains(&id),
            From::Name(wanted) => wanted == name,
            From::Pattern(pattern) => fits(pattern.as_bytes(), name.as_bytes()),
        })
    }
}

fn parse_from(text: &str) -> Result<From, String> {
    if text.starts_with(|first: char| first.is_ascii_digit()) {
        let (least, most) = text.split_once('-').unwrap_or((text, text));
        let (least, most) = (number(least)?, number(most)?);
        return match least <= most {
            true => Ok(From::Ids(least, most)),
            false => Err("the range ends before it begins".into()),
        };
    }
    Ok(if text.contains(WILD) { From::Pattern(text.into()) } else { From::Name(text.into()) })
}

fn parse_to(text: &str) -> Result<To, String> {
    if text.is_empty() {
        return Err("there is no name behind the colon".into());
    }
    if text.contains([':', ',']) || text.chars().any(char::is_control) {
        let shown = escape::within(text.as_bytes());
        return Err(format!("'{shown}' is no name of a user or a group"));
    }
    match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => number(text).map(To::Id),
        false => Ok(To::Name(text.into())),
    }
}

fn number(text: &str) -> Result<u32, String> {
    let all_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|id| all_digits && *id != NOBODY);
    number.ok_or_else(|| {
        let shown = escape::within(text.as_bytes());
        format!("'{shown}' is no number of a user or a group: 0 to {}", NOBODY - 1)
    })
}

/// Whether the whole of `name` is as `pattern` says. `\` takes what stands behind it as it is.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut seen) = (0, 0);
    // Where the last star stands, and how much of the name it has taken.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if at == pattern.len() && seen == name.len() {
            return true;
        }
        if pattern.get(at) == Some(&b'*') {
            (star, at) = (Some((at, seen)), at + 1);
            continue;
        }
        match name.get(seen).and_then(|byte| one(&pattern[at..], *byte)) {
            Some(len) => (at, seen) = (at + len, seen + 1),
            None => match star {
                Some((star_at, taken)) if taken < name.len() => {
                    star = Some((star_at, taken + 1));
                    (at, seen) = (star_at + 1, taken + 1);
                }
                _ => return false,
            },
        }
    }
}

/// How much of the pattern stands for this byte; `None`: it does not fit.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match *pattern.first()? {
        b'?' => Some(1),
        b'[' => set(&pattern[1..], byte).and_then(|(len, fits)| fits.then_some(len + 1)),
        b'\\' if pattern.len() > 1 => (pattern[1] == byte).then_some(2),
        this => (this == byte).then_some(1),
    }
}

/// The length of a set behind its bracket, and whether the byte is in it; `None`: it has no end.
fn set(pattern: &[u8], byte: u8) -> Option<(usize, bool)> {
    let negated = matches!(pattern.first()?, b'!' | b'^');
    let first = usize::from(negated);
    let (mut at, mut is_in) = (first, false);
    loop {
        let next = |at: usize| match pattern.get(at)? {
            b'\\' => Some((*pattern.get(at + 1)?, at + 2)),
            this => Some((*this, at + 1)),
        };
        if at > first && pattern.get(at) == Some(&b']') {
            return Some((at + 1, is_in != negated));
        }
        let (least, behind) = next(at)?;
        let is_range =
            pattern.get(behind) == Some(&b'-') && pattern.get(behind + 1).is_some_and(|c| *c != b']');
        let (most, behind) = if is_range { next(behind + 1)? } else { (least, behind) };
        is_in |= (least..=most).contains(&byte);
        at = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the first pair that matches counts, by number, range, name, pattern and the lack of a name.
    #[test]
    fn the_first_pair_counts() {
        let map = OwnerMap::parse("0-99:1,wayne:2,w*:3,[a-c]?:4,500:5,:6,*:7").expect("a map");
        for (id, name, pair) in [
            (0, Some("root"), 0),
            (99, None, 0),
            (100, Some("wayne"), 1),
            (100, Some("wayn"), 2),
            (500, Some("w"), 2),
            (500, Some("b7"), 3),
            (500, Some("d7"), 4),
            (500, None, 4),
            (501, None, 5),
            (501, Some("500"), 6),
        ] {
            assert_eq!(map.first(id, name), Some(pair), "{id} {name:?}");
        }
        let few = OwnerMap::parse("7:1,x:y").expect("a map");
        assert_eq!((few.first(8, Some("7")), few.first(8, None)), (None, None));
        assert!(few.targets().eq(&[To::Id(1), To::Name("y".into())]));
    }

    /// Goal: it is known which maps depend on names.
    #[test]
    fn names_are_asked_for_where_they_matter() {
        for (text, needs) in
            [("*:a", false), ("1-2:a,*:b", false), (":a", true), ("a:b", true), ("1:2,a*:b", true)]
        {
            assert_eq!(OwnerMap::parse(text).expect(text).needs_names(), needs, "{text}");
        }
        assert!(!OwnerMap::all_to("a").expect("a name").needs_names());
    }

    /// Goal: what is no map is refused, and says what is wrong.
    #[test]
    fn other_texts_are_refused() {
        for (text, why) in [
            ("", "no colon"),
            ("a", "no colon"),
            ("a:b,", "no colon"),
            ("a:", "no name behind the colon"),
            ("a:b:c", "no name"),
            ("9-1:a", "ends before it begins"),
            ("1-:a", "no number"),
            ("1-2-3:a", "no number"),
            ("12x:a", "no number"),
            ("4294967295:a", "no number"),
            ("a:4294967295", "no number"),
            ("99999999999:a", "no number"),
            // The first colon ends it, to rsync as well.
            ("[[:alpha:]]*:a", "no name"),
        ] {
            let said = OwnerMap::parse(text).expect_err(text);
            assert!(said.contains(why), "{text}: {said}");
        }
        assert!(OwnerMap::all_to("").is_err() && OwnerMap::all_to("a,b").is_err());
    }

    /// Goal: a pattern is of the whole name.
    #[test]
    fn patterns_are_of_whole_names() {
        for (pattern, good, bad) in [
            ("*", &["", "a", "ab"][..], &[][..]),
            ("a*", &["a", "ab", "aa"], &["", "ba"]),
            ("*a", &["a", "ba", "aaa"], &["", "ab"]),
            ("a*b*c", &["abc", "axbxc", "abcbc"], &["ab", "acb"]),
            ("a?", &["ab", "a?"], &["a", "abc"]),
            ("[ab]x", &["ax", "bx"], &["cx", "x"]),
            ("[a-c]x", &["ax", "bx", "cx"], &["dx", "-x"]),
            ("[!a-c]x", &["dx"], &["ax", "x"]),
            ("[^a]x", &["bx"], &["ax"]),
            ("[]a]x", &["]x", "ax"], &["bx"]),
            ("[a-]x", &["-x", "ax"], &["bx"]),
            ("D\\\\*", &["D\\a"], &["Da"]),
            ("\\**", &["*a"], &["a"]),
            ("[a", &[], &["a", "[a"]),
        ] {
            for name in good {
                assert!(fits(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
            }
            for name in bad {
                assert!(!fits(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
            }
        }
    }
}
