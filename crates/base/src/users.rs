//! Users of this host and their homes, as the shell's `~` means them.
//!
//! In: a path as typed on the far side of a colon, and the user's own home. Out: the path with `~` and
//! `~NAME` expanded. Who is a user the system's own look-up says (`getent`), for a static program knows only
//! `/etc/passwd`; where that program is missing the file must do.
//! Invariants: nothing that was typed is read by a shell; a name is one word of an argument and never an
//! option.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Longest name that is looked up, bytes.
const NAME_LEN_MAX: usize = 256;
/// Most that a look-up may answer, bytes.
const ANSWER_LEN_MAX: usize = 1 << 20;
/// Where root finds the program of look-ups, whatever the environment says.
const PATH_OF_ROOT: &str = "/usr/sbin:/usr/bin:/sbin:/bin:/run/current-system/sw/bin";

/// The system did not say in time who somebody is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLate;

/// Why a tilde was not expanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unexpanded {
    /// The user's own home is not known.
    NoHome,
    /// There is no such user, or nobody can say where he lives.
    NoUser,
}

/// `typed` with what its tilde stands for; as it is where there is none.
///
/// # Errors
/// What it stands for is not known.
pub fn expand(typed: &[u8], home: &Path) -> Result<PathBuf, Unexpanded> {
    let Some(rest) = typed.strip_prefix(b"~") else { return Ok(path(typed.to_vec())) };
    let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
    let (name, rest) = rest.split_at(end);
    let mut bytes = match name {
        [] if home.as_os_str().is_empty() => return Err(Unexpanded::NoHome),
        [] => home.as_os_str().as_bytes().to_vec(),
        name => home_of(name).ok_or(Unexpanded::NoUser)?.into_os_string().into_vec(),
    };
    // Joined as bytes: a `Path` would drop the slash at the end, which has a meaning.
    if bytes.ends_with(b"/") && !rest.is_empty() {
        bytes.pop();
    }
    bytes.extend_from_slice(rest);
    Ok(path(bytes))
}

fn path(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes))
}

fn home_of(name: &[u8]) -> Option<PathBuf> {
    let odd = |byte: &u8| byte.is_ascii_control() || b":/".contains(byte);
    if name.len() > NAME_LEN_MAX || name.starts_with(b"-") || name.iter().any(odd) {
        return None;
    }
    let asked = Command::new("getent")
        .args([OsStr::new("passwd"), OsStr::from_bytes(name)])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let table = match asked {
        Ok(asked) => asked.stdout,
        Err(_) => fs::read("/etc/passwd").ok()?,
    };
    home_in(&table, name)
}

/// The name of the user with this number, else the number in words.
pub fn name_of(uid: u32) -> String {
    let asked =
        Command::new("getent").args(["passwd", "--", &uid.to_string()]).stderr(Stdio::null()).output();
    let table = match asked {
        Ok(asked) => asked.stdout,
        Err(_) => fs::read("/etc/passwd").unwrap_or_default(),
    };
    name_in(&table, uid).unwrap_or_else(|| format!("user {uid}"))
}

/// The numbers of the user `name` and of his group, if there is such a user.
pub fn ids_of(name: &str) -> Option<(u32, u32)> {
    let asked = Command::new("getent").args(["passwd", "--", name]).stderr(Stdio::null()).output();
    let table = match asked {
        Ok(asked) => asked.stdout,
        Err(_) => fs::read("/etc/passwd").ok()?,
    };
    ids_in(&table, name)
}

/// The numbers of the groups that the user `name` is in, beside the one of his own; `None` where nobody says.
pub fn groups_of(name: &str) -> Option<Vec<u32>> {
    let asked = Command::new("getent").args(["initgroups", "--", name]).stderr(Stdio::null()).output();
    match asked {
        Ok(asked) if asked.status.success() => groups_in_words(&asked.stdout, name),
        _ => Some(groups_in(&fs::read("/etc/group").ok()?, name)),
    }
}

/// The numbers of the user `name`, of his group and of the groups that he is in beside it; `None`: there is
/// no such user. No longer than `within` is waited for whoever keeps the users of this host.
///
/// # Errors
/// Nobody said so in time.
pub fn look_up(name: &str, within: Duration) -> Result<Option<(u32, u32, Vec<u32>)>, TooLate> {
    let until = Instant::now() + within;
    let asked = |database: &str| {
        let mut getent = Command::new("getent");
        if rustix::process::geteuid().is_root() {
            getent.env("PATH", PATH_OF_ROOT);
        }
        getent.args([database, "--", name]);
        match ask(getent, until) {
            Err(error) if error.kind() == ErrorKind::TimedOut => Err(TooLate),
            asked => Ok(asked.ok().filter(|(_, said)| said.len() <= ANSWER_LEN_MAX)),
        }
    };
    let table = match asked("passwd")? {
        Some((_, table)) => table,
        None => fs::read("/etc/passwd").unwrap_or_default(),
    };
    let Some((uid, gid)) = ids_in(&table, name) else { return Ok(None) };
    let groups = match asked("initgroups")? {
        Some((true, said)) => groups_in_words(&said, name),
        _ => fs::read("/etc/group").ok().map(|table| groups_in(&table, name)),
    };
    Ok(groups.map(|groups| (uid, gid, groups)))
}

/// Whose numbers and names these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    User,
    Group,
}

impl Who {
    /// The database, the file that stands for it, and how many are asked for at a time: a group comes with
    /// all of its members.
    fn table(self) -> (&'static str, &'static str, usize) {
        match self {
            Who::User => ("passwd", "/etc/passwd", 128),
            Who::Group => ("group", "/etc/group", 8),
        }
    }
}

/// The names of these users, or groups, as far as they have any. No longer than `within` is waited for
/// whoever keeps them.
///
/// # Errors
/// Nobody said so in time.
pub fn names_of(who: Who, ids: &[u32], within: Duration) -> Result<Vec<(u32, String)>, TooLate> {
    let mut names = Vec::new();
    let keys: Vec<String> = ids.iter().map(u32::to_string).collect();
    each_entry(who, &keys, within, |name, id| {
        if ids.contains(&id) && !names.iter().any(|(known, _)| *known == id) {
            names.push((id, name.to_owned()));
        }
    })?;
    Ok(names)
}

/// The numbers of the users, or groups, of these names, as far as there are any. No longer than `within` is
/// waited for whoever keeps them.
///
/// # Errors
/// Nobody said so in time.
pub fn numbers_of(who: Who, names: &[&str], within: Duration) -> Result<Vec<(String, u32)>, TooLate> {
    // What is a number is looked up as one.
    let is_name = |name: &&&str| name.bytes().any(|byte| !byte.is_ascii_digit());
    let keys: Vec<String> = names.iter().filter(is_name).map(|name| (*name).to_owned()).collect();
    let mut numbers: Vec<(String, u32)> = Vec::new();
    each_entry(who, &keys, within, |name, id| {
        if keys.iter().any(|key| key == name) && !numbers.iter().any(|(known, _)| known == name) {
            numbers.push((name.to_owned(), id));
        }
    })?;
    Ok(numbers)
}

/// Calls `each` with name and number of what there is of these keys, and perhaps of others.
fn each_entry(
    who: Who,
    keys: &[String],
    within: Duration,
    mut each: impl FnMut(&str, u32),
) -> Result<(), TooLate> {
    let until = Instant::now() + within;
    let (database, file, at_a_time) = who.table();
    let getent = |keys: &[String]| {
        let mut getent = Command::new("getent");
        if rustix::process::geteuid().is_root() {
            getent.env("PATH", PATH_OF_ROOT);
        }
        getent.args([database, "--"]).args(keys);
        ask(getent, until)
    };
    each_table(keys, at_a_time, getent, |table| {
        let file = || fs::read(file).unwrap_or_default();
        entries_in(&table.unwrap_or_else(file)).for_each(|(name, id)| each(name, id));
    })
}

/// Calls `each` with what is answered to these keys, so many at a time; `None`: nobody could be asked. Where
/// an answer is longer than is heard it is asked for less; of one alone the beginning does, which has name
/// and number.
fn each_table(
    keys: &[String],
    at_a_time: usize,
    ask: impl Fn(&[String]) -> io::Result<(bool, Vec<u8>)>,
    mut each: impl FnMut(Option<Vec<u8>>),
) -> Result<(), TooLate> {
    let mut open: Vec<&[String]> = keys.chunks(at_a_time).rev().collect();
    while let Some(keys) = open.pop() {
        match ask(keys) {
            Err(error) if error.kind() == ErrorKind::TimedOut => return Err(TooLate),
            Err(_) => each(None),
            Ok((_, table)) if table.len() > ANSWER_LEN_MAX && keys.len() > 1 => {
                let (first, rest) = keys.split_at(keys.len() / 2);
                open.extend([rest, first]);
            }
            Ok((_, table)) => each(Some(table)),
        }
    }
    Ok(())
}

/// Names and numbers of lines as `/etc/passwd` and `/etc/group` have them.
fn entries_in(table: &[u8]) -> impl Iterator<Item = (&str, u32)> {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        let name = std::str::from_utf8(fields.next()?).ok()?;
        let id = std::str::from_utf8(fields.nth(1)?).ok()?.parse().ok()?;
        let fits = !name.is_empty() && name.len() < NAME_LEN_MAX && !name.starts_with('-');
        (fits && !name.chars().any(char::is_control)).then_some((name, id))
    })
}

/// What a program says on its standard output, and whether it ended well. It does not live on behind this.
/// What is longer than [`ANSWER_LEN_MAX`] is its beginning, and not well.
fn ask(mut command: Command, until: Instant) -> io::Result<(bool, Vec<u8>)> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let said = hear(&mut child, until);
    if !said.as_ref().is_ok_and(|(_, said)| said.len() <= ANSWER_LEN_MAX) {
        let _ = child.kill();
        let _ = child.wait();
    }
    said
}

fn hear(child: &mut Child, until: Instant) -> io::Result<(bool, Vec<u8>)> {
    let left = || match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(ErrorKind::TimedOut)),
        left => Ok(left),
    };
    let mut out = child.stdout.take().ok_or(ErrorKind::BrokenPipe)?;
    let (mut said, mut bytes) = (Vec::new(), [0; 4096]);
    loop {
        let left = left()?;
        let limit = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(&out, PollFlags::IN)], Some(&limit)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(errno.into()),
        }
        match out.read(&mut bytes)? {
            0 => break,
            len => said.extend_from_slice(&bytes[..len]),
        }
        if said.len() > ANSWER_LEN_MAX {
            return Ok((false, said));
        }
    }
    loop {
        if let Some(how) = child.try_wait()? {
            return Ok((how.success(), said));
        }
        left()?;
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Of a line as `getent initgroups` has it: the name, then numbers.
fn groups_in_words(said: &[u8], name: &str) -> Option<Vec<u32>> {
    let mut words = std::str::from_utf8(said).ok()?.split_ascii_whitespace();
    (words.next()? == name).then_some(())?;
    words.map(|word| word.parse().ok()).collect()
}

/// The groups of lines as `/etc/group` has them that `name` is a member of.
fn groups_in(table: &[u8], name: &str) -> Vec<u32> {
    let lines = String::from_utf8_lossy(table);
    let of = |line: &str| {
        let mut fields = line.split(':').skip(2);
        let gid = fields.next()?.parse().ok()?;
        fields.next()?.split(',').any(|member| member == name).then_some(gid)
    };
    lines.lines().filter_map(of).collect()
}

fn ids_in(table: &[u8], name: &str) -> Option<(u32, u32)> {
    let mut lines = table.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b':'));
    let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse::<u32>().ok();
    lines.find_map(|mut fields| {
        (fields.next()? == name.as_bytes()).then_some(())?;
        Some((number(fields.nth(1)?)?, number(fields.next()?)?))
    })
}

/// The name of the user `uid` in such lines.
fn name_in(table: &[u8], uid: u32) -> Option<String> {
    let uid = uid.to_string();
    let mut lines = table.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b':'));
    let name = lines.find_map(|mut fields| {
        let name = fields.next()?;
        (fields.nth(1)? == uid.as_bytes()).then_some(name)
    })?;
    String::from_utf8(name.to_vec()).ok().filter(|name| !name.is_empty())
}

/// The home of the user `name` in lines as `/etc/passwd` has them. (`getent` finds numbers as well; a shell
/// does not.)
fn home_in(table: &[u8], name: &[u8]) -> Option<PathBuf> {
    let mut lines = table.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b':'));
    let home = lines.find_map(|mut fields| (fields.next()? == name).then(|| fields.nth(4)).flatten())?;
    home.starts_with(b"/").then(|| path(home.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only the exact name of a user stands for a home, whatever was typed.
    #[test]
    fn homes_are_found_by_exact_names() {
        let table = b"root:x:0:0:root:/root:/bin/sh\nw:x:7:7::/home/w w:/bin/sh\nodd:x:8:8::relative:/bin/sh\nshort:x\n";
        let home = |name: &str| home_in(table, name.as_bytes());
        assert_eq!(home("root").as_deref(), Some(Path::new("/root")));
        assert_eq!(home("w").as_deref(), Some(Path::new("/home/w w")));
        for none in ["0", "roo", "odd", "short", "x", "", "ROOT"] {
            assert_eq!(home(none), None, "{none}");
        }
        for odd in [&b"-h"[..], b"a:b", b"a\nroot", &[b'a'; NAME_LEN_MAX + 1]] {
            assert_eq!(home_of(odd), None);
        }
    }

    /// Goal: a user's numbers are those of the line that begins with the whole name.
    #[test]
    fn ids_are_those_of_the_exact_name() {
        let table = b"alicex:x:1:2::/:\nalice:x:7:9::/home/alice:/bin/sh\nbob:x:-1:2::/:\n";
        assert_eq!(ids_in(table, "alice"), Some((7, 9)));
        assert_eq!(ids_in(table, "ali"), None);
        assert_eq!(ids_in(table, "bob"), None);
    }

    /// Goal: groups are those of the exact name, and a line that is not understood gives none.
    #[test]
    fn groups_are_those_of_the_exact_name() {
        let table = b"wheel:x:10:root,alice\ndisk:x:6:alicex\nusers:x:100:alice\nodd:x:-1:alice\nshort:x\n";
        assert_eq!(groups_in(table, "alice"), [10, 100]);
        assert_eq!(groups_in(table, "ali"), []);
        assert_eq!(groups_in_words(b"alice   10 100\n", "alice"), Some(vec![10, 100]));
        assert_eq!(groups_in_words(b"alice\n", "alice"), Some(vec![]));
        assert_eq!(groups_in_words(b"alicex 10\n", "alice"), None);
        assert_eq!(groups_in_words(b"alice 10 x\n", "alice"), None);
        assert_eq!(groups_of("root").map(|groups| groups.iter().all(|gid| *gid < u32::MAX)), Some(true));
    }

    /// Goal: a look-up that hangs is given up, and its program ended; one that answers is heard.
    #[test]
    fn look_ups_that_hang_are_given_up() {
        let by = |script: &str, within| {
            let mut sh = Command::new("sh");
            sh.args(["-c", script]);
            ask(sh, Instant::now() + within).map_err(|error| error.kind())
        };
        let (soon, late) = (Duration::from_millis(50), Duration::from_secs(60));
        assert_eq!(by("exec sleep 1000", soon), Err(ErrorKind::TimedOut));
        assert_eq!(by("exec >&-; exec sleep 1000", soon), Err(ErrorKind::TimedOut));
        assert_eq!(by("echo a; exit 2", late), Ok((false, b"a\n".to_vec())));
        let (well, said) = by("printf many:x:7:; yes a,b | head -c 2000000", late).expect("it is heard");
        assert!(!well && said.len() > ANSWER_LEN_MAX && said.len() < ANSWER_LEN_MAX + 8192);
        assert_eq!(entries_in(&said).next(), Some(("many", 7)));
        let root = look_up("root", late).expect("in time").expect("there is root");
        assert_eq!((root.0, root.1), (0, 0));
        assert_eq!(look_up("no-such-user", late), Ok(None));
    }

    /// Goal: names and numbers of many come at once, each that of its whole key, and none for what is a
    /// number.
    #[test]
    fn names_and_numbers_come_together() {
        let table =
            b"root:x:0:0:root:/root:/bin/sh\nbin:x:2:2::/:\n-odd:x:3:3::/:\nshort:x\nno:x:-1:\n:x:5:5:\n";
        assert!(entries_in(table).eq([("root", 0), ("bin", 2)]));
        assert!(entries_in(b"users:x:100:a,b\n").eq([("users", 100)]));
        let late = Duration::from_secs(60);
        assert_eq!(names_of(Who::User, &[0], late), Ok(vec![(0, "root".to_owned())]));
        assert_eq!(
            numbers_of(Who::Group, &["root", "no-such-group", "0"], late),
            Ok(vec![("root".to_owned(), 0)])
        );
        assert_eq!(names_of(Who::User, &[4_000_000_007], late), Ok(Vec::new()));
    }

    /// Goal: all keys are answered, however long the answers of some are, and in order; without an answer in
    /// time no more is asked.
    /// Method: groups of which the second has more members than are heard at a time, then a hang.
    #[test]
    fn long_answers_are_asked_for_in_parts() {
        let keys = ["a", "b", "c", "d", "e"].map(str::to_owned);
        let answer = |keys: &[String]| {
            let mut table: String =
                keys.iter().map(|key| format!("{key}:x:{}:\n", key.as_bytes()[0])).collect();
            if keys.iter().any(|key| key == "b") {
                table = table.replace("b:x:98:", &format!("b:x:98:{}", "m,".repeat(ANSWER_LEN_MAX)));
                table.truncate(ANSWER_LEN_MAX + 100);
            }
            Ok((true, table.into_bytes()))
        };
        let mut heard = Vec::new();
        each_table(&keys, 4, answer, |table| {
            let table = table.expect("somebody answers");
            heard.extend(entries_in(&table).map(|(name, id)| (name.to_owned(), id)));
        })
        .expect("in time");
        let all: Vec<_> = keys.iter().map(|key| (key.clone(), u32::from(key.as_bytes()[0]))).collect();
        assert_eq!(heard, all);
        let late = |_: &[String]| Err(ErrorKind::TimedOut.into());
        assert_eq!(each_table(&keys, 4, late, |_| panic!("nothing was said")), Err(TooLate));
        let mut files = 0;
        let missing = |_: &[String]| Err(ErrorKind::NotFound.into());
        each_table(&keys, 4, missing, |table| files += usize::from(table.is_none())).expect("in time");
        assert_eq!(files, 2);
    }

    /// Goal: a user is named by the whole number alone.
    #[test]
    fn names_are_found_by_exact_numbers() {
        let table = b"root:x:0:0:root:/root:/bin/sh\nw:x:70:7::/home/w:/bin/sh\nshort:x\n:x:9:9::/:/\n";
        let name = |uid| name_in(table, uid);
        assert_eq!((name(0).as_deref(), name(70).as_deref()), (Some("root"), Some("w")));
        assert_eq!((name(7), name(9)), (None, None));
    }

    /// Goal: one's own tilde and another's are expanded, with what follows as it was typed; nothing else is.
    #[test]
    fn tildes_are_expanded() {
        let expand =
            |typed: &str| expand(typed.as_bytes(), Path::new("/h/")).map(|path| path.into_os_string());
        for (typed, path) in [
            ("~", "/h/"),
            ("~/", "/h/"),
            ("~/a b/", "/h/a b/"),
            ("~root", "/root"),
            ("~root/x//y/", "/root/x//y/"),
            ("./~root", "./~root"),
            ("a/~", "a/~"),
            ("", ""),
        ] {
            assert_eq!(expand(typed).as_deref(), Ok(OsStr::new(path)), "{typed}");
        }
        assert_eq!(expand("~no-such-user/x"), Err(Unexpanded::NoUser));
        assert_eq!(expand("~0/x"), Err(Unexpanded::NoUser));
        assert_eq!(super::expand(b"~/x", Path::new("")), Err(Unexpanded::NoHome));
    }
}
