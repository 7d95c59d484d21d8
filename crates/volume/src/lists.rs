//! How files of a volume lie whose placement an application gave: what is known of it in this process.
//!
//! In: lists, by the placing that they are of, from the catalog or from whoever gives them. Out: the list of
//! a placing, for [`Striping`](haul_core::volume::layout::Striping); servers that know one.
//! Invariants: what a placing is once known to mean it means for ever; a list is used for files only when
//! every server has said that it knows it, for good: so none of them meets a file that it cannot place.
//! Left out: which placing a list gets, which the catalog says.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use haul_core::volume::ServerNo;
use haul_core::volume::layout::{Given, Lists, Placing};
use haul_core::volume::wire::{Learn, Message};

use crate::dial::Keys;
use crate::line::{Incoming, LineError, Outgoing};
use crate::visit::{VisitError, meet};

/// Servers that are told at the same time.
const TOLD_AT_ONCE: usize = 32;

/// A placing is known to mean something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "list {0} of the volume is another one here: its catalog, or a directory of a server, was brought back from an \
     older copy"
)]
pub struct AnotherList(pub u16);

/// The lists that are known. They are never forgotten: there are few.
#[derive(Default)]
pub struct Known {
    all: RwLock<BTreeMap<Placing, Arc<Given>>>,
}

impl Known {
    /// A placing means this list.
    ///
    /// # Errors
    /// It means another one.
    pub fn learn(&self, placing: Placing, list: Given) -> Result<(), AnotherList> {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        let known = all.entry(placing).or_insert_with(|| Arc::new(list.clone()));
        match **known == list {
            true => Ok(()),
            false => Err(AnotherList(placing.list().unwrap_or_default())),
        }
    }

    /// All of them.
    pub fn all(&self) -> Vec<(Placing, Arc<Given>)> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(placing, list)| (*placing, list.clone())).collect()
    }
}

impl Lists for Known {
    fn list(&self, placing: Placing) -> Option<Arc<Given>> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).get(&placing).cloned()
    }
}

/// Has all servers know a list, so that files may be made that lie as it says. `limit` bounds each of a few
/// waits for a server.
///
/// # Errors
/// One of them was not met, or does not learn it. Others may know it then.
pub fn teach(
    keys: &Keys,
    servers: &[SocketAddr],
    placing: Placing,
    list: &Given,
    limit: Duration,
) -> Result<(), VisitError> {
    let numbered: Vec<(ServerNo, SocketAddr)> = (0..).map(ServerNo).zip(servers.iter().copied()).collect();
    for some in numbered.chunks(TOLD_AT_ONCE) {
        let told: Result<(), VisitError> = thread::scope(|scope| {
            let begun: Vec<_> = some
                .iter()
                .map(|(to, at)| {
                    let learn = Learn { volume: keys.volume, to: *to, placing, list: list.clone() };
                    scope.spawn(move || {
                        meet(keys, *at, limit, |incoming, outgoing| tell(incoming, outgoing, learn))
                    })
                })
                .collect();
            begun.into_iter().try_for_each(|one| one.join().expect("it does not panic"))
        });
        told?;
    }
    Ok(())
}

fn tell(
    mut incoming: Incoming,
    mut outgoing: Outgoing,
    learn: Learn,
) -> Result<Result<(), Box<str>>, LineError> {
    outgoing.send(&Message::Learn(learn), &[])?;
    outgoing.flush()?;
    match incoming.receive(|_| Ok(()))? {
        Some((Message::Learnt, _)) => Ok(Ok(())),
        Some((Message::Refused(why), _)) => Ok(Err(why)),
        Some(_) => Err(LineError::Bad("something else than that it knows a placement")),
        None => Err(LineError::Cut),
    }
}
