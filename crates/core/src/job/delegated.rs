//! Files that a pair of stores moved between them without a byte coming by here: when one may get its name,
//! and whether what an earlier run moved of it counts.
//!
//! In: what both stores tell. Out: publish, begin afresh, or fail.
//! Invariants: no file is published that is not as long as its source, or whose source changed meanwhile;
//! sums that can be compared and differ, or that one of the two keeps to itself, are never passed over;
//! ranges that an earlier run heard of count only where a sum of the whole says so afterwards, or the user
//! does. Left out: digests of ours. Nothing here was read by this host, so that there is no root, and
//! "published" means what the destination's store says.

/// What both stores say of the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sums {
    Alike,
    Differ,
    /// They have no sum in common, or one of them makes none of such a file.
    Untold,
    /// Both make that sum, and one of them does not tell it of this file.
    Refused,
}

/// What is known of a file that was moved, and does not have its name yet.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// Of the source, when the move began.
    pub size: u64,
    /// Nothing that the source's store tells of it differs from before.
    pub source_same: bool,
    /// How long it is at the destination, by that store; `None`: it does not say.
    pub stored: Option<u64>,
    pub sums: Sums,
    /// Bytes of it that an earlier run moved, or an earlier attempt.
    pub held: u64,
    /// The user believes in these.
    pub trust: bool,
    /// The user wants nothing that was not compared.
    pub must_compare: bool,
}

/// Why a file may not get its name as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    SourceChanged,
    /// It is of another length.
    Length(u64),
    LengthUntold,
    SumsDiffer,
    NotCompared,
    /// One of the two does not tell its sum, although it makes it.
    SumRefused,
    /// Nothing shows that the parts of an earlier run are as they were sent.
    HeldUnproven,
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    Publish,
    /// What is there is of no use; it may be moved again from its beginning.
    Afresh(Why),
    /// Nor would another attempt be.
    Fail(Why),
}

/// Whether a file may get its name.
pub fn judge(told: &Told) -> Judgement {
    let Told { size, source_same, stored, sums, held, trust, must_compare } = *told;
    match (stored, sums) {
        _ if !source_same => Judgement::Afresh(Why::SourceChanged),
        (None, _) => Judgement::Fail(Why::LengthUntold),
        (Some(stored), _) if stored != size => Judgement::Afresh(Why::Length(stored)),
        (_, Sums::Differ) => Judgement::Afresh(Why::SumsDiffer),
        (_, Sums::Alike) => Judgement::Publish,
        (_, Sums::Refused) => Judgement::Fail(Why::SumRefused),
        (_, Sums::Untold) if must_compare => Judgement::Fail(Why::NotCompared),
        (_, Sums::Untold) if held > 0 && !trust => Judgement::Afresh(Why::HeldUnproven),
        (_, Sums::Untold) => Judgement::Publish,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: whatever else is said, a file of another length, of a source that changed, or of another sum
    /// never gets its name; nor does what nobody compared, if that was asked for or a part of it is old.
    /// Method: all combinations.
    #[test]
    fn nothing_doubtful_is_published() {
        let bools = [false, true];
        for source_same in bools {
            for stored in [None, Some(9), Some(10), Some(11)] {
                for sums in [Sums::Alike, Sums::Differ, Sums::Untold, Sums::Refused] {
                    for held in [0, 4] {
                        for (trust, must_compare) in bools.map(|t| bools.map(|m| (t, m))).concat() {
                            let told =
                                Told { size: 10, source_same, stored, sums, held, trust, must_compare };
                            let may = source_same
                                && stored == Some(10)
                                && match sums {
                                    Sums::Alike => true,
                                    Sums::Differ | Sums::Refused => false,
                                    Sums::Untold => !must_compare && (held == 0 || trust),
                                };
                            assert_eq!(judge(&told) == Judgement::Publish, may, "{told:?}");
                        }
                    }
                }
            }
        }
    }
}
