//! Where is written and read: ranges of a file, in an order.
//!
//! In: sizes, counts, a seed. Out: for each client its ranges, as offset and length.
//! Invariant: the ranges of a plan have each byte of the file once, up to its end; but for strided reads.

/// Of requests of ATLAS, so many in a hundred are small.
const SMALL_PERCENT: u64 = 96;
/// Requests of an event.
pub const OF_EVENT: u64 = 20;
/// Small ones, bytes: their logarithm is evenly distributed.
const SMALL: (f64, f64) = (16.0, 8192.0);
/// Large ones, bytes: evenly distributed.
const LARGE: (u64, u64) = (128 << 10, 1 << 20);

/// `count` writes of each client, one behind the other, in a part of the file of its own.
pub fn consecutive(clients: u64, count: u64, size: u64) -> Vec<Vec<(u64, u64)>> {
    let part = |client| (0..count).map(|at| ((client * count + at) * size, size)).collect();
    (0..clients).map(part).collect()
}

/// Each client's in an order that is drawn.
pub fn shuffle(plan: &mut [Vec<(u64, u64)>], seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    plan.iter_mut().for_each(|ranges| rng.shuffle(ranges));
}

/// Requests with the sizes of ATLAS' digitisation, as far as they are known: 96 % of them are under 32 KB,
/// and have 5 % of the bytes. How they are distributed on either side is ours: small ones from 16 B to 8 KiB,
/// large ones from 128 KiB to 1 MiB, 20 of an event. They fill the file; their order is drawn.
pub fn atlas(events: u64, seed: u64) -> Vec<(u64, u64)> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut offset = 0;
    let mut ranges: Vec<(u64, u64)> = (0..events.saturating_mul(OF_EVENT))
        .map(|_| {
            let len = match rng.u64(0..100) < SMALL_PERCENT {
                true => (SMALL.0 * (SMALL.1 / SMALL.0).powf(rng.f64())) as u64,
                false => rng.u64(LARGE.0..=LARGE.1),
            };
            offset += len;
            (offset - len, len)
        })
        .collect();
    rng.shuffle(&mut ranges);
    ranges
}

/// The whole of `bytes`, in pieces.
pub fn tiles(bytes: u64, size: u64) -> Vec<(u64, u64)> {
    (0..bytes.div_ceil(size)).map(|at| (at * size, size.min(bytes - at * size))).collect()
}

/// For each server the stripes that lie there, or each second of them.
pub fn by_server(bytes: u64, stripe: u64, servers: u64, strided: bool) -> Vec<Vec<(u64, u64)>> {
    let all = tiles(bytes, stripe);
    let of = |server: u64| {
        let own = all.iter().skip(server as usize).step_by(servers as usize);
        own.step_by(if strided { 2 } else { 1 }).copied().collect()
    };
    (0..servers).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Panics unless the ranges have each byte up to some end once.
    fn end(ranges: impl Iterator<Item = (u64, u64)>) -> u64 {
        let mut ranges: Vec<_> = ranges.collect();
        ranges.sort_unstable();
        ranges.into_iter().fold(0, |end, (offset, len)| {
            assert_eq!(offset, end);
            end + len
        })
    }

    /// Goal: every byte of a file is written once, whatever the pattern; each client has its part.
    #[test]
    fn plans_fill_the_file() {
        let mut plan = consecutive(10, 7, 300);
        assert_eq!(end(plan.iter().flatten().copied()), 21_000);
        assert_eq!(plan[3], (0..7).map(|at| (6300 + at * 300, 300)).collect::<Vec<_>>());
        shuffle(&mut plan, 5);
        assert_eq!(end(plan[..4].iter().flatten().copied()), 8400);
        assert!(plan.iter().any(|ranges| !ranges.is_sorted()));
        assert_eq!(tiles(10, 4), [(0, 4), (4, 4), (8, 2)]);
        let plan = by_server(10 << 20, 1 << 20, 4, false);
        assert_eq!(end(plan.iter().flatten().copied()), 10 << 20);
        assert_eq!(plan[3], [(3 << 20, 1 << 20), (7 << 20, 1 << 20)]);
        assert_eq!(by_server(10 << 20, 1 << 20, 4, true)[1], [(1 << 20, 1 << 20), (9 << 20, 1 << 20)]);
    }

    /// Goal: requests of ATLAS are as they are known to be: 96 % under 32 KB, with 5 % of the bytes.
    #[test]
    fn atlas_has_many_small_requests_with_few_bytes() {
        let plan = atlas(500, 9);
        let bytes = end(plan.iter().copied());
        let small: Vec<u64> = plan.iter().map(|(_, len)| *len).filter(|len| *len < 32 << 10).collect();
        let (part, of_bytes) =
            (small.len() as f64 / plan.len() as f64, small.iter().sum::<u64>() as f64 / bytes as f64);
        assert!((0.95..0.97).contains(&part) && (0.04..0.06).contains(&of_bytes), "{part} {of_bytes}");
        assert!(small.iter().any(|len| *len < 1024) && small.iter().any(|len| *len > 4096));
        assert_ne!(plan, atlas(500, 10));
        assert!(!plan.is_sorted());
    }
}
