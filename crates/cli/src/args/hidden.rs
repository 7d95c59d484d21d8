//! Passwords that somebody typed where no option takes them: clap shows a word that it does not understand as
//! it is.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use haul::endpoint::without_password;

/// `text` without the passwords of the command line; `None`: there are none in it.
pub fn without_passwords(text: &str, argv: &[OsString]) -> Option<String> {
    let mut shown = text.to_owned();
    for word in argv {
        let word = word.as_bytes();
        let value = word.iter().position(|byte| *byte == b'=').map(|at| &word[at + 1..]);
        for typed in [Some(word), value].into_iter().flatten() {
            let hidden = without_password(typed);
            if hidden == typed {
                continue;
            }
            let as_text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            shown = shown.replace(&as_text(typed), &as_text(&hidden));
            // What was shown of it otherwise: with its colon, as it stands there.
            let same = typed.iter().zip(&hidden).take_while(|(one, other)| one == other).count();
            let secret = as_text(&typed[same..typed.len() - (hidden.len() - same)]);
            let secret = secret.trim_start_matches(':');
            if !secret.is_empty() {
                shown = shown.replace(secret, "...");
            }
        }
    }
    (shown != text).then_some(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a password is in no text of clap's, wherever its word stood.
    #[test]
    fn passwords_are_left_out() {
        for words in [
            &["haul", "cp", "--rate", "ftp://u:geheim@h/a", "x", "y"][..],
            &["haul", "cp", "--rate=ftp://u:geheim@h/a", "x", "y"],
            &["haul", "cp", "--patience", "ftps://u:geheim@h", "x", "y"],
            &["haul", "ftp://u:geheim@h/a"],
            &["haul", "cp", "--ftp://u:geheim@h/a"],
            &["haul", "cp", "-rftp://u:geheim@h/a", "x"],
        ] {
            use clap::Parser;
            let argv: Vec<OsString> = words.iter().map(OsString::from).collect();
            let error = crate::command::Args::try_parse_from(&argv).expect_err("no such words");
            let text = error.render().to_string();
            let shown = without_passwords(&text, &argv).unwrap_or(text);
            assert!(!shown.contains("geheim"), "{words:?}: {shown}");
        }
        let plain = ["haul", "cp", "--rate", "x"].map(OsString::from);
        assert_eq!(without_passwords("invalid value 'x'", &plain), None);
    }
}
