//! Commands that look at names or change them; none of these moves data.

use std::time::{SystemTime, UNIX_EPOCH};

use haul_core::entry::Name;
use haul_gridftp::line::Iac;
use haul_gridftp::listing::{Moment, write_moment};
use haul_gridftp::reply::Reply;
use haul_gridftp::request::Request;
use rustix::io::Errno;

use super::Session;
use crate::listing::{Form, Listing, facts, long_line};
use crate::log::Change;
use crate::seen::is_unchanged;
use crate::store::{Dir, FileType, Stat};
use crate::sums::Sum;
use crate::tree::{Lost, Spot, Tree, is_kept, regular, shown};

/// Bytes that are summed before the client is looked after.
const SUM_PIECE: usize = 1 << 20;
/// Most parts of uploads that go with a directory.
const DEAD_PARTS_MAX: usize = 256;
/// Most bytes of lines in an answer to `STAT`; who wants more lists by a data connection.
const STAT_LEN_MAX: usize = 256 << 10;

impl Session {
    /// Obeys; returns the code of the reply.
    pub(super) fn on_files(&mut self, request: Request<'_>) -> u16 {
        let Some(tree) = self.tree.take() else {
            return self.plain(530, "Please log in first: USER and PASS.");
        };
        let told = told(&request).map(|(verb, path)| (verb, path.to_vec()));
        let from = self.rename_from.as_deref().map(shown).filter(|_| matches!(request, Request::Rnto(_)));
        self.has_logged = false;
        let code = self.with_tree(&tree, request);
        self.tree = Some(tree);
        if let Some((verb, path)) = told {
            self.log_change(verb, &path, from, code);
        }
        code
    }

    /// Logs what became of a name. A transfer that began has a line of its own, and of what was asked for
    /// before a change a refusal alone is worth one.
    fn log_change(&mut self, verb: &'static str, path: &[u8], from: Option<Vec<u8>>, code: u16) {
        if self.has_logged || verb == "RNFR" && code < 400 {
            return;
        }
        let (path, user) = (self.whole(path), self.user());
        let result = String::from_utf8_lossy(self.control.said()).into_owned();
        let from = from.as_deref();
        self.log.change(self.peer, &user, &Change { verb, path: &path, from, result: &result });
    }

    /// A path from the root on, as it was said.
    pub(super) fn whole(&self, path: &[u8]) -> Vec<u8> {
        let here = shown(&self.here);
        match path.starts_with(b"/") {
            true => path.to_vec(),
            false => [here.strip_suffix(b"/").unwrap_or(&here), b"/", path].concat(),
        }
    }

    fn with_tree(&mut self, tree: &Tree, request: Request<'_>) -> u16 {
        if is_change(&request) && !self.may_write() {
            if matches!(request, Request::Stor { .. } | Request::Appe(_)) {
                self.forget_transfer();
            }
            return self.plain(550, "Permission denied: this login may not change anything here.");
        }
        let single;
        let mut request = request;
        if let Some(path) = read_path(&mut request)
            && let Some(other) = self.undoubled(tree, path)
        {
            single = other;
            *path = &single;
        }
        let outcome = match request {
            Request::Retr { path, part } => return self.retrieve(tree, path, part),
            Request::Stor { path, at } => return self.store(tree, path, at, false),
            Request::Appe(path) => return self.store(tree, path, None, true),
            Request::Mlsd(path) => return self.list(tree, path, Form::Facts(self.with.facts), "MLSD"),
            Request::Nlst(path) => return self.list(tree, path, Form::Names, "NLST"),
            Request::List(path) => return self.list(tree, path, Form::Long, "LIST"),
            Request::Stat(None) => {
                let text = format!("Status: waiting; {} logged in.", self.user());
                return self.plain(211, &text);
            }
            Request::Stat(Some(path)) => self.stat(tree, path),
            Request::Mlst(path) => self.mlst(tree, path.unwrap_or(b".")),
            Request::Size(path) => self.size(tree, path),
            Request::Mdtm(path) => self.mdtm(tree, path),
            Request::Mfmt { moment, path } => self.mfmt(tree, moment, path),
            Request::Cwd(path) => self.cwd(tree, path),
            Request::Cdup => self.cwd(tree, b".."),
            Request::Mkd(path) => self.mkd(tree, path),
            Request::Rmd(path) => self.rmd(tree, path),
            Request::Dele(path) => self.dele(tree, path),
            Request::Rnfr(path) => self.rnfr(tree, path),
            Request::Rnto(path) => self.rnto(tree, path),
            Request::SiteChmod { mode, path } => self.chmod(tree, mode, path),
            Request::Cksm { algorithm, offset, len, path } => {
                return match self.cksm(tree, &algorithm, offset, len, path) {
                    Ok(code) => code,
                    Err(lost) => self.refuse(path, lost),
                };
            }
            _ => return self.plain(502, "This is not served."),
        };
        outcome.unwrap_or_else(|(path, lost)| self.refuse(&path, lost))
    }

    /// Another form of a path that names nothing, which does: Telnet doubles the byte 0xff, and some clients
    /// do so. Only for who reads: a name is made, changed or removed as it came and as no other.
    fn undoubled(&self, tree: &Tree, path: &[u8]) -> Option<Vec<u8>> {
        let is_there = |path: &[u8]| match tree.find(&self.here, path, true) {
            Ok(spot) => Some(spot.stat.is_some()),
            Err(Lost::System(Errno::NOENT)) => Some(false),
            Err(_) => None,
        };
        let mut single = path.to_vec();
        Iac::Doubled.decode(&mut single);
        let is_other = single != path && is_there(path) == Some(false) && is_there(&single) == Some(true);
        is_other.then_some(single)
    }

    /// Says why what was named cannot be.
    pub(super) fn refuse(&mut self, path: &[u8], lost: Lost) -> u16 {
        let code = match &lost {
            lost if matches!(lost.errno(), Some(Errno::NOSPC | Errno::DQUOT)) => 452,
            // A server of a volume is away.
            Lost::Told(fault) if fault.is(Errno::TIMEDOUT) || fault.is(Errno::BUSY) => 450,
            Lost::System(_) | Lost::Told(_) | Lost::Directory | Lost::NotRegular | Lost::OthersParts => 550,
            _ => 553,
        };
        let head = &path[..path.len().min(512)];
        self.control.say_bytes(code, &[head, b": ", lost.to_string().as_bytes(), b"."].concat());
        code
    }

    fn size(&mut self, tree: &Tree, path: &[u8]) -> Done {
        let spot = find(tree, &self.here, path, true)?;
        let stat = look(path, regular_of(&spot))?;
        Ok(self.plain(213, &stat.len.to_string()))
    }

    fn mdtm(&mut self, tree: &Tree, path: &[u8]) -> Done {
        let spot = find(tree, &self.here, path, true)?;
        let stat = look(path, spot.found())?;
        let digits = write_moment(Moment { secs: stat.mtime.0, nanos: 0 });
        match digits {
            Ok(digits) => Ok(self.plain(213, &digits)),
            Err(_) => Ok(self.plain(550, "Its time cannot be told.")),
        }
    }

    fn mfmt(&mut self, tree: &Tree, moment: Moment, path: &[u8]) -> Done {
        let spot = find(tree, &self.here, path, true)?;
        look(path, spot.found())?;
        let name = look(path, spot.name())?;
        look(path, spot.dir.set_mtime(name, moment.secs, moment.nanos).map_err(Lost::from))?;
        let digits = write_moment(Moment { nanos: 0, ..moment }).unwrap_or_default();
        self.control.say_bytes(213, &[format!("Modify={digits}; ").as_bytes(), path].concat());
        Ok(213)
    }

    fn chmod(&mut self, tree: &Tree, mode: u32, path: &[u8]) -> Done {
        if mode & 0o6000 != 0 {
            return Ok(self.plain(504, "What runs as its owner or group is not made here."));
        }
        let spot = find(tree, &self.here, path, true)?;
        look(path, spot.found())?;
        let name = look(path, spot.name())?;
        look(path, spot.dir.set_mode(name, mode).map_err(Lost::from))?;
        Ok(self.plain(200, "The mode is set."))
    }

    fn cwd(&mut self, tree: &Tree, path: &[u8]) -> Done {
        let spot = find(tree, &self.here, path, true)?;
        let dir = look(path, directory_of(tree, &spot))?;
        // Who may not search it could do nothing there.
        look(path, dir.can_enter().map_err(Lost::from))?;
        self.here = look(path, tree.components(&self.here, path))?;
        let here = self.here.clone();
        Ok(self.told(250, &here, b" is where you are now."))
    }

    fn mkd(&mut self, tree: &Tree, path: &[u8]) -> Done {
        let spot = find(tree, &self.here, path, false)?;
        let name = match &spot.name {
            Some(name) if spot.stat.is_none() => name,
            _ => return Err((path.to_vec(), Lost::System(Errno::EXIST))),
        };
        look(path, spot.dir.make_dir(name, 0o777 & !crate::part::umask()).map_err(Lost::from))?;
        look(path, spot.dir.sync().map_err(Lost::from))?;
        let way = look(path, tree.components(&self.here, path))?;
        Ok(self.told(257, &way, b" is made."))
    }

    fn rmd(&mut self, tree: &Tree, path: &[u8]) -> Done {
        let spot = find(tree, &self.here, path, false)?;
        let name = look(path, spot.name())?;
        let remove = || spot.dir.remove_dir(name);
        let removed = match remove() {
            // Nobody sees what is left of uploads, so nobody could remove it.
            Err(fault) if fault.is(Errno::NOTEMPTY) => {
                look(path, directory_of(tree, &spot).and_then(|dir| remove_dead_parts(tree, &*dir)))?;
                remove()
            }
            other => other,
        };
        look(path, removed.map_err(Lost::from))?;
        look(path, spot.dir.sync().map_err(Lost::from))?;
        Ok(self.plain(250, "The directory is removed."))
    }

    fn dele(&mut self, tree: &Tree, path: &[u8]) -> Done {
        let spot = find(tree, &self.here, path, false)?;
        let name = look(path, spot.name())?;
        match spot.dir.remove(name) {
            // What an upload left is shown to nobody, and whoever sent it must be able to take it back.
            Err(fault) if fault.is(Errno::NOENT) => {
                match crate::part::file::remove_left(tree, &*spot.dir, name) {
                    Ok(true) => return Ok(self.plain(250, "What an upload had left of it is removed.")),
                    Ok(false) => look(path, Err(Lost::System(Errno::NOENT)))?,
                    Err(failed) => return Ok(self.plain(450, &failed.to_string())),
                }
            }
            done => look(path, done.map_err(Lost::from))?,
        }
        look(path, spot.dir.sync().map_err(Lost::from))?;
        Ok(self.plain(250, "The file is removed."))
    }

    fn rnfr(&mut self, tree: &Tree, path: &[u8]) -> Done {
        let spot = find(tree, &self.here, path, false)?;
        look(path, spot.found())?;
        look(path, spot.name())?;
        self.rename_from = Some(look(path, tree.components(&self.here, path))?);
        Ok(self.plain(350, "Say RNTO and the new name."))
    }

    fn rnto(&mut self, tree: &Tree, path: &[u8]) -> Done {
        let Some(from) = self.rename_from.take() else {
            return Ok(self.plain(503, "Say RNFR first."));
        };
        let from_path = shown(&from);
        let old = find(tree, &[], &from_path, false)?;
        let new = find(tree, &self.here, path, false)?;
        let (old_name, new_name) = (look(&from_path, old.name())?, look(path, new.name())?);
        look(path, old.dir.rename(old_name, &*new.dir, new_name).map_err(Lost::from))?;
        look(path, new.dir.sync().map_err(Lost::from))?;
        look(path, old.dir.sync().map_err(Lost::from))?;
        Ok(self.plain(250, "The name is changed."))
    }

    fn mlst(&mut self, tree: &Tree, path: &[u8]) -> Done {
        let spot = find(tree, &self.here, path, path.ends_with(b"/") || path == b".")?;
        let stat = look(path, spot.found())?;
        let link = link_of(&spot);
        let mut line = b" ".to_vec();
        let told = facts(stat, None, link.as_deref(), self.access(), self.with.facts);
        let way = look(path, tree.components(&self.here, path))?;
        if told.encode(&shown(&way), &mut line).is_err() {
            return Err((path.to_vec(), Lost::BadName));
        }
        self.answer(250, "What it is:", vec![line], path)
    }

    fn stat(&mut self, tree: &Tree, path: &[u8]) -> Done {
        let spot = find(tree, &self.here, path, true)?;
        let stat = look(path, spot.found())?;
        let now = seconds_now();
        if !stat.is_dir() {
            let line = [b" ".as_slice(), &long_line(stat, path, None, now)].concat();
            return self.answer(213, "What it is:", vec![line], path);
        }
        let dir = look(path, directory_of(tree, &spot))?;
        let mut listing = look(path, Listing::of_dir(dir, Form::Long, self.access(), now))?;
        let mut text = Vec::new();
        loop {
            let piece = look(path, listing.piece())?;
            if piece.is_empty() {
                break;
            }
            text.extend_from_slice(&piece);
            if text.len() > STAT_LEN_MAX {
                return Ok(self.plain(550, "It has too many names for this answer: use MLSD or LIST."));
            }
        }
        if listing.untold > 0 {
            // Unsaid, these would be lost to who copies a tree.
            let text =
                format!("{} names are there that no line of an answer can hold: use MLSD.", listing.untold);
            return Ok(self.plain(550, &text));
        }
        let lines = text.split(|b| *b == b'\n').filter_map(|line| line.strip_suffix(b"\r"));
        let lines = lines.map(|line| [b" ", line].concat()).collect();
        self.answer(212, "What is there:", lines, path)
    }

    /// An answer of several lines, which hold names.
    fn answer(&mut self, code: u16, head: &str, lines: Vec<Vec<u8>>, path: &[u8]) -> Done {
        let all = [head.as_bytes().to_vec()].into_iter().chain(lines).chain([b"End.".to_vec()]);
        match Reply::new(code, all) {
            Ok(reply) => {
                self.control.send(&reply);
                Ok(code)
            }
            Err(_) => Err((path.to_vec(), Lost::BadName)),
        }
    }

    fn cksm(
        &mut self,
        tree: &Tree,
        algorithm: &str,
        offset: u64,
        len: Option<u64>,
        path: &[u8],
    ) -> Result<u16, Lost> {
        let Some(mut sum) = Sum::new(algorithm) else {
            return Ok(self.plain(504, "This algorithm is not known; FEAT tells which are."));
        };
        let spot = tree.find(&self.here, path, true)?;
        let (file, stat) = tree.open_file(&spot)?;
        let size = stat.len;
        let end = len.map_or(Some(size.max(offset)), |len| offset.checked_add(len));
        let Some(end) = end.filter(|end| *end <= size) else {
            return Ok(self.plain(554, "The file has fewer bytes than that."));
        };
        let (mut at, mut bytes) = (offset, vec![0; SUM_PIECE]);
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(SUM_PIECE).min(SUM_PIECE);
            let got = match file.read_at(&mut bytes[..want], at)? {
                0 => return Ok(self.plain(451, "The file became shorter while it was read.")),
                got => got,
            };
            sum.update(&bytes[..got]);
            at += got as u64;
            // Nobody is to read terabytes for who has gone or said ABOR, or while the server ends.
            if self.control.aborted(std::time::Duration::ZERO).is_some() || self.control.is_stopping() {
                return Ok(self.plain(426, "The sum was not made to its end."));
            }
        }
        if !is_unchanged(&*file, &stat) {
            return Ok(self.plain(451, "The file was changed while it was read."));
        }
        Ok(self.plain(213, &sum.finish()))
    }
}

/// A reply's code, or what was named and why it cannot be.
type Done = Result<u16, (Vec<u8>, Lost)>;

fn look<T>(path: &[u8], found: Result<T, Lost>) -> Result<T, (Vec<u8>, Lost)> {
    found.map_err(|lost| (path.to_vec(), lost))
}

fn find(tree: &Tree, here: &[Name], path: &[u8], follow: bool) -> Result<Spot, (Vec<u8>, Lost)> {
    look(path, tree.find(here, path, follow))
}

fn regular_of(spot: &Spot) -> Result<&Stat, Lost> {
    let stat = spot.found()?;
    regular(stat).map(|()| stat)
}

fn directory_of(tree: &Tree, spot: &Spot) -> Result<Box<dyn Dir>, Lost> {
    spot.found()?;
    tree.open_dir(spot)
}

fn link_of(spot: &Spot) -> Option<Vec<u8>> {
    let (name, stat) = (spot.name.as_ref()?, spot.stat.as_ref()?);
    (stat.kind == FileType::Symlink).then(|| spot.dir.link(name).ok()).flatten()
}

/// Removes what uploads of this user that have ended left in a directory that holds nothing else.
fn remove_dead_parts(tree: &Tree, dir: &dyn Dir) -> Result<(), Lost> {
    let (mut parts, mut is_others) = (Vec::new(), false);
    for entry in dir.entries(false)? {
        match &entry?.name[..] {
            name if tree.is_own_part(name) => parts.extend(Name::new(name)),
            // Nobody but that user may take back what he was told is safe.
            name if is_kept(name) => is_others = true,
            // The directory stays, and so does what uploads to it were told.
            _ => return Err(Lost::System(Errno::NOTEMPTY)),
        }
    }
    if is_others {
        return Err(Lost::OthersParts);
    }
    let mut locked = Vec::new();
    for part in &parts {
        let file = dir.open(part, true)?;
        // One that is locked is of an upload that runs: the directory stays, and its record too.
        file.lock()?;
        locked.push(file);
        if locked.len() > DEAD_PARTS_MAX {
            return Err(Lost::System(Errno::NOTEMPTY));
        }
    }
    parts.iter().try_for_each(|part| Ok(dir.remove(part)?))
}

pub(super) fn seconds_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// The path of a request that only reads.
fn read_path<'r, 'a>(request: &'r mut Request<'a>) -> Option<&'r mut &'a [u8]> {
    match request {
        Request::Retr { path, .. }
        | Request::Size(path)
        | Request::Mdtm(path)
        | Request::Cwd(path)
        | Request::Cksm { path, .. } => Some(path),
        Request::Mlsd(path)
        | Request::Nlst(path)
        | Request::List(path)
        | Request::Stat(path)
        | Request::Mlst(path) => path.as_mut(),
        _ => None,
    }
}

/// What the log tells of beside transfers that began: what changes a name, by which verb and which path.
fn told<'a>(request: &Request<'a>) -> Option<(&'static str, &'a [u8])> {
    match request {
        Request::Stor { path, at: None } => Some(("STOR", path)),
        Request::Stor { path, at: Some(_) } => Some(("ESTO", path)),
        Request::Appe(path) => Some(("APPE", path)),
        Request::Mkd(path) => Some(("MKD", path)),
        Request::Rmd(path) => Some(("RMD", path)),
        Request::Dele(path) => Some(("DELE", path)),
        Request::Rnfr(path) => Some(("RNFR", path)),
        Request::Rnto(path) => Some(("RNTO", path)),
        _ => None,
    }
}

fn is_change(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::Stor { .. }
            | Request::Appe(_)
            | Request::Mfmt { .. }
            | Request::Mkd(_)
            | Request::Rmd(_)
            | Request::Dele(_)
            | Request::Rnfr(_)
            | Request::Rnto(_)
            | Request::SiteChmod { .. }
    )
}
