//! What people type who come from rsync, scp or rclone: bundles with rsync's `-h`, and a hint for each word
//! that haul does not have.
//!
//! In: argv, or what clap did not understand of it. Out: argv as haul has it; one sentence for a word, one
//! for each that a bundle holds.
//! Invariant: no word is taken and then ignored but those for what haul does anyway: `-h` in a bundle, which
//! asks rsync for sizes as haul prints them, and the hidden ones of `kept.rs`.
//! Left out: words that mean the same in both.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args as _, Command};

use super::Cp;

/// What haul says to each of rsync's words that it does not have: the words, and what stands in their place.
const HINTS: &[(&[&str], &str)] = &[
    (
        &["-z", "--compress", "--zc", "--compress-choice", "--compress-level", "--zl"],
        "haul does not compress yet; leave it out",
    ),
    (
        &["--partial", "--partial-dir", "--append", "--append-verify"],
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
         that is copied is checked by its digest. For lftp's and globus-url-copy's -c leave it out: haul goes on by itself, and what \
         fails alone stops nothing else",
    ),
    (
        &["-b", "--backup", "--backup-dir", "--suffix"],
        "haul keeps no backups yet; --no-clobber replaces no file",
    ),
    (
        &["-R", "--relative"],
        "haul has none yet: name the directory above, or give each source its own destination. For lftp's mirror -R DIR write \
         haul cp -r DIR URL",
    ),
    (
        &["-O", "--omit-dir-times", "--omit-link-times", "--no-times", "--no-perms"],
        "haul has none yet: times and modes are always kept. For curl's -O URL write haul cp URL DIR",
    ),
    (
        &["--no-owner", "--no-o", "--no-group", "--no-g"],
        "write -rD in the place of -a: all that this keeps but owner and group",
    ),
    (&["-J"], "haul has none yet: times and modes are always kept. For scp's -J HOST write -e 'ssh -J HOST'"),
    (&["-U", "--atimes", "-N", "--crtimes"], "haul has none yet: these times are not kept"),
    (&["--munge-links"], "haul has none: links are stored as they are, and none is followed but by -K"),
    (
        &["--size-only", "--ignore-times", "-I"],
        "haul has none yet: files of the same size and time count as unchanged; --force copies those too",
    ),
    (
        &["--modify-window", "-@"],
        "haul has none yet: it compares times as finely as the destination keeps them. Where another program cut them to seconds \
         (-n -i shows a t alone), files are copied once more and then count as unchanged",
    ),
    (
        &["--mkpath"],
        "haul makes a missing destination directory by itself (for one file: DST/ with a slash); leave it out",
    ),
    (
        &["-4", "--ipv4", "-6", "--ipv6"],
        "write --via ADDR for the data, and -e 'ssh -4' or 'ssh -6' for the login",
    ),
    (
        &["--max-size", "--min-size"],
        "haul has none yet: name the sources one by one, or their directories with -r",
    ),
    (&["-E", "--executability"], "haul always keeps modes; leave it out"),
    (&["--list-only"], "write -n -i: what would be copied"),
    (&["--delay-updates"], "haul has none: each file appears whole, as soon as it is there"),
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
        &["--exclude", "--exclude-from", "--include", "--include-from", "--filter", "-f", "--files-from"],
        "haul has none yet: name the sources one by one, or their directories with -r. For globus-url-copy's -f FILE give one command \
         for each destination",
    ),
    (
        &["-F"],
        "haul has none yet: name the sources one by one, or their directories with -r. For scp's -F FILE write -e 'ssh -F FILE'",
    ),
    (
        &["-C"],
        "haul has none yet: name the sources one by one, or their directories with -r. scp's -C compresses, which haul does not yet",
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
    (
        &["--log-file", "--out-format"],
        "haul has none yet: -i, and --json with -v, tell of each entry on stdout",
    ),
    (
        &["-T", "--temp-dir"],
        "haul has none, on purpose: a file is written beside its final name, to be renamed; --state DIR moves the journal. For \
         curl's -T FILE URL write haul cp FILE URL",
    ),
];

/// The same for words of other programs.
const OTHERS: &[(&str, &[&str], &str)] = &[
    (
        "rclone's",
        &["--transfers", "--multi-thread-streams"],
        "haul chooses how much is under way by itself; --streams N sets the data connections",
    ),
    ("rclone's", &["--checkers"], "haul chooses by itself; --readers N sets the threads at the source"),
    ("rclone's", &["--buffer-size"], "write --memory SIZE"),
    ("GridFTP's", &["--parallel", "--concurrency"], "write --streams N: the data connections"),
    (
        "dd's",
        &["--skip", "--seek", "--count", "--bs"],
        "write --range OFFSET:LEN for the part of SRC, and --to OFFSET for where in DST it goes",
    ),
    (
        "curl's",
        &["--retry", "--retry-max-time", "--retry-delay", "--retry-all-errors", "--retry-connrefused"],
        "haul tries again by itself, and the same command goes on; --retry-for TIME says for how long, --retries N how often",
    ),
    ("curl's", &["--limit-rate"], "write --rate SIZE, as --rate 10MiB/s"),
    (
        "curl's",
        &["--user", "--netrc", "--netrc-file"],
        "write USER:PASSWORD@ before the host of the URL, or keep it in ~/.netrc, which is looked at by itself",
    ),
    (
        "curl's",
        &["--insecure", "--cacert", "--capath"],
        "name the server's certificate, or that of its authority, by SSL_CERT_FILE; there is no way without",
    ),
    (
        "curl's",
        &["--ssl-reqd", "--ssl", "--ftp-ssl"],
        "write ftps:// in the URL, which falls back to nothing",
    ),
    (
        "curl's",
        &["--ftp-create-dirs"],
        "a URL that ends in a slash is a directory, and haul makes it; leave it out",
    ),
    (
        "curl's",
        &["--output", "--output-dir", "--remote-name", "--upload-file"],
        "write haul cp SOURCE DESTINATION, either of which may be a URL",
    ),
    (
        "curl's",
        &["--ftp-pasv", "--ftp-port", "--disable-epsv", "--disable-eprt"],
        "haul chooses by itself who makes data connections; leave it out",
    ),
    (
        "curl's",
        &["--continue-at"],
        "haul goes on by itself where the server proves what is there; leave it out",
    ),
    (
        "curl's",
        &["--max-time", "--connect-timeout"],
        "write --patience TIME: how long a server may be silent",
    ),
    (
        "wget's",
        &["--no-check-certificate", "--ca-certificate"],
        "name the server's certificate, or that of its authority, by SSL_CERT_FILE; there is no way without",
    ),
    (
        "wget's",
        &["--ftp-user", "--ftp-password"],
        "write USER:PASSWORD@ before the host of the URL, or keep it in ~/.netrc, which is looked at by itself",
    ),
    (
        "wget's",
        &["--tries", "--waitretry"],
        "haul tries again by itself, and the same command goes on; --retry-for TIME says for how long, --retries N how often",
    ),
    ("wget's", &["--mirror"], "write -r: what has the size and the time of the source is skipped"),
    (
        "lftp's",
        &["--continue"],
        "haul goes on by itself where the server proves what is there; --resume=trust believes any; leave it out",
    ),
    ("lftp's", &["--only-newer"], "write --update"),
    ("lftp's", &["--no-symlinks"], "write --no-links"),
    ("lftp's", &["--reverse"], "write haul cp -r DIR URL"),
    (
        "lftp's",
        &["--use-pget-n", "--use-pget"],
        "haul chooses by itself how many connections a file takes; leave it out",
    ),
    (
        "parallel programs'",
        &["-j", "--jobs"],
        "haul chooses how much is under way by itself; --streams N sets the data connections",
    ),
];

/// Letters that take a number in other programs.
const VALUED: &[u8] = b"Plj";
/// Those of them that haul has, without one, and what to write where a number follows.
const VALUED_ELSEWHERE: [(u8, &str); 2] = [
    (
        b'P',
        "haul's -P is rsync's (it always does so) and takes no number. For scp's -P PORT write -e 'ssh -p PORT'",
    ),
    (b'l', "haul's -l is rsync's (it always does so) and takes no number. For scp's -l LIMIT write --rate"),
];

/// Characters of a word for each that may be wrong in it, where another is meant.
const TYPO_EACH: usize = 4;

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

/// What `haul cp` takes.
fn cp() -> Command {
    let mut cp = Cp::augment_args(Command::new("cp"));
    cp.build();
    cp
}

/// Letters that take what follows them as their value.
fn values() -> Vec<u8> {
    let cp = cp();
    let options = cp.get_opts();
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

/// What to do instead where `-i` stands before a private key, as scp has it: here it would be copied.
pub fn key_named(argv: &[OsString]) -> Option<String> {
    if argv.get(1).is_none_or(|word| word != "cp") {
        return None;
    }
    let options = argv.split(|word| word == "--").next().unwrap_or_default();
    let key = options
        .windows(2)
        .find(|two| two[0] == "-i" && is_private_key(Path::new(&two[1])))
        .map(|two| &two[1])?;
    let key = crate::escape::name(key.as_bytes());
    Some(format!(
        "{key} is a private key, and would be copied: haul's -i lists what changes. For scp's -i KEY write -e 'ssh -i {key}'; to copy \
         it all the same, name it elsewhere than behind -i"
    ))
}

/// What to do instead where a value stands behind a letter that takes one in other programs, and none here:
/// it would be copied.
pub fn value_named(argv: &[OsString]) -> Option<String> {
    if argv.get(1).is_none_or(|word| word != "cp") {
        return None;
    }
    let options = argv.split(|word| word == "--").next().unwrap_or_default();
    let is_number = |word: &[u8]| !word.is_empty() && word.iter().all(u8::is_ascii_digit);
    for two in options.windows(2) {
        let Some(letters) = two[0].as_bytes().strip_prefix(b"-").filter(|rest| !rest.starts_with(b"-"))
        else {
            continue;
        };
        let number = letters.iter().position(u8::is_ascii_digit).map(|at| letters.split_at(at));
        let (flags, number) = number.unwrap_or((letters, two[1].as_bytes()));
        if let Some((_, told)) = VALUED_ELSEWHERE.iter().find(|(letter, _)| flags.last() == Some(letter))
            && is_number(number)
            && flags.iter().all(u8::is_ascii_alphabetic)
        {
            return Some((*told).to_owned());
        }
        if letters == b"o" && !options.iter().any(|word| word == "-g" || word == "--group") {
            return Some(
                "haul's -o is rsync's, and stands with -g: -og keeps owner and group. For scp's -o OPTION write -e 'ssh -o OPTION', and \
                 for curl's -o FILE URL haul cp URL FILE"
                    .into(),
            );
        }
    }
    None
}

/// The file begins as a private key of ssh does.
fn is_private_key(path: &Path) -> bool {
    let mut first = [0; 64];
    // What is no regular file could be waited for.
    let regular = path.metadata().is_ok_and(|data| data.is_file());
    let Some(Ok(len)) = regular.then(|| File::open(path).and_then(|mut file| file.read(&mut first))) else {
        return false;
    };
    let text = String::from_utf8_lossy(&first[..len]);
    text.lines()
        .next()
        .is_some_and(|line| line.starts_with("-----BEGIN ") && line.contains("PRIVATE KEY-----"))
}

/// What to do instead of a word of another program's that clap did not know, and of each that stands in one
/// bundle with it; `None`: it is none of those.
pub fn hint(error: &clap::Error, argv: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else { return None };
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let word = unknown.split('=').next().unwrap_or(unknown);
    let foreign = foreign_letters(word, argv);
    if foreign.len() < 2 {
        let (whose, hint) = known(word)?;
        return Some(format!("{word} is {whose}: {hint}"));
    }
    // In the order in which they stand, those of one hint together.
    let mut lines: Vec<(String, &str)> = Vec::new();
    for letter in &foreign {
        let text = known(letter).map_or("haul has no such option", |(_, text)| text);
        match lines.iter_mut().find(|(_, other)| *other == text) {
            Some((letters, _)) => *letters += &format!(" {letter}"),
            None => lines.push((letter.clone(), text)),
        }
    }
    let lines = lines.iter().map(|(letters, text)| format!("\n  {letters}: {text}"));
    Some(format!("{} are not haul's:{}", foreign.join(" "), lines.collect::<String>()))
}

/// Whose the word is, and what stands in its place.
fn known(word: &str) -> Option<(&'static str, &'static str)> {
    let rsync = HINTS.iter().find(|(words, _)| words.contains(&word)).map(|(_, hint)| ("rsync's", *hint));
    rsync.or_else(|| {
        OTHERS.iter().find(|(_, words, _)| words.contains(&word)).map(|(whose, _, hint)| (*whose, *hint))
    })
}

/// The letters that haul does not have, of the bundle in which `word` is the first of them; each once.
fn foreign_letters(word: &str, argv: &[OsString]) -> Vec<String> {
    let Some(&[b'-', letter]) = word.as_bytes().first_chunk().filter(|_| word.len() == 2) else {
        return Vec::new();
    };
    if argv.get(1).is_none_or(|word| word != "cp") {
        return Vec::new();
    }
    let cp = cp();
    let own = |letter: u8| {
        cp.get_opts().chain(cp.get_arguments()).any(|arg| arg.get_short() == Some(letter.into()))
    };
    let takes_value = values();
    let bundle = argv.iter().skip(2).filter_map(|word| {
        let letters = word.as_bytes().strip_prefix(b"-").filter(|letters| !letters.starts_with(b"-"))?;
        let mut flags = letters.split(|letter| takes_value.contains(letter)).next()?;
        // `-P22`: the digits are the value of a letter that has one elsewhere.
        if let Some(digits) =
            flags.windows(2).position(|two| VALUED.contains(&two[0]) && two[1].is_ascii_digit())
        {
            flags = &flags[..=digits];
        }
        (flags.contains(&letter) && flags.iter().all(u8::is_ascii_alphanumeric)).then_some(flags)
    });
    let mut foreign: Vec<String> = Vec::new();
    for letter in bundle.into_iter().next().unwrap_or_default() {
        let word = format!("-{}", char::from(*letter));
        // In a bundle `h` is rsync's, and means nothing here.
        if *letter != b'h' && !own(*letter) && !foreign.contains(&word) {
            foreign.push(word);
        }
    }
    foreign
}

/// Takes out of clap's error what only sounds like advice: options that look like the word by a few letters,
/// and that a word with dashes may be a path, unless there is one of that name. `hidden`: whether a command
/// is nobody's but haul's.
pub fn without_noise(
    mut error: clap::Error,
    hidden: impl Fn(&str) -> bool,
    exists: impl Fn(&str) -> bool,
) -> clap::Error {
    if error.kind() == ErrorKind::InvalidSubcommand {
        // A command that only haul itself starts is nothing to suggest, nor one that shares some letters.
        let word = match error.get(ContextKind::InvalidSubcommand) {
            Some(ContextValue::String(word)) => word.clone(),
            _ => String::new(),
        };
        let meant =
            |name: &str| changes(&word, name) <= (word.len() / TYPO_EACH).max(usize::from(word.len() > 2));
        if let Some(ContextValue::Strings(names)) = error.get(ContextKind::SuggestedSubcommand) {
            let shown: Vec<String> =
                names.iter().filter(|name| !hidden(name) && meant(name)).cloned().collect();
            error.remove(ContextKind::SuggestedSubcommand);
            if !shown.is_empty() {
                error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(shown));
            }
        }
        return error;
    }
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else { return error };
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let word = unknown.split('=').next().unwrap_or(unknown).to_owned();
    let meant = match error.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(meant)) => {
            changes(&word, meant) <= word.trim_start_matches('-').len() / TYPO_EACH
        }
        _ => false,
    };
    if !meant {
        error.remove(ContextKind::SuggestedArg);
    }
    if !exists(&word) {
        error.remove(ContextKind::Suggested);
    }
    error
}

/// Letters to put in, take out or replace to make one word of the other (Levenshtein's distance).
fn changes(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let least = (diagonal + usize::from(a != *b)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], least);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Args, Command as Which, is_hidden};
    use clap::Parser;

    fn argv(line: &[&str]) -> Vec<OsString> {
        ["haul", "cp"].iter().chain(line).map(OsString::from).collect()
    }

    /// The hint for what is wrong with the line, and the exit code.
    fn hint_for(line: &[&str]) -> Option<String> {
        let argv = without_human(argv(line));
        hint(&parse(line).expect_err("it is wrong"), &argv)
    }

    fn parse(line: &[&str]) -> Result<Cp, clap::Error> {
        let line = argv(line);
        match Args::try_parse_from(without_human(line))?.command {
            Which::Cp(cp) => Ok(*cp),
            other => panic!("not cp: {other:?}"),
        }
    }

    /// Goal: the words that rsync users have in their fingers either work or are answered with what to do
    /// instead.
    /// Method: each word alone, in a bundle and with a value; every hint says something of its own, and none
    /// shadows a word that haul has.
    #[test]
    fn words_of_rsync_get_a_hint() {
        let asked = "-z -S -W -c -b -R -O --partial --append --size-only --ignore-existing --link-dest=x \
                     --remove-source-files --delete --exclude=x --info=progress2 --stats";
        for word in asked.split_whitespace() {
            let error = parse(&["-r", word, "a", "b"]).expect_err(word);
            let hint =
                hint_for(&["-r", word, "a", "b"]).unwrap_or_else(|| panic!("no hint for {word}: {error}"));
            assert!(hint.starts_with(word.split('=').next().unwrap_or(word)), "{hint}");
            assert_eq!(error.exit_code(), 2);
        }
        for (words, text) in HINTS {
            assert!(text.len() > 20 && !text.ends_with('.'), "{text}");
            for word in *words {
                let error = parse(&[word, "a", "b"]).expect_err(word);
                let hint = hint_for(&[word, "a", "b"]);
                assert!(hint.is_some_and(|hint| hint.contains(text)), "{word}: {error}");
            }
        }
        assert!(hint_for(&["-avzP", "a", "b"]).unwrap().contains("compress"));
        assert!(hint_for(&["--ignore-existing", "a", "b"]).unwrap().contains("--no-clobber"));
        assert_eq!(hint_for(&["--no-such-thing", "a", "b"]), None);
        assert_eq!(hint_for(&["--streams", "65", "a", "b"]), None);
        for (whose, words, text) in OTHERS {
            for word in *words {
                let want = format!("{word} is {whose}: {text}");
                assert_eq!(hint_for(&[&format!("{word}=4"), "a", "b"]), Some(want));
            }
        }
        assert_eq!(parse(&["-aii", "a", "b"]).expect("as in rsync").itemize_changes, 2);
        for line in [
            &["-i", "--json"][..],
            &["-ri", "--json"],
            &["--itemize-changes", "-r", "--json"],
            &["-ii", "--json"],
        ] {
            let line = [line, &["a", "b"]].concat();
            let error = parse(&line).expect_err("one list or the other").to_string();
            assert!(error.contains("cannot be used with '--json'"), "{line:?}: {error}");
            assert_eq!(hint_for(&line), None, "{line:?}");
        }
        for word in ["-J", "-F", "-C"] {
            assert!(hint_for(&[word, "x", "a", "b"]).unwrap().contains("scp's"), "{word}");
        }
        for (word, want) in [("-P22", "ssh -p PORT"), ("-l100", "--rate"), ("-rP2222", "ssh -p PORT")] {
            let hint = value_named(&argv(&[word, "a", "b"])).unwrap_or_default();
            assert!(hint.contains(want), "{word}: {hint}");
        }
        assert!(hint_for(&["-j4", "a", "b"]).is_some_and(|hint| hint.contains("--streams")));
        for word in ["-rr", "-nn", "-aa"] {
            assert!(parse(&[word, "a", "b"]).is_ok(), "{word}");
        }
        // Those of scp that mean something else to rsync.
        let named = |words: &[&str]| value_named(&argv(words));
        assert!(named(&["-P", "22", "a", "b"]).unwrap().contains("ssh -p PORT"));
        assert!(named(&["-rl", "100", "a", "b"]).unwrap().contains("--rate"));
        assert!(named(&["-o", "Compression=yes", "a", "h:"]).unwrap().contains("ssh -o OPTION"));
        for line in [&["-rl", "a", "100"][..], &["-avP", "a", "b"], &["-og", "a", "b"], &["--", "-P", "22"]] {
            assert_eq!(named(line), None, "{line:?}");
        }
    }

    /// Goal: words for what haul always keeps, in rsync's bundles too, and cp's `--preserve` mean what they
    /// say; owner and group come together; what cannot be asked for is an error of the command line.
    #[test]
    fn what_is_kept_is_said_as_elsewhere() {
        let put = |words: &[&str]| {
            let got =
                parse(&[words, &["a", "b"]].concat()).unwrap_or_else(|error| panic!("{words:?}: {error}"));
            got.kept.check().map(|()| got.kept.put(haul::options::Options::default()))
        };
        let plain = put(&["-rlptP", "--perms", "--times", "--links"]).expect("always so");
        assert_eq!(plain, haul::options::Options::default());
        let all = put(&["-rlptgoD"]).expect("as -a");
        assert!(all.owners && all.devices && all.specials && !all.archive && !all.hard_links);
        for (list, owners, links, xattrs, acls) in [
            ("--preserve", true, false, false, false),
            ("--preserve=mode,timestamps", false, false, false, false),
            ("--preserve=links", false, true, false, false),
            ("--preserve=ownership,xattr", true, false, true, false),
            ("--preserve=acl", false, false, false, true),
            ("--preserve=all", true, true, true, true),
        ] {
            let got = put(&[list]).expect(list);
            assert_eq!(
                (got.owners, got.hard_links, got.xattrs, got.acls),
                (owners, links, xattrs, acls),
                "{list}"
            );
        }
        assert!(parse(&["--preserve=context", "a", "b"]).is_err());
        for alone in ["-o", "-g"] {
            assert!(put(&[alone]).expect_err("both or neither").contains("-og"));
        }
        assert!(parse(&["-l", "--no-links", "a", "b"]).is_err());
    }

    /// Goal: a private key that stands where scp has it is not copied; whatever else stands there is.
    #[test]
    fn a_key_behind_i_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (key, other) = (dir.path().join("id"), dir.path().join("data"));
        std::fs::write(&key, "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl\n").unwrap();
        std::fs::write(&other, "-----BEGIN CERTIFICATE-----\n").unwrap();
        let told = |words: &[&str]| key_named(&argv(words));
        let (key, other) = (key.to_str().unwrap(), other.to_str().unwrap());
        assert!(told(&["-i", key, "f", "h:"]).unwrap().contains(&format!("-e 'ssh -i {key}'")));
        for line in
            [&["-i", other, "h:"][..], &[key, "-i", "h:"], &["-r", key, "h:"], &["--", "-i", key, "h:"]]
        {
            assert_eq!(told(line), None, "{line:?}");
        }
    }

    /// Goal: one try tells of every letter of a bundle that haul does not have, those with one hint on one
    /// line.
    /// Method: bundles that rsync users have in their fingers; a letter that nobody has; a value that looks
    /// like one.
    #[test]
    fn all_foreign_letters_of_a_bundle_are_told() {
        let told = |bundle: &str| hint_for(&[bundle, "a", "b"]).unwrap();
        let lines = |bundle: &str| {
            let told = told(bundle);
            told.lines().map(|line| line.split(": ").next().unwrap().trim().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(lines("-avzU"), ["-z -U are not haul's:", "-z", "-U"]);
        assert!(told("-aHAXzh").starts_with("-z is rsync's: "), "-H, -A and -X are haul's too");
        assert_eq!(lines("-aHUNzh"), ["-U -N -z are not haul's:", "-U -N", "-z"]);
        assert!(told("-zyz").contains("\n  -y: haul has no such option"));
        assert!(told("-avz").starts_with("-z is rsync's: "));
        assert!(told("-zelpt").starts_with("-z is rsync's: "), "what stands behind -e is its value");
    }

    /// Goal: an option that haul has is suggested for a slip of the finger, and not for any word that shares
    /// some letters; that a word may be a path is said where there is one.
    #[test]
    fn only_slips_get_suggestions() {
        let told = |word: &str, is_path: bool| {
            without_noise(parse(&[word, "a", "b"]).unwrap_err(), is_hidden, |_| is_path).to_string()
        };
        assert!(told("--forse", false).contains("--force"));
        assert!(told("--strems=4", false).contains("--streams"));
        for word in ["--max-depths", "--no-such", "--ratelimit", "--memory-size=4"] {
            assert!(!told(word, false).contains("tip"), "{}", told(word, false));
            assert!(told(word, false).contains("unexpected argument"), "{}", told(word, false));
        }
        let wrong = Args::try_parse_from(["haul", "a", "b"]).unwrap_err();
        let wrong = without_noise(wrong, is_hidden, |_| false).to_string();
        assert!(wrong.contains("unrecognized subcommand") && !wrong.contains("tip"), "{wrong}");
        assert!(
            without_noise(Args::try_parse_from(["haul", "clea"]).unwrap_err(), is_hidden, |_| false)
                .to_string()
                .contains("'clean'")
        );
        assert!(told("--xyzzy", true).contains("-- --xyzzy") && !told("--xyzzy", false).contains("tip"));
        assert_eq!(
            (changes("abc", "abc"), changes("abc", "axbc"), changes("", "ab"), changes("ab", "ba")),
            (0, 1, 2, 2)
        );
    }

    /// Goal: `-h` in a bundle is rsync's and changes nothing; alone it is help; values and names stay as they
    /// are.
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
        assert_eq!(parse(&["-r", "--", "-ah", "b"]).unwrap().paths.all(), ["-ah", "b"]);
        let elsewhere = ["haul", "clean", "-nh"].map(OsString::from);
        assert_eq!(without_human(elsewhere.clone()), elsewhere);
    }
}
