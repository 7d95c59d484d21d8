//! Parts of files, as they are typed: `OFFSET:LEN`, with units as sizes have them.

use haul::options::Range;
use haul::size::{parse_bytes, parse_size};

/// A part: `1GiB:64MiB`, `0:512`; `4096:` goes to the end of the file.
pub(super) fn parse_range(text: &str) -> Result<Range, String> {
    let Some((offset, len)) = text.split_once(':') else {
        return Err("a part of a file is OFFSET:LEN, as 1GiB:64MiB, or OFFSET: up to its end".into());
    };
    let offset = parse_offset(offset)?;
    let len = match len.trim() {
        "" => None,
        len => Some(parse_size(len).map_err(|e| format!("{e}, for a part"))?),
    };
    Ok(Range { offset, len })
}

/// Bytes from the start of a file: a size, or zero.
pub(super) fn parse_offset(text: &str) -> Result<u64, String> {
    parse_bytes(text.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a part means what it says, with or without an end; anything else is an error.
    #[test]
    fn parts_mean_what_they_say() {
        for (text, offset, len) in [
            ("0:1", 0, Some(1)),
            ("1GiB:64MiB", 1 << 30, Some(64 << 20)),
            ("4096:", 4096, None),
            ("0:", 0, None),
            ("0MiB:16MiB", 0, Some(16 << 20)),
            ("00:5", 0, Some(5)),
            ("5 : 7", 5, Some(7)),
        ] {
            assert_eq!(parse_range(text), Ok(Range { offset, len }), "{text}");
        }
        for text in ["", ":", "5", ":5", "5:0", "-1:5", "1:-5", "1.5G:1", "1:2:3", "a:b"] {
            assert!(parse_range(text).is_err(), "{text}");
        }
    }
}
