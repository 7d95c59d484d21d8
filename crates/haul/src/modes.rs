//! Modes that the destination gets instead of the source's own.
//!
//! In: a text as rsync's `--chmod` takes it, and the mask for what names nobody. Out: the mode of an entry,
//! changed so.
//! What must hold: a text means what rsync makes of it; a part that cannot be understood is refused by its
//! own text, and nothing of the whole is done then.
//! Left out: links, which have no mode, and who applies it (`driver/owners`).

use serde::{Deserialize, Serialize};

const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;
const STICKY: u16 = 0o1000;
const ALL: u16 = 0o7777;
const EXECUTE: u16 = 0o111;

/// Which entries a part of a text is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Of {
    #[default]
    All,
    Dirs,
    /// All that is no directory.
    Files,
}

/// One part of a text: what stays of a mode, and what comes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Part {
    of: Of,
    stays: u16,
    comes: u16,
    /// Execution comes only to directories, and to what somebody may execute.
    keeps_x: bool,
}

/// How modes change on their way, as rsync's `--chmod` says it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Chmod {
    parts: Vec<Part>,
}

/// What a `+`, `-`, `=` or number does.
#[derive(Clone, Copy, PartialEq)]
enum Op {
    Add,
    Take,
    Set,
}

impl Chmod {
    /// Understands `text`: parts between commas, each done behind the one before. `D` and `F` in front have
    /// it be of directories alone, or of all else; behind them stands an octal mode, or `u`, `g`, `o` and `a`
    /// (nobody: all, without what `umask` takes away), then `+`, `-` or `=`, and then `r`, `w`, `x`, `X`, `s`
    /// and `t`.
    ///
    /// # Errors
    /// Says which part is not understood.
    pub fn parse(text: &str, umask: u32) -> Result<Chmod, String> {
        let parts = text.split(',').map(|part| {
            parse_part(part, umask).map_err(|why| {
                let part = haul_base::escape::within(part.as_bytes());
                format!("'{part}': {why}; write it as rsync's --chmod, as in D755,F644 or Dg+s,ug+rwX,o-w")
            })
        });
        Ok(Chmod { parts: parts.collect::<Result<_, _>>()? })
    }

    /// The same, and behind it what `more` says.
    pub fn then(mut self, more: Chmod) -> Chmod {
        self.parts.extend(more.parts);
        self
    }

    /// What becomes of the mode of an entry that is no link.
    pub fn apply(&self, mode: u32, is_dir: bool) -> u32 {
        let source = mode as u16 & ALL;
        let is_for = |part: &&Part| match part.of {
            Of::All => true,
            Of::Dirs => is_dir,
            Of::Files => !is_dir,
        };
        let changed = self.parts.iter().filter(is_for).fold(source, |mode, part| {
            let no_x = part.keeps_x && !is_dir && source & EXECUTE == 0;
            mode & part.stays | part.comes & if no_x { !EXECUTE } else { ALL }
        });
        u32::from(changed & ALL)
    }
}

fn parse_part(text: &str, umask: u32) -> Result<Part, String> {
    let (mut of, mut who, mut set_ids) = (Of::All, 0, 0);
    let mut letters = text.chars();
    let op = loop {
        let rest = letters.as_str();
        match letters.next() {
            Some('D') if of != Of::Files => of = Of::Dirs,
            Some('F') if of != Of::Dirs => of = Of::Files,
            Some('D' | 'F') => return Err("a part is of directories (D) or of all else (F)".into()),
            Some('u') => (who, set_ids) = (who | 0o100, set_ids | SETUID),
            Some('g') => (who, set_ids) = (who | 0o010, set_ids | SETGID),
            Some('o') => who |= 0o001,
            Some('a') => who |= 0o111,
            Some('+') => break Op::Add,
            Some('-') => break Op::Take,
            Some('=') => break Op::Set,
            Some('0'..='7') if who == 0 => {
                let octal = rest.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
                let mode = u16::from_str_radix(rest, 8).ok().filter(|mode| octal && *mode <= ALL);
                let comes = mode.ok_or("a mode is an octal number of at most 7777")?;
                return Ok(Part { of, stays: 0, comes, keeps_x: false });
            }
            Some(letter) => {
                let letter = haul_base::escape::within(letter.to_string().as_bytes()).to_string();
                return Err(format!("'{letter}' has no meaning there"));
            }
            None => return Err("it says nothing: there is no number, and no +, - or =".into()),
        }
    };
    let (mut what, mut special, mut keeps_x) = (0, 0, false);
    for letter in letters {
        match letter {
            'r' => what |= 4,
            'w' => what |= 2,
            'x' => what |= 1,
            'X' => (what, keeps_x) = (what | 1, true),
            's' if set_ids != 0 => special |= set_ids,
            // Of nobody in particular it is the user's alone, as rsync has it.
            's' => special = SETUID,
            't' => special |= STICKY,
            letter => {
                let letter = haul_base::escape::within(letter.to_string().as_bytes()).to_string();
                return Err(format!("'{letter}' is none of r, w, x, X, s and t"));
            }
        }
    }
    let bits = match who {
        0 => (0o111 * what) & !(umask as u16),
        who => who * what,
    };
    let cleared = if who == 0 { 0o777 } else { who * 7 };
    let comes = bits | special;
    let (stays, comes) = match op {
        Op::Add => (ALL, comes),
        Op::Take => (ALL & !comes, 0),
        Op::Set => (ALL & !cleared & !if special == 0 { 0 } else { set_ids }, comes),
    };
    Ok(Part { of, stays, comes, keeps_x })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UMASK: u32 = 0o022;

    /// Goal: a text changes the modes of files and directories as its letters say.
    /// Method: texts with what becomes of a file and of a directory, as rsync 3.5 gave them.
    #[test]
    fn modes_change_as_rsync_changes_them() {
        for (text, file, dir) in [
            ("644", (0o4751, 0o644), (0o2755, 0o644)),
            ("D2755,F640", (0o755, 0o640), (0o700, 0o2755)),
            ("0", (0o777, 0), (0o777, 0)),
            ("u=rwx,go=", (0o644, 0o700), (0o2755, 0o2700)),
            ("ug+rwX,o-w", (0o602, 0o660), (0o702, 0o770)),
            ("a+X", (0o644, 0o644), (0o600, 0o711)),
            ("a+X", (0o744, 0o755), (0o744, 0o755)),
            ("a-X", (0o755, 0o644), (0o755, 0o644)),
            ("+w", (0o444, 0o644), (0o555, 0o755)),
            ("=rw", (0o4777, 0o4644), (0o2777, 0o2644)),
            ("-w", (0o666, 0o466), (0o777, 0o577)),
            ("Dg+s,Fu+s", (0o755, 0o4755), (0o755, 0o2755)),
            ("+s", (0o755, 0o4755), (0o755, 0o4755)),
            ("o+s", (0o755, 0o4755), (0o755, 0o4755)),
            ("ug+s", (0o755, 0o6755), (0o755, 0o6755)),
            ("u-s", (0o6755, 0o2755), (0o6755, 0o2755)),
            ("g=s", (0o4775, 0o6705), (0o775, 0o2705)),
            ("u=rw", (0o4755, 0o4655), (0o4755, 0o4655)),
            ("D+t", (0o755, 0o755), (0o755, 0o1755)),
            ("a=", (0o1777, 0o1000), (0o777, 0)),
            ("uD+x", (0o644, 0o644), (0o644, 0o744)),
            ("a-x,a+X", (0o755, 0o755), (0o755, 0o755)),
            ("DD700", (0o644, 0o644), (0o755, 0o700)),
        ] {
            let chmod = Chmod::parse(text, UMASK).expect(text);
            assert_eq!(format!("{:o}", chmod.apply(file.0, false)), format!("{:o}", file.1), "{text} file");
            assert_eq!(format!("{:o}", chmod.apply(dir.0, true)), format!("{:o}", dir.1), "{text} directory");
        }
        let two = Chmod::parse("go=", 0).expect("a text").then(Chmod::parse("g+x", 0).expect("a text"));
        assert_eq!(two.apply(0o777, false), 0o710);
    }

    /// Goal: what is no text of a mode is refused, and says which part it is.
    #[test]
    fn other_texts_are_refused() {
        for (text, part) in [
            ("", "''"),
            ("u", "'u'"),
            ("644,", "''"),
            ("D", "'D'"),
            ("F644,DF755", "'DF755'"),
            ("FD+x", "'FD+x'"),
            ("8", "'8'"),
            ("64a", "'64a'"),
            ("10000", "'10000'"),
            ("+644", "'+644'"),
            ("u644", "'u644'"),
            ("g=u", "'g=u'"),
            ("u+r+w", "'u+r+w'"),
            ("rwx", "'rwx'"),
            ("Dt+t", "'Dt+t'"),
            ("u +x", "'u +x'"),
            ("7777777777777", "'7777777777777'"),
            ("\u{e4}+x", "+x'"),
        ] {
            let why = Chmod::parse(text, UMASK).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
