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
    let tools = ["sh", "uname", "id", "ls", "mkdir", "wc", "mktemp", "head", "chmod", "mv", "rm"];
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

/// Goal: a cache that others can write to, or that is not a directory of ours, is not used.
#[test]
fn foreign_cache_is_refused() {
    for mode in [0o770, 0o707, 0o777, 0o1777] {
        let far = Far::new();
        let cache = far.home().join(".cache/haul");
        fs::create_dir_all(&cache).unwrap();
        fs::set_permissions(&cache, fs::Permissions::from_mode(mode)).unwrap();
        let error = start(&far.pushing()).0.unwrap_err();
        assert_eq!(error.kind, BootstrapKind::Push, "{error}");
        assert!(error.to_string().contains("chmod go-w"), "{error}");
    }
    let far = Far::new();
    fs::create_dir_all(far.home().join(".cache/elsewhere")).unwrap();
    symlink("elsewhere", far.home().join(".cache/haul")).unwrap();
    assert_eq!(start(&far.pushing()).0.unwrap_err().kind, BootstrapKind::Push);
    if rustix::process::getuid().is_root() {
        let far = Far::new();
        let cache = far.home().join(".cache/haul");
        fs::create_dir_all(&cache).unwrap();
        std::os::unix::fs::chown(&cache, Some(12345), None).unwrap();
        assert_eq!(start(&far.pushing()).0.unwrap_err().kind, BootstrapKind::Push);
    } else {
        eprintln!("skipped: a cache of another user (needs root)");
    }
}

/// Goal: a cache where programs may not run gives the remedy.
#[test]
fn noexec_cache_names_the_remedy() {
    let far = Far::new();
    let cache = far.home().join(".cache");
    fs::create_dir(&cache).unwrap();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "noexec,mode=700", "tmpfs"]).arg(&cache).output();
    if !mounted.is_ok_and(|o| o.status.success()) {
        eprintln!("skipped: cannot mount a tmpfs (needs root)");
        return;
    }
    let result = start(&far.pushing()).0;
    Command::new("umount").arg(&cache).status().unwrap();
    let error = result.unwrap_err();
    assert_eq!(error.kind, BootstrapKind::Push);
    assert!(error.to_string().contains("noexec") && error.remedy.unwrap().contains("XDG_CACHE_HOME"));
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
        error.to_string().contains("--no-push") && error.to_string().contains("--remote-haul"),
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
