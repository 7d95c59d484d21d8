//! What people type who come from rsync: bundles with its `-h`, and a hint for each word that haul does not have.
//!
//! In: argv, or what clap did not understand of it. Out: argv as haul has it; one sentence for a word.
//! Invariant: no word is taken and then ignored but `-h` in a bundle, which asks rsync for sizes as haul prints them anyway.
//! Left out: words that mean the same in both.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};

/// What haul says to each of rsync's words that it does not have: the words, and what stands in their place.
const HINTS: &[(&[&str], &str)] = &[
    (&["-z", "--compress", "--zc", "--compress-choice"], "haul does not compress yet; leave it out"),
    (
        &["-P", "--partial", "--partial-dir", "--append", "--append-verify"],
        "haul resumes by itself: the same command again moves only what is missing; leave it out",
    ),
    (
        &["--progress", "--info"],
        "haul shows its progress by itself on a terminal, and -v names each entry; leave it out",
    ),
    (&["-S", "--sparse"], "haul keeps holes of files over 256 KiB by itself; leave it out"),
    (&["-W", "--whole-file", "--no-whole-file"], "haul always sends changed files whole; leave it out"),
    (
        &["-c", "--checksum"],
        "haul has none yet: files of the same size and time count as unchanged; --force copies those too, and every file \
         that is copied is checked by its digest",
    ),
    (
        &["-b", "--backup", "--backup-dir", "--suffix"],
        "haul keeps no backups yet; --no-clobber replaces no file",
    ),
    (
        &["-R", "--relative"],
        "haul has none yet: name the directory above, or give each source its own destination",
    ),
    (
        &["-K", "--keep-dirlinks"],
        "haul never follows links below the destination; only the destination itself may be one",
    ),
    (
        &["-O", "--omit-dir-times", "-J", "--omit-link-times", "--no-times", "--no-perms"],
        "haul has none yet: times and modes are always kept",
    ),
    (
        &["-t", "--times", "-p", "--perms", "-l", "--links"],
        "haul always keeps times, modes and symbolic links; leave it out",
    ),
    (
        &["-o", "--owner", "-g", "--group", "--numeric-ids"],
        "-a keeps owner and group, by number, where that is allowed",
    ),
    (
        &["-D", "--devices", "--specials"],
        "haul skips devices, FIFOs and sockets, and counts them; leave it out",
    ),
    (&["-H", "--hard-links"], "haul has none yet: hard links become separate files, and are counted"),
    (
        &["-A", "--acls", "-X", "--xattrs", "-U", "--atimes", "-N", "--crtimes"],
        "haul has none yet: ACLs, extended attributes and these times are not kept",
    ),
    (
        &["-L", "--copy-links", "-k", "--copy-dirlinks", "--copy-unsafe-links", "--safe-links"],
        "haul has none yet: links are copied as links; a source with a slash behind it is followed",
    ),
    (&["-x", "--one-file-system"], "haul has none yet: what is mounted below a source is copied too"),
    (
        &["--inplace"],
        "haul has none, on purpose: a file appears at the destination whole or not at all; leave it out",
    ),
    (
        &["--size-only", "--ignore-times", "-I", "--modify-window"],
        "haul has none yet: files of the same size and time count as unchanged; --force copies those too",
    ),
    (&["--ignore-existing"], "write --no-clobber: no file at the destination is replaced"),
    (
        &["--existing", "--ignore-non-existing"],
        "haul has none yet: what is missing at the destination is made",
    ),
    (
        &["--link-dest", "--copy-dest", "--compare-dest"],
        "haul has none yet: each destination gets files of its own",
    ),
    (
        &["--remove-source-files", "--remove-sent-files"],
        "haul has none: it never writes or removes anything at the source",
    ),
    (
        &[
            "--delete",
            "--del",
            "--delete-before",
            "--delete-during",
            "--delete-after",
            "--delete-delay",
            "--delete-excluded",
        ],
        "haul has none yet: it removes nothing at the destination",
    ),
    (
        &[
            "--exclude",
            "--exclude-from",
            "--include",
            "--include-from",
            "--filter",
            "-f",
            "-F",
            "-C",
            "--files-from",
        ],
        "haul has none yet: name the sources one by one, or their directories with -r",
    ),
    (
        &["--stats", "--human-readable"],
        "haul sums up at the end by itself, in units for people; -i names what changed, --json has all figures",
    ),
    (
        &["--timeout", "--contimeout"],
        "write --patience TIME: how long a network that is down is waited for (5m by itself)",
    ),
    (&["--fsync"], "haul syncs by itself (--durability=disk); leave it out"),
    (&["--rsync-path"], "write --remote-haul PATH, where the far end's haul is not found by itself"),
    (
        &["--no-r", "--dirs", "-d", "--no-recursive", "--max-depth"],
        "haul copies a tree with -r, and only files without",
    ),
    (&["-s", "--protect-args", "--secluded-args"], "no shell sees haul's far paths; leave it out"),
    (&["-B", "--block-size"], "write --object-size SIZE: the unit of sending and of resuming"),
    (&["--checksum-choice", "--cc"], "write --digest=blake3 or --digest=xxh3"),
    (&["--log-file", "--out-format"], "haul has none yet: -i and --json tell of each entry on stdout"),
    (
        &["-T", "--temp-dir"],
        "haul has none, on purpose: a file is written beside its final name, to be renamed; --state DIR moves the journal",
    ),
    (
        &["--chmod", "--chown", "--usermap", "--groupmap"],
        "haul has none yet: modes are kept, and owners with -a",
    ),
];

/// argv with the `h` of bundles left out, where the command is `cp`: `-avh` is `-av`. Alone `-h` stays help.
pub fn without_human(argv: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut argv: Vec<OsString> = argv.into_iter().collect();
    if argv.get(1).is_none_or(|word| word != "cp") {
        return argv;
    }
    let takes_value = values();
    for word in argv.iter_mut().skip(2).take_while(|word| word.as_bytes() != b"--") {
        if let Some(rest) = unbundled(word, &takes_value) {
            *word = rest;
        }
    }
    argv
}

/// Letters that take what follows them as their value.
fn values() -> Vec<u8> {
    let mut command = super::Args::command();
    // Subcommands get their arguments only then.
    command.build();
    let cp = command.find_subcommand("cp");
    let options = cp.into_iter().flat_map(Command::get_opts);
    options.filter_map(|arg| arg.get_short()).filter_map(|letter| u8::try_from(letter).ok()).collect()
}

/// The bundle without its `h`; `None`: it has none, or is no bundle.
fn unbundled(word: &OsStr, takes_value: &[u8]) -> Option<OsString> {
    let letters = word.as_bytes().strip_prefix(b"-")?;
    if letters.len() < 2 || letters[0] == b'-' {
        return None;
    }
    // What stands behind a letter that takes a value is that value.
    let end = letters.iter().position(|letter| takes_value.contains(letter)).unwrap_or(letters.len());
    let (flags, value) = letters.split_at(end);
    let is_flag = |letter: &u8| letter.is_ascii_alphanumeric();
    if !flags.contains(&b'h') || !flags.iter().all(is_flag) || letters.iter().all(|letter| *letter == b'h') {
        return None;
    }
    let kept = flags.iter().filter(|letter| **letter != b'h');
    let word: Vec<u8> = [b'-'].iter().chain(kept).chain(value).copied().collect();
    Some(OsString::from_vec(word))
}

/// What to do instead of a word of rsync's that clap did not know; `None`: it is none of those.
pub fn hint(error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else { return None };
    let word = unknown.split('=').next().unwrap_or(unknown);
    let (_, hint) = HINTS.iter().find(|(words, _)| words.contains(&word))?;
    Some(format!("{word} is rsync's: {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command as Which, Cp};
    use clap::Parser;

    fn parse(line: &[&str]) -> Result<Cp, clap::Error> {
        let line = ["haul", "cp"].iter().chain(line).map(OsString::from);
        match Args::try_parse_from(without_human(line))?.command {
            Which::Cp(cp) => Ok(*cp),
            other => panic!("not cp: {other:?}"),
        }
    }

    /// Goal: the words that rsync users have in their fingers either work or are answered with what to do instead.
    /// Method: each word alone, in a bundle and with a value; every hint says something of its own, and none shadows a word
    /// that haul has.
    #[test]
    fn words_of_rsync_get_a_hint() {
        let asked = "-z -P -S -W -c -b -R -K -O --partial --inplace --append --size-only --ignore-existing --link-dest=x \
                     --remove-source-files --delete --exclude=x --info=progress2 --stats";
        for word in asked.split_whitespace() {
            let error = parse(&["-r", word, "a", "b"]).expect_err(word);
            let hint = hint(&error).unwrap_or_else(|| panic!("no hint for {word}: {error}"));
            assert!(hint.starts_with(word.split('=').next().unwrap_or(word)), "{hint}");
            assert_eq!(error.exit_code(), 2);
        }
        for (words, text) in HINTS {
            assert!(text.len() > 20 && !text.ends_with('.'), "{text}");
            for word in *words {
                let error = parse(&[word, "a", "b"]).expect_err(word);
                assert!(hint(&error).is_some_and(|hint| hint.contains(text)), "{word}: {error}");
            }
        }
        let bundled = parse(&["-avzP", "a", "b"]).unwrap_err();
        assert!(hint(&bundled).unwrap().contains("compress"));
        assert!(
            hint(&parse(&["--ignore-existing", "a", "b"]).unwrap_err()).unwrap().contains("--no-clobber")
        );
        assert_eq!(hint(&parse(&["--no-such-thing", "a", "b"]).unwrap_err()), None);
        assert_eq!(hint(&parse(&["--streams", "65", "a", "b"]).unwrap_err()), None);
    }

    /// Goal: `-h` in a bundle is rsync's and changes nothing; alone it is help; values and names stay as they are.
    #[test]
    fn a_bundled_h_is_accepted() {
        for bundle in ["-avh", "-ahv", "-hav", "-vah"] {
            let got = parse(&[bundle, "a", "b"]).unwrap();
            assert!(got.archive && got.verbose == 1, "{bundle}");
        }
        for help in ["-h", "-hh"] {
            assert_eq!(parse(&[help, "a", "b"]).unwrap_err().kind(), ErrorKind::DisplayHelp, "{help}");
        }
        let got = parse(&["-rhessh -h", "a", "b"]).unwrap();
        assert_eq!((got.recursive, got.far.ssh.0), (true, vec!["ssh".to_owned(), "-h".to_owned()]));
        assert_eq!(parse(&["-r", "--", "-ah", "b"]).unwrap().paths, ["-ah", "b"]);
        let elsewhere = ["haul", "clean", "-nh"].map(OsString::from);
        assert_eq!(without_human(elsewhere.clone()), elsewhere);
    }
}
