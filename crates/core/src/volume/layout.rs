//! Where the stripes of a file lie.
//!
//! In: how many servers a volume has, and how large a stripe is. Out: the server of a stripe, and how many
//! stripes of a file come before one on its server. Everybody who has to know it asks here: clients, who
//! gathers, and whose disk it is.
//! Invariant: of each row of as many stripes as there are servers, each server has one. Files begin at
//! different servers, in turns by their numbers: so small files lie on all of them, each at the one that
//! gathers it.
//! Left out: placements that are said for each file.

use std::ops::Range;

use super::{FileNo, ServerNo};

/// Which servers a volume has, and how its files lie on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Striping {
    /// Bytes.
    pub stripe_size: u64,
    /// At least one.
    pub servers: u16,
}

impl Striping {
    /// Where a stripe of a file lies.
    pub fn server(&self, file: FileNo, stripe: u64) -> ServerNo {
        let servers = u64::from(self.servers);
        ServerNo(((file.0 % servers + stripe % servers) % servers) as u16)
    }

    /// Who gathers a file.
    pub fn gatherer(&self, file: FileNo) -> ServerNo {
        ServerNo((file.0 % u64::from(self.servers)) as u16)
    }

    /// Where a range of stripes lies: each server once. Not empty, if the range is not.
    pub fn servers_of(&self, file: FileNo, stripes: &Range<u64>) -> impl Iterator<Item = ServerNo> {
        let count = stripes.end.saturating_sub(stripes.start).min(self.servers.into());
        let (of, first) = (self.clone(), stripes.start);
        (0..count).map(move |nth| of.server(file, first + nth))
    }

    /// How many stripes of a file before this one lie on that server, whether or not this one does.
    pub fn before(&self, file: FileNo, stripe: u64, server: ServerNo) -> u64 {
        let servers = u64::from(self.servers);
        let rest = stripe - stripe % servers..stripe;
        stripe / servers + u64::from(self.servers_of(file, &rest).any(|one| one == server))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every stripe lies on one server, the stripes of a server are counted without a gap, and a range
    /// names the servers of its stripes, each once; files begin at all servers.
    /// Method: all small worlds, against counting.
    #[test]
    fn stripes_are_counted_without_gaps() {
        for servers in 1..=5 {
            let striping = Striping { stripe_size: 8, servers };
            let mut first = vec![0; usize::from(servers)];
            for file in [0, 1, 2, 3, 4, 5, u64::MAX - 1, u64::MAX].map(FileNo) {
                first[usize::from(striping.server(file, 0).0)] += 1;
                assert_eq!(striping.server(file, 0), striping.gatherer(file));
                let mut counts = vec![0; usize::from(servers)];
                for stripe in 0..20 {
                    for server in 0..servers {
                        let counted = counts[usize::from(server)];
                        assert_eq!(striping.before(file, stripe, ServerNo(server)), counted);
                    }
                    counts[usize::from(striping.server(file, stripe).0)] += 1;
                    for end in stripe..20 {
                        let mut named: Vec<ServerNo> = striping.servers_of(file, &(stripe..end)).collect();
                        let mut all: Vec<ServerNo> =
                            (stripe..end).map(|at| striping.server(file, at)).collect();
                        named.sort();
                        all.sort();
                        all.dedup();
                        assert_eq!(named, all, "{file:?} {stripe}..{end} of {servers}");
                    }
                }
            }
            assert!(first.iter().all(|files| *files > 0), "{first:?}");
        }
    }
}
