//! The process as it was started: its terminal, its environment, its own path. Only here are they looked at.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;

use haul::api::{Dialler, RemoteOptions};

use crate::args::far::{Far, Ports};

/// What a command may want to know of the process.
pub struct Surroundings {
    pub stdin_terminal: bool,
    /// Somebody could answer a question of ssh's.
    pub answers: bool,
    pub stdout_terminal: bool,
    pub stderr_terminal: bool,
    /// `TERM` names a terminal that understands escape sequences.
    pub capable: bool,
    pub no_color: bool,
    pub binary: Option<PathBuf>,
}

impl Surroundings {
    pub fn look() -> Surroundings {
        Surroundings {
            stdin_terminal: std::io::stdin().is_terminal(),
            answers: can_answer(has_terminal(), set),
            stdout_terminal: std::io::stdout().is_terminal(),
            stderr_terminal: std::io::stderr().is_terminal(),
            capable: set("TERM").is_some_and(|term| term != "dumb"),
            no_color: set("NO_COLOR").is_some(),
            binary: std::env::current_exe().ok(),
        }
    }

    /// How the far host is reached, with one channel where all goes through ssh.
    pub fn remote(&self, far: &Far, dial: Dialler) -> RemoteOptions {
        RemoteOptions {
            ssh: far.ssh.0.clone(),
            remote_haul: far.remote_haul.clone(),
            no_push: far.no_push,
            via: far.via.clone(),
            dial,
            ports: far.port.map(|Ports(first, last)| (first, last)),
            interactive: self.answers,
            ssh_channels: Some(1),
            sockets: Vec::new(),
            binary: self.binary.clone(),
        }
    }
}

/// Whether this process has a terminal, on which ssh asks whatever stdin is: a person's, or one that a
/// program like sshpass made for it.
fn has_terminal() -> bool {
    std::fs::File::options().read(true).write(true).open("/dev/tty").is_ok()
}

/// Whether ssh's questions are heard: on the terminal, or by the program that the user named for it, as ssh
/// itself decides.
fn can_answer(terminal: bool, variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let display = variable("DISPLAY").or_else(|| variable("WAYLAND_DISPLAY")).is_some();
    let require = variable("SSH_ASKPASS_REQUIRE").map(|word| word.to_ascii_lowercase());
    let program = variable("SSH_ASKPASS").is_some()
        && match require.as_deref().and_then(|word| word.to_str()) {
            Some("force") => true,
            Some("never") => false,
            _ => display,
        };
    terminal || program
}

/// Where haul keeps what it learns: `$XDG_STATE_HOME/haul`, else `~/.local/state/haul`. `None`: the
/// environment names neither.
pub fn state_dir() -> Option<PathBuf> {
    state_dir_of(set("XDG_STATE_HOME"), set("HOME"))
}

/// Where copies of this user have their control sockets: `$HAUL_CTL_DIR` and nowhere else, if it is set; else
/// `$XDG_RUNTIME_DIR/haul`, and a directory of this user's below `/tmp`, where the first is not to be had. A
/// job takes the first that it can use, a client looks into both: a copy that cron began knows no runtime
/// directory.
pub fn control_dirs() -> Vec<PathBuf> {
    control_dirs_of(set("HAUL_CTL_DIR"), set("XDG_RUNTIME_DIR"), rustix::process::geteuid().as_raw())
}

fn control_dirs_of(alone: Option<OsString>, xdg: Option<OsString>, uid: u32) -> Vec<PathBuf> {
    if let Some(alone) = alone.map(PathBuf::from).filter(|dir| dir.is_absolute()) {
        return vec![alone];
    }
    let runtime = xdg.map(PathBuf::from).filter(|dir| dir.is_absolute()).map(|dir| dir.join("haul"));
    runtime.into_iter().chain([PathBuf::from(format!("/tmp/haul-ctl-{uid}"))]).collect()
}

/// A relative path counts as none, as the XDG Base Directory Specification has it.
fn state_dir_of(xdg: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |dir: Option<OsString>| dir.map(PathBuf::from).filter(|dir| dir.is_absolute());
    let base = absolute(xdg).or_else(|| absolute(home).map(|home| home.join(".local/state")))?;
    Some(base.join("haul"))
}

/// A variable of the environment; an empty one counts as none.
fn set(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Goal: who can answer ssh's questions is found as ssh finds it.
    #[test]
    fn whoever_can_answer_is_found() {
        let asks = |terminal, set: &[(&str, &str)]| {
            can_answer(terminal, |name| set.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
        };
        assert!(asks(true, &[]) && !asks(false, &[]));
        let program = ("SSH_ASKPASS", "/x");
        assert!(!asks(false, &[program]) && !asks(false, &[("DISPLAY", ":0")]));
        assert!(asks(false, &[program, ("DISPLAY", ":0")]));
        assert!(asks(false, &[program, ("WAYLAND_DISPLAY", "w")]));
        assert!(asks(false, &[program, ("SSH_ASKPASS_REQUIRE", "Force")]));
        assert!(!asks(false, &[program, ("DISPLAY", ":0"), ("SSH_ASKPASS_REQUIRE", "never")]));
    }

    /// Goal: the state directory is where the specification has it.
    #[test]
    fn state_lies_where_the_specification_has_it() {
        let of = |xdg: &str, home: &str| {
            let some = |text: &str| Some(OsString::from(text)).filter(|text| !text.is_empty());
            state_dir_of(some(xdg), some(home))
        };
        assert_eq!(of("/s", "/h").as_deref(), Some(Path::new("/s/haul")));
        assert_eq!(of("", "/h").as_deref(), Some(Path::new("/h/.local/state/haul")));
        assert_eq!(of("relative", "/h").as_deref(), Some(Path::new("/h/.local/state/haul")));
        assert_eq!(of("", ""), None);
        assert_eq!(of("", "relative"), None);
    }

    /// Goal: control sockets lie where the specification has what lives as long as a login, else apart for
    /// each user; a place that is named is the only one.
    #[test]
    fn sockets_lie_where_the_specification_has_them() {
        let own = PathBuf::from("/tmp/haul-ctl-7");
        assert_eq!(
            control_dirs_of(None, Some("/run/user/7".into()), 7),
            [PathBuf::from("/run/user/7/haul"), own.clone()]
        );
        assert_eq!(control_dirs_of(None, Some("relative".into()), 7), vec![own.clone()]);
        assert_eq!(control_dirs_of(None, None, 7), vec![own.clone()]);
        assert_eq!(control_dirs_of(Some("relative".into()), None, 7), [own]);
        let (alone, runtime) = (Some("/ctl".into()), Some("/run/user/7".into()));
        assert_eq!(control_dirs_of(alone, runtime, 7), [PathBuf::from("/ctl")]);
    }
}
