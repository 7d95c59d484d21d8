//! What lies in a directory, by whichever command the server has for it, and which of its names are symbolic
//! links.
//!
//! In: paths. Out: entries as they are listed.
//! Invariant: what did not come whole, in bytes or in the server's words, is no listing; where a server names
//! all that it can and says that there is more, that is an entry of it.

use std::collections::{HashMap, HashSet};
use std::thread;
use std::time::Duration;

use haul_gridftp::command::Command;
use haul_gridftp::listing::{Facts, Kind};
use haul_gridftp::reply::Class;

use super::{Asked, Session};
use crate::error::says_gone;
use crate::listed::{Listed, either, lines, list_line, mlsd_line, named};
use crate::{Error, data};

/// Most bytes of one directory's listing.
const LISTING_LEN_MAX: usize = 128 << 20;
const TOO_LONG: &str = "its listing is longer than 128 MiB";
/// After so many milliseconds what did not hold still is listed again: by then a rename is over.
const PAUSES_MS: [u64; 4] = [5, 20, 80, 320];
/// Has a server show what it hides.
const OPTION: &[u8] = b"-a";
/// Of a listing nobody else says how long it is.
const CUT: &str = "TLS did not say that its listing ended there: somebody on the way may have cut it off, and the server has no MLSC";

impl Session {
    /// The symbolic link at this absolute path, if there is one, and the server does not tell of it by
    /// [`Session::facts`]: that is of what it leads to, or that there is nothing. `is_file`: it said that it
    /// is a file.
    ///
    /// Edge: of a directory that may not be listed nobody knows which of its names are links.
    ///
    /// # Errors
    /// The session is over.
    pub fn link_at(&mut self, path: &[u8], is_file: bool) -> Result<Option<Facts>, Error> {
        let end = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let (dir, name) = path.split_at(end);
        if self.tells_links || name.is_empty() {
            return Ok(None);
        }
        let mut listed = None;
        // Of a file a server shows its line alone: of a name that it cannot take for an option or a pattern.
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
        if is_file && name.iter().all(is_plain) && name[0] != b'-' {
            let alone = self.control.want(&Command::Path("CWD", dir));
            let alone = alone.and_then(|_| self.listing(Command::Path("LIST", name)));
            let alone = alone.and_then(|(bytes, _)| lines(&bytes, &mut |line| list_line(line, &mut false)));
            match alone {
                Err(Error::Broken { .. }) => return Ok(None),
                Ok(alone) if alone.len() == 1 => {
                    listed = Some(alone).filter(|all| named(all, name).is_some())
                }
                Err(error) if error.ends_session() => return Err(error),
                _ => {}
            }
        }
        let listed = match listed {
            Some(alone) => alone,
            None => match self.list_plainly(dir) {
                Ok(all) => all,
                // It does not show it, or not all of it.
                Err(Error::Broken { .. }) => return Ok(None),
                Err(error) if !error.ends_session() => return Ok(None),
                Err(error) => return Err(error),
            },
        };
        Ok(named(&listed, name).filter(|facts| facts.kind == Some(Kind::Symlink)).cloned())
    }

    /// Nothing that this server knows tells of symbolic links: what it lists may be what one leads to. Known
    /// when a directory was listed.
    pub fn misses_links(&self) -> bool {
        self.has_mlsd && !self.no_mlsd && !self.tells_links && !self.has_list
    }

    /// What it says of a path is of that itself, and not of what a symbolic link there leads to.
    pub fn tells_links(&self) -> bool {
        self.tells_links
    }

    /// It tells by one of its listings what is a symbolic link. Known when a directory was listed that is not
    /// empty.
    pub fn lists_links(&self) -> bool {
        self.tells_links || self.lists_kinds
    }

    /// What lies in a directory. Not the directory itself, nor the one above it.
    ///
    /// Edge: the server of Globus says of a directory that there is no such one where it had read a name in
    /// it that was renamed or removed before it looked at that (GCT 6.2, `550 ... System error in lstat`). It
    /// is asked again while the directory itself is there.
    ///
    /// # Errors
    /// It is none, may not be read, its names changed each time that it was listed, or its listing did not
    /// come whole.
    pub fn list(&mut self, dir: &[u8]) -> Result<Vec<Listed>, Error> {
        let mut pauses = PAUSES_MS.into_iter();
        loop {
            let (said, text) = match self.list_once(dir) {
                Err(Error::Refused { said, code: 550, text })
                    if says_gone(&text) && !haul_mutant::removed("ftp-listings-are-asked-for-again") =>
                {
                    (said, text)
                }
                listed => return listed,
            };
            match self.facts(dir) {
                Ok(Asked::Is(facts)) if facts.kind != Some(Kind::File) => {}
                Err(error) if error.ends_session() => return Err(error),
                _ => return Err(Error::Refused { said, code: 550, text }),
            }
            match pauses.next() {
                Some(pause) => thread::sleep(Duration::from_millis(pause)),
                None => return Err(Error::Restless { said, text }),
            }
        }
    }

    /// As [`Session::list`], asked for once.
    fn list_once(&mut self, dir: &[u8]) -> Result<Vec<Listed>, Error> {
        if self.has_mlsd && !self.no_mlsd {
            // Over the control connection it is protected to its end, which a data connection of Globus is
            // not.
            let listed = match self.control.channel().is_some() && self.features.has("MLSC") {
                true => self.listing_by_reply(Command::Path("MLSC", dir)).map(|bytes| (bytes, None)),
                false => self.listing(Command::Path("MLSD", dir)),
            };
            match listed {
                Ok((bytes, short)) => {
                    self.did_mlsd = true;
                    let mut shown = 0;
                    let mut all = lines(&bytes, &mut |line| {
                        shown += u64::from(!line.is_empty());
                        mlsd_line(line)
                    })?;
                    // It comes first, wherever the server has it.
                    all.sort_by_key(|line| !matches!(line, Listed::Itself(_)));
                    let counts = self.features.mlst().any(|fact| fact.name.eq_ignore_ascii_case(b"X.count"));
                    all.extend(short.or_else(|| missing(&all, shown, counts)).map(Listed::Short));
                    return match self.has_list && (!self.tells_links || all.iter().any(is_link_untold)) {
                        true => self.with_links(dir, all),
                        false => Ok(all),
                    };
                }
                // What it says of this directory's name is no word on the others.
                Err(Error::Refused { code: 501 | 503 | 504, .. }) => {}
                Err(error) if error.is_unknown() => self.no_mlsd = !self.did_mlsd,
                Err(error) => return Err(error),
            }
        }
        self.list_plainly(dir)
    }

    /// Symbolic links that `MLSD` followed or left out: there are servers that tell of them by `LIST` alone.
    fn with_links(&mut self, dir: &[u8], mut all: Vec<Listed>) -> Result<Vec<Listed>, Error> {
        let listed = match self.list_plainly(dir) {
            Ok(listed) => listed,
            // Only of a server that does not know it at all there is what there is: what is refused for this
            // directory, or for now, may hide a link.
            Err(Error::Refused { said, code: 500..=504, .. }) if said == "LIST" => {
                self.has_list = false;
                return Ok(all);
            }
            // Each link of which nothing tells where it leads fails by its name.
            Err(error) if self.tells_links && !error.is_passing() => return Ok(all),
            Err(error) => return Err(error),
        };
        let mut links = HashMap::new();
        for line in listed {
            match line {
                Listed::Entry { name, facts, .. } if facts.kind == Some(Kind::Symlink) => {
                    links.insert(name, facts);
                }
                // One of which nobody can tell where its name ends.
                Listed::Bad { ref name, kind, .. }
                    if kind == Some(Kind::Symlink) || (kind.is_none() && name.starts_with(b"l")) =>
                {
                    all.push(line);
                }
                cut @ Listed::Cut(_) => all.push(cut),
                // Said once, whichever of the two says it.
                short @ Listed::Short(_) if !all.iter().any(|line| matches!(line, Listed::Short(_))) => {
                    all.push(short);
                }
                _ => {}
            }
        }
        if !links.is_empty() {
            // What MLSD says of one may be of what it leads to; but LIST tells no exact time.
            all.retain(|line| {
                let Listed::Entry { name, facts, .. } = line else { return true };
                let link = links.get_mut(name).filter(|_| !self.tells_links || is_link_untold(line));
                let is_link = link.is_some();
                if let Some(link) = link {
                    link.modify = facts.modify;
                }
                !is_link
            });
            let known: HashSet<Vec<u8>> = all.iter().filter_map(Listed::name).map(<[u8]>::to_vec).collect();
            let links = links.into_iter().filter(|(name, _)| !known.contains(name));
            all.extend(links.map(|(name, facts)| Listed::Entry { name, facts, exact: false }));
        }
        Ok(all)
    }

    /// As [`Session::list`], by `LIST`.
    fn list_plainly(&mut self, dir: &[u8]) -> Result<Vec<Listed>, Error> {
        let mut with = Vec::new();
        let is_there = self.enters(dir)?;
        if !is_there {
            match self.listing_by_list(OPTION) {
                Ok((listed, true)) => return Ok(listed),
                // It took the option for a name, or does not show what everybody has.
                Ok((listed, false)) => with = listed,
                // It took the option for a name. Anything else would hide what it hides without it.
                Err(error) if error.is_unknown() || error.is_unavailable() => {}
                Err(error) => return Err(error),
            }
            with.retain(|line| !matches!(line, Listed::Short(_)));
        }
        let (without, shows_itself) = self.listing_by_list(b"")?;
        let is_name = |name: &[u8]| named(&without, name).is_some();
        // What has the option's name was shown in place of all, or would be: so another option, of which
        // nothing has the name.
        let is_taken = is_there || is_name(OPTION);
        if !shows_itself && is_taken && !haul_mutant::removed("ftp-options-are-no-names") {
            let mut other = b"-al".to_vec();
            while is_name(&other) {
                other.insert(1, b'a');
            }
            match self.listing_by_list(&other) {
                Ok((listed, true)) => return Ok(listed),
                // It knows no options.
                Ok((_, false)) => {}
                Err(error) if error.is_unknown() || error.is_unavailable() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(either(with, without))
    }

    /// Goes into a directory, for a path with blanks or a hyphen in it is read by servers in more than one
    /// way, and where they are is not. Whether another directory lies there that is called as the option is:
    /// there are servers that list that one then (ProFTPD), and show it as itself where they show what is
    /// hidden to everybody (`ListOptions "-a"`).
    ///
    /// # Errors
    /// It is none, or nobody may go there.
    fn enters(&mut self, dir: &[u8]) -> Result<bool, Error> {
        let way = [Command::Path("CWD", dir), Command::Path("CWD", OPTION)];
        let mut replies = self.control.ask_all(&way)?.into_iter();
        let entered = replies.next().expect("one for each");
        self.control.done(&way[0], entered)?;
        let is_there = replies.next().is_some_and(|reply| reply.class() == Class::Completed);
        if is_there {
            self.control.want(&way[0])?;
        }
        Ok(is_there && !haul_mutant::removed("ftp-options-are-no-directories"))
    }

    /// What `LIST` with this option shows, or without any, of the directory that the session is in; and
    /// whether it shows that itself.
    fn listing_by_list(&mut self, option: &[u8]) -> Result<(Vec<Listed>, bool), Error> {
        let command = if option.is_empty() { Command::Bare("LIST") } else { Command::Path("LIST", option) };
        let (bytes, short) = self.listing(command)?;
        let mut saw_itself = false;
        let mut all = lines(&bytes, &mut |line| list_line(line, &mut saw_itself))?;
        self.lists_kinds |= tells_kinds(&all);
        all.extend(short.map(Listed::Short));
        Ok((all, saw_itself))
    }

    /// A listing that comes in replies, each line behind a blank: those of a large directory in several, of
    /// which all but the last are preliminary.
    fn listing_by_reply(&mut self, command: Command<'_>) -> Result<Vec<u8>, Error> {
        self.control.send(&[command])?;
        let mut bytes = Vec::new();
        loop {
            let reply = self.control.reply()?;
            let is_last = reply.class() != Class::Preliminary;
            let reply = if is_last { self.control.exactly(&command, 250, reply)? } else { reply };
            for line in reply.inner() {
                if bytes.len() + line.len() > LISTING_LEN_MAX {
                    return Err(Error::Broken { doing: "reading a directory", why: TOO_LONG });
                }
                bytes.extend_from_slice(line.strip_prefix(b" ").unwrap_or(line));
                bytes.extend_from_slice(b"\r\n");
            }
            if is_last {
                return Ok(bytes);
            }
        }
    }

    /// All that comes of a listing; and what the server says of it in the end where it came, and is not all.
    fn listing(&mut self, command: Command<'_>) -> Result<(Vec<u8>, Option<String>), Error> {
        const DOING: &str = "reading a directory";
        self.leave_blocks()?;
        let mut incoming = data::begin(&mut self.control, &mut self.listens, &[], command)?;
        let (mut bytes, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
        loop {
            match incoming.read(&mut buffer)? {
                0 => break,
                len if bytes.len() + len > LISTING_LEN_MAX => {
                    let _ = data::give_up(&mut self.control, incoming);
                    return Err(Error::Broken { doing: DOING, why: TOO_LONG });
                }
                len => bytes.extend_from_slice(&buffer[..len]),
            }
        }
        let may_be_cut = incoming.may_be_cut();
        let said = match data::finish(&mut self.control, incoming, command) {
            Ok(said) => said,
            // It names all that it can, and says that there is more, as haul's own does where a name has a
            // line's end in it.
            Err(error @ Error::Refused { code: 550, .. }) if !bytes.is_empty() && !may_be_cut => {
                return Ok((bytes, Some(format!("{error}; what it listed is copied"))));
            }
            Err(error) => return Err(error),
        };
        if may_be_cut {
            return Err(Error::Broken { doing: DOING, why: CUT });
        }
        // There are servers that say 2yz and, in words, that it is not all: pure-ftpd of a listing that it
        // truncated, vsftpd of a directory that it could not open.
        let said: Vec<u8> = said.lines().join(&b' ').to_ascii_lowercase();
        let has = |words: &[u8]| said.windows(words.len()).any(|part| part == words);
        if has(b"truncated") || has(b"fail") || has(b"unable") || has(b"cannot") || has(b"denied") {
            return Err(Error::Broken { doing: DOING, why: "the server says that its listing is not whole" });
        }
        Ok((bytes, None))
    }
}

/// A server that counts what a directory has showed less of it: that of Globus leaves out links that lead
/// nowhere. The directory itself and the one above count as well.
const LEADS_NOWHERE: &str = "as symbolic links are that lead nowhere";

fn missing(listed: &[Listed], shown: u64, counts: bool) -> Option<String> {
    let counted = listed.iter().find_map(|line| match line {
        Listed::Itself(facts) => facts.count,
        _ => None,
    });
    let Some(counted) = counted else {
        // It stands in each listing of such a server: somebody on the way ended this one before its first
        // line.
        return (counts && shown == 0 && !haul_mutant::removed("ftp-directories-name-themselves"))
            .then(|| "the listing came without a line, not even one of itself".to_owned());
    };
    let left_out = counted.checked_sub(shown).filter(|left_out| *left_out > 0)?;
    if haul_mutant::removed("ftp-names-left-out-are-counted") {
        return None;
    }
    Some(format!(
        "the server counts {counted} names in it and lists {shown}: {left_out} are missing, {LEADS_NOWHERE}"
    ))
}

/// What [`Listed::Short`] says may be of symbolic links, which a server counts and does not list.
pub fn may_lack_links(why: &str) -> bool {
    why.ends_with(LEADS_NOWHERE)
}

/// The lines begin with what each name is, as those of Unix do; the form of DOS has no word for a link.
fn tells_kinds(listed: &[Listed]) -> bool {
    listed.iter().any(|line| matches!(line, Listed::Entry { facts, .. } if facts.unix_mode.is_some()))
}

/// A link of which it is not told what is written in it.
fn is_link_untold(line: &Listed) -> bool {
    matches!(line, Listed::Entry { facts, .. } if facts.kind == Some(Kind::Symlink) && facts.unix_slink.is_none())
}
