//! Extended attributes and lists: when they are set, and what of what stands goes.

use std::sync::Mutex;

use haul_core::entry::Namespace;
use haul_core::metadata::{CAPABILITY, Values};
use haul_core::transfer::op::AmendItem;

use super::*;
use crate::attributes::Keeps;

const ALL: Keeps = Keeps { xattrs: true, acls: true };
const ACL: &str = "system.posix_acl_access";
/// `cap_net_raw`.
const RIGHTS: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// User 1234 and the mask may write, the group may nothing.
fn list() -> Vec<u8> {
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in
        [(1_u16, 6_u16, u32::MAX), (2, 6, 1234), (4, 0, u32::MAX), (0x10, 6, u32::MAX), (0x20, 0, u32::MAX)]
    {
        list.extend(tag.to_le_bytes());
        list.extend(perm.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

fn value_of(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut room = [0; 256];
    let len = rustix::fs::getxattr(path, name, &mut room[..]).ok()?;
    Some(room[..len].to_vec())
}

fn wanted(bench: &Bench, f: &SinkFile, of: &[(Namespace, &[u8], &[u8])]) {
    let of = of.iter().map(|(namespace, name, value)| ((*namespace, Box::from(*name)), value.to_vec()));
    let values: Values = of.collect();
    bench.engine.as_ref().expect("running").keep_metadata(f.id, Arc::new(values));
}

/// Goal: a file has its attributes, its list and its mode before it has its name, and a later run sees no
/// difference.
/// Method: the look at whose the job is, directly before the rename, looks at the temporary.
#[test]
fn a_file_has_them_before_its_name() {
    let dir = tempfile::tempdir().expect("tempdir");
    let root = dir.path().join("root");
    // In one that this run made nothing would be looked for.
    fs::create_dir(&root).expect("make the root");
    let seen: Arc<Mutex<Vec<Option<Vec<u8>>>>> = Arc::default();
    let (told, looked) = (
        seen.clone(),
        root.join(
            String::from_utf8(temp_name(&name("f"), TAG, number("f")).as_bytes().to_vec()).expect("ASCII"),
        ),
    );
    let mut bench = Bench::at(dir, root, |config| {
        config.keeps = ALL;
        config.still_owner = Arc::new(move || {
            *lock(&told) = vec![value_of(&looked, "user.a"), value_of(&looked, ACL)];
            Ok(())
        });
    });
    let f = file(1, DirId::ROOT, "f", 3);
    wanted(&bench, &f, &[(Namespace::Xattr, b"user.a", b"1"), (Namespace::AccessAcl, b"", &list())]);
    bench.write(&f, 0, b"new").expect("written");
    bench.commit(vec![whole(&f, Meta { mode: 0o600, ..META })]).remove(0).expect("published");
    assert_eq!(*lock(&seen), [Some(b"1".to_vec()), Some(list())]);
    let found = bench.look(&f, None).existing;
    let Existing::File { rights, .. } = found else { panic!("{found:?}") };
    assert!(!rights.other_xattrs && !rights.other_acl, "{rights:?}");
    assert_eq!(rights.mode, 0o600, "the mask is no group's");
    wanted(&bench, &f, &[]);
    let Existing::File { rights, .. } = bench.look(&f, None).existing else { panic!("it stands") };
    assert!(rights.other_xattrs && rights.other_acl, "{rights:?}");
}

/// Goal: a list is what it was at the source, and not what a mode made of it.
/// Method: a list whose mask allows what the mode that is told does not.
#[test]
fn a_list_says_the_mode() {
    let mut bench = Bench::with(|config| config.keeps = ALL);
    let f = file(1, DirId::ROOT, "f", 3);
    wanted(&bench, &f, &[(Namespace::AccessAcl, b"", &list())]);
    bench.write(&f, 0, b"new").expect("written");
    bench.commit(vec![whole(&f, Meta { mode: 0o600, ..META })]).remove(0).expect("published");
    assert_eq!(value_of(&bench.root.join("f"), ACL), Some(list()));
}

/// Goal: while a list is missing, or one of others stands, nobody but the owner may do anything by the mode;
/// and the end is as if the mode had come first.
/// Method: the modes that a file has whenever a list of it is about to be removed or set: one that is made,
/// and one that stands and is amended, with another list and then with none.
#[test]
fn without_its_list_it_is_the_owners_alone() {
    let mut bench = Bench::with(|config| config.keeps = ALL);
    let f = file(1, DirId::ROOT, "f", 3);
    let path = bench.root.join("f");
    let others = |mut list: Vec<u8>| {
        // What user 1234 may do.
        list[4 + 8 + 2] = 4;
        list
    };
    wanted(&bench, &f, &[(Namespace::AccessAcl, b"", &list())]);
    bench.write(&f, 0, b"new").expect("written");
    bench.commit(vec![whole(&f, Meta { mode: 0o644, ..META })]).remove(0).expect("published");
    let ino = std::os::unix::fs::MetadataExt::ino(&fs::metadata(&path).expect("stat"));
    let mode = || std::os::unix::fs::MetadataExt::mode(&fs::metadata(&path).expect("stat")) & 0o7777;
    assert_eq!((value_of(&path, ACL), mode()), (Some(list()), 0o660));
    for (of, ends) in [(Some(others(list())), 0o660), (None, 0o640)] {
        let list: Vec<(Namespace, &[u8], &[u8])> =
            of.iter().map(|list| (Namespace::AccessAcl, &b""[..], &list[..])).collect();
        wanted(&bench, &f, &list);
        let held = rustix::fs::stat(&path).expect("stat");
        let found = crate::sink::stat::seen_of(&held);
        let item = AmendItem { file: f.clone(), meta: Meta { mode: 0o640, ..META }, owner: false, found };
        match bench.run(SinkOp::Amend { durable: true, items: vec![item] }, b"") {
            SinkDone::Amend { results } => assert!(results[0].1.is_ok(), "{results:?}"),
            other => panic!("{other:?}"),
        }
        assert_eq!((value_of(&path, ACL), mode()), (of, ends));
    }
    let steps = crate::attributes::steps::of(ino);
    let lists: Vec<_> = steps.iter().filter(|(what, _)| what.ends_with(ACL)).collect();
    assert!(lists.len() >= 4, "{steps:?}");
    assert!(lists.iter().all(|(_, mode)| mode & !0o700 == 0), "{steps:?}");
}

/// Goal: a program has its rights behind all that would take them.
/// Method: one that is written, and given to another owner.
#[test]
fn a_programs_rights_come_last() {
    if !is_root() {
        return eprintln!("skipped: rights need root");
    }
    let mut bench = Bench::with(|config| config.keeps = ALL);
    let f = file(1, DirId::ROOT, "f", 3);
    wanted(&bench, &f, &[(Namespace::Xattr, CAPABILITY, &RIGHTS)]);
    bench.write(&f, 0, b"new").expect("written");
    let mut item = whole(&f, Meta { mode: 0o755, uid: 12345, gid: 54321, ..META });
    item.publish.as_mut().expect("set").owner = true;
    bench.commit(vec![item]).remove(0).expect("published");
    assert_eq!(value_of(&bench.root.join("f"), "security.capability"), Some(RIGHTS.to_vec()));
}

/// Goal: a file of another user that is written in place gets neither a program's rights nor setuid, for he
/// may have it open for writing; one of ours does.
#[test]
fn strangers_inodes_get_no_rights() {
    if !is_root() {
        return eprintln!("skipped: rights need root");
    }
    for (uid, rights) in [(0, true), (12345, false)] {
        let mut bench = Bench::with(|config| {
            config.keeps = ALL;
            config.in_place = Some(InPlace::new(None, true, crate::sink::Beside::default()));
        });
        let path = bench.root.join("f");
        fs::write(&path, "old").expect("write");
        std::os::unix::fs::chown(&path, Some(uid), Some(uid)).expect("chown");
        let f = file(1, DirId::ROOT, "f", 3);
        let all = [(Namespace::Xattr, CAPABILITY, &RIGHTS[..]), (Namespace::Xattr, b"user.a", b"1")];
        wanted(&bench, &f, &all);
        bench.write(&f, 0, b"new").expect("written");
        let mut item = whole(&f, Meta { mode: 0o4755, uid: 0, gid: 0, ..META });
        item.publish.as_mut().expect("set").owner = true;
        let mut done = bench.run(SinkOp::Commit { durable: true, items: vec![item] }, b"");
        let mut told = None;
        if let SinkDone::Unkept { failure, .. } = done {
            told = Some(failure.text.to_string());
            done = bench.posted.recv_timeout(Duration::from_secs(60)).expect("a completion").0;
        }
        assert!(matches!(&done, SinkDone::Commit { results, .. } if results[0].1.is_ok()), "{done:?}");
        let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&path).expect("stat")) & 0o7777;
        assert_eq!(value_of(&path, "security.capability").is_some(), rights);
        assert_eq!(mode, if rights { 0o4755 } else { 0o755 });
        assert_eq!(value_of(&path, "user.a"), Some(b"1".to_vec()), "all else is kept");
        assert_eq!(told.is_some_and(|text| text.contains("security.capability")), !rights);
        assert_eq!(bench.not_kept().setid, u64::from(!rights));
    }
}

/// Goal: what cannot be set is told ahead of the end of its operation, and the file has its name.
/// Method: an attribute of a class that the kernel has no handler for.
#[test]
fn what_cannot_be_set_is_told_first() {
    let mut bench = Bench::with(|config| config.keeps = ALL);
    let f = file(1, DirId::ROOT, "f", 3);
    wanted(&bench, &f, &[(Namespace::Xattr, b"user.fits", b"1"), (Namespace::Xattr, b"unheard-of.a", b"1")]);
    bench.write(&f, 0, b"new").expect("written");
    let items = vec![whole(&f, META)];
    let first = bench.run(SinkOp::Commit { durable: true, items }, b"");
    let SinkDone::Unkept { id, failure } = first else { panic!("{first:?}") };
    assert_eq!((id, failure.kind), (f.id, FailureKind::Metadata));
    assert!(failure.text.contains("unheard-of.a"), "{}", failure.text);
    let done = bench.posted.recv_timeout(Duration::from_secs(60)).expect("a completion").0;
    assert!(matches!(&done, SinkDone::Commit { results, .. } if results[0].1.is_ok()), "{done:?}");
    assert_eq!(value_of(&bench.root.join("f"), "user.fits"), Some(b"1".to_vec()));
    // A list of another kind has no place here, which is counted.
    let g = file(2, DirId::ROOT, "g", 3);
    wanted(&bench, &g, &[(Namespace::Nfs4Acl, b"", &[0; 8])]);
    bench.write(&g, 0, b"new").expect("written");
    bench.publish(&g).expect("published");
    assert_eq!(bench.not_kept(), NotKept { nfs4: 1, ..NotKept::default() });
    let found = bench.look(&g, None).existing;
    assert!(matches!(
        found,
        Existing::Nothing | Existing::File { rights: Rights { other_acl: false, .. }, .. }
    ));
}
