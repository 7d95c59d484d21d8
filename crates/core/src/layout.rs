//! Where the bytes of a file lie: which storage target serves which range. Arithmetic and decoders, no system
//! calls.
//!
//! In: the bytes with which a file system answers the layout question; a provider in `haul-storage` asks it.
//! Out: a checked [`Layout`], the range on one target at any offset of it, and which objects of a file lie
//! where ([`runs`]). A layout speaks of targets by name; where they have numbers ([`Layout::map`]), by these.
//! Invariants: every offset of a file has exactly one place; a layout is at most [`STRIPES_MAX`] stripes in
//! [`COMPONENTS_MAX`] components, whatever an answer claims; a target's name is at most
//! [`TARGET_NAME_LEN_MAX`] bytes.
//! Left out: which of several copies is read. A mirrored range shows its first copy only, for which one the
//! client takes is not known here.

use std::fmt;

mod beegfs;
mod ceph;
mod gluster;
mod lustre;
mod moosefs;
pub mod runs;

pub use beegfs::{BEEGFS_TARGETS_MAX, beegfs};
pub use ceph::{CephStriping, ceph, ceph_wish};
pub use gluster::gluster;
pub use lustre::{lustre, lustre_wish};
pub use moosefs::{
    MOOSEFS_ANSWER_MAX, MOOSEFS_CHUNK_LEN, MOOSEFS_HEAD_LEN, MooseFsMaster, moosefs, moosefs_body_len,
    moosefs_chunk, moosefs_master, moosefs_question, moosefs_register, moosefs_registered,
};

/// Most stripes of one component: Lustre's own limit (`LOV_MAX_STRIPE_COUNT`).
pub const STRIPES_MAX: usize = 2000;
/// Most components of one file. Lustre allows some hundreds; a file of CephFS has one for each set of
/// objects, if their places are known. What lies behind is taken to lie as the last one.
pub const COMPONENTS_MAX: usize = 65_536;
/// Most bytes of a target's name.
pub const TARGET_NAME_LEN_MAX: usize = 512;

/// A storage target as its file system names it: `OST0003`, `osd.7`, `host:/brick`, `10.0.0.1:9422`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetName(Box<str>);

impl TargetName {
    /// Cuts what is too long, and replaces control characters: a name goes to people.
    pub fn new(name: &str) -> TargetName {
        let clean = name.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c });
        let mut len = 0;
        let clean = clean.take_while(|c| {
            len += c.len_utf8();
            len <= TARGET_NAME_LEN_MAX
        });
        TargetName(clean.collect())
    }
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TargetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A range of a file that is striped in one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component<T = TargetName> {
    /// Where it begins, bytes.
    pub start: u64,
    /// Bytes that lie together on one target before the next one's turn; not zero.
    pub stripe_size: u64,
    /// In stripe order, at least one, at most [`STRIPES_MAX`]. Stripe number `n`, counted from the start of
    /// the file, lies on entry `n % len`.
    pub targets: Vec<T>,
}

/// A range on one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a, T = TargetName> {
    /// From the offset that was asked for to the end of the stripe or of the component; at least 1.
    pub len: u64,
    pub target: &'a T,
}

/// Where a file lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout<T = TargetName> {
    /// Rising starts, the first one at 0; each ends where the next one begins, the last one never.
    components: Vec<Component<T>>,
}

/// How a file is cut, without the targets: what a file elsewhere can be made like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Striping {
    /// Bytes, not zero.
    pub stripe_size: u64,
    /// Targets, 1 to [`STRIPES_MAX`].
    pub stripe_count: u16,
}

/// Why an answer is no layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    #[error("the answer ends in the middle of {0}")]
    Short(&'static str),
    #[error("the answer is of a kind that haul does not know ({0:#x})")]
    Kind(u32),
    #[error("{what} is {value}, which no file can have")]
    Value { what: &'static str, value: u64 },
    #[error("the answer is not of the form that haul knows: {0}")]
    Form(&'static str),
    /// Nothing of the file has a place yet.
    #[error("the file has no objects yet")]
    NoObjects,
}

impl<T> Layout<T> {
    /// A layout of these components, which are made to fit each other.
    ///
    /// # Errors
    /// None is there, one has no targets or too many, a stripe of no length, or the starts do not rise from
    /// 0.
    pub fn new(components: Vec<Component<T>>) -> Result<Layout<T>, LayoutError> {
        if components.is_empty() {
            return Err(LayoutError::NoObjects);
        }
        if components.len() > COMPONENTS_MAX {
            return Err(LayoutError::Value {
                what: "the number of components",
                value: components.len() as u64,
            });
        }
        let mut end = None;
        for component in &components {
            let rises = end.map_or(component.start == 0, |end| component.start > end);
            if !rises {
                return Err(LayoutError::Value { what: "the start of a component", value: component.start });
            }
            if component.stripe_size == 0 {
                return Err(LayoutError::Value { what: "the stripe size", value: 0 });
            }
            if component.targets.is_empty() || component.targets.len() > STRIPES_MAX {
                return Err(LayoutError::Value {
                    what: "the stripe count",
                    value: component.targets.len() as u64,
                });
            }
            end = Some(component.start);
        }
        Ok(Layout { components })
    }

    /// The whole file on one target.
    pub fn flat(target: T) -> Layout<T> {
        Layout { components: vec![Component { start: 0, stripe_size: u64::MAX, targets: vec![target] }] }
    }

    pub fn components(&self) -> &[Component<T>] {
        &self.components
    }

    /// What lies on one target from `offset` on.
    ///
    /// Edge: an offset past the end of the file is legal, for a file may shrink under us.
    /// Source: RAID-0 striping by the offset in the whole file, also inside components (Lustre's
    /// `lov_stripe_number`).
    pub fn at(&self, offset: u64) -> Place<'_, T> {
        let (component, end) = self.component_at(offset);
        let stripe = offset / component.stripe_size;
        let left = component.stripe_size - offset % component.stripe_size;
        // A remainder of at most 2000 fits any usize.
        let slot = (stripe % component.targets.len() as u64) as usize;
        Place { len: left.min(end.saturating_sub(offset).max(1)), target: &component.targets[slot] }
    }

    /// The component that holds a byte, and where it ends; the last one at the end of all numbers.
    fn component_at(&self, offset: u64) -> (&Component<T>, u64) {
        let index = self.components.partition_point(|component| component.start <= offset) - 1;
        let end = self.components.get(index + 1).map_or(u64::MAX, |next| next.start);
        (&self.components[index], end)
    }

    /// The same layout, with other words for its targets.
    pub fn map<U>(&self, mut name: impl FnMut(&T) -> U) -> Layout<U> {
        let components = self.components.iter().map(|component| Component {
            start: component.start,
            stripe_size: component.stripe_size,
            targets: component.targets.iter().map(&mut name).collect(),
        });
        Layout { components: components.collect() }
    }

    /// The targets of the file, each once, in the order of their first byte.
    pub fn targets(&self) -> Vec<&T>
    where
        T: Ord,
    {
        let mut seen = std::collections::BTreeSet::new();
        let all = self.components.iter().flat_map(|component| &component.targets);
        all.filter(|target| seen.insert(*target)).collect()
    }

    /// How the file is cut. Of several components the last one counts: most of a long file lies there.
    /// `None`: each of its ranges lies on one target as a whole.
    pub fn striping(&self) -> Option<Striping> {
        let Component { stripe_size, targets, .. } = self.components.last()?;
        let stripe_count = u16::try_from(targets.len()).expect("at most STRIPES_MAX");
        (*stripe_size != u64::MAX).then_some(Striping { stripe_size: *stripe_size, stripe_count })
    }

    /// The largest length, a power of two from `min` to `max`, that an object may have so that it lies on one
    /// target if it begins at a multiple of its length; `min` where stripes are smaller or no power of two
    /// fits.
    ///
    /// # Panics
    /// If `min` or `max` is no power of two, or `min` is larger than `max`.
    pub fn object_len(&self, min: u64, max: u64) -> u64 {
        assert!(min.is_power_of_two() && max.is_power_of_two() && min <= max);
        let fits = |len: u64| {
            self.components.iter().all(|component| {
                let whole = component.targets.len() == 1 || component.stripe_size % len == 0;
                whole && component.start % len == 0
            })
        };
        let mut len = max;
        while len > min && !fits(len) {
            len /= 2;
        }
        len
    }
}

/// Little-endian numbers of an answer; each names what it reads, for the error.
struct Answer<'a>(&'a [u8]);

impl<'a> Answer<'a> {
    fn bytes(&self, at: usize, len: usize, what: &'static str) -> Result<&'a [u8], LayoutError> {
        let end = at.checked_add(len).ok_or(LayoutError::Short(what))?;
        self.0.get(at..end).ok_or(LayoutError::Short(what))
    }
    fn u16(&self, at: usize, what: &'static str) -> Result<u16, LayoutError> {
        Ok(u16::from_le_bytes(self.bytes(at, 2, what)?.try_into().expect("two bytes")))
    }
    fn u32(&self, at: usize, what: &'static str) -> Result<u32, LayoutError> {
        Ok(u32::from_le_bytes(self.bytes(at, 4, what)?.try_into().expect("four bytes")))
    }
    fn u64(&self, at: usize, what: &'static str) -> Result<u64, LayoutError> {
        Ok(u64::from_le_bytes(self.bytes(at, 8, what)?.try_into().expect("eight bytes")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(index: u64) -> TargetName {
        TargetName::new(&format!("t{index}"))
    }

    /// Goal: places tile a file: every byte has one, and it is the one that striping says.
    /// Method: every small layout of one or two components, against a byte-at-a-time model.
    #[test]
    fn places_tile_the_file() {
        for (stripe, count, second) in
            (1..5).flat_map(|s| (1..4).flat_map(move |c| [None, Some(3), Some(7)].map(|b| (s, c, b))))
        {
            let first = Component { start: 0, stripe_size: stripe, targets: (0..count).map(name).collect() };
            let mut components = vec![first];
            if let Some(start) = second {
                components.push(Component {
                    start,
                    stripe_size: stripe + 1,
                    targets: (5..7).map(name).collect(),
                });
            }
            let layout = Layout::new(components).unwrap();
            let model = |byte: u64| match second {
                Some(start) if byte >= start => name(5 + byte / (stripe + 1) % 2),
                _ => name(byte / stripe % count),
            };
            let mut offset = 0;
            while offset < 40 {
                let place = layout.at(offset);
                assert!(place.len > 0);
                for byte in offset..offset + place.len {
                    assert_eq!(*place.target, model(byte), "byte {byte} of {layout:?}");
                }
                // It does not end before the target changes, but for the end of a stripe.
                let end = offset + place.len;
                assert!(end.is_multiple_of(stripe) || end.is_multiple_of(stripe + 1) || Some(end) == second);
                offset = end;
            }
        }
    }

    /// Goal: an object of the length that is named lies on one target; and it is the largest such power of
    /// two.
    /// Method: small stripes, every aligned object of each length.
    #[test]
    fn objects_lie_on_one_target() {
        for stripe in 1..40_u64 {
            let component = Component { start: 0, stripe_size: stripe, targets: (0..3).map(name).collect() };
            let layout = Layout::new(vec![component]).unwrap();
            let one = |len: u64| (0..200).all(|n| layout.at(n * len).len >= len);
            let len = layout.object_len(2, 16);
            assert!(len == 2 || one(len), "{len} in stripes of {stripe}");
            assert!(len == 16 || !one(len * 2), "{len} in stripes of {stripe}");
        }
        assert_eq!(Layout::flat(name(0)).object_len(2, 16), 16);
        // Nor does it cross from one component into the next.
        let component = |start, stripe_size| Component { start, stripe_size, targets: vec![name(start)] };
        let layout = Layout::new(vec![component(0, 4), component(24, u64::MAX)]).unwrap();
        assert_eq!(layout.object_len(2, 16), 8);
    }

    /// Goal: the shape of a file is that of its last component, and a file on one target has none.
    #[test]
    fn the_last_component_is_the_shape() {
        let component = |start, stripe_size, count| Component {
            start,
            stripe_size,
            targets: (0..count).map(name).collect(),
        };
        let layout = Layout::new(vec![component(0, 4, 1), component(9, 8, 3)]).unwrap();
        assert_eq!(layout.striping(), Some(Striping { stripe_size: 8, stripe_count: 3 }));
        assert_eq!(Layout::flat(name(0)).striping(), None);
    }

    /// Goal: the far end of the range of numbers is no trap.
    #[test]
    fn the_last_byte_has_a_place() {
        let component = Component { start: 0, stripe_size: 1 << 20, targets: (0..3).map(name).collect() };
        let layout = Layout::new(vec![component]).unwrap();
        assert!(layout.at(u64::MAX).len >= 1);
        assert_eq!(Layout::flat(name(0)).at(u64::MAX).target, &name(0));
        assert_eq!(Layout::flat(name(0)).at(5).len, u64::MAX - 5);
    }

    /// Goal: lists that break the invariants are no layouts.
    #[test]
    fn broken_lists_are_refused() {
        let component = |start, stripe_size, count| Component {
            start,
            stripe_size,
            targets: (0..count).map(name).collect(),
        };
        for bad in [
            vec![],
            vec![component(1, 1, 1)],
            vec![component(0, 0, 1)],
            vec![component(0, 1, 0)],
            vec![component(0, 1, STRIPES_MAX as u64 + 1)],
            vec![component(0, 1, 1), component(0, 1, 1)],
            vec![component(0, 1, 1), component(9, 1, 1), component(4, 1, 1)],
        ] {
            assert!(Layout::new(bad).is_err());
        }
    }

    /// Goal: a name for people, whatever a server says.
    #[test]
    fn names_are_clean_and_short() {
        assert_eq!(TargetName::new("a\x1b[1m\nb").as_str(), "a\u{fffd}[1m\u{fffd}b");
        let long = TargetName::new(&"é".repeat(1000));
        assert_eq!(long.as_str().len(), TARGET_NAME_LEN_MAX);
    }
}
