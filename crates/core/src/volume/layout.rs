//! Where the stripes of a file lie.
//!
//! In: how many servers a volume has, how large a stripe is, and a file's number, which says how the file is
//! placed. Out: the server of a stripe, and how many stripes of a file come before one on its server.
//! Everybody who has to know it asks here: clients, who gathers, and whose disk it is. Invariants: a file's
//! placement is a part of its number, which is never another's and never changes: so nobody can take a file
//! for placed otherwise, whoever he is and whatever he lost. Of each row, as many runs of stripes as there
//! are servers, each server has one run. Files begin at different servers, in turns by their numbers: small
//! files lie on all of them, each at the one that gathers it.
//!
//! A placement that an application gives ([`Given`]) has no room in a number, which names it instead: which
//! list that is never changes either, and who does not know it ([`Striping::knows`]) does nothing for such a
//! file. The catalog has the lists; whoever meets such numbers brings his own of them ([`Lists`]).

mod given;

use alloc::sync::Arc;
use core::fmt;
use core::ops::Range;

pub use self::given::{BadList, Given, RUNS_MAX, STRIPES_MAX};
use super::{FileNo, ServerNo};

/// How the stripes of a file follow each other on the servers: so many on each, in turns, or as a list says
/// that an application gave. It is a part of the file's number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Placing(u16);

/// How the files of a volume are placed, where nobody says otherwise of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// One stripe on each server, in turns.
    #[default]
    RoundRobin,
    /// As many parts as there are servers, each on one of them. A file of which nobody says how long it will
    /// be when it is made lies round and round.
    Partitioned,
    /// As an application says of a file when it makes it; of which nobody says so, round and round.
    Given,
}

impl Placement {
    /// All that there are.
    pub const ALL: [Placement; 3] = [Placement::RoundRobin, Placement::Partitioned, Placement::Given];

    /// The one of this word.
    pub fn from_word(word: &str) -> Option<Placement> {
        Placement::ALL.into_iter().find(|one| one.word() == word)
    }

    /// As users and catalogs say it.
    pub fn word(self) -> &'static str {
        match self {
            Placement::RoundRobin => "round-robin",
            Placement::Partitioned => "partitioned",
            Placement::Given => "given",
        }
    }

    /// How a new file is placed, that will have so many bytes, if anybody knows.
    pub fn of_file(self, len: Option<u64>, striping: &Striping) -> Placing {
        match (self, len) {
            (Placement::Partitioned, Some(len)) => {
                Placing::partitioned(len.div_ceil(striping.stripe_size), striping.servers)
            }
            _ => Placing::ROUND_ROBIN,
        }
    }
}

/// Bits of a file's number that say which one it is, and not how it is placed.
const SERIAL_BITS: u32 = 48;
/// Serials are below this.
pub const SERIALS: u64 = 1 << SERIAL_BITS;
/// A run is a number of this many bits, without its leading one, and a power of two.
const MANTISSA_BITS: u32 = 5;
const MANTISSAS: u64 = 1 << MANTISSA_BITS;
const EXPONENT_MAX: u64 = 40;
/// The code of a volume's first list.
const GIVEN: u16 = 0x4000;
/// Lists of one volume, for all its life.
pub const LISTS_MAX: u16 = 4096;

impl Placing {
    /// One stripe on each server, in turns.
    pub const ROUND_ROBIN: Placing = Placing(0);
    /// Higher codes are none, or those of lists.
    const CODE_MAX: u16 = (MANTISSAS * (EXPONENT_MAX + 2) - 1) as u16;

    /// A file of so many stripes in as many parts as there are servers, each part on one server. Parts may be
    /// by a thirty-second longer than they need to be, and the last ones shorter. What is longer than the
    /// file was said to be goes round once more.
    pub fn partitioned(stripes: u64, servers: u16) -> Placing {
        let part = stripes.div_ceil(u64::from(servers).max(1)).max(1);
        let code = (1..=Placing::CODE_MAX).find(|code| Placing(*code).run() >= part);
        Placing(code.unwrap_or(Placing::CODE_MAX))
    }

    /// As the volume's list of this number says; `None`: there are not so many.
    pub fn given(list: u16) -> Option<Placing> {
        (list < LISTS_MAX).then_some(Placing(GIVEN + list))
    }

    /// The number of the list that says it, if one does.
    pub fn list(self) -> Option<u16> {
        self.0.checked_sub(GIVEN)
    }

    /// The one that has this code, if there is one.
    pub fn from_code(code: u16) -> Option<Placing> {
        (code <= Placing::CODE_MAX || (GIVEN..GIVEN + LISTS_MAX).contains(&code)).then_some(Placing(code))
    }

    /// As it is written in messages and numbers.
    pub fn code(self) -> u16 {
        self.0
    }

    /// Which one of all that a catalog made a file is.
    pub fn serial(file: FileNo) -> u64 {
        file.0 & (SERIALS - 1)
    }

    /// How a file is placed.
    pub fn of(file: FileNo) -> Placing {
        // Of a number that no catalog gives everybody makes the same.
        Placing::from_code((file.0 >> SERIAL_BITS) as u16).unwrap_or(Placing(Placing::CODE_MAX))
    }

    /// The number of a file that is placed so.
    ///
    /// # Panics
    /// `serial` is not below [`SERIALS`].
    pub fn number(self, serial: u64) -> FileNo {
        assert!(serial < SERIALS, "a serial has 48 bits");
        FileNo(u64::from(self.0) << SERIAL_BITS | serial)
    }

    /// So many stripes lie on one server, one behind the other, before the next server has its own: where no
    /// list says it.
    pub fn run(self) -> u64 {
        let code = u64::from(self.0).max(1);
        match code.checked_sub(2 * MANTISSAS) {
            None => code,
            Some(more) => (MANTISSAS + more % MANTISSAS) << (more / MANTISSAS + 1).min(EXPONENT_MAX),
        }
    }

    /// In words.
    pub fn in_words(self) -> String {
        match (self.0, self.list()) {
            (0, _) => "round-robin".into(),
            (_, Some(list)) => format!("given, by the volume's list {list}"),
            _ => format!("partitioned, {} stripes on each server", self.run()),
        }
    }
}

/// Where lists are found: whoever embeds this has them. Which list a placing names never changes.
pub trait Lists: Send + Sync {
    /// The list that it names; `None`: it is not known here, or not yet.
    fn list(&self, placing: Placing) -> Option<Arc<Given>>;
}

/// Which servers a volume has, and how its files lie on them.
#[derive(Clone)]
pub struct Striping {
    /// Bytes.
    pub stripe_size: u64,
    /// At least one.
    pub servers: u16,
    /// No part of what is compared: it is the volume's, and one or the other knows more of it.
    lists: Option<Arc<dyn Lists>>,
}

impl fmt::Debug for Striping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Striping { stripe_size, servers, .. } = self;
        f.debug_struct("Striping").field("stripe_size", stripe_size).field("servers", servers).finish()
    }
}

impl PartialEq for Striping {
    fn eq(&self, other: &Striping) -> bool {
        (self.stripe_size, self.servers) == (other.stripe_size, other.servers)
    }
}

impl Eq for Striping {}

impl Striping {
    /// Of a volume without lists.
    pub fn new(stripe_size: u64, servers: u16) -> Striping {
        Striping { stripe_size, servers, lists: None }
    }

    /// The same with these lists.
    pub fn with_lists(self, lists: Arc<dyn Lists>) -> Striping {
        Striping { lists: Some(lists), ..self }
    }

    /// The list that says how a file lies, if one does and is known.
    pub fn list_of(&self, file: FileNo) -> Option<Arc<Given>> {
        let placing = Placing::of(file);
        placing.list()?;
        self.lists.as_ref()?.list(placing)
    }

    /// Whether it is known here how a file lies. Nobody who does not know it may use what the others say.
    pub fn knows(&self, file: FileNo) -> bool {
        Placing::of(file).list().is_none() || self.list_of(file).is_some()
    }

    /// Who has the runs of a file, from the first on in turns.
    fn of_run(&self, file: FileNo, run: u64) -> ServerNo {
        let servers = u64::from(self.servers);
        ServerNo(((file.0 % servers + run % servers) % servers) as u16)
    }

    /// Where a stripe of a file lies.
    pub fn server(&self, file: FileNo, stripe: u64) -> ServerNo {
        match self.list_of(file) {
            Some(list) => list.server(stripe),
            None => self.of_run(file, stripe / Placing::of(file).run()),
        }
    }

    /// Who gathers a file: who has its first stripe.
    pub fn gatherer(&self, file: FileNo) -> ServerNo {
        self.server(file, 0)
    }

    /// Where a range of stripes lies: each server once. Not empty, if the range is not.
    pub fn servers_of(&self, file: FileNo, stripes: &Range<u64>) -> impl Iterator<Item = ServerNo> {
        let list = self.list_of(file);
        let run = Placing::of(file).run();
        let (first, end) = (stripes.start / run, stripes.end.div_ceil(run));
        let count = match stripes.is_empty() || list.is_some() {
            true => 0,
            false => (end - first).min(self.servers.into()),
        };
        let of = self.clone();
        let listed = list.map_or_else(Vec::new, |list| list.servers_of(stripes));
        (0..count).map(move |nth| of.of_run(file, first + nth)).chain(listed)
    }

    /// The stripe of a file that has so many before it on that server.
    pub fn nth(&self, file: FileNo, server: ServerNo, before: u64) -> u64 {
        if let Some(list) = self.list_of(file) {
            return list.nth(server, before);
        }
        let (servers, run) = (u64::from(self.servers), Placing::of(file).run());
        (before / run * servers + self.place(file, server)) * run + before % run
    }

    /// Which run of each row is a server's.
    fn place(&self, file: FileNo, server: ServerNo) -> u64 {
        let servers = u64::from(self.servers);
        (u64::from(server.0) + servers - file.0 % servers) % servers
    }

    /// How many stripes of a file before this one lie on that server, whether or not this one does.
    pub fn before(&self, file: FileNo, stripe: u64, server: ServerNo) -> u64 {
        if let Some(list) = self.list_of(file) {
            return list.before(stripe, server);
        }
        let (servers, run) = (u64::from(self.servers), Placing::of(file).run());
        let nth = self.place(file, server);
        let within = stripe % (servers * run);
        stripe / (servers * run) * run + within.saturating_sub(nth * run).min(run)
    }
}

// A row of the longest runs has a length.
const _: () = assert!((2 * MANTISSAS - 1) << EXPONENT_MAX <= u64::MAX / u16::MAX as u64);
const _: () = assert!(Placing::CODE_MAX < GIVEN);
// Numbers are such that a database can count.
const _: () = assert!(((GIVEN + LISTS_MAX) as u64) << SERIAL_BITS <= i64::MAX as u64);

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use super::*;

    /// Goal: every stripe lies on one server, the stripes of a server are counted without a gap, and a range
    /// names the servers of its stripes, each once; files begin at all servers.
    /// Method: all small worlds, against counting.
    #[test]
    fn stripes_are_counted_without_gaps() {
        for servers in 1..=5 {
            let striping = Striping::new(8, servers);
            let mut first = vec![0; usize::from(servers)];
            let codes = [0, 1, 2, 3, 5, Placing::CODE_MAX].map(|code| Placing::from_code(code).expect("one"));
            let placed = codes.iter().flat_map(|placing| (0..6).map(|serial| placing.number(serial)));
            for file in placed.chain([FileNo(u64::MAX), FileNo(u64::MAX - 1)]) {
                first[usize::from(striping.server(file, 0).0)] += 1;
                assert_eq!(striping.server(file, 0), striping.gatherer(file));
                let mut counts = vec![0; usize::from(servers)];
                for stripe in 0..40 {
                    for server in 0..servers {
                        let counted = counts[usize::from(server)];
                        assert_eq!(striping.before(file, stripe, ServerNo(server)), counted);
                    }
                    let (server, here) = (striping.server(file, stripe), &mut counts);
                    let count = &mut here[usize::from(server.0)];
                    assert_eq!(striping.nth(file, server, *count), stripe);
                    *count += 1;
                    for end in stripe..40 {
                        let mut named: Vec<ServerNo> = striping.servers_of(file, &(stripe..end)).collect();
                        let mut all: Vec<ServerNo> =
                            (stripe..end).map(|at| striping.server(file, at)).collect();
                        named.sort();
                        all.sort();
                        all.dedup();
                        assert_eq!(named, all, "{file:?} {stripe}..{end} of {servers}");
                    }
                }
                let far = u64::MAX - 1;
                assert!(striping.before(file, far, striping.server(file, far)) <= far);
            }
            assert!(first.iter().all(|files| *files > 0), "{first:?}");
        }
    }

    struct Known(BTreeMap<u16, Arc<Given>>);

    impl Lists for Known {
        fn list(&self, placing: Placing) -> Option<Arc<Given>> {
            self.0.get(&placing.list()?).cloned()
        }
    }

    /// Goal: of a file whose number names a list all is as the list says, and it is known whether the list
    /// is; other files of the volume lie as they do without lists.
    #[test]
    fn numbers_name_lists() {
        let list = Arc::new(Given::new([(2, 3), (0, 1), (2, 1), (1, 2)]).expect("a list"));
        let known = Known([(7, list.clone())].into());
        let (bare, striping) = (Striping::new(8, 3), Striping::new(8, 3).with_lists(Arc::new(known)));
        assert_eq!(bare, striping, "lists are no part of what is compared");
        for serial in [0, 1, 2, SERIALS - 1] {
            let placing = Placing::given(7).expect("one");
            let file = placing.number(serial);
            assert_eq!((Placing::of(file), Placing::serial(file)), (placing, serial));
            assert!(file.0 <= i64::MAX as u64);
            assert!(striping.knows(file) && !bare.knows(file));
            assert!(!striping.knows(Placing::given(8).expect("one").number(serial)));
            assert_eq!(striping.gatherer(file), ServerNo(2));
            for stripe in 0..20 {
                assert_eq!(striping.server(file, stripe), list.server(stripe));
                let server = striping.server(file, stripe);
                let before = striping.before(file, stripe, server);
                assert_eq!(striping.nth(file, server, before), stripe);
                let named: Vec<ServerNo> = striping.servers_of(file, &(0..stripe)).collect();
                assert_eq!(named, list.servers_of(&(0..stripe)));
            }
            for code in [0, 1, Placing::CODE_MAX] {
                let file = Placing::from_code(code).expect("one").number(serial);
                assert!(striping.knows(file) && bare.knows(file));
                assert!((0..20).all(|at| striping.server(file, at) == bare.server(file, at)));
            }
        }
        assert_eq!(Placing::given(LISTS_MAX), None);
        let last = Placing::given(LISTS_MAX - 1).expect("one").code();
        assert!(Placing::from_code(last).is_some() && Placing::from_code(last + 1).is_none());
        assert!(Placing::from_code(GIVEN - 1).is_none() && Placing::ROUND_ROBIN.list().is_none());
        assert_eq!(Placement::from_word("given"), Some(Placement::Given));
        assert_eq!(Placement::Given.of_file(Some(1 << 30), &bare), Placing::ROUND_ROBIN);
    }

    /// Goal: a file is in as many parts as there are servers, if it is long enough, each hardly longer than
    /// it must be; runs rise with their codes; a number says how its file is placed.
    #[test]
    fn parts_are_as_long_as_they_must_be() {
        let codes = (1..=Placing::CODE_MAX).map(|code| Placing::from_code(code).expect("one"));
        let runs: Vec<u64> = codes.clone().map(Placing::run).collect();
        assert_eq!(runs[..70], (1..65).chain([66, 68, 70, 72, 74, 76]).collect::<Vec<u64>>());
        assert!(runs.windows(2).all(|two| two[0] < two[1]));
        assert_eq!(runs.last(), Some(&(63 << EXPONENT_MAX)));
        assert!(Placing::from_code(Placing::CODE_MAX + 1).is_none());
        for placing in codes.chain([Placing::ROUND_ROBIN]) {
            for serial in [0, 1, SERIALS - 1] {
                let file = placing.number(serial);
                assert_eq!((Placing::of(file), Placing::serial(file)), (placing, serial));
                assert_eq!(Placing::from_code(placing.code()), Some(placing));
                assert!(file.0 <= i64::MAX as u64);
            }
        }
        for servers in [1, 2, 3, 7, 64] {
            let stripes = (0..500).chain([1000, 12_345, 1 << 20, 1 << 40]);
            for stripes in stripes {
                let run = Placing::partitioned(stripes, servers).run();
                let part = stripes.div_ceil(servers.into()).max(1);
                assert!(run >= part && run - part <= part / 32, "{stripes} on {servers}: {run}");
            }
        }
        assert_eq!(Placing::partitioned(u64::MAX, 1).run(), 63 << EXPONENT_MAX, "as long as there is one");
    }
}
