//! Holds the catalog of a volume against what its servers have.
//!
//! In: the catalog, connections to the servers. Out: what does not fit together, file by file.
//! Invariants: nothing is changed but what a repair removes, which is bytes that no entry of the catalog has
//! and whose number it has given; whatever is done in the volume meanwhile, nothing that is as it should be
//! is a fault. So what looks wrong is looked at again, from both sides and in this order: its gatherer, the
//! servers, the catalog, and its gatherer, which shows that nobody wrote in between. Left out: whether bytes
//! are those that were written, for there is nothing that they could be held against; whether zeros of a file
//! of which the catalog does not know that it is whole are holes or were lost, which nobody can know.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Range;
use std::thread;
use std::time::Duration;

use haul_core::entry::{DEPTH_MAX, Name};
use haul_core::volume::catalog::{Checked, EntryNo, Failure, Kind as EntryKind, ROOT};
use haul_core::volume::check::{Ask, Found, Gathered, Has};
use haul_core::volume::layout::{Placing, Striping};
use haul_core::volume::{FileNo, ServerNo};
use rustix::io::Errno;

use crate::catalog::client::Client as Catalog;
use crate::check::Checker;
use crate::client::{Client, VolumeError};
use crate::dial::Keys;

/// What looks wrong is looked at so often, and a file that is written all the time is not known.
const LOOKS: u32 = 4;
const REST: Duration = Duration::from_millis(100);
/// Orphans that are remembered, to be told and removed; there may be more, which the next run finds.
const ORPHANS_MAX: usize = 1 << 20;

/// What kind of fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A server was not reached, or did not answer.
    Away,
    /// The catalog's database, or what fits together in it.
    Catalog,
    /// What a server was opened with is damaged or gone, or its log is.
    Server,
    /// Bytes of a file that has a name are not there.
    Missing,
    /// Bytes that no entry has.
    Orphan,
    /// Bytes under a number that the catalog never gave: it is older than the servers.
    Foreign,
    /// Something lies among a server's files that is none.
    Odd,
}

impl Kind {
    /// In one word, for programs.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Away => "away",
            Kind::Catalog => "catalog",
            Kind::Server => "server",
            Kind::Missing => "missing",
            Kind::Orphan => "orphan",
            Kind::Foreign => "foreign",
            Kind::Odd => "odd",
        }
    }
}

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: Kind,
    pub server: Option<ServerNo>,
    pub file: Option<FileNo>,
    /// The file's path in the volume, if it has one.
    pub path: Option<Vec<u8>>,
    /// For people.
    pub text: String,
}

/// What was looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Servers that answered to the end.
    pub reached: u16,
    /// Files that have a name; those of which the catalog knows that they are whole; those of them that were
    /// written while they were looked at.
    pub files: u64,
    pub whole: u64,
    pub written: u64,
    pub checked: Checked,
    pub faults: u64,
    /// Files without an entry whose bytes were removed.
    pub removed: u64,
}

/// Who is asked.
pub struct Fsck<'a> {
    pub catalog: &'a Catalog,
    pub keys: &'a Keys,
    /// Where each server listens.
    pub servers: &'a [SocketAddr],
    /// Bytes.
    pub stripe_size: u64,
    /// A server is met within this, all of them at once, and each answer comes within the other.
    pub met: Duration,
    pub patience: Duration,
    /// Removes what no entry has; `None`: nothing is removed.
    pub repair: Option<&'a Client>,
}

/// Where a look at files is; see [`Fsck::run_while`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The catalog has said which files of a page are whole, and no server was asked about them.
    Known,
    /// A file looked wrong: its gatherer and then all servers were asked about it, and the catalog was not.
    Again(FileNo),
}

/// Why it could not be looked to the end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FsckError {
    #[error("the volume's catalog: {}", .0.words)]
    Catalog(Failure),
    /// A repair.
    #[error("removing bytes that no entry has: {0}")]
    Remove(VolumeError),
    /// Whoever hears of faults wants no more.
    #[error("stopped")]
    Stopped,
}

struct Run<'a, 'b> {
    of: &'b Fsck<'a>,
    striping: Striping,
    /// `None`: it was not reached, or is not heard any more.
    servers: Vec<Option<Checker>>,
    /// What no entry has: at which servers, and how many bytes.
    orphans: BTreeMap<FileNo, (BTreeSet<ServerNo>, u64)>,
    sum: Sum,
    tell: &'b mut dyn FnMut(&Fault) -> bool,
    meanwhile: &'b mut dyn FnMut(Step),
}

impl Fsck<'_> {
    /// Looks at all of it, and tells each fault as it is found; `tell` says whether it wants more.
    ///
    /// # Errors
    /// The catalog does not answer; a repair came to nothing.
    pub fn run(&self, tell: &mut dyn FnMut(&Fault) -> bool) -> Result<Sum, FsckError> {
        self.run_while(tell, &mut |_| ())
    }

    /// The same, held at each [`Step`] until `meanwhile` returns: so that a test can do something between two
    /// looks.
    ///
    /// # Errors
    /// As of [`Fsck::run`].
    pub fn run_while(
        &self,
        tell: &mut dyn FnMut(&Fault) -> bool,
        meanwhile: &mut dyn FnMut(Step),
    ) -> Result<Sum, FsckError> {
        let servers = u16::try_from(self.servers.len()).unwrap_or(u16::MAX);
        let striping = Striping::new(self.stripe_size, servers).with_lists(self.catalog.lists());
        let (sum, orphans) = (Sum::default(), BTreeMap::new());
        let mut run = Run { of: self, striping, servers: Vec::new(), orphans, sum, tell, meanwhile };
        run.connect()?;
        run.look_at_catalog()?;
        run.look_at_servers()?;
        run.look_at_names()?;
        run.look_for_orphans()?;
        run.settle_orphans()?;
        run.sum.reached = run.servers.iter().flatten().count() as u16;
        Ok(run.sum)
    }
}

/// How many bytes of a file of this length lie at a server, one stripe behind the other, when nothing of it
/// is in the log: `gathered` is, in ascending order.
fn needs(striping: &Striping, (file, server): (FileNo, ServerNo), len: u64, gathered: &[Range<u64>]) -> u64 {
    let size = striping.stripe_size;
    for nth in (0..striping.before(file, len.div_ceil(size), server)).rev() {
        let start = striping.nth(file, server, nth) * size;
        let mut end = (start + size).min(len);
        while end > start
            && let Some(range) = gathered.iter().find(|range| range.start < end && end <= range.end)
        {
            end = range.start.max(start);
        }
        if end > start {
            return nth * size + (end - start);
        }
    }
    0
}

impl Run<'_, '_> {
    fn fault(&mut self, fault: &Fault) -> Result<(), FsckError> {
        self.sum.faults += 1;
        match (self.tell)(fault) {
            true => Ok(()),
            false => Err(FsckError::Stopped),
        }
    }

    fn of_server(&mut self, kind: Kind, server: ServerNo, text: String) -> Result<(), FsckError> {
        self.fault(&Fault { kind, server: Some(server), file: None, path: None, text })
    }

    fn connect(&mut self) -> Result<(), FsckError> {
        let Fsck { keys, servers, met, patience, .. } = self.of;
        let connect = |number: usize, at: SocketAddr| {
            Checker::connect_within(keys, at, ServerNo(number as u16), (*met, *patience))
        };
        let connected: Vec<_> = thread::scope(|scope| {
            let begin = |(number, at): (usize, &SocketAddr)| {
                let at = *at;
                scope.spawn(move || connect(number, at))
            };
            let begun: Vec<_> = servers.iter().enumerate().map(begin).collect();
            let end = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            begun.into_iter().map(end).collect()
        });
        for (number, connected) in connected.into_iter().enumerate() {
            let server = ServerNo(number as u16);
            match connected {
                Ok(checker) => self.servers.push(Some(checker)),
                Err(error) => {
                    self.servers.push(None);
                    self.of_server(Kind::Away, server, error.to_string())?;
                }
            }
        }
        Ok(())
    }

    /// Asks a server; `None`: it does not answer, which was told.
    fn ask(&mut self, server: ServerNo, ask: Ask) -> Result<Option<Found>, FsckError> {
        let Some(checker) = &mut self.servers[usize::from(server.0)] else { return Ok(None) };
        let text = match checker.ask(ask) {
            Ok(Found::Failed(errno)) => {
                let why = haul_base::errno::text(Errno::from_raw_os_error(errno));
                format!("its directory cannot be looked at: {why}")
            }
            Ok(found) => return Ok(Some(found)),
            Err(error) => error.to_string(),
        };
        self.servers[usize::from(server.0)] = None;
        self.of_server(Kind::Away, server, text)?;
        Ok(None)
    }

    fn all(&self) -> impl Iterator<Item = ServerNo> + use<> {
        (0..self.striping.servers).map(ServerNo)
    }

    fn look_at_catalog(&mut self) -> Result<(), FsckError> {
        self.sum.checked = self.of.catalog.check().map_err(FsckError::Catalog)?;
        for text in self.sum.checked.faults.clone() {
            let text = text.into();
            self.fault(&Fault { kind: Kind::Catalog, server: None, file: None, path: None, text })?;
        }
        Ok(())
    }

    fn look_at_servers(&mut self) -> Result<(), FsckError> {
        for server in self.all() {
            if let Some(Found::Itself { faults }) = self.ask(server, Ask::Itself)? {
                for text in faults {
                    self.of_server(Kind::Server, server, text.into())?;
                }
            }
        }
        Ok(())
    }

    /// Looks whether the bytes of files that have a name are there.
    fn look_at_names(&mut self) -> Result<(), FsckError> {
        let mut open = vec![(ROOT, Vec::new(), 0)];
        while let Some((dir, path, depth)) = open.pop() {
            let mut after: Option<Name> = None;
            loop {
                let (page, more) = match self.of.catalog.read_dir(dir, after) {
                    // It went meanwhile.
                    Err(failure) if failure.errno == Errno::NOENT.raw_os_error() => break,
                    other => other.map_err(FsckError::Catalog)?,
                };
                after = page.last().map(|(name, _)| name.clone());
                let mut files = Vec::new();
                for (name, entry) in page {
                    let below = [&path[..], b"/", name.as_bytes()].concat();
                    match entry.kind {
                        EntryKind::Directory if depth < DEPTH_MAX => open.push((entry.id, below, depth + 1)),
                        EntryKind::File => files.push((FileNo(entry.id.0), below)),
                        EntryKind::Directory | EntryKind::Link(_) => {}
                    }
                }
                self.look_at_files(files)?;
                if !more || after.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Looks at the files of one page.
    fn look_at_files(&mut self, files: Vec<(FileNo, Vec<u8>)>) -> Result<(), FsckError> {
        self.sum.files += files.len() as u64;
        let ids = files.iter().map(|(file, _)| EntryNo(file.0)).collect();
        let known = self.of.catalog.known(ids).map_err(FsckError::Catalog)?;
        let whole = files
            .into_iter()
            .zip(known)
            .filter_map(|((file, path), known)| known?.whole.map(|len| (file, path, len)));
        let whole: Vec<(FileNo, Vec<u8>, u64)> = whole.collect();
        self.sum.whole += whole.len() as u64;
        let filled = || whole.iter().filter(|(_, _, len)| *len > 0);
        let asked: Vec<FileNo> = filled().map(|(file, ..)| *file).collect();
        if asked.is_empty() {
            return Ok(());
        }
        (self.meanwhile)(Step::Known);
        // What was brought meanwhile may be told by neither; then it is looked at again.
        let mut lens: Vec<Vec<(ServerNo, u64)>> = vec![Vec::new(); asked.len()];
        let mut logs: Vec<Vec<Range<u64>>> = vec![Vec::new(); asked.len()];
        for server in self.all() {
            let Some(Found::Files(all)) = self.ask(server, Ask::Files(asked.clone()))? else { continue };
            for ((lens, log), has) in lens.iter_mut().zip(&mut logs).zip(all) {
                lens.push((server, has.len.unwrap_or(0)));
                *log = has.gathered.map_or_else(|| std::mem::take(log), |gathered| gathered.ranges);
            }
        }
        let looks = lens.into_iter().zip(logs).zip(filled().cloned().collect::<Vec<_>>());
        for ((lens, log), (file, path, len)) in looks {
            let is_short = |(server, there): &(ServerNo, u64)| {
                *there < needs(&self.striping, (file, *server), len, &log)
            };
            if lens.iter().any(is_short) {
                self.look_again(file, &path)?;
            }
        }
        Ok(())
    }

    fn gathered(&mut self, file: FileNo) -> Result<Option<Gathered>, FsckError> {
        let gatherer = self.striping.gatherer(file);
        let found = self.ask(gatherer, Ask::Files(vec![file]))?;
        Ok(match found {
            Some(Found::Files(mut all)) => all.pop().and_then(|has| has.gathered),
            _ => None,
        })
    }

    /// Looks at one file from both sides, until that shows what was at one time.
    fn look_again(&mut self, file: FileNo, path: &[u8]) -> Result<(), FsckError> {
        for look in 0..LOOKS {
            if look > 0 {
                thread::sleep(REST * look);
            }
            let Some(before) = self.gathered(file)? else { return Ok(()) };
            // Of that nothing changes any more.
            let is_removed = before.removed && !haul_mutant::removed("fsck-misses-what-was-removed");
            let is_quiet = before.quiet || is_removed || haul_mutant::removed("fsck-looks-from-both-sides");
            if !is_quiet || before.more {
                continue;
            }
            let mut has: Vec<(ServerNo, u64)> = Vec::new();
            for server in self.all() {
                if let Some(Found::Files(all)) = self.ask(server, Ask::Files(vec![file]))? {
                    has.extend(all.first().map(|has| (server, has.len.unwrap_or(0))));
                }
            }
            (self.meanwhile)(Step::Again(file));
            let id = EntryNo(file.0);
            let known = self.of.catalog.known(vec![id]).map_err(FsckError::Catalog)?.pop().flatten();
            let Some(len) = known.and_then(|known| known.whole) else { return Ok(()) };
            match self.of.catalog.stat(id) {
                Ok(entry) if entry.parent.is_some() => {}
                Ok(_) => return Ok(()),
                Err(failure) if failure.errno == Errno::NOENT.raw_os_error() => return Ok(()),
                Err(failure) => return Err(FsckError::Catalog(failure)),
            }
            if is_removed {
                // A name goes before the bytes do.
                let gatherer = self.striping.gatherer(file);
                let text = "its servers have removed it, so the catalog is older than they are: bring a newer one \
                            back, or remove it";
                let (server, file, path) = (Some(gatherer), Some(file), Some(path.to_vec()));
                return self.fault(&Fault { kind: Kind::Missing, server, file, path, text: text.into() });
            }
            let Some(after) = self.gathered(file)? else { return Ok(()) };
            if !haul_mutant::removed("fsck-looks-from-both-sides")
                && (!after.quiet || after.version != before.version)
            {
                continue;
            }
            let fault = |kind, server, text| Fault {
                kind,
                server: Some(server),
                file: Some(file),
                path: Some(path.to_vec()),
                text,
            };
            if before.end < len {
                let text = format!("it has {len} bytes, and its gatherer knows of {} alone", before.end);
                let gatherer = self.striping.gatherer(file);
                self.fault(&fault(Kind::Missing, gatherer, text))?;
            }
            for (server, there) in has {
                let needs = needs(&self.striping, (file, server), len, &before.ranges);
                if there < needs {
                    let text = format!("{there} of {needs} bytes that should lie there do");
                    self.fault(&fault(Kind::Missing, server, text))?;
                }
            }
            return Ok(());
        }
        self.sum.written += 1;
        Ok(())
    }

    /// Looks for bytes that no entry has, on disks and in logs.
    fn look_for_orphans(&mut self) -> Result<(), FsckError> {
        for server in self.all() {
            let mut after = None;
            while let Some(Found::Shelf { files, odd, more }) = self.ask(server, Ask::Shelf { after })? {
                for text in odd {
                    let text = format!("{text} is none of haul's files");
                    self.of_server(Kind::Odd, server, text)?;
                }
                after = files.last().map(|(file, _)| *file);
                self.without_entry(server, &files)?;
                if !more || after.is_none() {
                    break;
                }
            }
            let mut after = FileNo(0);
            while let Some(Found::Log { files, faults, more }) = self.ask(server, Ask::Log { after })? {
                for text in faults {
                    self.of_server(Kind::Server, server, text.into())?;
                }
                let Some(last) = files.last() else { break };
                after = *last;
                let files: Vec<_> = files.into_iter().map(|file| (file, 0)).collect();
                self.without_entry(server, &files)?;
                if !more {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Notes which of these files no entry has. A number was given before anybody could write under it, and
    /// an entry goes after its bytes.
    fn without_entry(&mut self, server: ServerNo, files: &[(FileNo, u64)]) -> Result<(), FsckError> {
        for page in files.chunks(haul_core::volume::catalog::PAGE_MAX) {
            // What SQLite cannot count is no entry's number.
            let ids = page.iter().map(|(file, _)| EntryNo(file.0.clamp(1, i64::MAX as u64))).collect();
            let known = self.of.catalog.known(ids).map_err(FsckError::Catalog)?;
            for ((file, _), known) in page.iter().zip(known) {
                let is_number = (1..=i64::MAX as u64).contains(&file.0);
                if known.is_some() && is_number && !haul_mutant::removed("fsck-spares-what-has-an-entry") {
                    continue;
                }
                let Some(len) = self.is_still_there(server, *file)? else { continue };
                if self.orphans.len() < ORPHANS_MAX || self.orphans.contains_key(file) {
                    let (servers, all) = self.orphans.entry(*file).or_default();
                    if servers.insert(server) {
                        *all += len;
                    }
                }
            }
        }
        Ok(())
    }

    /// Bytes of a file that lie at a server and in its log still; `None`: there is nothing of it.
    fn is_still_there(&mut self, server: ServerNo, file: FileNo) -> Result<Option<u64>, FsckError> {
        let Some(Found::Files(all)) = self.ask(server, Ask::Files(vec![file]))? else { return Ok(None) };
        let Some(Has { len, gathered }) = all.into_iter().next() else { return Ok(None) };
        let in_log: u64 =
            gathered.iter().flat_map(|has| &has.ranges).map(|range| range.end - range.start).sum();
        Ok((len.is_some() || in_log > 0).then(|| len.unwrap_or(0) + in_log))
    }

    /// Tells of what no entry has, and removes it if that is wanted and sure.
    fn settle_orphans(&mut self) -> Result<(), FsckError> {
        let orphans = std::mem::take(&mut self.orphans);
        let beyond = |sum: &Sum, file: &FileNo| {
            let (serial, Checked { last, skipped, .. }) = (Placing::serial(*file), &sum.checked);
            !(1..=*last).contains(&serial) || skipped.iter().any(|range| range.contains(&serial))
        };
        if orphans.keys().any(|file| beyond(&self.sum, file)) {
            // Numbers that were given meanwhile.
            let Checked { last, skipped, .. } = self.of.catalog.check().map_err(FsckError::Catalog)?;
            (self.sum.checked.last, self.sum.checked.skipped) = (last, skipped);
        }
        for (file, (servers, bytes)) in orphans {
            let server = servers.first().copied();
            let names: Vec<String> = servers.iter().map(|server| server.0.to_string()).collect();
            let at = format!("{bytes} bytes at server {}", names.join(", "));
            let is_foreign = beyond(&self.sum, &file);
            // Its catalog may have forgotten what has a name in a newer one.
            let can = !is_foreign && self.sum.checked.faults.is_empty();
            let removed = match self.of.repair.filter(|_| can) {
                Some(client) => self.remove(client, file)?,
                None => false,
            };
            let (kind, text) = match (is_foreign, removed) {
                (true, _) => (
                    Kind::Foreign,
                    format!(
                        "{at}; the catalog never gave this number, so it is older than the servers: bring the newer one \
                         back if there is one, and copy out before what was made since; nothing else gets this number"
                    ),
                ),
                (false, true) => (Kind::Orphan, format!("{at} that no entry has; they were removed")),
                (false, false) => (Kind::Orphan, format!("{at} that no entry has")),
            };
            let fault = Fault { kind, server, file: Some(file), path: None, text };
            match removed {
                // It is told, and no fault any more.
                true if !(self.tell)(&fault) => return Err(FsckError::Stopped),
                true => self.sum.removed += 1,
                false => self.fault(&fault)?,
            }
        }
        Ok(())
    }

    /// Removes a file that no entry has, at all servers, as the sweep does.
    fn remove(&self, client: &Client, file: FileNo) -> Result<bool, FsckError> {
        let known = self.of.catalog.known(vec![EntryNo(file.0)]).map_err(FsckError::Catalog)?;
        if known.iter().any(Option::is_some) {
            return Ok(false);
        }
        // How it lies is known of files that have a name; of a list that the catalog has not nobody can know.
        match self.of.catalog.learn([file]) {
            Ok(()) => {}
            Err(failure) if failure.errno == Errno::NOENT.raw_os_error() => return Ok(false),
            Err(failure) => return Err(FsckError::Catalog(failure)),
        }
        match client.remove(file).wait() {
            Ok(()) | Err(VolumeError::Gone) => Ok(true),
            Err(error) => Err(FsckError::Remove(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what should lie at a server is counted right, whatever of it is in the log.
    /// Method: all small files and ranges of them, against a model that counts byte by byte.
    #[test]
    fn what_a_server_needs_is_counted() {
        for (servers, size) in [(1, 3), (2, 2), (3, 2)] {
            let striping = Striping::new(size, servers);
            for len in 0..=14 {
                for (from, end) in (0..=len).flat_map(|from| (from..=len).map(move |end| (from, end))) {
                    let files =
                        [0, 1, 2].map(|code| Placing::from_code(code).expect("one").number(u64::from(code)));
                    let all =
                        files.iter().flat_map(|file| (0..servers).map(|server| (*file, ServerNo(server))));
                    for (file, server) in all {
                        let range = from..end;
                        let ranges = if range.is_empty() { vec![] } else { vec![range.clone()] };
                        let here = |byte: &u64| striping.server(file, byte / size) == server;
                        let last = (0..len).filter(here).rfind(|byte| !range.contains(byte));
                        let before = |stripe| {
                            (0..stripe).filter(|at| striping.server(file, *at) == server).count() as u64
                        };
                        let place = |byte: u64| before(byte / size) * size + byte % size + 1;
                        let model = last.map_or(0, place);
                        assert_eq!(
                            needs(&striping, (file, server), len, &ranges),
                            model,
                            "{striping:?} {len} {ranges:?}"
                        );
                    }
                }
            }
        }
    }
}
