//! What changes at a server without data from here: directories, names, times, modes; and what it says of
//! content.
//!
//! In: a session, paths. Out: what was done, or why not; sums in the server's words.
//! Invariants: many questions go together and their answers are taken in order; a sum counts only in the form
//! that its algorithm has, for two servers that say nothing say the same.
//! Left out: what a sum is worth. It is the server's own word on what it reads now.

use std::time::Duration;

use haul_gridftp::command::Command;
use haul_gridftp::features::Features;
use haul_gridftp::listing::{Facts, Kind, Moment, parse_mlst, write_moment};

use crate::session::{Asked, PIPELINE_MAX};
use crate::store::word_on_dir;
use crate::{Error, Session};

/// Sums that two servers can be asked for, the one that finds most first; and how many hex digits each has.
const SUMS: [(&str, usize); 5] = [("SHA256", 64), ("SHA512", 128), ("SHA1", 40), ("MD5", 32), ("ADLER32", 8)];
/// A server that says nothing while it reads is given the time of this many bytes a second.
const SUM_RATE: u64 = 10 << 20;

/// What is said of such a server.
pub const OTHER_NAME: &str = "the server takes that name for another one: it drops bytes that are not ASCII";

/// What is said of a link in a directory's place.
pub const LINK_STANDS: &str =
    "a symbolic link stands there, and nothing is written through one; remove it, or name what it leads to";

/// Whether what was made under this path has that name: there are servers that drop bytes of a name which are
/// not ASCII, and then write to what has the rest of it. Where nothing tells, it has.
///
/// # Errors
/// The session is over.
pub fn takes_name(session: &mut Session, path: &[u8]) -> Result<bool, Error> {
    if path.is_ascii() {
        return Ok(true);
    }
    let reply = session.control.ask(&Command::Path("MLST", path))?;
    let line = reply.lines().get(1).filter(|_| reply.code() == 250 && reply.lines().len() > 2);
    let told = line.and_then(|line| parse_mlst(line).ok()).map(|(_, told)| last(told).to_vec());
    Ok(told.is_none_or(|told| told == last(path)))
}

fn last(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// A directory is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    New,
    /// It was there.
    Stood,
}

/// Makes a directory, if there is none.
///
/// # Errors
/// Something else stands there, or the server does not make one.
pub fn make_dir(session: &mut Session, path: &[u8]) -> Result<Made, Error> {
    let mkd = Command::Path("MKD", path);
    let made = session.control.ask(&mkd).and_then(|reply| word_on_dir(&session.control, &mkd, reply));
    match made {
        Ok(_) if takes_name(session, path)? => Ok(Made::New),
        Ok(_) => {
            // It is new, and empty.
            let _ = session.control.want(&Command::Path("RMD", path));
            Err(Error::Unsayable(OTHER_NAME))
        }
        Err(error) if error.ends_session() => Err(error),
        // Servers have many words for what is there already.
        Err(error) => match session.facts(path)? {
            Asked::Is(facts) if facts.is_symlink() => Err(Error::Misfit(LINK_STANDS.into())),
            // What is told may be of what a link leads to.
            Asked::Is(Facts { unique: None, .. })
                if !haul_mutant::removed("ftp-pairs-list-links-of-directories")
                    && session.link_at(path, false)?.is_some() =>
            {
                Err(Error::Misfit(LINK_STANDS.into()))
            }
            Asked::Is(facts) if matches!(facts.kind, Some(Kind::Dir | Kind::CurrentDir)) => Ok(Made::Stood),
            _ => Err(error),
        },
    }
}

/// Removes a file.
///
/// # Errors
/// The server does not.
pub fn remove(session: &mut Session, path: &[u8]) -> Result<(), Error> {
    session.control.want(&Command::Path("DELE", path)).map(drop)
}

/// Removes a directory with nothing in it.
///
/// # Errors
/// The server does not.
pub fn remove_dir(session: &mut Session, path: &[u8]) -> Result<(), Error> {
    session.control.want(&Command::Path("RMD", path)).map(drop)
}

/// Gives files their names, in place of what stands there. One result for each.
///
/// # Errors
/// The session is over: what became of the rest is not known.
pub fn rename(session: &mut Session, all: &[(&[u8], &[u8])]) -> Result<Vec<Result<(), Error>>, Error> {
    let mut results = Vec::with_capacity(all.len());
    for some in all.chunks(PIPELINE_MAX / 2) {
        let mut commands = Vec::with_capacity(2 * some.len());
        for (from, to) in some {
            commands.extend([Command::Path("RNFR", from), Command::Path("RNTO", to)]);
        }
        session.control.send(&commands)?;
        for pair in commands.chunks(2) {
            let (from, to) = (session.control.last_reply()?, session.control.last_reply()?);
            let first = session.control.exactly(&pair[0], 350, from);
            let second = session.control.exactly(&pair[1], 250, to);
            let result = first.and(second).map(drop);
            if let Err(error @ Error::OutOfStep { .. }) = result {
                return Err(error);
            }
            results.push(result);
        }
    }
    Ok(results)
}

/// Sets when files were changed, with `MFMT` or in the way that servers had before; each is `false` where the
/// server refuses. What it really has is to be asked.
///
/// # Errors
/// The session is over.
pub fn set_times(session: &mut Session, all: &[(&[u8], Moment)]) -> Result<Vec<bool>, Error> {
    let verb = if session.features.has("MFMT") { "MFMT" } else { "MDTM" };
    tell(session, all, |(path, moment)| {
        let moment = write_moment(Moment { nanos: 0, ..*moment }).ok()?;
        Some((verb, [moment.as_bytes(), b" ", path].concat()))
    })
}

/// Sets the permissions of files, as [`set_times`].
///
/// # Errors
/// The session is over.
pub fn set_modes(session: &mut Session, all: &[(&[u8], u32)]) -> Result<Vec<bool>, Error> {
    tell(session, all, |(path, mode)| {
        Some(("SITE", [format!("CHMOD {:04o} ", mode & 0o7777).as_bytes(), path].concat()))
    })
}

fn tell<T>(
    session: &mut Session,
    all: &[T],
    line: impl Fn(&T) -> Option<(&'static str, Vec<u8>)>,
) -> Result<Vec<bool>, Error> {
    let mut results = Vec::with_capacity(all.len());
    for some in all.chunks(PIPELINE_MAX) {
        let lines: Vec<_> = some.iter().map(&line).collect();
        let commands: Vec<Command<'_>> =
            lines.iter().flatten().map(|(verb, text)| Command::With(verb, text)).collect();
        session.control.send(&commands)?;
        for line in &lines {
            let done = line.is_some() && session.control.last_reply()?.code() / 100 == 2;
            results.push(done);
        }
    }
    Ok(results)
}

/// The sum that both servers can tell, the best of them.
pub fn common_sum(one: &Session, other: &Session) -> Option<&'static str> {
    SUMS.iter().map(|(name, _)| *name).find(|name| tells(&one.features, name) && tells(&other.features, name))
}

fn tells(features: &Features, name: &str) -> bool {
    features.sums().any(|(told, _)| told.eq_ignore_ascii_case(name.as_bytes()))
}

/// Asks for the sums of files, as a whole each, which [`sums`] hears.
///
/// # Errors
/// The session is over.
pub fn ask_sums(session: &mut Session, sum: &str, paths: &[&[u8]]) -> Result<(), Error> {
    let cksm = |path| Command::Cksm { algorithm: sum, offset: 0, len: None, path };
    let commands: Vec<Command<'_>> = paths.iter().map(|path| cksm(path)).collect();
    session.control.send(&commands)
}

/// The sums that were asked for, in capitals; an error of one file in its place. At most [`PIPELINE_MAX`].
///
/// # Errors
/// The session is over.
pub fn sums(
    session: &mut Session,
    sum: &str,
    files: &[(&[u8], u64)],
) -> Result<Vec<Result<String, Error>>, Error> {
    let mut all = Vec::with_capacity(files.len());
    for (path, size) in files {
        let command = Command::Cksm { algorithm: sum, offset: 0, len: None, path };
        let patience = session.control.patience() + Duration::from_secs(size / SUM_RATE);
        let reply = session.control.last_reply_within(patience)?;
        let told = session.control.exactly(&command, 213, reply);
        if let Err(error @ Error::OutOfStep { .. }) = told {
            return Err(error);
        }
        let broken = Error::Broken { doing: "asking for a sum", why: "what comes has not the form of one" };
        all.push(told.and_then(|reply| read_sum(sum, reply.text()).ok_or(broken)));
    }
    Ok(all)
}

fn read_sum(sum: &str, text: &[u8]) -> Option<String> {
    let (_, len) = SUMS.iter().find(|(name, _)| *name == sum)?;
    let text = std::str::from_utf8(text.trim_ascii()).ok()?.to_ascii_uppercase();
    let is_hex = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    // A number may be told without its leading zeros; a hash may not.
    let is_whole = text.len() == *len || sum == "ADLER32" && text.len() < *len;
    (is_hex && is_whole).then(|| format!("{text:0>len$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: nothing but a sum counts as one: two servers that both say something else have not said the
    /// same.
    #[test]
    fn a_sum_has_its_form() {
        let md5 = "00112233445566778899aabbccddeeff";
        assert_eq!(read_sum("MD5", md5.as_bytes()), Some(md5.to_uppercase()));
        assert_eq!(read_sum("ADLER32", b" 1a2b "), Some("00001A2B".into()));
        for (sum, text) in [
            ("MD5", &b""[..]),
            ("MD5", b"0"),
            ("MD5", b"00112233445566778899aabbccddeefg"),
            ("SHA256", md5.as_bytes()),
            ("ADLER32", b""),
            ("ADLER32", b"112233445"),
            ("CRC64", b"11"),
            ("MD5", b"not calculated"),
        ] {
            assert_eq!(read_sum(sum, text), None, "{sum}");
        }
    }
}
