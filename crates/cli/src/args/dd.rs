//! What people type who come from dd: a hint for each `word=value` of dd's.
//!
//! In: argv. Out: one sentence for a word, one for each if there are several.
//! Left out: a path that begins so and is there, or is written as `./skip=1`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// What haul says to each of dd's words.
const HINTS: &[(&[&str], &str)] = &[
    (&["if"], "haul takes the source by its name alone: haul cp SRC DST"),
    (&["of"], "haul takes the destination by its name alone, last: haul cp SRC DST"),
    (
        &["skip", "iseek", "count"],
        "write --range OFFSET:LEN, where the part of SRC begins and how long it is, as 1GiB:64MiB; OFFSET: goes to its end",
    ),
    (
        &["seek", "oseek"],
        "write --to OFFSET, where in DST the part goes; what else DST holds stays, as with conv=notrunc",
    ),
    (
        &["bs", "ibs", "obs", "cbs"],
        "leave it out: offsets and lengths are bytes, or have a unit as 16MiB has, and are not counted in blocks",
    ),
    (
        &["conv"],
        "leave it out: --to keeps what else DST holds, holes stay holes, and all is synced by itself",
    ),
    (
        &["iflag", "oflag", "status"],
        "leave it out: haul chooses by itself how to read and write (--io), and shows how far it is",
    ),
];

/// What to do instead of dd's words among the paths of `haul cp`; `None`: there are none. `is_there`: the
/// word is a path.
pub fn words(argv: &[OsString], is_there: impl Fn(&OsStr) -> bool) -> Option<String> {
    if argv.get(1).is_none_or(|word| word != "cp") {
        return None;
    }
    let mut lines: Vec<(String, &str)> = Vec::new();
    for word in argv.iter().skip(2).take_while(|word| word.as_bytes() != b"--") {
        let name = word.as_bytes().split(|byte| *byte == b'=').next().unwrap_or_default();
        let known = HINTS.iter().find(|(words, _)| words.iter().any(|word| word.as_bytes() == name));
        let Some((_, hint)) = known.filter(|_| name.len() < word.len() && !is_there(word)) else { continue };
        let name = format!("{}=", String::from_utf8_lossy(name));
        match lines.iter_mut().find(|(_, other)| other == hint) {
            Some((names, _)) => *names += &format!(" {name}"),
            None => lines.push((name, hint)),
        }
    }
    match &lines[..] {
        [] => None,
        [(names, hint)] => Some(format!("{names} is dd's: {hint}. A path of such a name begins with ./")),
        several => {
            let lines: String = several.iter().map(|(names, hint)| format!("\n  {names}: {hint}")).collect();
            Some(format!("these are dd's words, and a path of such a name begins with ./{lines}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &str) -> Option<String> {
        let argv: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        words(&argv, |word| word == "count=there")
    }

    /// Goal: each word of dd's has a hint that names what to write instead; what is a path is none.
    #[test]
    fn words_of_dd_get_a_hint() {
        let all = told("haul cp if=/dev/sda of=x bs=1M skip=2 count=3 seek=4 conv=notrunc status=progress");
        let all = all.expect("a hint");
        for line in [
            "\n  if=: ",
            "\n  of=: ",
            "\n  skip= count=: write --range",
            "\n  seek=: write --to",
            "\n  bs=: ",
        ] {
            assert!(all.contains(line), "{line:?} is not in {all}");
        }
        let one = told("haul cp --range 0:5 a b seek=4").expect("a hint");
        assert!(one.starts_with("seek= is dd's: write --to OFFSET"), "{one}");
        for line in [
            "haul cp count=there x",
            "haul cp ./skip=1 x",
            "haul cp -- if=a b",
            "haul cp if of",
            "haul clean if=x",
        ] {
            assert_eq!(told(line), None, "{line}");
        }
    }
}
