//! Which kernels haul runs on, and which boot of one it is.
//!
//! In: a system and its release, as `uname` says them. Out: a sentence for people, if it is too old.
//! Invariant: what is not understood is let through; only a release that is surely too old is refused.

/// The oldest Linux on which what haul asks of the kernel, or a way without it, is there.
pub const FLOOR: (u32, u32) = (4, 18);

/// Whether haul runs there. `who`: the beginning of the sentence, as `this host runs`.
///
/// # Errors
/// It is Linux, and older than [`FLOOR`].
pub fn fits(system: &str, release: &str, who: &str) -> Result<(), String> {
    let Some(version) = version(release) else { return Ok(()) };
    if system != "Linux" || version >= FLOOR {
        return Ok(());
    }
    let (first, second) = FLOOR;
    Err(format!("{who} Linux {release}, and haul needs Linux {first}.{second} or newer"))
}

/// What the mode of a new file is cut by. It can only be asked by being set, for a moment; the kernel tells
/// it without that.
pub fn umask() -> u32 {
    let status = std::fs::read("/proc/self/status").unwrap_or_default();
    let text = String::from_utf8_lossy(&status);
    let told = text.lines().find_map(|line| line.strip_prefix("Umask:"));
    // Where it is not told nobody else gets anything.
    told.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o077) & 0o777
}

/// The first two numbers of a release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
        _ => None,
    }
}

/// This host surely runs that version of Linux or a later one.
pub fn is_from(first: (u32, u32)) -> bool {
    let uname = rustix::system::uname();
    uname.sysname().to_bytes() == b"Linux"
        && version(&uname.release().to_string_lossy()).is_some_and(|version| version >= first)
}

/// The same of this host.
///
/// # Errors
/// As [`fits`].
pub fn fits_here() -> Result<(), String> {
    let uname = rustix::system::uname();
    fits(&uname.sysname().to_string_lossy(), &uname.release().to_string_lossy(), "this host runs")
}

/// The id of this boot, which a journal without durability is bound to; zero if the system has none.
pub fn boot_id() -> [u8; 16] {
    let told = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = told.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: releases before the floor are refused by one sentence that names both, others and what is no
    /// release are not.
    #[test]
    fn old_kernels_are_told_apart() {
        for old in ["4.17.19", "3.10.0-1160.el7.x86_64", "2.6.66", "4.4-custom", "0.99"] {
            let why = fits("Linux", old, "h runs").unwrap_err();
            assert_eq!(why, format!("h runs Linux {old}, and haul needs Linux 4.18 or newer"));
        }
        for fit in
            ["4.18.0-553.el8_10.x86_64", "4.18", "4.19.1", "5.0", "6.12.0-rc1+", "10.0", "Linux", "", "x.1"]
        {
            assert_eq!(fits("Linux", fit, "h runs"), Ok(()), "{fit}");
        }
        assert_eq!(fits("FreeBSD", "3.1", "h runs"), Ok(()));
        assert_eq!(fits_here(), Ok(()));
        assert!(is_from(FLOOR) && !is_from((1000, 0)));
    }
}
