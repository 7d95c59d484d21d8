use super::table::STALE_OPS;
use super::*;
use crate::io::{IoFile, IoTarget, open};
use crate::options::EngineName;
use haul_base::buffer::{Part, Pool};

fn config(name: EngineName, registered_max: u64) -> EngineConfig {
    EngineConfig { name, depth: 8, registered_max }
}

fn ring(registered_max: u64) -> Option<Uring> {
    let ring = Uring::open(&config(EngineName::Uring, registered_max));
    ring.map_err(|error| println!("skipped: {error}")).ok()
}

fn file(fd: impl Into<OwnedFd>) -> Arc<IoFile> {
    let (fd, name) = (Some(fd.into()), "a file".into());
    Arc::new(IoFile { fd, mode: IoMode::Buffered, target: IoTarget::Device(0), one_writer: false, name })
}

fn part(pool: &Pool, len: usize) -> Vec<Part> {
    pool.take(len).unwrap().split(0, len, len)
}

fn write(uring: &mut Uring, file: &Arc<IoFile>, parts: Vec<Part>) -> Vec<Part> {
    let op = IoOp {
        key: 0,
        file: file.clone(),
        kind: IoKind::Write,
        offset: u64::MAX,
        parts,
        pad: 0,
        uncached: false,
    };
    uring.submit(op).unwrap();
    let mut done = VecDeque::new();
    while done.is_empty() {
        uring.reap(&mut done, CANCEL_WAIT).unwrap();
    }
    let done = done.pop_front().unwrap();
    assert_eq!(done.result, Ok(done.op.wanted()));
    done.op.parts
}

/// Goal: a file that only the ring still knows is closed soon, although it was registered.
/// Method: writes into a pipe until its end is registered; that end is let go, and the reader must see the
/// end.
#[test]
fn registration_does_not_keep_files_open() {
    let Some(mut uring) = ring(1 << 20) else { return };
    let pool = Pool::new(1 << 20);
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let writer = file(writer);
    for _ in 0..3 {
        write(&mut uring, &writer, part(&pool, 10));
    }
    assert_eq!(uring.files.entries.len(), usize::from(uring.files.on));
    let mut bytes = [0; 100];
    assert_eq!(rustix::io::read(&reader, &mut bytes), Ok(30));
    drop(writer);
    rustix::io::ioctl_fionbio(&reader, true).unwrap();
    let start = Instant::now();
    while rustix::io::read(&reader, &mut bytes) != Ok(0) {
        assert!(start.elapsed() < CANCEL_WAIT * 60, "the pipe is still open for writing");
        uring.reap(&mut VecDeque::new(), SWEEP_INTERVAL).unwrap();
    }
    assert_eq!((uring.files.entries.len(), uring.files.by_address.len()), (0, 0));
}

/// Goal: more files than the table has are used all the same.
#[test]
fn more_files_than_the_table_has() {
    let Some(mut uring) = ring(1 << 20) else { return };
    let pool = Pool::new(1 << 20);
    let dir = tempfile::tempdir().unwrap();
    let path = |i: usize| dir.path().join(i.to_string());
    let files: Vec<_> =
        (0..FILES_MAX as usize + 20).map(|i| file(std::fs::File::create(path(i)).unwrap())).collect();
    for one in &files {
        for _ in 0..3 {
            write(&mut uring, one, part(&pool, 100));
        }
    }
    if uring.files.on {
        assert_eq!((uring.files.entries.len(), uring.files.free.len()), (FILES_MAX as usize, 0));
    }
    assert!((0..files.len()).all(|i| std::fs::metadata(path(i)).unwrap().len() == 300));
    drop(files);
    uring.reap(&mut VecDeque::new(), Duration::ZERO).unwrap();
    assert_eq!(uring.files.entries.len(), 0);
}

/// Goal: no more memory is registered than allowed, what is used stays registered, and what was not used for
/// long makes way; with nothing allowed nothing is registered, and nothing is said.
#[test]
fn registered_memory_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::new(64 << 20);
    for (max, slabs) in [(0, 0), (256 << 10, 4), ((256 << 10) - 1, 3)] {
        let Some(mut uring) = ring(max) else { return };
        let sink = file(std::fs::File::create(dir.path().join("f")).unwrap());
        // Ten slabs in turn: the first that fit are registered and stay so.
        let mut parts: VecDeque<_> = (0..10).map(|_| part(&pool, 60_000)).collect();
        let first: Vec<_> = parts.iter().map(|part| part[0].slab().id).collect();
        for _ in 0..100 {
            let back = write(&mut uring, &sink, parts.pop_front().unwrap());
            parts.push_back(back);
            assert!(uring.buffers.registered <= max);
        }
        if uring.buffers.on {
            assert!(first[..slabs].iter().all(|id| uring.buffers.by_slab.contains_key(id)));
        }
        assert!(first[slabs..].iter().all(|id| !uring.buffers.by_slab.contains_key(id)));
        // Only one is used from now on, and one that was not registered gets its turn.
        let mut last = parts.pop_back().unwrap();
        let id = last[0].slab().id;
        for _ in 0..=STALE_OPS {
            last = write(&mut uring, &sink, last);
            assert!(uring.buffers.registered <= max);
        }
        assert_eq!(uring.buffers.by_slab.contains_key(&id), uring.buffers.on);
        assert!(uring.facts().remarks.is_empty());
    }
}

/// Goal: memory that the kernel may still write to is not given back when the engine goes.
/// Method: a read that hangs, in a ring that is said to be broken, so that nothing can be cancelled.
#[test]
fn what_the_kernel_may_still_have_is_leaked() {
    let Some(mut uring) = ring(1 << 20) else { return };
    let pool = Pool::new(1 << 20);
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    let (file, parts) = (file(reader), part(&pool, 100));
    let op = IoOp { key: 0, file, kind: IoKind::Read, offset: u64::MAX, parts, pad: 0, uncached: false };
    uring.submit(op).unwrap();
    uring.broken = Some(Errno::IO);
    assert!(uring.reap(&mut VecDeque::new(), Duration::ZERO).is_err());
    drop(uring);
    assert_eq!(pool.in_use().0, 64 << 10);
}

/// Goal: where rings are forbidden, threads take over with a remark that says what to do; who asked for a
/// ring hears the same as an error.
/// Method: a thread under a seccomp filter that answers `EPERM` or `ENOSYS`, as container runtimes do.
#[test]
#[allow(unsafe_code)]
fn a_forbidden_ring_falls_back_with_a_word() {
    for (errno, word) in [(libc::EPERM, "allow io_uring_setup"), (libc::ENOSYS, "this kernel has none")] {
        let facts = std::thread::spawn(move || {
            let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
            let setup = libc::SYS_io_uring_setup as u32;
            let mut filter = [
                // The number of the call; an errno for this one, all others pass.
                step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
                step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, setup),
                step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
                step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
            ];
            let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
            // SAFETY: the program outlives the call, which copies it; it binds this thread only.
            let forbidden = unsafe {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                    && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
            };
            if !forbidden {
                println!("skipped: no seccomp filters here");
                return None;
            }
            let error = open(&config(EngineName::Uring, 0)).err().expect("rings are forbidden");
            assert!(error.to_string().contains(word), "{error}");
            Some(open(&config(EngineName::Auto, 0)).unwrap().facts())
        });
        let Some(facts) = facts.join().unwrap() else { return };
        assert_eq!(facts.name, "pread");
        assert!(facts.remarks.len() == 1 && facts.remarks[0].contains(word), "{facts:?}");
    }
}

/// Goal: what the kernel may still write to is never given back by dropping it, only by a completion.
/// Method: memory lent as an operation's is, dropped with its slot; and taken back.
#[test]
fn what_is_lent_leaks() {
    let pool = Pool::new(1 << 20);
    let lend =
        || Lent::new(part(&pool, 10), vec![libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }]);
    drop(lend().back());
    assert_eq!(pool.in_use().0, 0);
    drop(Slot { op: None, lent: Some(lend()), submitted: Instant::now(), buffer: None });
    assert!(pool.in_use().0 > 0, "it was given back");
}

/// Goal: a ring that could not be restricted says so.
/// Method: one that runs already takes no restrictions.
#[test]
fn failed_restrictions_are_said() {
    let Some(mut uring) = ring(0) else { return };
    let mut remarks = Vec::new();
    restrict(&uring.ring.submitter(), &mut remarks);
    assert!(remarks.iter().any(|remark| remark.contains("not restricted")), "{remarks:?}");
    uring.remarks = remarks;
    assert!(uring.facts().remarks.iter().any(|remark| remark.contains("not restricted")));
}
