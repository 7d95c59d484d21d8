//! What the owner of a host forbids.
//!
//! In: `/etc/haul/protect`, and a user's `~/.config/haul/protect`: one word, `tls` or `integrity`, the least
//! protection of data on the network that is accepted. Out: the stricter of both. No such file: `integrity`,
//! for who is let in by ssh may also read the data. One that cannot be read or understood means `tls`. It is
//! a rule for those who mean well: who may run programs here can run another one.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use haul_transport::Protect;

/// The rule of this host.
const SYSTEM: &str = "/etc/haul/protect";
/// That of a user, below the home directory.
const USER: &str = ".config/haul/protect";
/// Bytes of such a file that are looked at.
const LEN_MAX: u64 = 64;
/// Why this end does not begin.
pub(super) const FORBIDDEN: &str =
    "data without encryption is forbidden on this host (/etc/haul/protect); leave out `protect`";

/// The least protection that is accepted here.
pub(super) fn least_protect(home: Option<&Path>) -> Protect {
    least(Path::new(SYSTEM), home)
}

fn least(system: &Path, home: Option<&Path>) -> Protect {
    let user = home.map(|home| home.join(USER));
    std::iter::once(system).chain(user.as_deref()).map(rule).max().unwrap_or_default()
}

fn rule(path: &Path) -> Protect {
    let mut text = String::new();
    match File::open(path).and_then(|file| file.take(LEN_MAX).read_to_string(&mut text)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Protect::Integrity,
        Ok(_) if text.trim() == "integrity" => Protect::Integrity,
        Ok(_) | Err(_) if haul_mutant::removed("least-protection") => Protect::Integrity,
        Ok(_) | Err(_) => Protect::Tls,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Goal: the stricter rule counts, and one that is not understood is the strictest.
    #[test]
    fn the_stricter_rule_counts() {
        let dir = tempfile::tempdir().expect("a directory");
        let (system, home) = (dir.path().join("protect"), dir.path().join("home"));
        let user = home.join(USER);
        fs::create_dir_all(user.parent().expect("it has one")).expect("made");
        let asked = || least(&system, Some(&home));
        assert_eq!(asked(), Protect::Integrity, "no rule");
        let (tls, integrity) = (Protect::Tls, Protect::Integrity);
        for (of_system, of_user, want) in [
            ("tls\n", "integrity", tls),
            ("integrity\n", "tls", tls),
            ("integrity", " integrity\n", integrity),
            ("", "integrity", tls),
            ("integrity nonsense", "integrity", tls),
            ("integrity", "\u{7f}", tls),
        ] {
            fs::write(&system, of_system).expect("written");
            fs::write(&user, of_user).expect("written");
            assert_eq!(asked(), want, "{of_system:?} {of_user:?}");
        }
        fs::remove_file(&user).expect("removed");
        fs::create_dir(&user).expect("made");
        assert_eq!(asked(), tls, "a rule that cannot be read");
    }
}
