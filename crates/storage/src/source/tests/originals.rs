//! Files of the source as a sink clones them: what counts as the file that was announced.
//!
//! A clone is a copy here, for the file system of a test may make none: what is tested is what is looked at
//! before and after it.

use std::cell::RefCell;

use haul_core::transfer::op::{CloneItem, Cloned, SinkFile};
use rustix::io::Errno;

use super::*;

const LEN: usize = 100_000;

fn item(id: FileId, generation: Generation) -> CloneItem {
    let name = Name::new(b"any").expect("legal");
    let file = SinkFile { id, parent: DirId::ROOT, name, number: 1, size: LEN as u64, map: None };
    CloneItem { file, generation, mode: 0o600 }
}

fn originals(bench: &Bench) -> Originals {
    let originals = Originals::default();
    originals.found(&bench.tree);
    originals
}

/// Clones while `act` is done to the file before each clone is made; what came of it, and what each clone
/// had.
fn clone_while(
    bench: &Bench,
    (id, generation): (FileId, Generation),
    act: impl Fn(usize),
) -> (Cloned, Vec<Vec<u8>>) {
    let taken = RefCell::new(Vec::new());
    let result = originals(bench).clone_file(&item(id, generation), &|| false, &mut |from| {
        act(taken.borrow().len());
        let mut all = vec![0; 2 * LEN];
        let len = rustix::io::pread(from, &mut all, 0).expect("read");
        all.truncate(len);
        taken.borrow_mut().push(all);
        Ok(Ok(()))
    });
    (result.expect("nothing fails"), taken.into_inner())
}

/// Waits until a change of the file has another ctime than it has now.
fn pass_its_ctime(path: &Path) {
    let ctime = fs::metadata(path).map(|stat| (stat.ctime(), stat.ctime_nsec())).expect("stat");
    let now = || (wall_clock()().secs, i64::from(wall_clock()().nanos));
    while now() <= ctime {
        std::thread::yield_now();
    }
}

fn is_changed(cloned: &Cloned) -> bool {
    matches!(cloned, Cloned::Not(why) if why.kind == wire::FailureKind::Changed)
}

/// Goal: what is written to, grown, cut, replaced or removed while it is cloned, or was before, is not
/// published; nor is what is of another version by now.
/// Method: each act between the looks, and before them; a quiet file is cloned once, whole.
#[test]
fn a_clone_is_of_one_version() {
    let mut bench = Bench::new();
    let content = vec![7; LEN];
    let acts: [fn(&Path); 5] = [
        |path| {
            fs::File::options()
                .append(true)
                .open(path)
                .and_then(|f| f.write_all_at(b"+", LEN as u64))
                .expect("grow")
        },
        |path| fs::File::options().write(true).open(path).and_then(|f| f.set_len(9)).expect("cut"),
        |path| {
            let new = path.with_extension("new");
            fs::write(&new, vec![8; LEN]).expect("write");
            fs::rename(new, path).expect("rename");
        },
        |path| fs::remove_file(path).expect("remove"),
        |path| {
            fs::remove_file(path).expect("remove");
            fs::create_dir(path).expect("mkdir");
        },
    ];
    for (index, act) in acts.iter().enumerate() {
        let name = format!("f{index}");
        let id = bench.file(&name, &content);
        let path = bench.path(&name);
        pass_its_ctime(&path);
        let (cloned, _) = clone_while(&bench, (id, G0), |_| act(&path));
        assert!(is_changed(&cloned), "{index}: {cloned:?}");
        let (cloned, taken) = clone_while(&bench, (id, G0), |_| ());
        let gone = matches!(&cloned, Cloned::Not(why) if why.kind == wire::FailureKind::Vanished);
        assert!(is_changed(&cloned) || gone, "{index}: {cloned:?}");
        assert!(taken.is_empty(), "{index}: what is another file was cloned");
    }
    let id = bench.file("quiet", &content);
    assert_eq!(clone_while(&bench, (id, G0), |_| ()), (Cloned::Whole, vec![content]));
    assert!(is_changed(&clone_while(&bench, (id, G1), |_| ()).0), "of another generation");
}

/// Goal: where ctime alone moves the file is cloned once more, so that the clone is of one moment at which
/// nothing moved; what moves all the time is not cloned.
/// Method: another mode during the first clone, and during each.
#[test]
fn a_ctime_that_moves_has_it_cloned_once_more() {
    let mut bench = Bench::new();
    let (once, always) = (bench.file("once", &[7; LEN]), bench.file("always", &[7; LEN]));
    let chmod = |name: &str, mode: u32| {
        let path = bench.path(name);
        pass_its_ctime(&path);
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
    };
    let (cloned, taken) = clone_while(&bench, (once, G0), |n| {
        if n == 0 {
            chmod("once", 0o640);
        }
    });
    assert_eq!((cloned, taken.len()), (Cloned::Whole, 2));
    let (cloned, taken) = clone_while(&bench, (always, G0), |n| chmod("always", 0o600 + n as u32 % 8));
    assert!(is_changed(&cloned) && taken.len() < 9, "{cloned:?} after {}", taken.len());
}

/// Goal: what is so young that a change could leave its ctime as it is is not cloned before that is over, and
/// who is asked to end does not wait for it.
/// Method: a file that was just made, by the true clock.
#[test]
fn young_files_are_waited_for() {
    let mut bench = Bench::with(1, wall_clock());
    let id = bench.file("young", &[7; LEN]);
    let not_before = bench.tree.not_before(id).expect("it is young");
    let over = originals(&bench).clone_file(&item(id, G0), &|| true, &mut |_| panic!("nobody wants it"));
    let early = Instant::now() < not_before;
    assert!(is_changed(&over.expect("no error")) || !early);
    let (cloned, _) = clone_while(&bench, (id, G0), |_| assert!(Instant::now() >= not_before));
    assert_eq!(cloned, Cloned::Whole);
}

/// Goal: what refuses to be cloned is told with the reason and the file's name.
#[test]
fn refusals_are_told() {
    let mut bench = Bench::new();
    let id = bench.file("swap", &[7; LEN]);
    let refused = originals(&bench).clone_file(&item(id, G0), &|| false, &mut |_| Ok(Err(Errno::TXTBSY)));
    let Ok(Cloned::Not(why)) = refused else { panic!("{refused:?}") };
    assert_eq!(why.errno, Errno::TXTBSY.raw_os_error());
    assert!(why.text.contains("clone swap: "), "{}", why.text);
}
