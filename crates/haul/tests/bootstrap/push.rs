//! The program is brought along, or the one there cannot be used.

use super::*;

/// Goal: where haul is missing it is pushed once, announced once, into directories of the user alone, and
/// what lies in the cache is checked before each use.
#[test]
fn push_is_cached_and_checked() {
    let far = Far::new();
    let pushes = |notes: &[String]| notes.iter().filter(|n| n.starts_with("pushing haul (")).count();
    let (result, notes) = start(&far.pushing());
    check_echo(result.unwrap());
    assert_eq!((pushes(&notes), notes.len()), (1, 1), "{notes:?}");
    let cached = far.cached();
    let bytes = fs::read(echo_program()).unwrap();
    assert!(fs::read(&cached).unwrap() == bytes);
    for dir in cached.ancestors().skip(1).take(2) {
        assert_eq!(fs::metadata(dir).unwrap().permissions().mode() & 0o777, 0o700, "{}", dir.display());
    }

    let (result, notes) = start(&far.pushing());
    check_echo(result.unwrap());
    assert!(notes.is_empty(), "{notes:?}");

    let mut damaged = bytes.clone();
    damaged[bytes.len() / 2] ^= 1;
    fs::write(&cached, damaged).unwrap();
    let (result, notes) = start(&far.pushing());
    check_echo(result.unwrap());
    assert_eq!(pushes(&notes), 1);
    assert!(fs::read(far.cached()).unwrap() == bytes);
}

/// Goal: a push that arrives changed is refused, leaves nothing, and never runs.
/// Method: the far end's `head` turns one byte.
#[test]
fn damaged_push_is_refused() {
    let far = Far::new();
    far.script("head", "/usr/bin/head \"$@\" | tr '\\000' '\\001'");
    let error = start(&far.pushing()).0.unwrap_err();
    assert_eq!(error.kind, BootstrapKind::Push);
    assert!(error.to_string().contains("damaged"), "{error}");
    let left: Vec<_> =
        fs::read_dir(far.home().join(".cache/haul")).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(fs::read_dir(&left[0]).unwrap().count(), 0);
}

/// Goal: a far end without `sha256sum` is served, and told about; a wrong size is still found.
#[test]
fn size_only_check_is_said() {
    let mut far = Far::new();
    far.path = far.dir.path().join("bin").display().to_string();
    let tools = ["sh", "uname", "id", "ls", "mkdir", "wc", "mktemp", "head", "chmod", "mv", "rm", "cat"];
    for tool in tools {
        let at =
            ["/usr/bin", "/bin"].map(|d| FsPath::new(d).join(tool)).into_iter().find(|p| p.exists()).unwrap();
        symlink(at, far.dir.path().join("bin").join(tool)).unwrap();
    }
    for pushes in [1, 0] {
        let (result, notes) = start(&far.pushing());
        check_echo(result.unwrap());
        assert_eq!(notes.len(), 1 + pushes, "{notes:?}");
        assert!(notes.iter().any(|n| n.contains("only the size")), "{notes:?}");
    }
    fs::write(far.cached(), b"short").unwrap();
    assert_eq!(start(&far.pushing()).1.len(), 2);
}

/// Goal: a place that others can write to, or that is not a directory of ours, is never used, whichever it
/// is; another one is, and one line says which was not and why; where there is none, all are named.
/// Method: the cache, the runtime directory and the one for temporary files, each made foreign in each way.
#[test]
fn foreign_cache_is_refused() {
    type Spoil = fn(&FsPath);
    fn mode(path: &FsPath, mode: u32) {
        fs::create_dir_all(path).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut ways: Vec<(&str, Spoil)> = vec![
        ("group", |at| mode(at, 0o770)),
        ("others", |at| mode(at, 0o707)),
        ("all", |at| mode(at, 0o777)),
        ("sticky", |at| mode(at, 0o1777)),
        ("symlink", |at| {
            fs::create_dir_all(at.with_extension("elsewhere")).unwrap();
            symlink(at.with_extension("elsewhere"), at).unwrap();
        }),
        ("file", |at| fs::write(at, b"").unwrap()),
    ];
    if rustix::process::getuid().is_root() {
        ways.push(("another's", |at| {
            fs::create_dir_all(at).unwrap();
            std::os::unix::fs::chown(at, Some(12345), None).unwrap();
        }));
    } else {
        eprintln!("skipped: a cache of another user (needs root)");
    }
    for (way, spoil) in ways {
        let mut far = Far::new();
        let (cache, runtime, own) = (far.home().join(".cache"), far.dir.path().join("run"), far.private());
        for dir in [&cache, &runtime] {
            fs::create_dir(dir).unwrap();
            fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).unwrap();
        }
        far.env = format!("XDG_RUNTIME_DIR='{}'", runtime.display());
        spoil(&cache.join("haul"));
        let (result, notes) = start(&far.pushing());
        check_echo(result.unwrap_or_else(|e| panic!("{way}: {e}")));
        far.kept_in(&runtime);
        assert!(notes[0].starts_with("pushing") && notes[0].contains("/run/haul/"), "{way}: {notes:?}");
        let says = |place: &str| {
            notes.len() == 2 && notes[1].contains(place) && notes[1].contains("another one did")
        };
        assert!(says("/home/.cache/haul: it cannot be made, is not yours"), "{way}: {notes:?}");
        fs::remove_dir_all(runtime.join("haul")).unwrap();
        spoil(&runtime.join("haul"));
        check_echo(start(&far.pushing()).0.unwrap_or_else(|e| panic!("{way}: {e}")));
        far.kept_in(&own);
        let found = start(&far.pushing());
        check_echo(found.0.unwrap());
        assert_eq!(found.1, [""; 0], "{way}: what is there is taken without a word");
        fs::remove_dir_all(&own).unwrap();
        spoil(&own);
        let error = start(&far.pushing()).0.unwrap_err();
        assert_eq!(error.kind, BootstrapKind::Push, "{way}: {error}");
        let text = error.to_string();
        for part in ["/.cache/haul", "/run/haul", "/tmp/haul-", "chmod go-w"] {
            assert!(text.contains(part), "{way}: {text}");
        }
    }
}

/// Goal: a directory for temporary files in which others may replace what is ours is not used.
#[test]
fn an_open_tmp_is_no_place() {
    let mut far = Far::new();
    fs::set_permissions(far.dir.path().join("tmp"), fs::Permissions::from_mode(0o777)).unwrap();
    far.env = "HOME=/nonexistent/home".into();
    let error = start(&far.pushing()).0.unwrap_err().to_string();
    assert!(error.contains("others could replace"), "{error}");
    assert!(error.contains("there is no home directory"), "{error}");
    assert!(!far.private().exists());
}

/// Goal: without a home, with one that is full, or one where programs may not run, haul is kept elsewhere,
/// and one line says which place failed how; a program that is whole and may not run there is not sent again,
/// nor left there.
/// Method: a home that is not there, and one on small file systems.
#[test]
fn a_home_that_will_not_do_is_passed_over() {
    let mut far = Far::new();
    far.env = "HOME=/nonexistent/home".into();
    let (result, notes) = start(&far.pushing());
    check_echo(result.unwrap());
    assert!(notes.len() == 2 && notes[1].contains("there is no home directory"), "{notes:?}");
    far.kept_in(&far.private());
    assert_eq!(fs::metadata(far.private()).unwrap().permissions().mode() & 0o7777, 0o700);
    assert!(!FsPath::new("/nonexistent").exists());

    for (options, why, pushes) in
        [("size=64k,mode=700", "No space left", 2), ("noexec,mode=700", "noexec", 1)]
    {
        let far = Far::new();
        let cache = far.home().join(".cache");
        fs::create_dir(&cache).unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&cache).output();
        if !mounted.is_ok_and(|o| o.status.success()) {
            eprintln!("skipped: cannot mount a tmpfs (needs root)");
            return;
        }
        let (result, notes) = start(&far.pushing());
        let left = Command::new("find").arg(&cache).args(["-type", "f"]).output();
        // Another way, if nothing else will do either.
        fs::set_permissions(far.dir.path().join("tmp"), fs::Permissions::from_mode(0o777)).unwrap();
        let none = start(&far.pushing()).0;
        Command::new("umount").arg(&cache).status().unwrap();
        check_echo(result.unwrap_or_else(|e| panic!("{options}: {e}")));
        far.kept_in(&far.private());
        assert_eq!(notes.iter().filter(|n| n.starts_with("pushing")).count(), pushes, "{notes:?}");
        let last = notes.last().unwrap();
        assert!(
            last.contains("/.cache/") && last.contains(why) && last.contains("another one did"),
            "{notes:?}"
        );
        assert_eq!(left.unwrap().stdout, b"", "{options}: something is left there");
        let error = none.unwrap_err();
        assert_eq!(error.kind, BootstrapKind::Push);
        assert!(error.to_string().contains(why) && error.remedy.unwrap().contains("XDG_CACHE_HOME"));
    }
}

/// Goal: another CPU is found before anything is sent, and a program that does not start is said with its
/// own words.
#[test]
fn program_that_cannot_run_is_explained() {
    let far = Far::new();
    far.script("uname", "case $1 in -m) echo vax;; *) echo Linux;; esac");
    let (result, notes) = start(&far.pushing());
    let error = result.unwrap_err();
    assert_eq!(error.kind, BootstrapKind::NoProgram);
    assert!(error.to_string().contains("vax") && notes.is_empty(), "{error}");

    let far = Far::new();
    let spec = RemoteSpec { push: Some("/bin/ls".into()), ..far.spec() };
    let error = start(&spec).0.unwrap_err();
    assert_eq!(error.kind, BootstrapKind::Push, "{error}");
    assert!(error.to_string().contains("exit code 2") && error.to_string().contains("--protocol"), "{error}");
}

/// Goal: `--no-push` leaves the far end as it is.
#[test]
fn no_push_is_obeyed() {
    let far = Far::new();
    let error = start(&far.spec()).0.unwrap_err();
    assert_eq!(error.kind, BootstrapKind::NoProgram);
    assert!(
        error.to_string().contains("`no_push`") && error.to_string().contains("`remote_haul`"),
        "{error}"
    );
    assert!(!far.home().join(".cache").exists());
}

/// Goal: a full disk while pushing is an error with its place, not a hang.
#[test]
fn full_disk_while_pushing_is_said() {
    let far = Far::new();
    far.script("head", "/usr/bin/head -c 1000; exit 1");
    let error = start(&far.pushing()).0.unwrap_err();
    assert_eq!(error.kind, BootstrapKind::Push);
    assert!(error.to_string().contains("quota"), "{error}");
}
