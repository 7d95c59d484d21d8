//! Stripes that new files are given because the user asked for them.
//!
//! In: what `--layout` says, how a file is cut at the source, or how the one is cut that it replaces. Out:
//! temporaries with these stripes, made before the first byte; how many got them, and why others did not.
//! Invariants: no target is named, only sizes and numbers; a file that cannot have its stripes is made as any
//! other. How a file system takes stripes its provider knows ([`Provider::make`]).
//! Left out: pools.

use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use haul_core::entry::Name;
use haul_core::layout::Striping;
use haul_core::wire::Placed;
use rustix::io::{Errno, Result};

use super::lock;
use crate::jail::Jail;
use crate::layout::Provider;
use crate::options::LayoutChoice;

/// How stripes are asked for at a destination.
#[derive(Debug)]
pub struct Stripes {
    choice: LayoutChoice,
    provider: Provider,
    files: AtomicU64,
    others: AtomicU64,
    why: Mutex<Option<String>>,
}

impl Stripes {
    /// `provider`: who says where files of the destination lie.
    pub fn new(choice: LayoutChoice, provider: Provider) -> Stripes {
        let stripes = Stripes {
            choice,
            provider,
            files: AtomicU64::new(0),
            others: AtomicU64::new(0),
            why: Mutex::new(None),
        };
        if choice == LayoutChoice::Copy && !stripes.can() {
            *lock(&stripes.why) = Some(format!("no stripes can be set on {}", stripes.place()));
        }
        stripes
    }

    fn can(&self) -> bool {
        self.provider.make().is_some()
    }

    fn place(&self) -> String {
        match &self.provider {
            Provider::Flat => "this file system".into(),
            provider => provider.to_string(),
        }
    }

    /// The stripes that a new file shall have, if that is more than the file system's own choice. `source`:
    /// how it is cut there; `before`: how the file is cut that it replaces, if there is one.
    pub(super) fn wanted(
        &self,
        source: Option<Striping>,
        before: impl FnOnce() -> Option<Striping>,
    ) -> Option<Striping> {
        let wanted = match self.choice {
            LayoutChoice::Auto => None,
            LayoutChoice::Keep => Some(()).filter(|()| self.can()).and_then(|()| before()),
            LayoutChoice::Copy => source,
        };
        if wanted.is_some() && !self.can() {
            self.others.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        wanted
    }

    /// Makes the file `name` with these stripes. `None`: that cannot be done, and nothing is left of it.
    ///
    /// # Errors
    /// `EEXIST`: the name is taken.
    pub(super) fn make(
        &self,
        jail: &Jail,
        dir: &OwnedFd,
        name: &Name,
        wanted: Striping,
    ) -> Result<Option<OwnedFd>> {
        let Some(make) = self.provider.make() else { return Ok(None) };
        match make(jail, dir, name, wanted) {
            Ok(file) => Ok(Some(file)),
            Err(Errno::EXIST) => Err(Errno::EXIST),
            Err(errno) => {
                let _ = jail.unlink(dir, name);
                self.missed(|| format!("{} refused: {}", self.place(), haul_base::errno::text(errno)));
                Ok(None)
            }
        }
    }

    /// A file that was made with these stripes lies so.
    pub(super) fn lies(&self, wanted: Striping, got: Option<Striping>) {
        if got == Some(wanted) {
            self.files.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.missed(|| match got {
            Some(Striping { stripe_size, stripe_count }) => {
                format!("{} made it {stripe_count} stripes of {stripe_size} bytes", self.place())
            }
            None => format!("{} does not say what it made of it", self.place()),
        });
    }

    fn missed(&self, why: impl FnOnce() -> String) {
        self.others.fetch_add(1, Ordering::Relaxed);
        lock(&self.why).get_or_insert_with(why);
    }

    /// What became of it.
    pub(super) fn placed(&self) -> Placed {
        Placed {
            targets: 0,
            files: self.files.load(Ordering::Relaxed),
            others: self.others.load(Ordering::Relaxed),
            why: lock(&self.why).clone().unwrap_or_default().into(),
        }
    }
}

/// What a report says of it; `None`: nobody asked for anything.
pub fn in_words(choice: LayoutChoice, placed: &Placed) -> Option<String> {
    let count = |n: u64| if n == 1 { "1 file".to_owned() } else { format!("{n} files") };
    let like = match choice {
        LayoutChoice::Auto => return None,
        LayoutChoice::Keep => "as before",
        LayoutChoice::Copy => "as at the source",
    };
    let mut text = format!("{choice} ({} striped {like}", count(placed.files));
    if placed.others > 0 {
        text += &format!(", {} otherwise", count(placed.others));
    }
    if !placed.why.is_empty() {
        text += &format!(": {}", placed.why);
    }
    Some(text + ")")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUR: Striping = Striping { stripe_size: 1 << 20, stripe_count: 4 };
    const TWO: Striping = Striping { stripe_size: 2 << 20, stripe_count: 2 };

    /// Goal: each choice wants the stripes that it is for, and says what became of them.
    #[test]
    fn choices_want_stripes() {
        let stripes = |choice| Stripes::new(choice, Provider::named("lustre"));
        assert_eq!(stripes(LayoutChoice::Auto).wanted(Some(FOUR), || Some(TWO)), None);
        assert_eq!(stripes(LayoutChoice::Keep).wanted(Some(FOUR), || Some(TWO)), Some(TWO));
        assert_eq!(stripes(LayoutChoice::Keep).wanted(Some(FOUR), || None), None);
        let copy = stripes(LayoutChoice::Copy);
        assert_eq!(copy.wanted(Some(FOUR), || Some(TWO)), Some(FOUR));
        copy.lies(FOUR, Some(FOUR));
        copy.lies(FOUR, Some(TWO));
        let text = in_words(LayoutChoice::Copy, &copy.placed());
        let expected = "copy (1 file striped as at the source, 1 file otherwise: lustre made it 2 stripes of 2097152 bytes)";
        assert_eq!(text.as_deref(), Some(expected));
        let none = Stripes::new(LayoutChoice::Copy, Provider::named("glusterfs"));
        assert_eq!(none.wanted(Some(FOUR), || None), None);
        assert_eq!(none.placed().others, 1);
        assert!(
            in_words(LayoutChoice::Copy, &none.placed())
                .unwrap()
                .contains("no stripes can be set on glusterfs")
        );
        assert_eq!(in_words(LayoutChoice::Auto, &none.placed()), None);
    }

    /// Goal: where stripes are refused the name is free again for a file without.
    /// Method: a local file system, asked as Lustre, as CephFS, and as a FUSE file system that is none of
    /// these.
    #[test]
    fn a_refusal_leaves_nothing() {
        for provider in [Provider::named("lustre"), Provider::named("cephfs"), Provider::Fuse("x".into())] {
            let dir = tempfile::tempdir().unwrap();
            let root = Jail::open_root(dir.path()).unwrap();
            let (jail, name) = (Jail::probe(&root), Name::new(b"f").unwrap());
            let stripes = Stripes::new(LayoutChoice::Copy, provider);
            assert!(stripes.make(&jail, &root, &name, FOUR).unwrap().is_none());
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
            assert_eq!(stripes.placed().others, 1);
            jail.create_temp(&root, &name).unwrap();
            assert!(matches!(stripes.make(&jail, &root, &name, FOUR), Err(Errno::EXIST)));
        }
    }
}
