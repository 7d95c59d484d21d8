//! A catalog as simple as it can be, to hold the real one against: maps in memory, no numbers of requests.
//!
//! What is right is said here once, in the plainest way. Each request is one group of its own.

use std::collections::{BTreeMap, BTreeSet};

use haul_core::entry::{Meta, Name};
use haul_core::volume::catalog::{Answer, Entry, EntryNo, Kind, Place, ROOT, Request};
use haul_core::volume::layout::Placing;
use haul_core::volume::{ClientNo, FileNo, ServerNo};
use rustix::io::Errno;

/// What a file without a name is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nameless {
    pub released: bool,
    pub removed: BTreeSet<u16>,
}

/// Everything there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    pub names: BTreeMap<(EntryNo, Name), EntryNo>,
    pub entries: BTreeMap<EntryNo, (Kind, Meta)>,
    pub nameless: BTreeMap<EntryNo, Nameless>,
    pub open: BTreeSet<(ClientNo, EntryNo)>,
    pub next: u64,
    pub servers: u16,
}

type Done = Result<Answer, Errno>;

impl Model {
    pub fn new(root: Meta, servers: u16) -> Model {
        Model {
            names: BTreeMap::new(),
            entries: [(ROOT, (Kind::Directory, root))].into(),
            nameless: BTreeMap::new(),
            open: BTreeSet::new(),
            next: 2,
            servers,
        }
    }

    fn parent(&self, id: EntryNo) -> Option<EntryNo> {
        self.names.iter().find(|(_, there)| **there == id).map(|((parent, _), _)| *parent)
    }

    fn entry(&self, id: EntryNo) -> Entry {
        let (kind, meta) = self.entries[&id].clone();
        Entry { id, parent: self.parent(id), kind, meta }
    }

    fn at(&self, place: &Place) -> Result<Option<EntryNo>, Errno> {
        match self.entries.get(&place.parent) {
            None => Err(Errno::NOENT),
            Some((Kind::Directory, _)) => Ok(self.names.get(&(place.parent, place.name.clone())).copied()),
            Some(_) => Err(Errno::NOTDIR),
        }
    }

    fn make(&mut self, at: &Place, kind: Kind, meta: Meta, placing: Placing) -> Done {
        let id = EntryNo(placing.number(self.next).0);
        self.next += 1;
        self.names.insert((at.parent, at.name.clone()), id);
        self.entries.insert(id, (kind, meta));
        Ok(Answer::Made { entry: self.entry(id), new: true })
    }

    fn is_dir(&self, id: EntryNo) -> bool {
        self.entries[&id].0 == Kind::Directory
    }

    fn is_empty(&self, id: EntryNo) -> bool {
        !self.names.keys().any(|(parent, _)| *parent == id)
    }

    /// Whether a client may still use it by its number.
    fn is_there(&self, id: EntryNo) -> bool {
        self.entries.contains_key(&id) && self.nameless.get(&id).is_none_or(|nameless| !nameless.released)
    }

    fn take_away(&mut self, place: &Place) {
        let id = self.names.remove(&(place.parent, place.name.clone())).expect("it is there");
        match self.entries[&id].0 {
            Kind::File => {
                self.nameless.insert(id, Nameless::default());
            }
            _ => {
                self.entries.remove(&id);
            }
        }
    }

    /// What nobody has open can be opened by nobody any more.
    pub fn release(&mut self) {
        for (id, nameless) in &mut self.nameless {
            if !self.open.iter().any(|(_, open)| open == id) {
                nameless.released = true;
            }
        }
    }

    pub fn answer(&mut self, client: ClientNo, request: &Request) -> Done {
        match request {
            Request::Mkdir { at, meta } => match self.at(at)? {
                Some(_) => Err(Errno::EXIST),
                None => self.make(at, Kind::Directory, *meta, Placing::ROUND_ROBIN),
            },
            Request::Symlink { at, meta, target } => match self.at(at)? {
                Some(_) => Err(Errno::EXIST),
                None => self.make(at, Kind::Link(target.clone()), *meta, Placing::ROUND_ROBIN),
            },
            Request::Create { at, meta, exclusive, open, placing } => {
                let answer = match self.at(at)? {
                    None => self.make(at, Kind::File, *meta, *placing)?,
                    Some(_) if *exclusive => return Err(Errno::EXIST),
                    Some(id) => match self.entries[&id].0 {
                        Kind::File => Answer::Made { entry: self.entry(id), new: false },
                        Kind::Directory => return Err(Errno::ISDIR),
                        Kind::Link(_) => return Err(Errno::LOOP),
                    },
                };
                if let (true, Answer::Made { entry, .. }) = (open, &answer) {
                    self.open.insert((client, entry.id));
                }
                Ok(answer)
            }
            Request::Lookup(place) => {
                self.at(place)?.map(|id| Answer::Entry(self.entry(id))).ok_or(Errno::NOENT)
            }
            Request::Stat(id) => match self.is_there(*id) {
                true => Ok(Answer::Entry(self.entry(*id))),
                false => Err(Errno::NOENT),
            },
            Request::ReadDir { dir, after, max } => {
                match self.entries.get(dir) {
                    None => return Err(Errno::NOENT),
                    Some((Kind::Directory, _)) => {}
                    Some(_) => return Err(Errno::NOTDIR),
                }
                let behind = |name: &Name| after.as_ref().is_none_or(|after| name > after);
                let all: Vec<_> = self
                    .names
                    .iter()
                    .filter(|((parent, name), _)| parent == dir && behind(name))
                    .map(|((_, name), id)| (name.clone(), self.entry(*id)))
                    .collect();
                let len = all.len().min(usize::from(*max));
                Ok(Answer::Page { entries: all[..len].to_vec(), more: len < all.len() })
            }
            Request::SetAttr { id, set } => {
                if !self.is_there(*id) {
                    return Err(Errno::NOENT);
                }
                let meta = &mut self.entries.get_mut(id).expect("it is there").1;
                meta.mode = set.mode.unwrap_or(meta.mode);
                meta.uid = set.uid.unwrap_or(meta.uid);
                meta.gid = set.gid.unwrap_or(meta.gid);
                meta.mtime = set.mtime.unwrap_or(meta.mtime);
                Ok(Answer::Entry(self.entry(*id)))
            }
            Request::Rename { from, to, noreplace } => self.rename(from, to, *noreplace),
            Request::Unlink(place) => match self.at(place)? {
                None => Err(Errno::NOENT),
                Some(id) if self.is_dir(id) => Err(Errno::ISDIR),
                Some(_) => {
                    self.take_away(place);
                    Ok(Answer::Done)
                }
            },
            Request::Rmdir(place) => match self.at(place)? {
                None => Err(Errno::NOENT),
                Some(id) if !self.is_dir(id) => Err(Errno::NOTDIR),
                Some(id) if !self.is_empty(id) => Err(Errno::NOTEMPTY),
                Some(_) => {
                    self.take_away(place);
                    Ok(Answer::Done)
                }
            },
            Request::Open(files) => {
                let is_file = |id: &EntryNo| self.is_there(*id) && self.entries[id].0 == Kind::File;
                let (there, lost): (Vec<_>, Vec<_>) = files.iter().partition(|id| is_file(id));
                self.open.extend(there.into_iter().map(|id| (client, id)));
                Ok(Answer::Opened { lost })
            }
            Request::Close(files) => {
                self.open.retain(|(who, id)| *who != client || !files.contains(id));
                Ok(Answer::Done)
            }
            Request::ToRemove { server, after } => self.to_remove(*server, *after),
            Request::Removed { server, files } => self.removed(*server, files),
            Request::Leave => {
                self.open.retain(|(who, _)| *who != client);
                Ok(Answer::Done)
            }
            Request::Known(_)
            | Request::Note { .. }
            | Request::Check
            | Request::Tickets(_)
            | Request::Place(_)
            | Request::List(_) => {
                unreachable!("what is known beside names is tested where it is kept")
            }
        }
    }

    fn rename(&mut self, from: &Place, to: &Place, noreplace: bool) -> Done {
        let id = self.at(from)?.ok_or(Errno::NOENT)?;
        let old = self.at(to)?;
        if noreplace && old.is_some() {
            return Err(Errno::EXIST);
        }
        let mut above = Some(to.parent);
        while let Some(dir) = above {
            if dir == id {
                return Err(Errno::INVAL);
            }
            above = self.parent(dir);
        }
        if let Some(old) = old {
            if old == id {
                return Ok(Answer::Done);
            }
            match (self.is_dir(id), self.is_dir(old)) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                (true, true) if !self.is_empty(old) => return Err(Errno::NOTEMPTY),
                _ => self.take_away(to),
            }
        }
        self.names.remove(&(from.parent, from.name.clone()));
        self.names.insert((to.parent, to.name.clone()), id);
        Ok(Answer::Done)
    }

    fn to_remove(&self, server: ServerNo, after: FileNo) -> Done {
        if server.0 >= self.servers {
            return Err(Errno::INVAL);
        }
        let is_due = |nameless: &Nameless| nameless.released && !nameless.removed.contains(&server.0);
        let due = self.nameless.iter().filter(|(id, nameless)| id.0 > after.0 && is_due(nameless));
        Ok(Answer::Files(due.map(|(id, _)| FileNo(id.0)).collect()))
    }

    fn removed(&mut self, server: ServerNo, files: &[FileNo]) -> Done {
        if server.0 >= self.servers {
            return Err(Errno::INVAL);
        }
        for file in files {
            let id = EntryNo(file.0);
            let Some(nameless) = self.nameless.get_mut(&id).filter(|nameless| nameless.released) else {
                continue;
            };
            nameless.removed.insert(server.0);
            if nameless.removed.len() == usize::from(self.servers) {
                self.nameless.remove(&id);
                self.entries.remove(&id);
            }
        }
        Ok(Answer::Done)
    }
}
