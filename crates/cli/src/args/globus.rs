//! What people type who come from globus-url-copy: a hint for each of its words of several letters, and for
//! `-p 4`, which to haul and rsync are other letters.
//!
//! In: argv, before it is read: `-verify-checksum` is `-v -e rify-checksum` by the rules of bundles. Out: one
//! sentence for a word, one for each if there are several.
//! Left out: words of one letter that both have, or that rsync has, too.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

const BY_ITSELF: &str = "haul chooses by itself how many connections a file takes, and how many go at a time, from and to a server; leave it \
                         out. Between two servers --streams N sets the connections of a file, and to a server --writers N the sessions";
const AGAIN: &str =
    "haul tries again by itself, and the same command goes on; --retry-for TIME says for how long";
const SYNC: &str = "haul skips files of the same size and time by itself; --no-clobber leaves alone what is there, --update what is newer \
                    there, --force copies all. It compares no sums of what looks unchanged; leave it out";
const DATA: &str = "write --data-channel=plain, shown or private (what it is by itself)";

/// What haul says to each of its words.
const HINTS: &[(&[&str], &str)] = &[
    (&["-p", "-parallel", "-cc", "-concurrency"], BY_ITSELF),
    (
        &["-fast", "-pp", "-pipeline", "-stripe", "-dp", "-delayed-pasv"],
        "haul keeps data connections, sends commands ahead and uses all nodes by itself, where the server can; leave it out",
    ),
    (
        &["-vb", "-verbose-perf"],
        "haul shows how far it is and how fast by itself on a terminal; -v names each entry; leave it out",
    ),
    (
        &["-dbg", "-debugftp"],
        "haul shows no commands; -v says what it chose, and failures say what a server answered",
    ),
    (&["-rst", "-restart", "-rst-retries", "-rst-interval", "-rst-timeout"], AGAIN),
    (&["-sync", "-sync-level"], SYNC),
    (
        &["-verify-checksum", "-checksum-alg"],
        "haul compares by itself what it sends with the strongest sum that the server makes; leave it out. --verify=disk reads files back",
    ),
    (&["-stall-timeout", "-st"], "write --patience TIME: how long a server may be silent"),
    (&["-off", "-partial-offset", "-len", "-partial-length"], "write --range OFFSET:LEN"),
    (&["-nodcau", "-no-data-channel-authentication", "-dcsafe", "-data-channel-safe"], DATA),
    (&["-dcpriv", "-data-channel-private"], DATA),
    (&["-cd", "-create-dest"], "haul makes directories by itself; leave it out"),
    (&["-recurse"], "write -r"),
    (&["-relative-paths"], "write /~/ for where the login leads, as in ftp://HOST/~/FILE"),
    (&["-sbs", "-striped-block-size"], "write --stripes=blocked:SIZE, between two servers"),
    (
        &["-tcp-bs", "-tcp-buffer-size", "-bs", "-block-size"],
        "haul leaves the buffers of connections to the systems of both ends; leave it out",
    ),
    (
        &["-df", "-dumpfile", "-do", "-dump-only"],
        "write --failures FILE; what is done and what is not the same command finds out",
    ),
    (&["-list"], "haul lists nothing by itself; haul cp -r -n -i URL . says what would be copied"),
    (
        &["-cred", "-src-cred", "-dst-cred", "-data-cred"],
        "name the proxy by X509_USER_PROXY, or certificate and key by X509_USER_CERT and X509_USER_KEY",
    ),
    (
        &["-ipv6", "-udt", "-no-g2", "-nogridftp2", "-continue-on-error"],
        "haul has no such option, and needs none; leave it out",
    ),
    (
        &["-notpt", "-no-third-party-transfers"],
        "haul has none: between two servers it steers, and where that cannot be the data goes by this host, which it says",
    ),
];

/// What to do instead of curl's `-u USER:PASSWORD` and wget's and lftp's of that kind, which is `--update`
/// here, and the login then a source. Nothing of the login is told.
pub fn login(argv: &[OsString]) -> Option<String> {
    if argv.get(1).is_none_or(|word| word != "cp") {
        return None;
    }
    let options = argv.iter().skip(2).take_while(|word| word.as_bytes() != b"--").collect::<Vec<_>>();
    let scheme =
        |word: &&OsString| word.as_bytes().windows(6).any(|part| part == b"ftp://" || part == b"tps://");
    let is_login = |word: &OsString| {
        let bytes = word.as_bytes();
        bytes.contains(&b':') && !bytes.contains(&b'/')
    };
    let at = options.iter().position(|word| *word == "-u")?;
    (options.iter().filter(|word| scheme(word)).count() > 0 && options.get(at + 1).is_some_and(|word| is_login(word)))
        .then(|| {
            "-u is curl's: write USER:PASSWORD@ before the host of the URL, or keep it in ~/.netrc; haul's -u is --update, and takes \
             no value"
                .to_owned()
        })
}

/// What to do instead of its words among those of `haul cp`; `None`: there are none.
pub fn words(argv: &[OsString]) -> Option<String> {
    if argv.get(1).is_none_or(|word| word != "cp") {
        return None;
    }
    let options = argv.iter().skip(2).take_while(|word| word.as_bytes() != b"--").collect::<Vec<_>>();
    let mut lines: Vec<(String, &str)> = Vec::new();
    for (at, word) in options.iter().enumerate() {
        let known = HINTS.iter().find_map(|(words, hint)| {
            let word = words.iter().find(|known| known.as_bytes() == word.as_bytes())?;
            Some((*word, *hint))
        });
        let Some((word, hint)) = known else { continue };
        // rsync's keeps modes, and takes no number.
        let number = |next: &&OsString| next.as_bytes().iter().all(u8::is_ascii_digit) && !next.is_empty();
        if word == "-p" && !options.get(at + 1).is_some_and(number) {
            continue;
        }
        match lines.iter_mut().find(|(_, other)| *other == hint) {
            Some((words, _)) => *words += &format!(" {word}"),
            None => lines.push((word.to_owned(), hint)),
        }
    }
    match &lines[..] {
        [] => None,
        [(words, hint)] => Some(format!("{words} is globus-url-copy's: {hint}")),
        several => {
            let lines: String = several.iter().map(|(words, hint)| format!("\n  {words}: {hint}")).collect();
            Some(format!("these are globus-url-copy's words:{lines}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Args;
    use clap::{CommandFactory as _, Parser as _};

    fn told(line: &str) -> Option<String> {
        let argv: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        words(&argv)
    }

    /// Goal: each word has a hint that names what to write instead, `-p` only with a number; what haul or
    /// rsync means by a letter is left to them.
    #[test]
    fn words_of_globus_get_a_hint() {
        let all = told("haul cp -vb -p 4 -cc 4 -fast -pp -rst -sync -sync-level 3 -verify-checksum -dbg a b");
        let all = all.expect("a hint");
        for line in [
            "\n  -vb: ",
            "\n  -p -cc: haul chooses",
            "\n  -fast -pp: ",
            "\n  -rst: ",
            "\n  -sync -sync-level: ",
        ] {
            assert!(all.contains(line), "{line:?} is not in {all}");
        }
        let one = told("haul cp -r -verify-checksum a b").expect("a hint");
        assert!(one.starts_with("-verify-checksum is globus-url-copy's: "), "{one}");
        for line in ["haul cp -p a b", "haul cp -p", "haul cp -rv a b", "haul cp -- -vb a", "haul clean -vb"]
        {
            assert_eq!(told(line), None, "{line}");
        }
    }

    /// Goal: a login behind `-u` is told as one, and not told; an update of two servers, or of a host, is
    /// one.
    #[test]
    fn a_login_behind_u_is_no_source() {
        let told = |line: &str| login(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        let hint = told("haul cp -u alice:secret ftp://h/f .").expect("a hint");
        assert!(hint.starts_with("-u is curl's: ") && !hint.contains("secret"), "{hint}");
        for line in ["haul cp -u h:f /d", "haul cp -u ftp://h/f .", "haul cp -u h:/f ftp://h/", "haul cp -u"]
        {
            assert_eq!(told(line), None, "{line}");
        }
    }

    /// Goal: no word that gets a hint is one that haul takes, and each option that a hint names is one.
    #[test]
    fn no_word_is_haul_s_own() {
        let command = Args::command();
        let cp = command.find_subcommand("cp").expect("it is there");
        let longs: Vec<String> =
            cp.get_opts().filter_map(|arg| Some(format!("--{}", arg.get_long()?))).collect();
        for (words, hint) in HINTS {
            for word in *words {
                let parsed = Args::try_parse_from(["haul", "cp", word, "a", "b"]);
                // By the rules of bundles some start a program of the name that is behind the `e`, and some
                // are rsync's letters: the first of these is taken as that without a number, and nobody means
                // the others so.
                let is_bundle =
                    word.len() > 2 && word.contains('e') || ["-p", "-pp", "-notpt"].contains(word);
                assert!(parsed.is_err() || is_bundle, "{word}");
            }
            let named = hint.split(|c: char| !(c == '-' || c.is_ascii_lowercase()));
            for option in named.filter(|word| word.starts_with("--")) {
                assert!(longs.iter().any(|long| long == option), "{option}");
            }
        }
    }
}
