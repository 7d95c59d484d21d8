//! What must hold of each byte.

use std::collections::{BTreeMap, BTreeSet};

use haul_core::volume::{ContentVersion, Epoch};

/// A write, by the number that its bytes are.
#[derive(Clone, Debug)]
pub struct Write {
    /// In which life.
    pub client: u64,
    pub begun: u64,
    /// When it was told to be written.
    pub over: Option<u64>,
    /// When it was told to have failed: it may stand there in part, and comes no more.
    pub failed: Option<u64>,
    /// A sync was made for it, and when that was told.
    pub synced: Option<u64>,
    /// It may be gone, with a host that had it and was not asked to keep it.
    pub may_be_lost: bool,
    /// A sync said that something was lost, and it may be that.
    pub is_given_up: bool,
    pub is_direct: bool,
    /// When it was sent last, and under which epoch if it went directly.
    pub sent: u64,
    pub epoch: Option<Epoch>,
    pub file: u64,
    /// [`NOWHERE`] for an append as long as it is not known.
    pub offset: u64,
    pub len: u64,
    /// An append: the gatherer's life in which it began, and in which its place was told.
    pub appended: Option<(u32, Option<u32>)>,
}

/// Where no file reaches.
pub const NOWHERE: u64 = 1 << 40;

impl Write {
    fn is_at(&self, file: u64, at: u64) -> bool {
        self.file == file && (self.offset..self.offset + self.len).contains(&at)
    }

    /// An append that was made before nobody knows where, or twice, by two lives of the gatherer.
    fn may_be_elsewhere(&self, file: u64) -> bool {
        let may = self.appended.is_some_and(|(begun, over)| over != Some(begun));
        self.file == file && may
    }
}

/// A range that an append was given, in which nobody else's append stands.
#[derive(Clone, Debug)]
pub struct Place {
    /// Of the write if it is one, and not reserved only.
    pub number: Option<u32>,
    pub file: u64,
    pub offset: u64,
    pub len: u64,
    pub begun: u64,
}

/// A file that is made to end somewhere: numbered among the writes.
#[derive(Clone, Debug)]
pub struct Cut {
    pub client: u64,
    pub file: u64,
    pub from: u64,
    pub begun: u64,
    /// When it was told to be done: then it lasts.
    pub over: Option<u64>,
}

/// Whether one change of a client's is known to have come before another: it was over, or the client gave it
/// a turn before.
fn is_before(
    (number, client, over): (u32, u64, Option<u64>),
    (other, other_client, begun): (u32, u64, u64),
) -> bool {
    over.is_some_and(|over| over < begun) || client == other_client && number < other
}

#[derive(Debug, Default)]
pub struct Judge {
    pub writes: BTreeMap<u32, Write>,
    pub cuts: BTreeMap<u32, Cut>,
    /// Files that are removed, or are to be.
    pub removed: BTreeSet<u64>,
    places: Vec<Place>,
    /// When a client was last not heard for too long.
    expired: BTreeMap<u64, u64>,
    /// What reads showed of a place: when each began, was over, and what.
    reads: BTreeMap<(u64, u64), Vec<(u64, u64, u32)>>,
    /// How often the catalog was told that a file was written.
    told: BTreeMap<u64, u64>,
    /// What was read of a place between two looks that showed one version; and while the catalog was told
    /// nothing.
    of_version: BTreeMap<(u64, u64, ContentVersion), u32>,
    of_told: BTreeMap<(u64, u64, u64), u32>,
    /// How many of such reads there were of places that had been read so before.
    pub compared: u64,
}

impl Judge {
    /// How often the catalog was told that a file was written; with `more` it is told once more.
    pub fn told(&mut self, file: u64, more: bool) -> u64 {
        let told = self.told.entry(file).or_default();
        *told += u64::from(more);
        *told
    }

    /// These bytes were read from there on between two looks.
    pub fn probed(
        &mut self,
        (file, offset): (u64, u64),
        bytes: &[u32],
        first: (ContentVersion, u64),
        last: (ContentVersion, u64),
    ) {
        if self.removed.contains(&file) || first.0 != last.0 {
            return;
        }
        for (at, byte) in (offset..).zip(bytes) {
            let before = self.of_version.insert((file, at, last.0), *byte);
            self.compared += u64::from(before.is_some());
            assert!(
                before.is_none_or(|before| before == *byte),
                "{file} at {at} is {byte} and was {before:?} in the same version {:?}",
                last.0
            );
            if first.1 != last.1 {
                continue;
            }
            let before = self.of_told.insert((file, at, last.1), *byte);
            assert!(
                before.is_none_or(|before| before == *byte),
                "{file} at {at} is {byte} and was {before:?}, and the catalog was told {} times each time",
                last.1
            );
        }
    }

    pub fn expired(&mut self, client: u64, now: u64) {
        self.expired.insert(client, now);
    }

    pub fn sent(&mut self, number: u32, now: u64, epoch: Option<Epoch>) {
        let write = self.writes.get_mut(&number).expect("it was begun");
        (write.sent, write.epoch) = (now, epoch);
    }

    /// What was written and not synced may be gone from now on.
    pub fn loses(&mut self, is_it: impl Fn(&Write) -> bool) {
        for write in self.writes.values_mut().filter(|write| write.synced.is_none() && is_it(write)) {
            write.may_be_lost = true;
        }
    }

    /// Room was reserved for an append, whose pieces are writes of their own from here on; `life` is the
    /// gatherer's that told. An earlier one may have made the append, of which nobody heard: then it stands
    /// somewhere, and comes no more.
    pub fn reserved(&mut self, number: u32, life: u32, now: u64) {
        let write = self.writes.get_mut(&number).expect("it was begun");
        match write.appended {
            Some((begun, _)) if begun != life => write.failed = Some(now),
            _ => _ = self.writes.remove(&number),
        }
    }

    /// An append stands there.
    pub fn placed(&mut self, place: Place) {
        let (start, end) = (place.offset, place.offset + place.len);
        let overlaps = |other: &&Place| {
            let lost = other.number.is_some_and(|number| {
                self.writes.get(&number).is_some_and(|write| write.may_be_lost || write.over.is_none())
            });
            // A cut gives up what is behind it.
            let first = other.begun.min(place.begun);
            let is_cut = self.cuts_of(place.file).any(|(_, cut)| {
                cut.from < end.max(other.offset + other.len) && cut.over.is_none_or(|over| over >= first)
            });
            other.file == place.file
                && !self.removed.contains(&place.file)
                && other.offset < end
                && start < other.offset + other.len
                && !lost
                && !is_cut
        };
        if let Some(other) = self.places.iter().find(overlaps) {
            panic!("{place:?} stands over {other:?}");
        }
        self.places.push(place);
    }

    /// A read that began at `begun` says that a file ends there.
    pub fn ends(&self, file: u64, end: u64, begun: u64) {
        // A removed one is of any length where it is not known that it is gone.
        if self.removed.contains(&file) {
            return;
        }
        let counts = |write: &&Write| {
            write.file == file && write.synced.is_some_and(|when| when < begun) && !write.may_be_lost
        };
        let is_missed = |(number, write): &(&u32, &Write)| {
            let last = write.offset + write.len;
            last > end && !self.is_cut_maybe(file, last - 1, **number, write)
        };
        if let Some((_, write)) = self.writes.iter().filter(|(_, write)| counts(write)).find(is_missed) {
            panic!("{file} ends at {end}, and not behind {write:?}");
        }
        for (number, cut) in self.cuts_of(file).filter(|(_, cut)| cut.over.is_some_and(|over| over < begun)) {
            let others: Vec<&Cut> = self
                .cuts_of(file)
                .filter(|(other, one)| {
                    *other != number
                        && !is_before((*other, one.client, one.over), (number, cut.client, cut.begun))
                })
                .map(|(_, one)| one)
                .collect();
            assert!(
                end >= cut.from || others.iter().any(|other| other.from <= end),
                "{file} ends at {end} and was made to end at {}: {cut:?}",
                cut.from
            );
            let writes = self.writes.iter().filter(|(other, write)| {
                write.file == file
                    && !is_before((**other, write.client, write.over), (number, cut.client, cut.begun))
            });
            let reach = writes.map(|(_, write)| write.offset + write.len);
            let reach = reach.chain(others.iter().map(|other| other.from)).chain([cut.from]).max();
            assert!(reach.is_some_and(|reach| end <= reach), "{file} ends at {end} again, after {cut:?}");
        }
    }

    fn cuts_of(&self, file: u64) -> impl Iterator<Item = (u32, &Cut)> {
        self.cuts.iter().filter(move |(_, cut)| cut.file == file).map(|(number, cut)| (*number, cut))
    }

    /// A cut may have taken a place of that write away. What is written to a file that is removed may be gone
    /// at any time.
    fn is_cut_maybe(&self, file: u64, at: u64, number: u32, write: &Write) -> bool {
        if self.removed.contains(&file) {
            return true;
        }
        self.cuts_of(file).filter(|(_, cut)| cut.from <= at).any(|(other, cut)| {
            !is_before((other, cut.client, cut.over), (number, write.client, write.begun))
        })
    }

    /// A cut took that place away for certain, before `begun` and after that write.
    fn is_cut_away(&self, file: u64, at: u64, number: u32, write: &Write, begun: u64) -> Option<&Cut> {
        let is_over = |cut: &Cut| cut.from <= at && cut.over.is_some_and(|over| over < begun);
        let came_late = |cut: &Cut| {
            let expired = self.expired.get(&write.client);
            cut.client != write.client
                && expired.is_some_and(|expired| write.sent < *expired && cut.begun > *expired)
        };
        let cuts = self.cuts_of(file).filter(|(_, cut)| is_over(cut));
        let mut after = cuts.filter(|(other, cut)| {
            is_before((number, write.client, write.over), (*other, cut.client, cut.begun)) || came_late(cut)
        });
        after.next().map(|(_, cut)| cut)
    }

    /// A write that was sent before its client was not heard for too long, and went over one that began after
    /// that; or one went over a later one of the same client.
    fn came_too_late(&self, shown: u32, newer: &Write, number: u32) -> bool {
        let Some(write) = self.writes.get(&shown) else { return false };
        if write.client == newer.client {
            return number > shown;
        }
        let Some(expired) = self.expired.get(&write.client) else { return false };
        // Who has an older lease on the same stripe writes under the older epoch too.
        let hears = match (write.epoch, newer.epoch) {
            (Some(old), Some(new)) => new > old,
            _ => true,
        };
        write.sent < *expired && newer.begun > *expired && hears
    }

    /// A read shows something that an earlier one showed, and one in between did not: no write comes twice.
    /// One that is not over yet may, for it is made again where nobody knows what became of it.
    pub fn turns_back(
        &mut self,
        file: u64,
        at: u64,
        shown: u32,
        (begun, over): (u64, u64),
    ) -> Result<(), String> {
        let reads = self.reads.entry((file, at)).or_default();
        let first = reads.iter().filter(|read| read.2 == shown).map(|read| read.1).min();
        let over_at = match self.writes.get(&shown) {
            Some(write) => write.over,
            None => self
                .cuts
                .values()
                .filter(|cut| cut.file == file && cut.from <= at)
                .try_fold(0, |last, cut| cut.over.map(|over| last.max(over))),
        };
        let between = |read: &&(u64, u64, u32)| {
            let is_over = over_at.is_some_and(|over| over < read.0);
            let cuts = || self.cuts.values().filter(|cut| cut.file == file && cut.from <= at);
            let lasts = match self.writes.get(&read.2) {
                Some(write) => !write.may_be_lost,
                // What a cut takes away is gone for certain when that is over.
                None => cuts().all(|cut| cut.over.is_some_and(|over| over < read.0)),
            };
            read.2 != shown && lasts && is_over && first.is_some_and(|first| first < read.0) && read.1 < begun
        };
        let between = reads.iter().find(between).copied();
        reads.push((begun, over, shown));
        match between.filter(|_| !self.removed.contains(&file)) {
            Some((.., other)) => Err(format!(
                "{file} at {at} shows {shown} again, and showed {other} since\n{:?}\n{:?}",
                self.writes.get(&shown),
                self.writes.get(&other)
            )),
            None => Ok(()),
        }
    }

    /// A read that began at `begun` and is over showed `shown` (0: nothing was ever written) at a place.
    pub fn shown(&self, file: u64, at: u64, shown: u32, begun: u64) -> Result<(), String> {
        let of_it = || self.writes.iter().filter(move |(_, write)| write.is_at(file, at));
        let since = match shown {
            0 => 0,
            number => {
                let write = self
                    .writes
                    .get(&number)
                    .ok_or_else(|| format!("{file} at {at} shows {number}, which was never written"))?;
                if !write.is_at(file, at) && !write.may_be_elsewhere(file) {
                    return Err(format!("{number} was not written to {file} at {at}"));
                }
                if let Some(cut) = self.is_cut_away(file, at, number, write, begun) {
                    return Err(format!("{file} at {at} shows {number} and was cut\n{write:?}\n{cut:?}"));
                }
                // One that was never over may come at any time.
                write.over.or(write.failed).unwrap_or(u64::MAX)
            }
        };
        let newer = of_it().find(|(number, write)| {
            let is_over = write.over.is_some_and(|over| over < begun);
            let is_later = match shown {
                _ if self.removed.contains(&file) => false,
                0 => !self.is_cut_maybe(file, at, **number, write),
                _ => write.begun > since || self.came_too_late(shown, write, **number),
            };
            **number != shown && is_over && !write.may_be_lost && is_later
        });
        match newer {
            Some((number, write)) => {
                let old = self.writes.get(&shown);
                Err(format!(
                    "{file} at {at} shows {shown} and not {number}\n{shown}: {old:?}\n{number}: {write:?}"
                ))
            }
            None => Ok(()),
        }
    }
}
