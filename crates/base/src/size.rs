//! Sizes as people write them.
//!
//! In: the text of an option, or of a place's size. Out: bytes.
//! Left out: fractions, for 1.5G means two things.

/// Bytes from `4M`, `64MiB`, `1GB` or a plain number, at least one. K, M, G, T and KiB.. are binary, KB.. are
/// decimal.
pub fn parse_size(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        0 => Err("zero bytes are too few".into()),
        size => Ok(size),
    }
}

/// The same, and zero: bytes from the start of a file, say.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err("a size is a whole number, of bytes or with a unit, as 64MiB, 4M or 1GB".into());
    }
    let scale = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ if unit.starts_with('.') => return Err("a size is a whole number; 1.5G is 1536M".into()),
        _ => {
            return Err(format!(
                "'{unit}' is no unit; known are K M G T, KiB MiB GiB TiB (binary) and KB MB GB TB (decimal)"
            ));
        }
    };
    let size = number.parse::<u64>().ok().and_then(|number| number.checked_mul(scale));
    match size {
        Some(size) => Ok(size),
        None => Err("more than 2^64 bytes".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: sizes mean what their units say; anything else is an error.
    #[test]
    fn sizes_mean_what_they_say() {
        for (text, size) in [
            ("1", 1),
            ("64MiB", 64 << 20),
            ("64 MiB", 64 << 20),
            ("4M", 4 << 20),
            ("4m", 4 << 20),
            ("1GB", 1_000_000_000),
            ("2G", 2 << 30),
            ("3KB", 3000),
            ("3k", 3072),
            ("16777215T", 16_777_215 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(size), "{text}");
        }
        for text in [
            "",
            "0",
            "0G",
            "M",
            "-1",
            "1.5G",
            "4X",
            "4MM",
            "16777216T",
            "18446744073709551616",
            "0x10",
            "４M",
        ] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
