//! CephFS: the value of the extended attribute `ceph.file.layout`, and which object an offset lies in.
//!
//! In: the text, and the OSD of each object where that could be learned. Out: a [`CephStriping`], and a
//! [`Layout`] whose targets are `osd.N`; or, where nobody says which OSD has an object, the object's number
//! in its set, which tells objects apart that can be read side by side.
//! Source: Ceph's "file layouts" and `fs/ceph/xattr.c`.

use super::{COMPONENTS_MAX, Component, Layout, LayoutError, STRIPES_MAX, Striping, TargetName};

/// Stripe units are multiples of this (`CEPH_MIN_STRIPE_UNIT`), and objects have at most 32 bits.
const UNIT: u64 = 65_536;
/// CephFS' own default; smaller objects cost more than they are good for.
const OBJECT_LEN: u64 = 4 << 20;

/// How a file is striped over objects; sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CephStriping {
    pub stripe_unit: u64,
    pub stripe_count: u64,
    pub object_size: u64,
    pub pool: String,
}

/// Reads `stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=cephfs_data`, fields in any order,
/// unknown ones skipped.
///
/// # Errors
/// A field is missing, is no number, or they do not fit each other.
pub fn ceph(text: &[u8]) -> Result<CephStriping, LayoutError> {
    let text = std::str::from_utf8(text).map_err(|_| LayoutError::Form("it is no text"))?;
    let text = text.trim_end_matches('\0');
    let field = |name: &str| text.split(' ').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
    let number = |name| -> Result<u64, LayoutError> {
        field(name).and_then(|value| value.parse().ok()).ok_or(LayoutError::Form("a size is missing"))
    };
    let striping = CephStriping {
        stripe_unit: number("stripe_unit")?,
        stripe_count: number("stripe_count")?,
        object_size: number("object_size")?,
        pool: field("pool").unwrap_or_default().to_owned(),
    };
    let (unit, object) = (striping.stripe_unit, striping.object_size);
    if unit == 0 || object == 0 || object % unit != 0 {
        return Err(LayoutError::Value { what: "the object size", value: object });
    }
    if striping.stripe_count == 0 || striping.stripe_count > STRIPES_MAX as u64 {
        return Err(LayoutError::Value { what: "the stripe count", value: striping.stripe_count });
    }
    Ok(striping)
}

/// What is set as `ceph.file.layout` on an empty file to have it striped so. `None`: no file of CephFS can
/// be.
pub fn ceph_wish(striping: Striping) -> Option<String> {
    let Striping { stripe_size: unit, stripe_count: count } = striping;
    if unit == 0 || !unit.is_multiple_of(UNIT) || count == 0 {
        return None;
    }
    let object = unit.checked_mul((OBJECT_LEN / unit).max(1)).filter(|object| *object <= u32::MAX.into())?;
    Some(format!("stripe_unit={unit} stripe_count={count} object_size={object}"))
}

impl CephStriping {
    /// Number of the object in which `offset` lies.
    pub fn object_at(&self, offset: u64) -> u64 {
        let block = offset / self.stripe_unit;
        let (stripe, position) = (block / self.stripe_count, block % self.stripe_count);
        let set = stripe / (self.object_size / self.stripe_unit);
        set * self.stripe_count + position
    }

    /// Bytes of one set of objects: after these, the next `stripe_count` objects begin. Saturates.
    pub fn set_len(&self) -> u64 {
        self.object_size.saturating_mul(self.stripe_count)
    }

    /// The layout of a file of `size` bytes. `osd` says which OSD has an object, if it can be known.
    pub fn layout(&self, size: u64, osd: impl Fn(u64) -> Option<u64>) -> Result<Layout, LayoutError> {
        // What is kept is bounded by places, not by sets: a set may have thousands.
        let sets_max = (COMPONENTS_MAX as u64 / self.stripe_count).max(1);
        let sets = size.div_ceil(self.set_len()).clamp(1, sets_max);
        let known = osd(0).is_some();
        // Without places, sets look alike: one component says it all.
        let sets = if known { sets } else { 1 };
        let component = |set: u64| {
            let target = |position| {
                let object = set * self.stripe_count + position;
                match osd(object) {
                    Some(osd) => TargetName::new(&format!("osd.{osd}")),
                    None => TargetName::new(&format!("object {position} of each set")),
                }
            };
            Component {
                start: set.saturating_mul(self.set_len()),
                stripe_size: self.stripe_unit,
                targets: (0..self.stripe_count).map(target).collect(),
            }
        };
        Layout::new((0..sets).map(component).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the text of a real client, and of one with a pool's name space.
    #[test]
    fn real_answers() {
        let layout = ceph(b"stripe_unit=1048576 stripe_count=4 object_size=4194304 pool=d").unwrap();
        assert_eq!((layout.stripe_unit, layout.stripe_count, layout.object_size), (1 << 20, 4, 4 << 20));
        assert_eq!(layout.pool, "d");
        let more = b"stripe_unit=65536 stripe_count=1 object_size=65536 pool=d pool_namespace=n\0";
        assert_eq!(ceph(more).unwrap().pool, "d");
    }

    /// Goal: objects as Ceph's documentation counts them, and the layout agrees with that for every byte.
    /// Method: small numbers, byte by byte.
    #[test]
    fn layout_follows_objects() {
        for (unit, per_object, count) in [(2, 3, 2), (1, 1, 3), (4, 2, 1)] {
            let striping = CephStriping {
                stripe_unit: unit,
                stripe_count: count,
                object_size: unit * per_object,
                pool: String::new(),
            };
            let layout = striping.layout(100, |object| Some(object * 10)).unwrap();
            for offset in 0..100 {
                let want = format!("osd.{}", striping.object_at(offset) * 10);
                assert_eq!(layout.at(offset).target.as_str(), want, "byte {offset} of {striping:?}");
            }
        }
        let striping = ceph(b"stripe_unit=2 stripe_count=2 object_size=6 pool=d").unwrap();
        // Units of two bytes: objects 0 1 0 1 0 1, then 2 3 2 3 2 3.
        let objects: Vec<u64> = (0..10).map(|unit| striping.object_at(unit * 2)).collect();
        assert_eq!(objects, [0, 1, 0, 1, 0, 1, 2, 3, 2, 3]);
        assert_eq!(striping.layout(100, |_| None).unwrap().targets().len(), 2);
    }

    /// Goal: a wish is a layout as it is told, in objects of about 4 MiB; what no file can have is none.
    #[test]
    fn wishes_are_layouts() {
        for (unit, object) in [(65_536, 4 << 20), (3 << 20, 3 << 20), (8 << 20, 8 << 20)] {
            let wish = ceph_wish(Striping { stripe_size: unit, stripe_count: 5 }).unwrap();
            let read = ceph(wish.as_bytes()).unwrap();
            assert_eq!((read.stripe_unit, read.stripe_count, read.object_size), (unit, 5, object));
        }
        for (unit, count) in [(1000, 1), (0, 1), (1 << 32, 1), (65_536, 0)] {
            assert_eq!(ceph_wish(Striping { stripe_size: unit, stripe_count: count }), None);
        }
    }

    /// Goal: nonsense is refused, and nothing overflows.
    #[test]
    fn broken_answers_are_refused() {
        for bad in [
            &b""[..],
            b"stripe_unit=1 stripe_count=1 pool=d",
            b"stripe_unit=0 stripe_count=1 object_size=4",
            b"stripe_unit=3 stripe_count=1 object_size=4",
            b"stripe_unit=1 stripe_count=0 object_size=4",
            b"stripe_unit=1 stripe_count=99999 object_size=4",
            b"stripe_unit=-1 stripe_count=1 object_size=4",
            b"\xff",
        ] {
            assert!(ceph(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
        let huge = ceph(b"stripe_unit=1 stripe_count=2000 object_size=18446744073709551615").unwrap();
        assert!(huge.layout(u64::MAX, |_| None).is_ok());
        assert!(huge.layout(u64::MAX, |_| Some(1)).is_ok());
        let wide = ceph(b"stripe_unit=1 stripe_count=2000 object_size=1").unwrap();
        assert!(wide.layout(u64::MAX, |_| Some(1)).unwrap().components().len() <= COMPONENTS_MAX / 2000);
    }
}
