//! A placement that an application gives: which server has which stripe of a file.
//!
//! In: runs, so many stripes on that server, one behind the other. Out: the server of a stripe, and how many
//! stripes come before one on its server. Invariants: the runs are bounded, and repeat behind their end, so
//! that each stripe of a file of any length lies on one server; two lists that say the same in runs that
//! touch are one. Left out: which servers a volume has, which whoever takes a list from somebody checks
//! ([`Given::fits`]).

use alloc::collections::BTreeMap;
use core::ops::Range;

use super::ServerNo;
use crate::wire::WireError;
use crate::wire::codec::{Reader, Writer};

/// Most runs of one list.
pub const RUNS_MAX: usize = 4096;
/// All runs of a list have so many stripes at most.
pub const STRIPES_MAX: u64 = 1 << 40;
/// Runs that are shown of a list.
const SHOWN_MAX: usize = 12;
/// Bytes of a run.
const RUN_LEN: usize = 2 + 8;
const _: () = assert!(64 + RUNS_MAX * RUN_LEN <= crate::wire::CONTROL_LEN_MAX);

/// Why a list is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadList {
    #[error("a placement has at least one run of stripes")]
    Empty,
    #[error("a placement has at most 4,096 runs of stripes; what is longer may repeat a shorter one")]
    TooMany,
    #[error("a run of a placement has at least one stripe, and all together at most 2^40")]
    Stripes,
}

/// A run as it is known: where it begins, how many of its server's stripes come before, how many it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: u64,
    before: u64,
    stripes: u64,
}

impl Run {
    /// How many stripes of it come before this one, which is counted within the list.
    fn before(&self, stripe: u64) -> u64 {
        stripe.saturating_sub(self.first).min(self.stripes)
    }
}

/// Which server has which stripe of a file; behind its last run it begins again with the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    runs: Vec<(ServerNo, u64)>,
    /// Where each run begins.
    firsts: Vec<u64>,
    /// What each server has of it, in ascending order.
    of: BTreeMap<ServerNo, Vec<Run>>,
    /// Stripes of the whole list.
    len: u64,
}

impl Given {
    /// So many stripes on each of these servers, one behind the other.
    ///
    /// # Errors
    /// There are none or too many; one has no stripe.
    pub fn new(runs: impl IntoIterator<Item = (u16, u64)>) -> Result<Given, BadList> {
        let mut joined: Vec<(ServerNo, u64)> = Vec::new();
        let mut len = 0_u64;
        for (server, stripes) in runs {
            len = len
                .checked_add(stripes)
                .filter(|len| stripes > 0 && *len <= STRIPES_MAX)
                .ok_or(BadList::Stripes)?;
            if let Some(last) = joined.last_mut().filter(|last| last.0 == ServerNo(server)) {
                last.1 += stripes;
                continue;
            }
            if joined.len() == RUNS_MAX {
                return Err(BadList::TooMany);
            }
            joined.push((ServerNo(server), stripes));
        }
        if joined.is_empty() {
            return Err(BadList::Empty);
        }
        let (mut firsts, mut of) = (Vec::with_capacity(joined.len()), BTreeMap::<ServerNo, Vec<Run>>::new());
        let mut first = 0;
        for (server, stripes) in &joined {
            firsts.push(first);
            let runs = of.entry(*server).or_default();
            let before = runs.last().map_or(0, |last| last.before + last.stripes);
            runs.push(Run { first, before, stripes: *stripes });
            first += stripes;
        }
        Ok(Given { runs: joined, firsts, of, len })
    }

    /// One stripe on each of these servers, in this order.
    ///
    /// # Errors
    /// As of [`Given::new`].
    pub fn each(servers: &[u16]) -> Result<Given, BadList> {
        Given::new(servers.iter().map(|server| (*server, 1)))
    }

    /// Its runs: the server, and how many stripes.
    pub fn runs(&self) -> impl ExactSizeIterator<Item = (u16, u64)> {
        self.runs.iter().map(|(server, stripes)| (server.0, *stripes))
    }

    /// In words: the first runs of it.
    pub fn in_words(&self) -> String {
        let word = |(server, stripes): (u16, u64)| match stripes {
            1 => format!("{server}"),
            _ => format!("{server} ({stripes})"),
        };
        let some: Vec<String> = self.runs().take(SHOWN_MAX).map(word).collect();
        let more = match self.runs.len().saturating_sub(SHOWN_MAX) {
            0 => String::new(),
            more => format!(" and {more} more runs"),
        };
        format!("given, stripes on servers {}{more}, and again", some.join(", "))
    }

    /// Whether a volume of so many servers has all that are named.
    pub fn fits(&self, servers: u16) -> bool {
        self.of.keys().all(|server| server.0 < servers)
    }

    /// Stripes of the list before it repeats.
    pub fn stripes(&self) -> u64 {
        self.len
    }

    /// The run that a stripe of the list is in.
    fn at(&self, within: u64) -> usize {
        self.firsts.partition_point(|first| *first <= within) - 1
    }

    pub(super) fn server(&self, stripe: u64) -> ServerNo {
        self.runs[self.at(stripe % self.len)].0
    }

    /// Stripes that a server has of the whole list.
    fn share(runs: &[Run]) -> u64 {
        runs.last().map_or(0, |last| last.before + last.stripes)
    }

    pub(super) fn before(&self, stripe: u64, server: ServerNo) -> u64 {
        let Some(runs) = self.of.get(&server) else { return 0 };
        let within = stripe % self.len;
        let behind = runs.partition_point(|run| run.first < within);
        let here = behind.checked_sub(1).map_or(0, |last| runs[last].before + runs[last].before(within));
        stripe / self.len * Given::share(runs) + here
    }

    /// `u64::MAX` of a server that has none.
    pub(super) fn nth(&self, server: ServerNo, before: u64) -> u64 {
        let Some(runs) = self.of.get(&server) else { return u64::MAX };
        let share = Given::share(runs);
        let (row, within) = (before / share, before % share);
        let run = runs[runs.partition_point(|run| run.before <= within) - 1];
        row.saturating_mul(self.len).saturating_add(run.first + (within - run.before))
    }

    /// The servers that have any of these stripes, each once.
    pub(super) fn servers_of(&self, stripes: &Range<u64>) -> Vec<ServerNo> {
        let count = stripes.end.saturating_sub(stripes.start);
        if count >= self.len {
            return self.of.keys().copied().collect();
        }
        let mut servers = Vec::new();
        let (mut left, mut within) = (count, stripes.start % self.len);
        while left > 0 {
            let at = self.at(within);
            let end = self.firsts[at] + self.runs[at].1;
            servers.push(self.runs[at].0);
            left = left.saturating_sub(end - within);
            within = end % self.len;
        }
        servers.sort_unstable();
        servers.dedup();
        servers
    }

    /// Appends its bytes.
    pub(crate) fn write(&self, w: &mut Writer<'_>) {
        w.count("runs", self.runs.len(), RUNS_MAX);
        for (server, stripes) in &self.runs {
            w.u16(server.0);
            w.u64(*stripes);
        }
    }

    /// # Errors
    /// They are none, or could be said in fewer runs.
    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Given, WireError> {
        let runs = r.list("runs", RUNS_MAX, RUN_LEN, |r| {
            Ok((r.u16("server of a run")?, r.u64("stripes of a run")?))
        })?;
        let count = runs.len() as u64;
        match Given::new(runs) {
            Ok(given) if given.runs.len() as u64 == count => Ok(given),
            _ => Err(WireError::BadValue { what: "runs of a placement", value: count }),
        }
    }

    /// Its bytes, for who keeps it.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(&mut Writer::new(&mut bytes));
        bytes
    }

    /// What [`Given::encode`] made.
    ///
    /// # Errors
    /// It did not make this.
    pub fn decode(bytes: &[u8]) -> Result<Given, WireError> {
        let r = &mut Reader::new(bytes);
        let given = Given::read(r)?;
        match r.remaining() {
            0 => Ok(given),
            len => Err(WireError::Trailing { what: "a placement", len: len as u64 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists() -> Vec<Given> {
        let runs: [&[(u16, u64)]; 9] = [
            &[(0, 1)],
            &[(2, 7)],
            &[(0, 1), (1, 1), (2, 1)],
            &[(2, 3), (0, 1), (2, 2), (1, 5)],
            &[(1, 2), (1, 2), (0, 1)],
            &[(0, 2), (2, 1), (0, 2)],
            &[(2, 1), (1, 1), (2, 1), (0, 4), (2, 1)],
            &[(1, STRIPES_MAX - 1), (0, 1)],
            &[(0, 4), (1, 1 << 30), (0, 3)],
        ];
        runs.into_iter().map(|runs| Given::new(runs.iter().copied()).expect("a list")).collect()
    }

    /// Goal: each stripe lies on one server, at a place there that no other has, without gaps, and is found
    /// from that place again; a range names the servers of its stripes, each once.
    /// Method: all stripes of some lists over several repetitions, against counting.
    #[test]
    fn each_stripe_has_one_place() {
        for given in lists() {
            let mut counts = [0_u64; 4];
            for stripe in 0..60 {
                for server in 0..4 {
                    let counted = counts[usize::from(server)];
                    assert_eq!(given.before(stripe, ServerNo(server)), counted, "{given:?} {stripe}");
                }
                let server = given.server(stripe);
                assert_eq!(given.nth(server, counts[usize::from(server.0)]), stripe, "{given:?}");
                counts[usize::from(server.0)] += 1;
                for end in stripe..60 {
                    let mut all: Vec<ServerNo> = (stripe..end).map(|at| given.server(at)).collect();
                    all.sort();
                    all.dedup();
                    assert_eq!(given.servers_of(&(stripe..end)), all, "{given:?} {stripe}..{end}");
                }
            }
            assert_eq!(given.nth(ServerNo(3), 0), u64::MAX);
        }
    }

    /// Goal: so it is wherever in a file one looks, also where lists are longer than what can be counted.
    /// Method: each run's edges, near, and as far as a file reaches.
    #[test]
    fn far_stripes_have_one_place() {
        for given in lists() {
            let len = given.stripes();
            let rows = [0, 1, 5, (1 << 47) / len];
            let edges = given.firsts.iter().flat_map(|first| [first.saturating_sub(1), *first, first + 1]);
            for stripe in rows.iter().flat_map(|row| edges.clone().map(move |edge| row * len + edge)) {
                let server = given.server(stripe);
                let before = given.before(stripe, server);
                assert_eq!(given.nth(server, before), stripe);
                assert_eq!(given.before(stripe + 1, server), before + 1);
                let others = (0..4).map(ServerNo).filter(|other| *other != server);
                for other in others {
                    assert_eq!(given.before(stripe + 1, other), given.before(stripe, other));
                }
                let all: u64 = (0..4).map(|server| given.before(stripe, ServerNo(server))).sum();
                assert_eq!(all, stripe, "each stripe before lies somewhere");
            }
        }
    }

    /// Goal: a list survives its bytes, and no others are it; what says the same is the same.
    #[test]
    fn lists_are_as_they_are_written() {
        for given in lists() {
            let bytes = given.encode();
            assert_eq!(Given::decode(&bytes).as_ref(), Ok(&given));
            assert!((0..bytes.len()).all(|len| Given::decode(&bytes[..len]).is_err()));
            assert!(Given::decode(&[&bytes[..], &[0]].concat()).is_err());
            assert_eq!(Given::new(given.runs()).as_ref(), Ok(&given));
        }
        let twice = Given::new([(1, 2), (1, 2), (0, 1)]).expect("a list");
        assert_eq!(twice, Given::new([(1, 4), (0, 1)]).expect("a list"));
        assert_eq!(twice, Given::each(&[1, 1, 1, 1, 0]).expect("a list"));
        let mut bytes = Vec::new();
        let mut w = Writer::new(&mut bytes);
        w.count("runs", 2, RUNS_MAX);
        (0..2).for_each(|_| (w.u16(1), w.u64(2)).1);
        assert!(Given::decode(&bytes).is_err(), "two runs that are one");
    }

    /// Goal: what has no bounds is refused.
    #[test]
    fn lists_are_bounded() {
        assert_eq!(Given::each(&[]), Err(BadList::Empty));
        assert_eq!(Given::new([(0, 0)]), Err(BadList::Stripes));
        assert_eq!(Given::new([(0, 1), (1, STRIPES_MAX)]), Err(BadList::Stripes));
        assert_eq!(Given::new([(0, 1), (1, u64::MAX)]), Err(BadList::Stripes));
        let many = |count: usize| Given::new((0..count).map(|at| ((at % 2) as u16, 1)));
        assert!(many(RUNS_MAX).is_ok());
        assert_eq!(many(RUNS_MAX + 1), Err(BadList::TooMany));
        let given = Given::each(&[0, 3]).expect("a list");
        assert!(given.fits(4) && !given.fits(3));
        let words = |runs: &[(u16, u64)]| Given::new(runs.iter().copied()).expect("a list").in_words();
        assert_eq!(words(&[(0, 1), (3, 2)]), "given, stripes on servers 0, 3 (2), and again");
        let long: Vec<(u16, u64)> = (0..20).map(|at| (at, 1)).collect();
        assert!(words(&long).ends_with("10, 11 and 8 more runs, and again"), "{}", words(&long));
    }
}
