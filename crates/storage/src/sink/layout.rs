//! Where the files of a destination lie that has several storage targets.
//!
//! In: open temporaries. Out: their layouts by the numbers of targets, and by what their requests are told
//! apart. A destination has several if its file system is a parallel one, or if other devices are mounted
//! below its root: then each device is a target.
//! Invariants: nobody who cannot say fails a file; a layout is asked for once, when the file is opened.
//! Left out: small files, for which the question costs as much as writing them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use haul_core::entry::Name;
use haul_core::ids::TargetId;
use haul_core::layout::Layout;

use super::names::{NO_FILE, temp_name};
use super::tree::SinkTree;
use crate::io::IoTarget;
use crate::layout::{Found, NewFile, Provider, device_of, layout_by, layout_of, provider_at};
use crate::targets::Targets;
use haul_base::mounts::Mount;

/// Objects of which this end has a say are no shorter, and no longer, bytes.
const OBJECT_LEN: [u64; 2] = [1 << 20, 64 << 20];

/// Keys for sets of targets. Sets that share one share its slots.
const SETS_MAX: u64 = 1024;

/// Says where an open file of so many bytes lies; `None`: it cannot.
pub type Ask = Box<dyn Fn(BorrowedFd<'_>, u64) -> Option<Layout> + Send + Sync>;

/// Asks where files lie.
pub struct SinkLayout {
    ask: Ask,
    targets: Arc<Targets>,
}

/// What was found out of a destination before its first file.
#[derive(Clone, Debug)]
pub struct Ground {
    /// Who says where files lie.
    pub provider: Provider,
    /// The longest object that lies on one target where a file gets the stripes of the root, bytes; `None`:
    /// not known.
    pub object_len: Option<u32>,
    /// Other devices are mounted below the root.
    devices: bool,
}

impl Ground {
    /// Looks at the destination, for which it may make a file there, under a name of this session, and remove
    /// it.
    pub fn of(tree: &SinkTree, tag: u32) -> Ground {
        let root = tree.root().as_fd();
        let device = device_of(root);
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let devices = Mount::below(root).iter().any(|mount| mount.device != (major, minor));
        let guess = provider_at(root);
        let asked = match guess.new_file() {
            Some(NewFile::Striped) => new_file(tree, tag, guess.clone()),
            Some(NewFile::Whole | NewFile::Unplaced) | None => None,
        };
        let Some(found) = asked else { return Ground { provider: guess, object_len: None, devices } };
        if found.provider == Provider::Flat {
            // Of FUSE it is guessed who it is; who knows of no layouts is nobody.
            let provider = if found.why_flat.is_some() { guess } else { Provider::Flat };
            return Ground { provider, object_len: None, devices };
        }
        let [least, most] = OBJECT_LEN;
        let object_len = u32::try_from(found.layout.object_len(least, most)).ok();
        Ground { provider: guess, object_len, devices }
    }
}

/// How a new file lies in the root; `None`: none can be made there.
fn new_file(tree: &SinkTree, tag: u32, provider: Provider) -> Option<Found> {
    let name = temp_name(&Name::new(b"haul~layout").ok()?, tag, NO_FILE);
    let file = tree.jail().create_temp(tree.root(), &name).ok()?;
    let found = layout_by(provider, file.as_fd(), 0);
    let _ = tree.jail().unlink(tree.root(), &name);
    Some(found)
}

impl SinkLayout {
    /// For a destination with several targets. `None`: it has one, or does not tell them apart.
    pub fn of(ground: &Ground) -> Option<SinkLayout> {
        let parallel = matches!(ground.provider.new_file(), Some(NewFile::Striped | NewFile::Whole));
        let devices = ground.devices;
        (parallel || devices).then(|| {
            SinkLayout::with(Box::new(move |file, size| {
                let Found { provider, layout, why_flat } = layout_of(file, size);
                let whole = devices && why_flat.is_none();
                (provider != Provider::Flat || whole).then_some(layout)
            }))
        })
    }

    /// With answers from elsewhere.
    pub fn with(ask: Ask) -> SinkLayout {
        SinkLayout { ask, targets: Arc::default() }
    }

    /// The targets that files were found on.
    pub fn targets(&self) -> Arc<Targets> {
        self.targets.clone()
    }

    /// Where a file lies, by numbers.
    pub(super) fn layout(&self, file: BorrowedFd<'_>, size: u64) -> Option<Layout<TargetId>> {
        (self.ask)(file, size).map(|layout| self.targets.layout(&layout))
    }
}

/// What requests at one of these targets are told apart by.
pub(super) fn key_of_one(target: TargetId) -> IoTarget {
    IoTarget::One(target)
}

/// What requests of a file on these targets are told apart by: its target, or, of several, which these are.
pub(super) fn key_of(layout: &Layout<TargetId>) -> IoTarget {
    let mut ids = layout.targets();
    ids.sort_unstable();
    match ids[..] {
        [one] => key_of_one(*one),
        _ => {
            let mut hasher = DefaultHasher::new();
            ids.hash(&mut hasher);
            IoTarget::Several(hasher.finish() % SETS_MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::super::engine::tests::{Bench, META, TAG, file, whole};
    use super::*;
    use haul_core::ids::{BufferId, DirId};
    use haul_core::layout::{Component, TargetName};
    use haul_core::transfer::op::{SinkDone, SinkFile, SinkOp};
    use haul_core::wire::Failure;

    /// Goal: files on one target have its key, files on the same ones the same, and no key is a device's.
    #[test]
    fn keys_tell_targets_apart() {
        let key = |targets: &[u16]| {
            let targets = targets.iter().map(|t| TargetId(*t)).collect();
            key_of(&Layout::new(vec![Component { start: 0, stripe_size: 1 << 20, targets }]).unwrap())
        };
        assert_eq!(key(&[3]), key(&[3, 3]));
        assert_ne!(key(&[3]), key(&[4]));
        assert_eq!(key(&[3, 4]), key(&[4, 3]));
        assert_ne!(key(&[3, 4]), key(&[3, 5]));
        assert!([key(&[0]), key(&[0, 1])].iter().all(|key| !matches!(key, IoTarget::Device(_))));
    }

    /// Files of up to 2 MiB lie on `a`, larger ones on `b` and `c`, and of those above 4 MiB nobody can say.
    fn by_size() -> SinkLayout {
        SinkLayout::with(Box::new(|_, size| {
            let names: &[&str] = match size {
                0..=0x20_0000 => &["a"],
                0x20_0001..=0x40_0000 => &["b", "c"],
                _ => return None,
            };
            let targets = names.iter().map(|name| TargetName::new(name)).collect();
            Layout::new(vec![Component { start: 0, stripe_size: 1 << 20, targets }]).ok()
        }))
    }

    fn made(bench: &mut Bench, file: &SinkFile) -> Result<Option<Layout<TargetId>>, Failure> {
        match bench.run(SinkOp::Create { file: file.clone(), striping: None }, b"") {
            SinkDone::Create { id, result } if id == file.id => result,
            other => panic!("{other:?}"),
        }
    }

    /// Goal: a file that is made before its data has its temporary and nothing else, and says where it lies,
    /// with one number for each target; then it is written and published as any other, and each write says
    /// how long it took.
    #[test]
    fn made_files_say_where_they_lie() {
        let mut bench = Bench::with(|config| config.sink_layout = Some(by_size()));
        let file_of = |(i, mib): (u64, u64)| file(i + 1, DirId::ROOT, &format!("f{i}"), mib << 20);
        let files: Vec<SinkFile> = (0..).zip([1, 3, 2, 9]).map(file_of).collect();
        let targets = |layout: Option<Layout<TargetId>>| {
            layout.map(|layout| {
                layout.components()[0].targets.iter().map(|target| target.0).collect::<Vec<_>>()
            })
        };
        for (file, sink_layout) in files.iter().zip([Some(vec![0]), Some(vec![1, 2]), Some(vec![0]), None]) {
            assert_eq!(targets(made(&mut bench, file).unwrap()), sink_layout);
            // It is there, and once more says the same.
            assert!(bench.temp(std::str::from_utf8(file.name.as_bytes()).unwrap(), TAG).exists());
            assert_eq!(targets(made(&mut bench, file).unwrap()), sink_layout);
        }
        assert_eq!(bench.ls().len(), 4);
        for file in &files {
            let data: Vec<u8> = (0..file.size).map(|at| (at % 251) as u8 ^ file.id.0 as u8).collect();
            for (n, part) in data.chunks(1 << 20).enumerate() {
                let (offset, len) = ((n as u64) << 20, part.len() as u32);
                let op = SinkOp::Write { file: file.clone(), offset, len, buffer: BufferId(0), start: 0 };
                let done = bench.run(op, part);
                assert!(matches!(done, SinkDone::Write { took: Some(_), result: Ok(()), .. }), "{done:?}");
            }
            bench.publish(file).unwrap();
            let text = std::str::from_utf8(file.name.as_bytes()).unwrap();
            assert_eq!(std::fs::read(bench.root.join(text)).unwrap(), data);
        }
        assert_eq!(bench.ls(), ["f0", "f1", "f2", "f3"]);
    }

    /// Goal: a file that cannot be made fails, and leaves nothing.
    #[test]
    fn what_cannot_be_made_fails() {
        let mut bench = Bench::with(|config| config.sink_layout = Some(by_size()));
        let gone = bench.dir(7, DirId::ROOT, "d");
        std::fs::write(bench.root.join("d"), "in the way").unwrap();
        let lost = file(1, gone, "f", 1 << 20);
        assert!(made(&mut bench, &lost).is_err());
        let done = bench.run(SinkOp::Discard { id: lost.id }, b"");
        assert!(matches!(done, SinkDone::Discard { .. }), "{done:?}");
        assert_eq!(bench.ls(), ["d"]);
    }

    /// Goal: a publication that hangs at one target keeps those of another from no thread.
    /// Method: one thread for each target; the first question for the owner hangs until the other file is
    /// there.
    #[test]
    fn a_target_that_hangs_has_its_own_threads() {
        let (go, wait) = crossbeam_channel::bounded::<()>(0);
        let (asked, hangs) = crossbeam_channel::unbounded();
        let armed = Arc::new(AtomicBool::new(false));
        let mut bench = Bench::with(|config| {
            config.sink_layout = Some(by_size());
            config.threads = 1;
            let first = armed.clone();
            config.still_owner = Arc::new(move || {
                if first.swap(false, Ordering::SeqCst) {
                    let _ = asked.send(());
                    let _ = wait.recv();
                }
                Ok(())
            });
        });
        let [slow, other] =
            [1_u64, 2].map(|id| file(id, DirId::ROOT, &format!("f{id}"), (id << 20) + (1 << 19)));
        for file in [&slow, &other] {
            made(&mut bench, file).unwrap();
            bench.write(file, 0, &vec![1; file.size as usize]).unwrap();
        }
        let publish = |file: &SinkFile| SinkOp::Commit { durable: true, items: vec![whole(file, META)] };
        armed.store(true, Ordering::SeqCst);
        bench.submit(publish(&slow), b"");
        hangs.recv_timeout(Duration::from_secs(60)).expect("it hangs");
        let SinkDone::Commit { results, .. } = bench.run(publish(&other), b"") else { panic!("a commit") };
        assert_eq!(results, [(other.id, Ok(()))]);
        drop(go);
        let (done, _) = bench.posted.recv_timeout(Duration::from_secs(60)).expect("the other too");
        assert!(matches!(done, SinkDone::Commit { .. }), "{done:?}");
        assert_eq!(bench.ls(), ["f1", "f2"]);
    }

    /// Goal: a local file system has one target, and nothing of this is done there.
    #[test]
    fn a_local_destination_has_one_target() {
        let dir = tempfile::tempdir().unwrap();
        let tree = SinkTree::open_root(dir.path(), false).unwrap();
        let ground = Ground::of(&tree, TAG);
        assert_eq!((&ground.provider, ground.object_len, ground.devices), (&Provider::Flat, None, false));
        assert!(SinkLayout::of(&ground).is_none());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    /// Goal: where devices are mounted below the root, a file is on its device.
    #[test]
    fn mounted_devices_are_targets() {
        let ground = Ground { provider: Provider::Flat, object_len: None, devices: true };
        let sink_layout = SinkLayout::of(&ground).unwrap();
        let layout = |file: std::fs::File| sink_layout.layout(file.as_fd(), 5).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| layout(std::fs::File::create(dir.path().join(name)).unwrap()));
        assert_eq!(a, b);
        assert_ne!(a, layout(std::fs::File::open("/proc/self/status").unwrap()));
    }
}
