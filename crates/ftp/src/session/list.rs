//! What lies in a directory, by whichever command the server has for it, and which of its names are symbolic
//! links.
//!
//! In: paths. Out: entries as they are listed.
//! Invariant: what did not come whole, in bytes or in the server's words, is no listing.

use std::collections::HashMap;

use haul_gridftp::command::Command;
use haul_gridftp::listing::{Facts, Kind};
use haul_gridftp::reply::Class;

use super::Session;
use crate::listed::{Listed, either, lines, list_line, mlsd_line, named};
use crate::{Error, data};

/// Most bytes of one directory's listing.
const LISTING_LEN_MAX: usize = 128 << 20;
const TOO_LONG: &str = "its listing is longer than 128 MiB";
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
            let alone = alone.and_then(|bytes| lines(&bytes, &mut |line| list_line(line, &mut false)));
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

    /// What lies in a directory. Not the directory itself, nor the one above it.
    ///
    /// # Errors
    /// It is none, may not be read, or its listing did not come whole.
    pub fn list(&mut self, dir: &[u8]) -> Result<Vec<Listed>, Error> {
        if self.has_mlsd && !self.no_mlsd {
            // Over the control connection it is protected to its end, which a data connection of Globus is
            // not.
            let listed = match self.control.channel().is_some() && self.features.has("MLSC") {
                true => self.listing_by_reply(Command::Path("MLSC", dir)),
                false => self.listing(Command::Path("MLSD", dir)),
            };
            match listed {
                Ok(bytes) => {
                    let mut all = lines(&bytes, &mut |line| mlsd_line(line))?;
                    // It comes first, wherever the server has it.
                    all.sort_by_key(|line| !matches!(line, Listed::Itself(_)));
                    return match self.tells_links || !self.has_list {
                        true => Ok(all),
                        false => self.with_links(dir, all),
                    };
                }
                // What it says of this directory's name is no word on the others.
                Err(Error::Refused { code: 501 | 503 | 504, .. }) => {}
                Err(error) if error.is_unknown() => self.no_mlsd = true,
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
            Err(error) => return Err(error),
        };
        let mut links = HashMap::new();
        for line in listed {
            match line {
                Listed::Entry { name, facts, .. } if facts.kind == Some(Kind::Symlink) => {
                    links.insert(name, facts);
                }
                // One of which nobody can tell where its name ends.
                Listed::Bad(line, why) if line.starts_with(b"l") => all.push(Listed::Bad(line, why)),
                cut @ Listed::Cut(_) => all.push(cut),
                _ => {}
            }
        }
        if !links.is_empty() {
            // What MLSD says of one may be of what it leads to; but LIST tells no exact time.
            all.retain(|line| {
                let Listed::Entry { name, facts, .. } = line else { return true };
                let link = links.get_mut(name);
                let is_link = link.is_some();
                if let Some(link) = link {
                    link.modify = facts.modify;
                }
                !is_link
            });
            let entry = |(name, facts)| Listed::Entry { name, facts, exact: false };
            all.extend(links.into_iter().map(entry));
        }
        Ok(all)
    }

    /// As [`Session::list`], by `LIST`.
    fn list_plainly(&mut self, dir: &[u8]) -> Result<Vec<Listed>, Error> {
        // A path with blanks or a hyphen in it is read by servers in more than one way; where they are is
        // not.
        self.control.want(&Command::Path("CWD", dir))?;
        let (mut saw_itself, mut with) = (false, Vec::new());
        match self.listing(Command::Path("LIST", b"-a")) {
            Ok(bytes) => with = lines(&bytes, &mut |line| list_line(line, &mut saw_itself))?,
            // It took the option for a name. Anything else would hide what it hides without it.
            Err(error) if error.is_unknown() || error.is_unavailable() => {}
            Err(error) => return Err(error),
        }
        if saw_itself {
            return Ok(with);
        }
        // It took the option for a name, or does not show what everybody has.
        let bytes = self.listing(Command::Bare("LIST"))?;
        let without = lines(&bytes, &mut |line| list_line(line, &mut saw_itself))?;
        Ok(either(with, without))
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

    /// All that comes of a listing.
    fn listing(&mut self, command: Command<'_>) -> Result<Vec<u8>, Error> {
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
        let said = data::finish(&mut self.control, incoming, command)?;
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
        Ok(bytes)
    }
}
