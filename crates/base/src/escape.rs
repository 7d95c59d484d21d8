//! Names and texts made safe to show to people: nothing that a file or a peer is called can steer a terminal.
//!
//! In: bytes from disks, peers and command lines. Out: text without control characters, without characters
//! that reorder or hide text, and without anything that is not UTF-8.
//! Left out: JSON, where serde escapes and `path_b64` carries the exact bytes.

use std::fmt::Write;

/// A name or path on one line. Unambiguous: a backslash shows as `\\`, a byte that is not UTF-8 as `\xNN`.
pub fn name(bytes: &[u8]) -> String {
    one_line(bytes, r"\\")
}

/// What somebody else said, on one line: a line of ssh's, the words of a peer. As [`name`], but backslashes
/// stay single.
pub fn line(bytes: &[u8]) -> String {
    if haul_mutant::removed("escaped-words") {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    one_line(bytes, r"\")
}

/// A name or path within the text of a failure, on one line: what is not UTF-8 is replaced, control
/// characters are escaped. Who shows the whole passes it through [`text`], for what reorders text is still in
/// it.
pub fn within(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for c in String::from_utf8_lossy(bytes).chars() {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

fn one_line(bytes: &[u8], backslash: &str) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str(backslash),
                '\n' => out.push_str("\\n"),
                _ => push(&mut out, c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

/// A text for people, for instance an error from the far end. Keeps line ends; backslashes stay single.
pub fn text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push('\n'),
            _ => push(&mut out, c),
        }
    }
    out
}

fn push(out: &mut String, c: char) {
    match c {
        '\t' => out.push_str("\\t"),
        '\r' => out.push_str("\\r"),
        _ if c.is_ascii_control() => {
            let _ = write!(out, "\\x{:02x}", u32::from(c));
        }
        _ if c.is_control() || steers(c) => {
            let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
        }
        _ => out.push(c),
    }
}

/// Characters that reorder text (bidi), break lines, or cannot be seen at all.
/// Source: Unicode's Bidi_Control, line and paragraph separators, zero-width marks and tag characters.
fn steers(c: char) -> bool {
    matches!(c,
        '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what steers a terminal never reaches it.
    /// Method: a table of the known tricks, and every short string of random bytes.
    #[test]
    fn nothing_steers_the_terminal() {
        for (bytes, shown) in [
            (&b"plain"[..], "plain"),
            (b"a\nb", "a\\nb"),
            (b"\x1b[2J", "\\x1b[2J"),
            (b"tab\tcr\r", "tab\\tcr\\r"),
            (b"del\x7f", "del\\x7f"),
            (b"\xc2\x9b31m", "\\u{9b}31m"),
            (b"\x9b31m", "\\x9b31m"),
            (b"\xff\xfe", "\\xff\\xfe"),
            (b"back\\slash", "back\\\\slash"),
            ("gpj\u{202e}exe".as_bytes(), "gpj\\u{202e}exe"),
            ("\u{2066}x\u{2069}".as_bytes(), "\\u{2066}x\\u{2069}"),
            ("\u{feff}bom".as_bytes(), "\\u{feff}bom"),
            ("Größe 数据".as_bytes(), "Größe 数据"),
        ] {
            assert_eq!(name(bytes), shown);
        }
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..10_000 {
            let bytes: Vec<u8> = (0..random.usize(..12)).map(|_| random.u8(..)).collect();
            assert!(!name(&bytes).chars().any(|c| c.is_control() || steers(c)));
            let lossy = String::from_utf8_lossy(&bytes);
            assert!(!text(&lossy).chars().any(|c| (c.is_control() && c != '\n') || steers(c)));
        }
    }

    /// Goal: whatever bytes come, the escaped text has no control or direction-changing character.
    /// Method: all single bytes, all characters of the basic plane, random strings.
    #[test]
    fn escaped_text_is_harmless() {
        let harmless = |text: &str| {
            text.chars()
                .all(|c| !c.is_control() && !('\u{202a}'..='\u{202e}').contains(&c) && c != '\u{200f}')
        };
        for byte in 0..=255u8 {
            assert!(harmless(&line(&[byte])));
        }
        for c in '\0'..='\u{ffff}' {
            assert!(harmless(&line(c.to_string().as_bytes())), "{c:?}");
        }
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..1000 {
            let bytes: Vec<u8> = (0..rng.usize(..40)).map(|_| rng.u8(..)).collect();
            assert!(harmless(&line(&bytes)), "{bytes:?}");
        }
        assert_eq!(line("Zürich 東京".as_bytes()), "Zürich 東京");
    }

    /// Goal: within a text a name is one line of characters that can be printed.
    #[test]
    fn names_within_texts_are_harmless() {
        assert_eq!(within(b"a\x1b[31m\n\xff"), "a\\u{1b}[31m\\n\u{fffd}");
        assert_eq!(within("back\\slash, Größe".as_bytes()), "back\\slash, Größe");
    }

    /// Goal: two names never look the same.
    /// Method: all strings of up to three bytes from the ones that could be confused.
    #[test]
    fn shown_names_stay_apart() {
        let alphabet = b"\\xn0f\n\xff\x0f";
        let mut seen = std::collections::HashMap::new();
        let mut words: Vec<Vec<u8>> = vec![Vec::new()];
        for _ in 0..4 {
            for word in words.clone() {
                for byte in alphabet {
                    words.push([&word[..], &[*byte]].concat());
                }
            }
            words.sort();
            words.dedup();
        }
        for word in words {
            let shown = name(&word);
            if let Some(other) = seen.insert(shown.clone(), word.clone()) {
                panic!("{other:?} and {word:?} both show as {shown}");
            }
        }
    }
}
