//! What the source makes of files that change, as the user chose.

use haul_core::digest::subtrees;
use haul_core::transfer::op::HashOk;

use super::*;

const LEN: usize = 200_000;

/// What may happen to a file of [`LEN`] bytes.
type Act = fn(&Path);

/// Those after which its first bytes may be what they were, by what a look alone can tell.
const GROWS: [(&str, Act); 3] = [
    ("grows", |path| append(path, b"+++++")),
    ("is altered and grows", |path| {
        alter(path);
        append(path, b"+++++");
    }),
    ("is altered", alter),
];

/// Those after which nobody has to read to know that they are not.
const ENDS: [(&str, Act); 5] = [
    ("is cut short", |path| truncate(path, LEN as u64 - 1)),
    ("is replaced by a longer one", |path| {
        let new = path.with_extension("new");
        fs::write(&new, random(LEN + 10, 3)).expect("write");
        fs::rename(new, path).expect("rename");
    }),
    ("is replaced by a longer one, and has another name", |path| {
        fs::hard_link(path, path.with_extension("1")).expect("link");
        let new = path.with_extension("new");
        fs::write(&new, random(LEN + 10, 3)).expect("write");
        fs::rename(new, path).expect("rename");
    }),
    ("becomes a directory", |path| {
        fs::remove_file(path).expect("remove");
        fs::create_dir(path).expect("mkdir");
    }),
    ("is moved away and a new one begun", |path| {
        fs::rename(path, path.with_extension("1")).expect("rename");
        fs::write(path, b"").expect("write");
    }),
];

fn alter(path: &Path) {
    fs::File::options().write(true).open(path).and_then(|f| f.write_all_at(b"!", 100)).expect("write");
}

fn bench(changed: OnChange) -> Bench {
    Bench::of(tempfile::tempdir().expect("tempdir"), tomorrow(), changed, |tree, post, meter| {
        ReadEngine::start(tree, post, meter, config(1))
    })
}

fn bundle(
    bench: &mut Bench,
    id: FileId,
) -> (Result<haul_core::transfer::op::BundleOk, wire::Failure>, Vec<u8>) {
    let files = vec![BundleFile { id, generation: G0, size: LEN as u32 }];
    let completion = bench.run(SourceOp::ReadBundle { files }, Some(LEN));
    let SourceDone::ReadBundle { mut items, .. } = completion.done else { panic!() };
    (items.remove(0).1, completion.buffer.expect("comes back").as_slice().to_vec())
}

fn second_hash(bench: &mut Bench, id: FileId, map: Option<ExtentMap>) -> Result<[u8; 32], wire::Failure> {
    match bench.run(hash_op(id, G0, map, None), None).done {
        SourceDone::HashFile { result, .. } => result.map(|all| all.root),
        other => panic!("{other:?}"),
    }
}

/// Goal: with `prefix`, a file that is the same inode and not shorter is read and looked at as one whose
/// beginning may be what it was; anything else is changed, and so is each of these for who asked for nothing
/// of the kind.
/// Method: each act before the file is opened, between its first read and the look, and before it is read in
/// a bundle.
#[test]
fn only_growth_makes_a_prefix() {
    let all = GROWS.iter().map(|act| (act, true)).chain(ENDS.iter().map(|act| (act, false)));
    for ((what, act), grows) in all {
        for changed in [OnChange::Fail, OnChange::Retry, OnChange::Prefix] {
            let grows = grows && changed == OnChange::Prefix;
            let content = random(LEN, 3);
            let look = |bench: &mut Bench, id| {
                let looked = bench.look(id, G0);
                let size = fs::metadata(bench.path("f")).expect("stat").len();
                let expected = if grows { Look::Grown { size } } else { Look::Changed };
                assert_eq!(looked, Ok(expected), "{what} {changed:?}");
            };

            let mut early = bench(changed);
            let id = aged(&mut early, "f", &content);
            act(&early.path("f"));
            let read = early.read(id, 0, LEN as u32, LEN as u64);
            match grows {
                true => assert!(read_result(&read).is_ok(), "{what}: {:?}", read_result(&read)),
                false => {
                    let failure = read_result(&read).as_ref().expect_err(what);
                    assert_eq!(failure.kind, wire::FailureKind::Changed, "{what}: {failure:?}");
                }
            }
            look(&mut early, id);

            let mut late = bench(changed);
            let id = aged(&mut late, "f", &content);
            assert!(read_result(&late.read(id, 0, 65536, LEN as u64)).is_ok());
            assert_eq!(late.look(id, G0), Ok(Look::Same));
            act(&late.path("f"));
            look(&mut late, id);

            let mut small = bench(changed);
            let id = aged(&mut small, "f", &content);
            act(&small.path("f"));
            let now = fs::read(small.path("f")).unwrap_or_default();
            match bundle(&mut small, id) {
                (Ok(ok), payload) if grows => {
                    let size = now.len() as u64;
                    assert_eq!(ok.look, Look::Grown { size }, "{what}");
                    assert!(payload == now[..LEN], "{what}");
                    assert_eq!(ok.root, *blake3::hash(&now[..LEN]).as_bytes(), "{what}");
                }
                (Ok(ok), _) => assert_eq!(ok.look, Look::Changed, "{what}"),
                (Err(failure), _) => assert!(!grows, "{what}: {failure:?}"),
            }
        }
    }
}

/// Goal: the second reading of a file that grows is of as many bytes as were copied, of whatever version they
/// are now, and fails where there are fewer.
/// Method: a file that goes on growing, is altered, and is cut short; with its descriptor held, and opened
/// again.
#[test]
fn a_prefix_is_hashed_as_it_is_now() {
    for held in [true, false] {
        let mut bench = bench(OnChange::Prefix);
        let content = random(LEN, 3);
        let id = aged(&mut bench, "f", &content);
        if held {
            assert!(read_result(&bench.read(id, 0, 65536, LEN as u64)).is_ok());
        }
        append(&bench.path("f"), b"+++++");
        assert_eq!(second_hash(&mut bench, id, None), Ok(*blake3::hash(&content).as_bytes()));
        append(&bench.path("f"), b"+++++");
        assert_eq!(second_hash(&mut bench, id, None), Ok(*blake3::hash(&content).as_bytes()));
        alter(&bench.path("f"));
        let now = fs::read(bench.path("f")).expect("read");
        assert_eq!(second_hash(&mut bench, id, None), Ok(*blake3::hash(&now[..LEN]).as_bytes()));
        truncate(&bench.path("f"), LEN as u64 - 1);
        let failure = second_hash(&mut bench, id, None).expect_err("it is shorter");
        assert_eq!(failure.kind, wire::FailureKind::Changed);
        assert!(failure.text.contains("shorter"), "{}", failure.text);
    }
}

/// Goal: so it is with a sparse file: what follows its end is nothing of its map, and a hole that was filled
/// is a change.
#[test]
fn a_sparse_prefix_is_hashed_by_its_map() {
    let size = 40 << 16;
    let mut bench = bench(OnChange::Prefix);
    let file = fs::File::create(bench.path("s")).expect("create");
    file.set_len(size).expect("truncate");
    for at in [0, size - 70_000] {
        file.write_all_at(&random(70_000, at), at).expect("write");
    }
    file.sync_all().expect("sync");
    let id = bench.register("s");
    append(&bench.path("s"), &[b'+'; 300_000]);
    let map = match bench.run(SourceOp::Map { id, generation: G0 }, None).done {
        SourceDone::Map { result, .. } => result.expect("mapped"),
        other => panic!("{other:?}"),
    };
    assert_eq!((map.size(), map.is_full()), (size, false));
    assert!(matches!(bench.look(id, G0), Ok(Look::Grown { .. })));
    let first = second_hash(&mut bench, id, Some(map.clone())).expect("hashed");
    append(&bench.path("s"), &[b'+'; 300_000]);
    assert_eq!(second_hash(&mut bench, id, Some(map.clone())), Ok(first));
    file.write_all_at(&[1; 5], 20 << 16).expect("write");
    let failure = second_hash(&mut bench, id, Some(map)).expect_err("a hole was filled");
    assert_eq!(failure.kind, wire::FailureKind::Changed);
}

/// Goal: the values of parts that are asked for are of the bytes that give the root, which is the same
/// whatever is asked for.
/// Method: an odd file and one with holes; parts at the edges, in the middle, side by side, all of it, and in
/// odd places, for which there is no value.
#[test]
fn parts_are_hashed_with_the_whole() {
    const A: u64 = 65_536;
    let mut bench = bench(OnChange::Prefix);
    let (size, holey) = (21 * A + 77, 40 * A);
    let odd = random(size as usize, 1);
    let file = aged(&mut bench, "f", &odd);
    let mut sparse = vec![0; holey as usize];
    let made = fs::File::create(bench.path("s")).expect("create");
    made.set_len(holey).expect("truncate");
    for at in [2 * A, 37 * A] {
        sparse[at as usize..][..3 * A as usize].copy_from_slice(&random(3 * A as usize, at));
        made.write_all_at(&sparse[at as usize..][..3 * A as usize], at).expect("write");
    }
    made.sync_all().expect("sync");
    let with_holes = bench.register("s");
    let map = match bench.run(SourceOp::Map { id: with_holes, generation: G0 }, None).done {
        SourceDone::Map { result, .. } => result.expect("mapped"),
        other => panic!("{other:?}"),
    };
    assert_eq!(map.extents().len(), 2);
    let of_odd: &[&[(u64, u64)]] = &[
        &[(0, A)],
        &[(20 * A, A + 77)],
        &[(0, 16 * A)],
        &[(A, A), (2 * A, 2 * A), (5 * A, A), (21 * A, 77)],
        &[(0, 16 * A), (16 * A, 5 * A + 77)],
        &[(0, size)],
    ];
    let of_holey: &[&[(u64, u64)]] =
        &[&[(2 * A, A)], &[(2 * A, 2 * A), (4 * A, A), (38 * A, 2 * A)], &[(37 * A, A)]];
    for (id, map, content, cases) in [(file, None, &odd, of_odd), (with_holes, Some(map), &sparse, of_holey)]
    {
        let whole = second_hash(&mut bench, id, map.clone()).expect("hashed");
        let mut hash = |parts: &[(u64, u64)]| {
            let op =
                SourceOp::HashFile { id, generation: G0, map: map.clone(), seen: None, parts: parts.into() };
            match bench.run(op, None).done {
                SourceDone::HashFile { result, .. } => result.expect("hashed"),
                other => panic!("{other:?}"),
            }
        };
        let len = content.len() as u64;
        for parts in cases {
            let value = |(offset, part): &(u64, u64)| {
                let (bytes, tail) = (&content[*offset as usize..][..*part as usize], offset + part == len);
                assert_eq!(subtrees(*offset, *part, tail).count(), 1);
                match *part == len {
                    true => *blake3::hash(bytes).as_bytes(),
                    false => digest::chaining_values(DigestKind::Blake3, *offset, bytes, tail)[0],
                }
            };
            assert_eq!(
                hash(parts),
                HashOk { root: whole, cvs: parts.iter().map(value).collect() },
                "{parts:?}"
            );
        }
        for parts in [[(5 * A, A), (4 * A, A)], [(len, A), (len + A, A)]] {
            let all = hash(&parts);
            assert!(all.root == whole && all.cvs.len() < 2, "{parts:?}");
        }
    }
}

/// Goal: a file that is gone when it is looked at has vanished, where no second try finds that out.
#[test]
fn what_is_gone_has_vanished() {
    for (changed, vanished) in [(OnChange::Fail, true), (OnChange::Prefix, true), (OnChange::Retry, false)] {
        for held in [true, false] {
            let mut bench = bench(changed);
            let id = aged(&mut bench, "f", &random(LEN, 3));
            if held {
                assert!(read_result(&bench.read(id, 0, 65536, LEN as u64)).is_ok());
            }
            fs::remove_file(bench.path("f")).expect("remove");
            match bench.look(id, G0) {
                Ok(Look::Changed) => assert!(!vanished),
                Err(failure) if vanished => {
                    assert_eq!(failure.kind, wire::FailureKind::Vanished, "{failure:?}")
                }
                other => panic!("{changed:?} {held}: {other:?}"),
            }
        }
    }
}
