//! Looks at many names of one directory: by one thread where that is quick, by several where a server has
//! to be asked for each.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use haul_core::entry::Name;
use haul_core::metadata::{Values, cost_of};
use rustix::fs::{FileType, readlinkat};
use rustix::io::Errno;

use crate::attributes::{self, Failed, Keeps, Subject};
use crate::manners::{LinkRule, leads_out};
use crate::meta_rate::{MetaRate, cost};
use crate::source::acl;
use crate::source::stat::{Seen, look_at, look_through};

/// Of the attributes of one entry so much is kept until its turn comes.
const VALUES_COST_MAX: usize = 4096;
/// Most helper threads.
const THREADS_MAX: usize = 64;
/// Names that one thread takes at a time.
const SHARE: usize = 16;
/// Names that are looked at before it is decided whether helpers pay.
const SAMPLE: usize = 4;
/// A look that takes this long goes to a server: a local one takes 1 to 5 us, a hand-over to a thread 10.
const SLOW: Duration = Duration::from_micros(60);

/// What there is under a name; the target if it is a symlink.
#[derive(Clone, Debug)]
pub(super) struct Probed {
    pub(super) seen: Seen,
    pub(super) link: Option<Box<[u8]>>,
    pub(super) what: What,
    /// What is kept of the extended attributes and lists of a file or link, and what of it could not be read.
    pub(super) values: Values,
    pub(super) unread: Vec<Failed>,
    /// It has more than is kept until its turn comes: they are read once more then.
    pub(super) has_more: bool,
}

/// What was seen, where that is a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// What stands under the name.
    Itself,
    /// What the link leads to.
    Followed,
    /// A link that should be followed, and leads to nothing that can be looked at.
    LeadsNowhere(Errno),
    /// A link that leads out of what is copied, where such are left out.
    LeadsOut,
}

/// How names are looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Looks {
    pub(super) keeps: Keeps,
    pub(super) links: LinkRule,
    /// Directories between them and the destination's root.
    pub(super) depth: usize,
}

impl Looks {
    /// What the attributes of what was seen are read of.
    fn subject<'a>(dir: BorrowedFd<'a>, name: &'a Name, what: What) -> Subject<'a> {
        match what {
            What::Followed => Subject::Through(dir, name),
            _ => Subject::Name(dir, name),
        }
    }
}

pub(super) type Found = (Name, Result<Probed, Errno>);

struct Batch {
    dir: Arc<OwnedFd>,
    names: Vec<Name>,
    looks: Looks,
    index: usize,
    reply: Sender<(usize, Vec<Found>)>,
    rate: Arc<MetaRate>,
}

/// The helpers, started when first needed.
pub(super) struct Probe {
    threads: usize,
    /// Of the source.
    rate: Arc<MetaRate>,
    slow: Duration,
    shares: Option<Sender<Batch>>,
}

/// Looks at one name, which is taken for; more than that is charged, so that nobody waits in here.
fn probe(dir: BorrowedFd<'_>, name: &Name, looks: Looks, rate: &MetaRate) -> Result<Probed, Errno> {
    let keeps = looks.keeps;
    let seen = look_at(dir, name)?;
    let (seen, link, what) = match seen.kind {
        FileType::Symlink => {
            rate.charge(cost::READ_LINK);
            let target = readlinkat(dir, name.as_bytes(), Vec::new())?.into_bytes();
            look_by_rule((dir, name), seen, target, looks, rate)
        }
        _ => (seen, None, What::Itself),
    };
    if acl::is_asked(&seen) {
        rate.charge(cost::LIST);
    }
    let seen = acl::told(dir, name, seen, what == What::Followed);
    // Those of a directory are read when it is entered. Nothing is opened for them.
    let has_any = seen.kind != FileType::Directory;
    let (mut values, unread) = match has_any && keeps.any() {
        true => {
            rate.charge(cost::ATTRIBUTES);
            attributes::read(Looks::subject(dir, name, what), seen.kind, keeps)
        }
        false => Default::default(),
    };
    let has_more = cost_of(&values) > VALUES_COST_MAX;
    if has_more {
        values.clear();
    }
    Ok(Probed { seen, link, what, values, unread, has_more })
}

/// What is to be told of a link that was `seen`: it, or what it leads to.
fn look_by_rule(
    (dir, name): (BorrowedFd<'_>, &Name),
    seen: Seen,
    target: Vec<u8>,
    Looks { links, depth, .. }: Looks,
    rate: &MetaRate,
) -> (Seen, Option<Box<[u8]>>, What) {
    let out = (links.outside || links.safe) && leads_out(&target, depth);
    let look = || {
        rate.charge(cost::LOOK);
        look_through(dir, name)
    };
    if links.all || (links.outside && out) {
        return match look() {
            Ok(led) => (led, None, What::Followed),
            Err(errno) => (seen, Some(target.into()), What::LeadsNowhere(errno)),
        };
    }
    if links.dirs
        && let Ok(led) = look()
        && led.kind == FileType::Directory
    {
        return (led, None, What::Followed);
    }
    (seen, Some(target.into()), if links.safe && out { What::LeadsOut } else { What::Itself })
}

/// Reads the attributes of what was probed once more, for more of them are to be told than were kept.
pub(super) fn read_again(
    dir: BorrowedFd<'_>,
    name: &Name,
    probed: &Probed,
    keeps: Keeps,
) -> (Values, Vec<Failed>) {
    attributes::read(Looks::subject(dir, name, probed.what), probed.seen.kind, keeps)
}

/// Looks at each as soon as the rate allows.
fn probe_share(dir: &OwnedFd, names: Vec<Name>, looks: Looks, rate: &MetaRate) -> Vec<Found> {
    names
        .into_iter()
        .map(|name| {
            rate.take(cost::LOOK);
            let probed = probe(dir.as_fd(), &name, looks, rate);
            (name, probed)
        })
        .collect()
}

impl Probe {
    pub(super) fn new(threads: usize, rate: Arc<MetaRate>) -> Probe {
        Probe { threads: threads.min(THREADS_MAX), rate, slow: SLOW, shares: None }
    }

    /// Looks at one name.
    pub(super) fn one(&self, dir: BorrowedFd<'_>, name: &Name, looks: Looks) -> Result<Probed, Errno> {
        self.rate.take(cost::LOOK);
        probe(dir, name, looks, &self.rate)
    }

    /// Looks at all of `names`; the answers are in their order.
    pub(super) fn probe_all(&mut self, dir: &Arc<OwnedFd>, mut names: Vec<Name>, looks: Looks) -> Vec<Found> {
        let rest = names.split_off(names.len().min(SAMPLE));
        let sampled = names.len() as u32;
        // Ahead of the clock: waits for the rate say nothing of how fast the storage is.
        self.rate.take(sampled * cost::LOOK);
        let start = Instant::now();
        let mut found: Vec<Found> = Vec::with_capacity(names.len() + rest.len());
        found.extend(names.into_iter().map(|name| {
            let probed = probe(dir.as_fd(), &name, looks, &self.rate);
            (name, probed)
        }));
        if rest.is_empty() {
            return found;
        }
        if self.threads < 2 || start.elapsed() / sampled.max(1) < self.slow || !self.have_threads() {
            found.extend(probe_share(dir, rest, looks, &self.rate));
            return found;
        }
        found.extend(self.share_out(dir, rest, looks));
        found
    }

    fn share_out(&self, dir: &Arc<OwnedFd>, names: Vec<Name>, looks: Looks) -> Vec<Found> {
        let shares = names.len().div_ceil(SHARE);
        // Room for every answer: no helper waits for us while we wait for it.
        let (reply, replies) = bounded(shares);
        let mut names = names.into_iter();
        for index in 0..shares {
            let names: Vec<Name> = names.by_ref().take(SHARE).collect();
            let (dir, reply, rate) = (dir.clone(), reply.clone(), self.rate.clone());
            let share = Batch { dir, names, looks, index, reply, rate };
            let sender = self.shares.as_ref().expect("share_out follows have_threads");
            if let Err(lost) = sender.send(share) {
                let share = lost.into_inner();
                let found = probe_share(&share.dir, share.names, looks, &share.rate);
                let _ = share.reply.send((index, found));
            }
        }
        drop(reply);
        let mut answers: Vec<(usize, Vec<Found>)> = replies.iter().collect();
        assert_eq!(answers.len(), shares, "a helper of the walk broke");
        answers.sort_unstable_by_key(|(index, _)| *index);
        answers.into_iter().flat_map(|(_, found)| found).collect()
    }

    /// Starts the helpers; false if not one can be started.
    fn have_threads(&mut self) -> bool {
        if self.shares.is_some() {
            return true;
        }
        let (sender, receiver) = bounded::<Batch>(self.threads);
        let started = (0..self.threads)
            .filter(|i| {
                let receiver: Receiver<Batch> = receiver.clone();
                let help = move || {
                    for share in receiver {
                        // Nobody waits for the answer any more if this fails.
                        let found = probe_share(&share.dir, share.names, share.looks, &share.rate);
                        let _ = share.reply.send((share.index, found));
                    }
                };
                thread::Builder::new().name(format!("haul-stat-{i}")).spawn(help).is_ok()
            })
            .count();
        if started > 0 {
            self.shares = Some(sender);
        } else {
            self.threads = 0;
        }
        started > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: several threads give the same answers in the same order as one.
    /// Method: 300 files of different sizes with missing names between, always shared out and never.
    #[test]
    fn helpers_answer_in_order() {
        let temp = tempfile::tempdir().expect("tempdir");
        let mut names = Vec::new();
        for i in 0..300_usize {
            let name = format!("f{i}");
            if i % 7 != 3 {
                std::fs::write(temp.path().join(&name), vec![0; i]).expect("write");
            }
            names.push(Name::new(name.as_bytes()).expect("legal"));
        }
        let dir = Arc::new(std::fs::File::open(temp.path()).expect("open").into());
        let show = |found: Vec<Found>| -> Vec<_> {
            found.into_iter().map(|(name, p)| (name, p.map(|p| p.seen.stamp))).collect()
        };
        let looks = Looks::default();
        let alone = show(Probe::new(0, Arc::default()).probe_all(&dir, names.clone(), looks));
        let mut shared = Probe::new(4, Arc::default());
        shared.slow = Duration::ZERO;
        for _ in 0..3 {
            assert_eq!(show(shared.probe_all(&dir, names.clone(), looks)), alone);
        }
        assert!(shared.shares.is_some());
        for (i, (name, found)) in alone.into_iter().enumerate() {
            assert_eq!(name.as_bytes(), format!("f{i}").as_bytes());
            assert_eq!(found.map(|f| f.size), if i % 7 == 3 { Err(Errno::NOENT) } else { Ok(i as u64) });
        }
    }
}
