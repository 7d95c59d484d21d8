use super::*;
use haul_core::journal::RootId;
use std::collections::HashSet;

/// Of a journal that has its head only.
const JOURNAL_LEN: u64 = 16 + 4 + 19 + 16;

use crate::sink::claim::Claim;
use crate::sink::names::temp_name;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a legal name")
}

fn temp(dir: &Path, text: &str, tag: u32) -> PathBuf {
    let path =
        dir.join(String::from_utf8(temp_name(&name(text), tag, 1).as_bytes().to_vec()).expect("ASCII"));
    fs::write(&path, "12345").expect("write");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
    path
}

fn root(path: &Path) -> Arc<OwnedFd> {
    Arc::new(Jail::open_root(path).expect("root"))
}

/// What a journal of ours that names these tags claims.
fn claim(dir: &Path, tags: &[u32]) -> Debris<'static> {
    let path = dir.join("journal");
    fs::write(&path, "").expect("write");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
    let claim = Claim::new(&rustix::fs::stat(&path).expect("stat"), tags).expect("a file");
    fs::remove_file(&path).expect("rm");
    Debris { claim, spared: Vec::new() }
}

/// Goal: temporaries with a named tag go, at every depth; others, user files of that form and everything
/// behind symbolic links stay.
/// Method: a small tree with each kind.
#[test]
fn only_named_temporaries_are_removed() {
    let base = tempfile::tempdir().expect("tempdir");
    let top = base.path().join("root");
    fs::create_dir_all(top.join("a/b")).expect("mkdir");
    fs::create_dir(base.path().join("outside")).expect("mkdir");
    symlink("../outside", top.join("link")).expect("symlink");
    let outside = temp(&base.path().join("outside"), "f", 5);
    let gone =
        [temp(&top, "f", 5), temp(&top.join("a/b"), "f", 5), temp(&top.join("a"), &"n".repeat(255), 6)];
    let kept = [temp(&top, "g", 7), top.join("a/.vimrc.hbackup"), outside];
    fs::write(&kept[1], "user's").expect("write");
    // Bits above the low 30 are not in the name.
    let removed = remove_temporaries(&root(&top), &claim(base.path(), &[5 | 1 << 31, 6]));
    assert_eq!(removed, Removed { files: 3, bytes: 15, failed: 0 });
    assert!(gone.iter().all(|path| !path.exists()) && kept.iter().all(|path| path.exists()));
    let listed = list_temporaries(&root(&top), Duration::ZERO);
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!((listed[0].tag, listed[0].size), (7, 5));
    assert!(list_temporaries(&root(&top), Duration::from_secs(86_400)).is_empty());
}

/// Goal: a deep tree is searched whole with few directories open, also beside the way down, and nothing
/// outside of it where directories move meanwhile.
/// Method: a chain of directories with branches and a temporary in each, with few and with many open; then
/// the lower half of it is moved out of the tree, and another put in its place, when its end is reached.
#[test]
fn deep_trees_are_searched_with_few_descriptors() {
    let base = tempfile::tempdir().expect("tempdir");
    let top = base.path().join("root");
    let mut at = top.clone();
    let depth = 60;
    for _ in 0..depth {
        fs::create_dir_all(at.join("branch")).expect("mkdir");
        temp(&at.join("branch"), "f", 5);
        at = at.join("d");
    }
    let fds = || {
        fs::read_dir("/proc/self/fd")
            .expect("list")
            .filter(|fd| {
                let link = fs::read_link(fd.as_ref().expect("entry").path());
                link.is_ok_and(|link| link.starts_with(&top))
            })
            .count()
    };
    for open_max in [1, 2, 7, 1000] {
        let (mut found, mut most) = (0, 0);
        let failed = walk(Jail::probe(root(&top)), &root(&top), open_max, &mut |_, path, _, _| {
            assert!(path.ends_with("branch"));
            found += 1;
            most = most.max(fds());
        });
        assert_eq!((failed, found), (0, depth), "open_max {open_max}");
        // The first, those, and two that are just entered or left.
        assert!(most <= open_max + 3, "{most} were open, and {open_max} may be");
    }
    let half = (0..depth / 2).fold(top.clone(), |dir, _| dir.join("d"));
    let mut found = Vec::new();
    let mut moved = false;
    let failed = walk(Jail::probe(root(&top)), &root(&top), 2, &mut |_, path, _, _| {
        if !moved && path.components().count() > depth - 2 {
            moved = true;
            fs::rename(&half, base.path().join("away")).expect("move");
            fs::create_dir(&half).expect("mkdir");
        }
        found.push(path.to_owned());
    });
    let all: HashSet<_> = found.iter().collect();
    assert_eq!((moved, failed, found.len(), all.len()), (true, 0, depth, depth), "each is found again, once");
}

/// Goal: jobs are found with what is known of them, and only dead ones can be removed, with nothing else,
/// least of all a file that is only named like a job's.
/// Method: one living, one dead with owner file, one with a journal only.
#[test]
fn only_dead_jobs_are_removed() {
    let dir = tempfile::tempdir().expect("tempdir");
    let place = |i: u8| JobDir::open(dir.path(), JobKey::new(&[i; 16])).expect("a place");
    let living = place(1).acquire(0, "living", &Patience::default()).expect("ours");
    let dead = place(2).acquire(0, "dead", &Patience::default()).expect("ours");
    // The owner file stays behind as after a kill, and says a process that is not there.
    let path = dir.path().join(format!(".haul~{}.own.1", place(2).key().as_str()));
    let text = fs::read_to_string(&path).expect("read");
    drop(dead);
    fs::write(&path, text.replace(&format!("\"pid\":{}", std::process::id()), "\"pid\":2147483647"))
        .expect("write");
    for i in [2, 3] {
        let mut bytes = Vec::new();
        let mut log = haul_core::journal::Log::start(&mut bytes);
        log.append(
            &haul_core::journal::Record::Head { job: [i; 16], root: RootId::new(&[1]).expect("short") },
            &mut bytes,
        );
        assert_eq!(bytes.len() as u64, JOURNAL_LEN);
        fs::write(dir.path().join(format!(".haul~{}", place(i).key().as_str())), bytes).expect("write");
    }
    // Named like a job's, and the user's.
    for name in
        [format!(".haul~{}", place(4).key().as_str()), format!(".haul~{}.own.1", place(5).key().as_str())]
    {
        fs::write(dir.path().join(name), "user's").expect("write");
    }
    temp(dir.path(), "f", 9);
    fs::write(dir.path().join("user"), "x").expect("write");

    let jobs = find_debris(dir.path()).expect("found");
    let of = |i: u8| jobs.iter().find(|job| job.key == *place(i).key()).expect("found");
    assert_eq!(jobs.len(), 3);
    assert_eq!((of(1).life, of(1).journal), (Life::Alive, None));
    assert_eq!((of(2).life, of(2).journal), (Life::Dead, Some(JOURNAL_LEN)));
    assert_eq!(of(2).owner.as_ref().map(|owner| owner.what.as_str()), Some("dead"));
    assert_eq!((of(3).life, of(3).journal), (Life::Dead, Some(JOURNAL_LEN)));

    let remove = |i, tags: &[u32]| {
        let debris = claim(dir.path(), tags);
        remove_debris(dir.path(), dir.path(), of(i), (&debris, &[]), &Patience::default())
    };
    assert!(matches!(remove(1, &[9]), Err(AcquireError::Held(_))));
    assert_eq!(remove(2, &[9]).expect("removed").files, 2);
    assert_eq!(remove(3, &[]).expect("removed"), Removed { files: 1, bytes: JOURNAL_LEN, failed: 0 });
    living.still_owner().expect("untouched");
    let left = fs::read_dir(dir.path()).expect("ls").count();
    assert_eq!(left, 4, "the living job's owner file and the user's files");
}

/// Goal: a run that waits for its network keeps what is its own.
/// Method: a living owner of this process that says so, and that waits no longer than tests do.
#[test]
fn who_waits_is_not_cleaned() {
    let dir = tempfile::tempdir().expect("tempdir");
    let place = JobDir::open(dir.path(), JobKey::new(&[2; 16])).expect("a place");
    let owner = place.acquire(0, "waits", &Patience::default()).expect("ours");
    owner.set_yields(true);
    let says =
        || matches!(place.peek(1), Ok(Some((_, seen))) if seen.info.as_ref().is_some_and(|info| info.yields));
    let start = std::time::Instant::now();
    while !says() {
        assert!(start.elapsed() < Duration::from_secs(30), "it never says so");
        std::thread::sleep(Duration::from_millis(5));
    }
    let jobs = find_debris(dir.path()).expect("found");
    let patience = Patience { notice: Duration::ZERO, ..Patience::default() };
    let refused = remove_debris(dir.path(), dir.path(), &jobs[0], (&Debris::default(), &[]), &patience);
    assert!(matches!(refused, Err(AcquireError::Held(_))));
    owner.still_owner().expect("untouched");
}

/// Goal: a job whose last owner nobody saw die is cleaned once, and then nothing of it is left.
/// Method: the owner file of a silent machine, and a journal.
#[test]
fn unproven_jobs_are_cleaned_once() {
    let dir = tempfile::tempdir().expect("tempdir");
    let place = JobDir::open(dir.path(), JobKey::new(&[2; 16])).expect("a place");
    let owner = place.acquire(0, "silent", &Patience::default()).expect("ours");
    let path = dir.path().join(format!(".haul~{}.own.1", place.key().as_str()));
    let mut info: OwnerInfo = serde_json::from_slice(&fs::read(&path).expect("read")).expect("an owner");
    drop(owner);
    (info.machine_id, info.boot) = ("other".into(), "other".into());
    fs::write(&path, serde_json::to_vec(&info).expect("text")).expect("write");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
    let mut bytes = Vec::new();
    let mut log = haul_core::journal::Log::start(&mut bytes);
    log.append(
        &haul_core::journal::Record::Head {
            job: [2; 16],
            root: haul_core::journal::RootId::new(&[1]).expect("short"),
        },
        &mut bytes,
    );
    fs::write(dir.path().join(format!(".haul~{}", place.key().as_str())), bytes).expect("write");
    let jobs = find_debris(dir.path()).expect("found");
    assert_eq!((jobs.len(), jobs[0].life), (1, Life::Unknown));
    let patience =
        Patience { watch: Duration::from_millis(60), poll: Duration::from_millis(5), ..Patience::default() };
    let removed = remove_debris(dir.path(), dir.path(), &jobs[0], (&Debris::default(), &[]), &patience)
        .expect("removed");
    assert_eq!((removed.files, removed.failed), (1, 0));
    assert_eq!(fs::read_dir(dir.path()).expect("ls").count(), 0);
}

/// Goal: a directory with many names of jobs is listed once, not once for each.
/// Method: empty journals, as anybody can plant them, and four times as many: the processor's time for them,
/// the least of three, grows as their number does, where a listing for each made it sixteen times as long.
#[test]
fn many_planted_jobs_cost_little() {
    let processor = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let [few, many] = [1000_u32, 4000].map(|count| {
        let dir = tempfile::tempdir().expect("tempdir");
        for i in 0..count {
            let mut job = [0; 16];
            job[..4].copy_from_slice(&i.to_le_bytes());
            fs::write(dir.path().join(format!(".haul~{}", JobKey::new(&job).as_str())), "").expect("write");
        }
        let times = (0..3).map(|_| {
            let start = processor();
            assert_eq!(find_debris(dir.path()).expect("found").len(), count as usize);
            processor() - start
        });
        times.min().expect("three")
    });
    assert!(many < 9 * few, "{few:?} for a quarter of what took {many:?}");
}

/// Goal: a temporary of a dead job is removed only if it is a file of the journal's owner; the journal stays
/// while one that could not be removed does, and one that others may write is not believed.
/// Method: root's own and another user's temporaries of one tag, under journals of each; one whose directory
/// cannot be written.
#[test]
fn a_journal_removes_its_owners_files() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let top = dir.path().join("top");
    fs::create_dir_all(top.join("a")).expect("mkdir");
    let (roots, users) = (temp(&top, "f", 5), temp(&top.join("a"), "g", 5));
    std::os::unix::fs::chown(&users, Some(1500), None).expect("chown");
    fs::create_dir(top.join(name_of("h", 5))).expect("mkdir");
    let key = JobKey::new(&[7; 16]);
    let journal = top.join(format!(".haul~{}", key.as_str()));
    let clean = |uid, mode| {
        let mut bytes = Vec::new();
        let mut log = haul_core::journal::Log::start(&mut bytes);
        log.append(
            &haul_core::journal::Record::Head { job: [7; 16], root: RootId::new(&[1]).expect("short") },
            &mut bytes,
        );
        fs::write(&journal, bytes).expect("write");
        fs::set_permissions(&journal, fs::Permissions::from_mode(mode)).expect("chmod");
        std::os::unix::fs::chown(&journal, Some(uid), None).expect("chown");
        let claim = Claim::new(&rustix::fs::stat(&journal).expect("stat"), &[5]).expect("a file");
        let jobs = find_debris(&top).expect("found");
        let debris = Debris { claim, spared: Vec::new() };
        remove_debris(&top, &top, &jobs[0], (&debris, &[]), &Patience::default())
    };
    assert!(clean(0, 0o666).is_err() && journal.exists() && roots.exists());
    assert_eq!(clean(1501, 0o600).expect("cleaned").files, 1, "the journal alone");
    assert!(roots.exists() && users.exists());
    assert_eq!(clean(1500, 0o600).expect("cleaned").files, 2);
    assert!(roots.exists() && !users.exists());
    assert_eq!(clean(0, 0o600).expect("cleaned").files, 2);
    assert!(!roots.exists() && top.join(name_of("h", 5)).exists(), "no directory is a temporary");
}

fn name_of(text: &str, tag: u32) -> String {
    String::from_utf8(temp_name(&name(text), tag, 1).as_bytes().to_vec()).expect("ASCII")
}
