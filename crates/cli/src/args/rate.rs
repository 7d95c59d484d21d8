//! Rates, windows and names of congestion controls, as they are typed.

use super::parse_size;

/// Least rate, bytes per second: below it a stop would take long to be noticed.
const RATE_MIN: u64 = haul::api::RATE_MIN;
/// Windows that may be asked for, bytes.
const WINDOW_MIN: u64 = 64 << 10;
const WINDOW_MAX: u64 = 1 << 30;

/// Bytes per second from `100MiB/s`, `12MB/s` or `1Gbit/s`. A unit is required: a bare number means bits to
/// some programs, bytes or kilobytes to others.
pub(super) fn parse_rate(text: &str) -> Result<u64, String> {
    const HELP: &str = "write it as 100MiB/s (bytes) or 1Gbit/s (bits)";
    let lower = text.trim().to_ascii_lowercase();
    let Some(amount) = lower.strip_suffix("/s").or_else(|| lower.strip_suffix("ps")) else {
        if lower.ends_with('b') || lower.ends_with("bit") {
            return Err(format!("'{text}' is an amount; per second it is {}/s", text.trim()));
        }
        return Err(format!("a rate needs a unit, for a bare number could mean bits or bytes; {HELP}"));
    };
    let bytes = match amount.strip_suffix("bit") {
        Some(bits) => {
            let digits = bits.trim_end_matches(|c: char| !c.is_ascii_digit());
            let scale: u64 = match bits[digits.len()..].trim() {
                "" => 1,
                "k" => 1000,
                "m" => 1_000_000,
                "g" => 1_000_000_000,
                "t" => 1_000_000_000_000,
                unit => return Err(format!("'{unit}bit/s' is no unit; {HELP}")),
            };
            let number =
                digits.parse::<u64>().map_err(|_| format!("a rate is a whole number and a unit; {HELP}"))?;
            number.checked_mul(scale).ok_or("more than 2^64 bits per second")? / 8
        }
        // `1000b/s`: the letter is what makes it a unit.
        None if amount.ends_with('b') => parse_size(amount)?,
        None => return Err(format!("'{text}' has no unit of bits or bytes; {HELP}")),
    };
    if bytes < RATE_MIN {
        return Err(format!("a rate is {} KiB/s at least", RATE_MIN >> 10));
    }
    Ok(bytes)
}

pub(super) fn parse_window(text: &str) -> Result<u64, String> {
    let size = parse_size(text)?;
    if !(WINDOW_MIN..=WINDOW_MAX).contains(&size) {
        return Err("a window is 64KiB to 1GiB".into());
    }
    Ok(size)
}

/// Which names there are, the sending host knows.
pub(super) fn parse_control(text: &str) -> Result<String, String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if text.is_empty() || text.len() > haul::options::CONTROL_LEN_MAX || !text.chars().all(legal) {
        return Err("a congestion control has a short name, as bbr or cubic".into());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: rates mean what their units say, and a bare number is refused with the reason.
    #[test]
    fn rates_need_units() {
        for (text, rate) in [
            ("100MiB/s", 100 << 20),
            ("100 MiB/s", 100 << 20),
            ("12MB/s", 12_000_000),
            ("100000B/s", 100_000),
            ("1Gbit/s", 125_000_000),
            ("1gbit/s", 125_000_000),
            ("10 Gbit/s", 1_250_000_000),
            ("800MBps", 0),
            ("800Mbitps", 100_000_000),
            ("64KiB/s", 65_536),
        ] {
            match rate {
                0 => assert!(parse_rate(text).is_ok(), "{text}"),
                rate => assert_eq!(parse_rate(text), Ok(rate), "{text}"),
            }
        }
        for text in [
            "100",
            "100M",
            "100MiB",
            "0B/s",
            "1KiB/s",
            "",
            "/s",
            "bit/s",
            "x/s",
            "1.5Gbit/s",
            "-1MB/s",
            "1Xbit/s",
            "5/s",
            "100M/s",
            "99999999999999Tbit/s",
        ] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
        assert!(parse_rate("100").unwrap_err().contains("bits or bytes"));
        for text in ["100MiB", "1Gbit"] {
            assert!(parse_rate(text).unwrap_err().contains(&format!("{text}/s")), "{text}");
        }
    }

    /// Goal: windows and names are bounded.
    #[test]
    fn windows_and_names() {
        assert_eq!(parse_window("16MiB"), Ok(16 << 20));
        assert!(parse_window("1KiB").is_err() && parse_window("2GiB").is_err());
        assert_eq!(parse_control("bbr").as_deref(), Ok("bbr"));
        for text in ["", "a b", "../x", "a-name-of-sixteen", "é"] {
            assert!(parse_control(text).is_err(), "{text}");
        }
    }
}
