//! Signing policies: whom an authority may speak for at this host (`HASH.signing_policy`).
//!
//! In: the text of a file. Out: whether it lets this authority sign for this subject.
//! Invariants: bounded; what is not understood lets nobody sign. Letters count as they are.
//! Source: the EACL files of Globus (`oldgaa`): an entry is one or more principals, rights, and conditions of
//! the right before them. In a subject the last `*` stands for anything, all else for itself.
//! Left out: what Globus does not follow either (negative rights: a file with one is refused), and a right
//! without a condition, which there is one for every subject.

use crate::GsiError;
use crate::name::Dn;

/// Most bytes of a file.
pub const POLICY_LEN_MAX: usize = 1 << 20;
/// Most words of one.
const WORDS_MAX: usize = 65_536;

/// Whom several authorities may speak for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entry {
    /// `None`: anybody.
    authorities: Vec<Option<String>>,
    subjects: Vec<String>,
}

impl Policy {
    /// Of the text of a file.
    ///
    /// # Errors
    /// Something of it is not understood; in words that say what.
    pub fn parse(text: &[u8]) -> Result<Policy, String> {
        if text.len() > POLICY_LEN_MAX {
            return Err("is longer than any real one".into());
        }
        let text = std::str::from_utf8(text).map_err(|_| "is no text")?;
        let words = words(text)?;
        let mut words = words.iter();
        let mut next =
            |what: &str| words.next().map(String::as_str).ok_or(format!("ends where {what} should be"));
        let mut policy = Policy::default();
        let mut entry = Entry::default();
        // A right to sign that says nothing yet of whom.
        let mut right = None;
        while let Ok(word) = next("an entry") {
            match word {
                _ if word.starts_with("access_id_") => {
                    if !entry.subjects.is_empty() || right.is_some() {
                        policy.close(&mut entry, &mut right)?;
                    }
                    let authority = match word {
                        "access_id_ANYBODY" => Some(None),
                        "access_id_CA" => {
                            (next("X509")? == "X509").then_some(Some(next("an authority")?.into()))
                        }
                        _ => {
                            next("a kind")?;
                            next("a name")?;
                            None
                        }
                    };
                    entry.authorities.extend(authority);
                }
                "pos_rights" => {
                    if right == Some(true) {
                        return Err(NO_CONDITION.into());
                    }
                    right = Some((next("an authority")?, next("a right")?) == ("globus", "CA:sign"));
                }
                "neg_rights" => return Err("denies a right, which is not understood".into()),
                "cond_subjects" => {
                    let (authority, subjects) = (next("an authority")?, next("subjects")?);
                    if right.take() == Some(true) && authority == "globus" {
                        entry.subjects.extend(quoted(subjects)?);
                    }
                }
                other => return Err(format!("has the word {other:?}, which is not understood")),
            }
        }
        policy.close(&mut entry, &mut right)?;
        Ok(policy)
    }

    fn close(&mut self, entry: &mut Entry, right: &mut Option<bool>) -> Result<(), String> {
        if right.take() == Some(true) {
            return Err(NO_CONDITION.into());
        }
        self.entries.push(std::mem::take(entry));
        Ok(())
    }

    /// Whether the authority may sign for the subject.
    pub fn lets(&self, authority: &Dn, subject: &Dn) -> bool {
        let Some(subject) = subject.plain() else { return false };
        let is_of = |who: &Option<String>| who.as_ref().is_none_or(|who| authority.is_called(who));
        let mut entries = self.entries.iter().filter(|entry| entry.authorities.iter().any(is_of));
        entries.any(|entry| entry.subjects.iter().any(|pattern| fits(pattern, subject)))
    }

    /// The same, with the reason why not. `file`: where this stands.
    pub(crate) fn check(&self, authority: &Dn, subject: &Dn, file: &str) -> Result<(), GsiError> {
        if self.lets(authority, subject) {
            return Ok(());
        }
        Err(GsiError::Untrusted(format!(
            "its authority {authority} may not sign for {subject}, by the policy of this host ({file})"
        )))
    }
}

const NO_CONDITION: &str = "lets an authority sign without a condition of whom (cond_subjects)";

fn fits(pattern: &str, subject: &str) -> bool {
    match pattern.rsplit_once('*') {
        Some((before, after)) => {
            subject.len() >= before.len() + after.len()
                && subject.starts_with(before)
                && subject.ends_with(after)
        }
        None => pattern == subject,
    }
}

/// The words of a text: parted by spaces, or in single quotes, in which a backslash takes the next one as it
/// is. What begins with `#` ends with its line.
fn words(text: &str) -> Result<Vec<String>, String> {
    let (mut words, mut rest) = (Vec::new(), text.chars().peekable());
    while let Some(first) = rest.next() {
        match first {
            c if c.is_whitespace() => continue,
            '#' => while rest.next_if(|c| *c != '\n').is_some() {},
            '\'' => {
                let mut word = String::new();
                loop {
                    match rest.next().ok_or("has a quote that is not closed")? {
                        '\'' => break,
                        '\\' => word.push(rest.next().ok_or("has a quote that is not closed")?),
                        c => word.push(c),
                    }
                }
                words.push(word);
            }
            c => {
                let mut word = String::from(c);
                while let Some(c) = rest.next_if(|c| !c.is_whitespace()) {
                    word.push(c);
                }
                words.push(word);
            }
        }
        if words.len() > WORDS_MAX {
            return Err("has more words than any real one".into());
        }
    }
    Ok(words)
}

/// Several subjects, each in double quotes; or one without any.
fn quoted(text: &str) -> Result<Vec<String>, String> {
    let text = text.trim();
    if !text.starts_with('"') {
        return Ok(vec![text.to_owned()]);
    }
    let mut parts = text.split('"');
    let mut subjects = Vec::new();
    loop {
        match parts.next() {
            Some(between) if between.trim().is_empty() => {}
            None => return Ok(subjects),
            Some(between) => return Err(format!("has {between:?} between subjects")),
        }
        match (parts.next(), parts.clone().next()) {
            (None, _) => return Ok(subjects),
            (Some(subject), Some(_)) => subjects.push(subject.to_owned()),
            (Some(_), None) => return Err("has a subject whose quote is not closed".into()),
        }
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
