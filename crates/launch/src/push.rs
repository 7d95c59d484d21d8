//! The stage before haul: finding a `haul` at the far end, or bringing one there.
//!
//! [`STAGE0`] is the whole remote command, a constant for any POSIX shell, and readable for csh and fish as
//! the login shell (one line, no `'`, `!` or backslash inside the quotes). It says lines that begin with
//! `HAUL-STAGE0 1`, and takes some lines:
//!
//! ```text
//! near   PATH                     of --remote-haul, or empty
//! near   MIN MAX                  the protocol versions spoken here; and behind it the first words for haul
//! far    uname SYSTEM MACHINE RELEASE
//! far    found                    runs `haul agent`, which reads them
//! far    bad-path                 the PATH given does not answer as haul does; the end
//! far    unfit [MIN-MAX]          there is one in the PATH that speaks none of these versions, or is no haul; and then
//! far    missing                  and skips lines up to
//! near   PUSH SHA256 SIZE         behind a newline (or the end of the pipe)
//! far    have [size-only]         it is in a cache, was checked, and runs
//! far    send DIR                 and reads SIZE bytes; then
//! far    stored [size-only] | damaged
//! far    bad-cache DIR: WHY       not ours alone, or not to be had; the next place is tried
//! far    bad-store DIR: WHY       cannot be written; the next place is tried, and there may be another `send`
//! far    cannot-run CODE FILE: WORDS   the program there does not start; where a place may forbid it, the next one is tried
//! far    no-place                 none is left; the end
//! far    ended CODE               on stderr, when haul has ended however it did
//! ```
//!
//! So where haul is found the far end has nothing to wait for. Behind `PUSH` the near end sends nothing more
//! before it hears `stored`, so a reader there that reads ahead takes nothing that is not its own. The
//! program lies at `PLACE/haul/SHA256/haul`, in directories that only the user can write, and is checked
//! against its name each time before it runs; where the far end has no `sha256sum` only its size can be
//! checked, which is said. Places are the cache directory, the runtime directory, and one of the user's below
//! that for temporary files: each is judged alone, and the first that will do is taken. haul runs under the
//! umask that the user's login has; the shell waits for it, for only so is the end of a program told apart
//! from the end of a connection.
//! Left out: removing programs of older versions from the cache.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;

use aws_lc_rs::digest;
use haul_core::wire::{VERSION, VERSION_MIN};

use super::shell::Notes;
use super::ssh::{Mark, Ssh};
use super::{BootstrapError, BootstrapKind, PROTOCOL_WORD, RemoteSpec};
use haul_base::escape;
use haul_base::kernel;

/// The remote command. Never changes with host, user or paths.
pub(super) const STAGE0: &str = concat!(
    "exec sh -c '",
    "set -f; u=$(umask); umask 077; ",
    "say() { printf %s \"HAUL-STAGE0 1 $*\"; echo; }; ",
    "run() { umask \"$u\"; \"$@\"; r=$?; say ended $r >&2; exit $r; }; ",
    "say uname $(uname -s) $(uname -m) $(uname -r); ",
    "IFS= read -r p || exit 90; read -r lo hi || exit 90; ",
    "case $p in \"~/\"*) p=$HOME/${p#??};; esac; ",
    "v=$(\"${p:-haul}\" agent --protocol 2>/dev/null </dev/null); ",
    // Do the versions that it said and those of the near end meet?
    "fits() { set -- ${v##*haul-protocol }; test \"${1%%-*}\" -le \"$hi\" && test \"${1##*-}\" -ge \"$lo\"; } 2>/dev/null; ",
    "case $v in *\"haul-protocol \"*) if test -n \"$p\" || fits; then say found; run \"${p:-haul}\" agent; fi; ",
    "set -- ${v##*haul-protocol }; say unfit \"$1\";; ",
    "*) if test -z \"$p\" && command -v haul >/dev/null 2>&1; then say unfit; fi;; esac; ",
    "case $p in ?*) say bad-path; exit 91;; esac; ",
    "say missing; ",
    // What haul was to read comes first, as a line of its own.
    "while :; do read -r verb hash size || exit 0; test \"$verb\" = PUSH && break; done; ",
    "n=$(id -u); g=; ",
    // $1 must be a directory (or a symlink to one, if it ends in a slash) that is ours alone to write.
    "ours() { set -- $(ls -ldn \"$1\" 2>/dev/null); case $1 in d????w*|d???????w*) return 1;; d*) ;; *) return 1;; esac; ",
    "test \"$3\" = \"$n\"; }; ",
    // Nobody else may take away from $1 what is in it: it is sticky, or only its owner writes there, root or
    // we.
    "calm() { set -- $(ls -ldn \"$1/\" 2>/dev/null); case $1 in d????????[tT]*|d????-??-*) ;; *) return 1;; esac; ",
    "test \"$3\" = 0 || test \"$3\" = \"$n\"; }; ",
    // Place $1: $b, behind which may stand $l, and why it is none. That of - is not there, which nobody need
    // know.
    "place() { l=/; why=; case $1 in ",
    "1) b=${XDG_CACHE_HOME:-$HOME/.cache}; if test -z \"$XDG_CACHE_HOME\"; then test -d \"$HOME\" || why=\"there is no home directory\"; fi;; ",
    "2) b=$XDG_RUNTIME_DIR; test -n \"$b\" || why=-;; ",
    "3) b=${TMPDIR:-/tmp}; calm \"$b\" || why=\"others could replace what lies there\"; b=$b/haul-$n; l=;; esac; }; ",
    "safe() { for x in \"$b$l\" \"$b/haul\" \"$d\"; do ours \"$x\" || return 1; done; }; ",
    // $1 must have the size and, if that can be known, the hash of the program.
    "good() { weak=; s=; test -f \"$1\" || return 1; s=$(($(wc -c <\"$1\"))); test \"$s\" -eq \"$size\" || return 1; ",
    "if command -v sha256sum >/dev/null 2>&1; ",
    "then x=$(sha256sum <\"$1\"); test \"${x%% *}\" = \"$hash\"; else weak=size-only; fi; }; ",
    // First what is there and runs, then wherever one can be put. $g is a copy that is whole and does not run
    // where it lies.
    "for k in have put; do for i in 1 2 3; do place $i; d=$b/haul/$hash; f=$d/haul; m=have; ",
    "case $k$why in have) test -f \"$f\" && safe && good \"$f\" || continue;; ",
    "have*|put-) continue;; ",
    "put) e=$(mkdir -p \"$d\" 2>&1); safe || { say bad-cache \"$x:\" $e; continue; };; ",
    "*) say bad-cache \"$b:\" $why; continue;; esac; ",
    "if test $k = put; then good \"$f\" || { m=stored; ",
    "t=$(mktemp \"$d/new.XXXXXX\" 2>&1) || { say bad-store \"$d:\" $t; continue; }; ",
    "if test -n \"$g\"; then e=$(cat 2>&1 \"$g\" >\"$t\"); ",
    // All is read whatever becomes of it, so that both ends stay in step.
    "else say send \"$d\"; e=$(head -c \"$size\" | { cat 2>&1 >\"$t\" || cat >/dev/null; }); fi; ",
    "good \"$t\" || { rm -f \"$t\"; if test \"$s\" = \"$size\"; then say damaged; exit 94; fi; ",
    "say bad-store \"$d:\" $e; test -n \"$e\" && continue; say no-place; exit 93; }; ",
    "chmod 700 \"$t\" && mv -f \"$t\" \"$f\" || { rm -f \"$t\"; say bad-store \"$d:\"; continue; }; ",
    "}; fi; ",
    "v=$(\"$f\" agent --protocol 2>&1 </dev/null); r=$?; ",
    "case $v in *\"haul-protocol \"*) say $m $weak; test -n \"$g\" && rm -f \"$g\"; run \"$f\" agent;; esac; ",
    "test $k = have && continue; g=$f; ",
    "say cannot-run $r \"$f:\" $(printf %.600s \"$v\"); test $r = 126 || { say no-place; exit 95; }; ",
    "done; done; say no-place; exit 92",
    "'"
);

/// The remote command, as it is run: [`STAGE0`].
pub(super) fn stage0() -> Cow<'static, str> {
    let without = |part: &str, instead: &str| {
        assert!(STAGE0.contains(part), "it is there to be removed");
        Cow::Owned(STAGE0.replace(part, instead))
    };
    if haul_mutant::removed("foreign-cache") {
        return without("ours \"$x\" || return 1", ":");
    }
    if haul_mutant::removed("open-tmp") {
        return without("calm \"$b\" || ", "true || ");
    }
    if haul_mutant::removed("pushed-hash") {
        return without("test \"${x%% *}\" = \"$hash\"", ":");
    }
    if haul_mutant::removed("login-umask") {
        return without("umask \"$u\"; ", "");
    }
    STAGE0.into()
}

const _: () = assert!(PROTOCOL_WORD.len() == "haul-protocol".len(), "STAGE0 spells it out");

/// Words for haul that a shell may have to skip, which reads them byte by byte, bytes at most.
const WORDS_LEN_MAX: usize = 64 * 1024;
/// Largest program that is pushed, bytes.
const PROGRAM_SIZE_MAX: u64 = 1 << 30;

/// The program to push.
struct Program {
    file: File,
    size: u64,
    /// SHA-256, lower-case hex.
    hash: String,
    /// ELF machine.
    machine: u16,
}

impl Program {
    fn open(path: &Path) -> Result<Program, BootstrapError> {
        let local = |e| BootstrapError::local(format!("cannot read {} to push it", path.display()), e);
        let mut file = File::open(path).map_err(local)?;
        let mut context = digest::Context::new(&digest::SHA256);
        let mut head = Vec::new();
        let mut chunk = vec![0; 256 * 1024];
        let mut size = 0;
        loop {
            let n = match file.read(&mut chunk) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(local(e)),
            };
            if head.len() < 20 {
                head.extend_from_slice(&chunk[..n.min(20)]);
            }
            context.update(&chunk[..n]);
            size += n as u64;
            if size > PROGRAM_SIZE_MAX {
                return Err(local(io::ErrorKind::FileTooLarge.into()));
            }
        }
        file.rewind().map_err(local)?;
        let machine = match head.get(..20) {
            Some(head) if head.starts_with(b"\x7fELF") => u16::from_le_bytes([head[18], head[19]]),
            _ => {
                return Err(local(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "not a program of this system",
                )));
            }
        };
        let hash = data_encoding::HEXLOWER.encode(context.finish().as_ref());
        Ok(Program { file, size, hash, machine })
    }
}

/// Does an ELF `machine` run where `uname -m` says `name`? Unknown machines are let through: the far end
/// tries the program before it uses it.
fn runs_on(machine: u16, name: &str) -> bool {
    match machine {
        3 => matches!(name, "i386" | "i486" | "i586" | "i686" | "x86_64"),
        21 => matches!(name, "ppc64" | "ppc64le"),
        22 => name == "s390x",
        40 => name.starts_with("armv"),
        62 => name == "x86_64",
        183 => matches!(name, "aarch64" | "arm64"),
        243 => name.starts_with("riscv"),
        258 => name.starts_with("loongarch"),
        _ => true,
    }
}

/// Brings the far end to the point where haul has said its magic. `words` are for it, if they are not more
/// than [`WORDS_LEN_MAX`] bytes: true if it has them, false if it still has to be told.
///
/// # Errors
/// No haul there and none may be pushed, or the pushed one cannot run: each with what to do.
pub(super) fn start_haul(
    ssh: &mut Ssh,
    spec: &RemoteSpec,
    words: &[u8],
    notes: Notes<'_>,
) -> Result<bool, BootstrapError> {
    let words = Some(words).filter(|words| words.len() <= WORDS_LEN_MAX);
    let mut first = match &spec.remote_haul {
        Some(path) => path.as_os_str().as_encoded_bytes().to_vec(),
        None => Vec::new(),
    };
    if first.contains(&b'\n') || first.contains(&0) {
        return Err(BootstrapError::new(
            BootstrapKind::Usage,
            "a newline or NUL in the path of `remote_haul`",
        ));
    }
    first.extend_from_slice(format!("\n{VERSION_MIN} {VERSION}\n").as_bytes());
    first.extend_from_slice(words.unwrap_or_default());
    // If ssh is gone already, the marks tell why.
    ssh.send(&first, notes)?;
    let mut uname = (String::new(), String::new());
    let mut program: Option<Program> = None;
    // Why the haul in the PATH is passed over.
    let mut unfit: Option<String> = None;
    // Places where none could be kept, and why.
    let mut passed: Vec<String> = Vec::new();
    let mut cannot_run: Option<BootstrapError> = None;
    loop {
        let line = match ssh.next_mark(notes)? {
            // A program that was pushed comes behind a shell that has skipped them.
            Mark::Magic => return Ok(words.is_some() && program.is_none()),
            Mark::Stage0(line) => line,
        };
        ssh.set_silence(super::ssh::ANSWER_WAIT);
        let text = String::from_utf8_lossy(&line);
        let (word, rest) = text.split_once(' ').unwrap_or((&text, ""));
        let rest = rest.trim();
        match (word, &mut program) {
            ("uname", _) => {
                let (system, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                let (machine, release) = rest.split_once(' ').unwrap_or((rest, ""));
                let shown = format!("{} runs", ssh.host());
                if let Err(why) = kernel::fits(system, release, &shown) {
                    return Err(BootstrapError::new(BootstrapKind::Kernel, escape::line(why.as_bytes())));
                }
                uname = (system.to_string(), machine.to_string());
            }
            ("found", _) => {}
            ("bad-path", _) => {
                let path = escape::line(
                    spec.remote_haul.as_deref().map_or(&b""[..], |p| p.as_os_str().as_encoded_bytes()),
                );
                return Err(BootstrapError::new(
                    BootstrapKind::NoProgram,
                    format!("'{path}' on {} does not answer as haul does", ssh.host()),
                )
                .remedy(format!("check it with: ssh {} \"'{path}' agent --protocol\"", ssh.host())));
            }
            ("unfit", None) => unfit = Some(unfit_why(rest)),
            ("missing", None) => {
                let opened = permitted(ssh, spec, &uname, unfit.as_deref())?;
                if let Some(why) = &unfit {
                    notes(format!(
                        "the haul on {} {why}: it is passed over, and one is brought there",
                        ssh.host()
                    ));
                }
                let line = format!("\nPUSH {} {}\n", opened.hash, opened.size);
                program = Some(opened);
                ssh.send(line.as_bytes(), notes)?;
            }
            ("have" | "stored", Some(_)) => {
                if !passed.is_empty() {
                    let places = std::mem::take(&mut passed).join("; ");
                    notes(format!(
                        "not every place on {} will do for haul: {places}; another one did",
                        ssh.host()
                    ));
                }
                if rest == "size-only" {
                    notes(format!(
                        "{} has no sha256sum: only the size of the pushed haul could be checked",
                        ssh.host()
                    ));
                }
            }
            ("send", Some(program)) => {
                notes(format!(
                    "pushing haul ({:.1} MB) to {}:{}",
                    program.size as f64 / 1e6,
                    ssh.host(),
                    escape::line(rest.as_bytes())
                ));
                send_program(ssh, spec, program, notes)?;
            }
            ("bad-cache", Some(_)) => {
                passed.push(reason(rest, "it cannot be made, is not yours, or others may write to it"));
            }
            ("bad-store", Some(_)) => passed.push(reason(rest, "it cannot be written")),
            ("cannot-run", Some(program)) => {
                let failed = push_failed(ssh, word, rest, &uname.1, &program.hash);
                if rest.starts_with("126 ") && !rest.contains("format") {
                    let file = rest.trim_start_matches("126 ");
                    passed.push(reason(file, "programs may not run there (a noexec mount, or a policy)"));
                } else {
                    cannot_run = Some(failed);
                }
            }
            ("no-place", Some(_)) => {
                return Err(cannot_run.unwrap_or_else(|| {
                    let host = ssh.host();
                    let what = format!("haul can be kept nowhere on {host}: {}", passed.join("; "));
                    BootstrapError::new(BootstrapKind::Push, what).remedy(format!(
                        "there: chmod go-w what others may write to, see whether the disk or your quota is full, or set \
                         XDG_CACHE_HOME to a directory of yours on a file system mounted without noexec; {ELSEWHERE}"
                    ))
                }));
            }
            (_, Some(program)) => return Err(push_failed(ssh, word, rest, &uname.1, &program.hash)),
            _ => return Err(unintelligible(ssh, &line)),
        }
    }
}

/// What is wrong with a haul that says it speaks these versions; nothing: it does not answer as haul does.
fn unfit_why(versions: &str) -> String {
    match versions {
        "" => "does not answer as haul does".into(),
        versions => {
            let said = escape::line(versions.as_bytes());
            format!("speaks protocol {said}, this one {VERSION_MIN}-{VERSION}")
        }
    }
}

/// A place and why it is passed over: in the words of the far end, if it has some, behind ours.
fn reason(said: &str, ours: &str) -> String {
    let said = escape::line(said.as_bytes());
    match said.split_once(": ") {
        Some((place, theirs)) => format!("{place}: {ours} ({theirs})"),
        None => format!("{} {ours}", said.trim_end()),
    }
}

/// What does instead of a pushed program.
const ELSEWHERE: &str = "or install haul there and name it with `remote_haul`";

/// The program to push, if there is one, it may be pushed, and the far end's machine can run it. `unfit`:
/// what is wrong with the one that is there.
fn permitted(
    ssh: &Ssh,
    spec: &RemoteSpec,
    uname: &(String, String),
    unfit: Option<&str>,
) -> Result<Program, BootstrapError> {
    let host = ssh.host();
    let (kind, there) = match unfit {
        None => (BootstrapKind::NoProgram, format!("{host} has no haul in its PATH")),
        Some(why) => (BootstrapKind::Version, format!("the haul on {host} {why}")),
    };
    let install = "install haul there (in the PATH of non-interactive shells) or name it with `remote_haul`";
    let Some(path) = &spec.push else {
        let remedy = format!("{install}, or let one be brought (leave out `no_push`)");
        return Err(BootstrapError::new(kind, format!("{there}, and none is brought")).remedy(remedy));
    };
    let program = Program::open(path)?;
    let (system, machine) = uname;
    if system != "Linux" || !runs_on(program.machine, machine) {
        return Err(BootstrapError::new(
            kind,
            format!(
                "{there}; the system is {} on {}, so this program ({}) cannot run there",
                escape::line(system.as_bytes()),
                escape::line(machine.as_bytes()),
                std::env::consts::ARCH
            ),
        )
        .remedy(format!("{install}; it must be built for that machine")));
    }
    Ok(program)
}

/// Sends the program's bytes. That the far end stops reading is no error yet: it says why.
fn send_program(
    ssh: &mut Ssh,
    spec: &RemoteSpec,
    program: &mut Program,
    notes: Notes<'_>,
) -> Result<(), BootstrapError> {
    let path = spec.push.as_deref().unwrap_or(Path::new(""));
    // There may be a second place.
    program
        .file
        .rewind()
        .map_err(|e| BootstrapError::local(format!("cannot read {} to push it", path.display()), e))?;
    let mut chunk = vec![0; 64 * 1024];
    let mut left = program.size;
    while left > 0 {
        let want = chunk.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        program
            .file
            .read_exact(&mut chunk[..want])
            .map_err(|e| BootstrapError::local(format!("cannot read {} to push it", path.display()), e))?;
        if !ssh.send(&chunk[..want], notes)? {
            return Ok(());
        }
        left -= want as u64;
    }
    Ok(())
}

fn push_failed(ssh: &Ssh, word: &str, rest: &str, machine: &str, hash: &str) -> BootstrapError {
    let host = ssh.host();
    let rest = escape::line(rest.as_bytes());
    let (what, remedy) = match word {
        "damaged" => (
            format!("the pushed haul arrived damaged at {host} (its SHA-256 is not {hash})"),
            "try again: the program may have been replaced here while it was sent".to_string(),
        ),
        "cannot-run" => {
            let (code, words) = rest.split_once(' ').unwrap_or((&rest, "no words"));
            let why = match code {
                "126" => "it is built for another CPU",
                "127" => "the system there is too old or too different for it",
                _ => "it does not start there",
            };
            (
                format!(
                    "the haul pushed to {host} ({machine}) cannot run: {why} (exit code {code}: {words})"
                ),
                "build haul for that system (a static build runs on any Linux from 4.18) and name it with `remote_haul`"
                    .to_string(),
            )
        }
        _ => return unintelligible(ssh, word.as_bytes()),
    };
    BootstrapError::new(BootstrapKind::Push, what).remedy(remedy)
}

fn unintelligible(ssh: &Ssh, line: &[u8]) -> BootstrapError {
    let line = escape::line(&line[..line.len().min(100)]);
    BootstrapError::new(BootstrapKind::Peer, format!("{} answered '{line}' before haul started", ssh.host()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the remote command is one quoted word for any login shell (POSIX, csh, fish).
    #[test]
    fn stage0_is_safe_in_any_login_shell() {
        let inner = STAGE0.strip_prefix("exec sh -c '").and_then(|s| s.strip_suffix('\'')).unwrap();
        for forbidden in ['\'', '!', '\\', '\n', '\r'] {
            assert!(!inner.contains(forbidden), "{forbidden:?}");
        }
        assert!(STAGE0.is_ascii());
        assert!(inner.contains(&format!("\"{PROTOCOL_WORD} \"")));
        assert!(inner.contains(std::str::from_utf8(super::super::ssh::STAGE0).unwrap()));
    }

    /// Goal: this very test program runs on this machine, and on no other architecture.
    #[test]
    fn machines_are_told_apart() {
        let program = Program::open(&std::env::current_exe().unwrap()).unwrap();
        assert!(runs_on(program.machine, std::env::consts::ARCH));
        assert!(!runs_on(program.machine, "vax"));
        assert!(Program::open(Path::new("/etc/passwd")).is_err());
        assert!(Program::open(Path::new("/nonexistent")).is_err());
    }
}
