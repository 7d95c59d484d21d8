//! `haul man [DIR]`: manual pages made from the same texts as `--help`.
//!
//! Left out: `haul help`, which is no command with a page of its own.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;

use super::{FAILED, complain};
use crate::args::plain;
use haul::errno;

/// What the help of a command that ends in codes begins its last words with.
const CODES: &str = "Exit codes: ";
/// For commands that say nothing of their own.
const CODES_OF_ALL: &str = "0 done; 1 failed; 2 wrong usage.";

const ENVIRONMENT: &[(&str, &str)] = &[
    (
        "HAUL_CTL_DIR",
        "Where copies have their control sockets, an absolute path; else $XDG_RUNTIME_DIR/haul, or /tmp/haul-ctl-UID.",
    ),
    (
        "XDG_STATE_HOME",
        "What probes found, and accesses to volumes, are kept in its directory haul; else in ~/.local/state/haul.",
    ),
    (
        "XDG_CACHE_HOME",
        "At a far host: in its directory haul lies the program that was sent there; else in ~/.cache/haul.",
    ),
    (
        "SSL_CERT_FILE, SSL_CERT_DIR",
        "Authorities that say who a server of ftps:// is, in place of the system's.",
    ),
    (
        "X509_USER_PROXY, X509_USER_CERT, X509_USER_KEY, X509_CERT_DIR",
        "As whom to come to servers of gsiftp://, and the directory of authorities that say who these are.",
    ),
    ("NETRC", "Where logins of FTP servers are kept; else in ~/.netrc."),
    ("NO_COLOR", "If it is set and not empty, no colours are used."),
    ("TERM", "Where it is dumb, or not set, nothing is redrawn and no colours are used."),
    ("SSH_ASKPASS, SSH_ASKPASS_REQUIRE, DISPLAY", "As for ssh(1), which asks for passwords."),
];

const FILES: &[(&str, &str)] = &[
    ("DST/.haul~*", "Journal and owner file of an unfinished copy; with --state DIR they lie there."),
    (
        "DST/**/.NAME.haul~*",
        "A file that is not complete yet. haul-clean(1) shows and removes those of copies that are dead.",
    ),
    (
        "~/.netrc",
        "Logins of FTP servers, as other clients of FTP read them; nobody else may be able to read it.",
    ),
    ("~/.local/state/haul", "What haul-probe(1) found of storage and networks."),
    ("~/.local/state/haul/volumes/NAME", "Where a volume is, and its key: haul-volume(1)."),
    ("~/.cache/haul", "At a far host: the program, where there was none."),
];

#[derive(Args, Debug)]
pub struct Pages {
    /// Directory to write haul.1, haul-cp.1, ... into; made if it is not there [default: print haul.1]
    #[arg(value_parser = plain::path())]
    dir: Option<PathBuf>,
}

impl super::Run for Pages {
    fn run(&self) -> i32 {
        run(self.dir.as_deref())
    }
}

fn run(dir: Option<&Path>) -> i32 {
    let command = whole();
    match dir {
        None => match page(&command).and_then(|page| io::stdout().write_all(&page)) {
            Ok(()) => 0,
            Err(error) => complain(&format!("cannot write to stdout: {}", errno::text(error)), FAILED),
        },
        Some(dir) => match std::fs::create_dir_all(dir).and_then(|()| write_pages(&command, dir)) {
            Ok(()) => 0,
            Err(error) => complain(
                &format!("cannot write pages into {}: {}", dir.display(), errno::text(error)),
                FAILED,
            ),
        },
    }
}

/// The command with all that follows from its definition.
fn whole() -> Command {
    let mut command = super::Args::command().disable_help_subcommand(true);
    command.build();
    command
}

fn name_of(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set())
}

fn write_pages(command: &Command, dir: &Path) -> io::Result<()> {
    std::fs::write(dir.join(format!("{}.1", name_of(command))), page(command)?)?;
    shown(command).try_for_each(|command| write_pages(command, dir))
}

fn page(command: &Command) -> io::Result<Vec<u8>> {
    let name = name_of(command);
    let man = Man::new(command.clone())
        .title(name.to_uppercase())
        .source(concat!("haul ", env!("CARGO_PKG_VERSION")))
        .manual("User Commands");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|arg| !arg.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if shown(command).next().is_some() {
        man.render_subcommands_section(&mut page)?;
    }
    let last = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let codes = last.strip_prefix(CODES);
    if codes.is_none() && !last.is_empty() {
        section(&mut page, "NOTES", &last)?;
    }
    section(&mut page, "EXIT STATUS", codes.unwrap_or(CODES_OF_ALL))?;
    table(&mut page, "ENVIRONMENT", ENVIRONMENT)?;
    table(&mut page, "FILES", FILES)?;
    section(&mut page, "SEE ALSO", &others(name).join(", "))?;
    Ok(page)
}

/// The pages that lead on: of the commands, and those of ssh and of the checker of manifests.
fn others(name: &str) -> Vec<String> {
    let whole = whole();
    let commands = [&whole].into_iter().chain(shown(&whole)).map(name_of).filter(|other| *other != name);
    commands.map(|name| format!("{name}(1)")).chain(["ssh(1)".into(), "b3sum(1)".into()]).collect()
}

fn section(page: &mut Vec<u8>, head: &str, text: &str) -> io::Result<()> {
    writeln!(page, ".SH \"{head}\"\n{}", plain(text))
}

fn table(page: &mut Vec<u8>, head: &str, rows: &[(&str, &str)]) -> io::Result<()> {
    writeln!(page, ".SH {head}")?;
    rows.iter().try_for_each(|(name, text)| writeln!(page, ".TP\n\\fB{}\\fR\n{}", plain(name), plain(text)))
}

/// Text that roff takes for nothing else.
fn plain(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('~', "\\(ti").replace('`', "\\(ga");
    let guarded =
        |line: &str| if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line.to_owned() };
    text.lines().map(guarded).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each command that people may use has a page, the hidden one has none; the directory need not be
    /// there.
    #[test]
    fn pages_are_written() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("share/man/man1");
        // One that is not there yet is made, and one that is there is used.
        assert_eq!((run(Some(&dir)), run(Some(&dir))), (0, 0));
        for page in ["haul.1", "haul-cp.1", "haul-clean.1"] {
            assert!(dir.join(page).exists(), "{page}");
        }
        assert!(!dir.join("haul-agent.1").exists());
        let page = std::fs::read_to_string(dir.join("haul-cp.1")).unwrap();
        assert!(page.contains("manifest"));
    }

    /// Goal: a page has the sections that readers look for, names no page that is not there, and says of
    /// which program it is.
    /// Method: all pages; each `haul...(1)` in one of them sought among the files.
    #[test]
    fn pages_are_whole() {
        let temp = tempfile::tempdir().unwrap();
        assert_eq!(run(Some(temp.path())), 0);
        let mut seen = 0;
        for file in std::fs::read_dir(temp.path()).unwrap() {
            let file = file.unwrap();
            let name = file.file_name().into_string().unwrap();
            let text = std::fs::read_to_string(file.path()).unwrap();
            let upper = name.trim_end_matches(".1").to_uppercase();
            let head = text.lines().find(|line| line.starts_with(".TH")).unwrap();
            assert!(head.starts_with(&format!(".TH {upper} 1 ")), "{name}: {head}");
            assert!(head.contains(concat!("haul ", env!("CARGO_PKG_VERSION"))), "{head}");
            for section in ["EXIT STATUS", "ENVIRONMENT", "FILES", "SEE ALSO"] {
                assert!(
                    text.contains(&format!("\n.SH {section}\n"))
                        || text.contains(&format!(".SH \"{section}\"\n")),
                    "{name}"
                );
            }
            assert!(!text.contains("EXTRA") && !text.contains("Exit codes:"), "{name}");
            let text = text.replace("\\-", "-");
            for at in text.match_indices("(1)").map(|(at, _)| at) {
                let page =
                    text[..at].rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '-').next().unwrap();
                let there = temp.path().join(format!("{page}.1")).exists();
                assert!(there || matches!(page, "ssh" | "b3sum"), "{name} names {page}");
                seen += 1;
            }
        }
        assert!(seen > 20);
        let set = std::fs::read_to_string(temp.path().join("haul-ctl-set-rate.1")).unwrap();
        assert!(set.replace("\\-", "-").contains("haul ctl JOB set rate RATE"), "{set}");
        assert_eq!(plain(".a\\b-c\n'd"), "\\&.a\\eb\\-c\n\\&'d");
    }
}
