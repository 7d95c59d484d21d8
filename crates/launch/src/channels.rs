//! Several channels of one ssh connection, for data where all goes through ssh: the near end's half
//! ([`super::channel_listener`] is the other).
//!
//! One channel has at most its window of 2 MiB under way, so on a long path several move that many times
//! more. In: a connection that others can share ([`Sharing`]). Out: a [`Link`] for each channel that came up;
//! each is one data stream.
//!
//! The near end starts more ssh clients, each of which runs [`STAGE`], which becomes `haul agent --channel`
//! and hands its stdin and stdout to the agent. The agent greets on the channel; what the far shell says
//! before that is skipped. Nothing is forwarded, so it works where sshd forbids forwarding; a channel that
//! sshd refuses (`MaxSessions`) is one fewer.
//!
//! Invariants: the remote command is a constant; a client that does not come up is ended; all of this failing
//! leaves things as they are without it.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use haul_base::escape;
use haul_base::stop::Stop;
use haul_core::tune::Choice;

use super::BootstrapError;
use super::channel_listener::{ChannelAddress, ChannelReply, HelperTask};
use super::clients::Clients;
use super::happy_eyeballs::hear;
use super::message::{self, CHANNEL_MAGIC, Decision, FURTHER_MAX};
use super::shell::Notes;
use super::ssh::Ssh;
use super::ssh_sharing::Sharing;
use haul_transport::{Link, pipe};

/// What one channel has under way at most, bytes (OpenSSH's `CHAN_SES_WINDOW_DEFAULT`).
const WINDOW: u64 = 2 << 20;
/// What ssh encrypts at most on processors of today, bytes per second: more channels than this needs bring
/// nothing.
const CIPHER_RATE: u64 = 1_500_000_000;
/// Shorter paths need no more than one channel.
const RTT_MIN: Duration = Duration::from_millis(5);
/// How long the channels may take to come up. The far end waits for longer.
const OPEN_WAIT: Duration = Duration::from_secs(10);

const _: () = assert!(OPEN_WAIT.as_secs() < super::arrived::JOIN_WAIT.as_secs());

/// The remote command of a channel: a constant. It reads the path of haul from the near end, who has it from
/// the agent.
const STAGE: &str = "exec sh -c 'IFS= read -r p && exec \"$p\" agent --channel'";

/// How many channels besides the first a path of this round trip needs.
fn wanted(rtt: Duration) -> u16 {
    if rtt < RTT_MIN {
        return 0;
    }
    let under_way = u128::from(CIPHER_RATE) * rtt.as_nanos() / 1_000_000_000;
    u16::try_from(under_way.div_ceil(WINDOW.into()) - 1).unwrap_or(u16::MAX)
}

/// What came up: the channels besides the first with their numbers, their clients, and how many there are
/// with the first.
pub(super) struct Further {
    pub links: Vec<(u16, Link)>,
    pub clients: Clients,
    pub told: Choice<u16>,
}

impl Further {
    /// None.
    pub(super) fn none(why: impl Into<String>) -> Further {
        let told = Choice { value: 1, why: why.into() };
        Further { links: Vec::new(), clients: Clients::default(), told }
    }
}

/// Opens channels besides that of `ssh`: `asked` of them, or as many as the path needs; at most `most`. That
/// none comes up is no error.
///
/// # Errors
/// The connection itself is gone.
pub(super) fn open(
    ssh: &mut Ssh,
    sharing: &Sharing,
    (asked, most): (Option<u16>, u16),
    stop: &Stop,
    notes: Notes<'_>,
) -> Result<Further, BootstrapError> {
    let begin = Instant::now();
    let frame = message::encode(&Decision::Channels)
        .map_err(|e| BootstrapError::local("cannot ask for channels", e))?;
    if !ssh.send(&frame, notes)? {
        return Err(ssh.ended(notes));
    }
    let at = match ssh.read_frame(notes)? {
        ChannelReply::At(at) => at,
        ChannelReply::None(why) => {
            let why: String = why.chars().take(haul_core::wire::TEXT_LEN_MAX).collect();
            return Ok(Further::none(format!("the far end: {}", escape::line(why.as_bytes()))));
        }
    };
    let rtt = begin.elapsed();
    let count = asked.unwrap_or_else(|| wanted(rtt).min(sharing.further_max())).min(most).min(FURTHER_MAX);
    let ms = rtt.as_millis();
    if count == 0 {
        let why = if most == 0 { "there is one stream" } else { "the path is short" };
        return Ok(Further::none(format!("{why}, round trip {ms} ms")));
    }
    let (links, clients) = open_all(&sharing.further(STAGE), &at, count, stop);
    let value = 1 + links.len() as u16;
    let which = if asked.is_some() { "as asked".to_owned() } else { format!("round trip {ms} ms") };
    let refused = if links.len() < count.into() {
        format!(", {} refused", count as usize - links.len())
    } else {
        String::new()
    };
    Ok(Further { links, clients, told: Choice { value, why: which + &refused } })
}

/// Starts `count` clients and waits until the agent greets over them. Who does not come up is ended, and all
/// are where a stop is wanted.
fn open_all(words: &[OsString], at: &ChannelAddress, count: u16, stop: &Stop) -> (Vec<(u16, Link)>, Clients) {
    let (sender, opened) = bounded(FURTHER_MAX.into());
    let mut started: Vec<(u16, Child)> = Vec::new();
    for index in 0..count {
        let Ok(mut child) = spawn(words) else { continue };
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        started.push((index, child));
        let (Some(mut stdin), Some(mut stdout)) = (stdin, stdout) else { continue };
        let (task, sender) = (at.task(index), sender.clone());
        let work = move || {
            let up = task.and_then(|task| {
                stdin.write_all(&task)?;
                message::skip_to(CHANNEL_MAGIC, &mut stdout)?;
                pipe::link(OwnedFd::from(stdout), OwnedFd::from(stdin), None)
            });
            let _ = sender.send((index, up));
        };
        // Without the thread it is one fewer.
        let _ = thread::Builder::new().name("haul-channel".into()).spawn(work);
    }
    drop(sender);
    let deadline = Instant::now() + OPEN_WAIT;
    let mut links = Vec::new();
    while let Ok((index, up)) = hear(&opened, deadline, stop) {
        links.extend(up.ok().map(|link: Link| (index, link)));
    }
    if stop.is_asked() {
        links.clear();
    }
    links.sort_by_key(|(index, _)| *index);
    let is_up = |index: u16| links.iter().any(|(up, _)| *up == index);
    let (up, down): (Vec<_>, Vec<_>) = started.into_iter().partition(|(index, _)| is_up(*index));
    let children = |all: Vec<(u16, Child)>| Clients(all.into_iter().map(|(_, child)| child).collect());
    children(down).end(Duration::ZERO);
    (links, children(up))
}

fn spawn(words: &[OsString]) -> io::Result<Child> {
    // A group of its own keeps the terminal's Ctrl-C away, which this client, unlike the first, would end of.
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
    // What it says of a refused session is no news.
    command.stderr(Stdio::null()).spawn()
}

impl ChannelAddress {
    /// What the channel `index` is told: the line for the stage, and the task.
    fn task(&self, index: u16) -> io::Result<Vec<u8>> {
        let mut bytes = self.program.0.clone();
        if bytes.contains(&b'\n') || bytes.first() != Some(&b'/') {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        bytes.push(b'\n');
        let task = HelperTask { name: self.name, token: self.token, index };
        bytes.extend(message::encode(&task)?);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: as many channels as have what the path needs under way, and none more on a short path.
    #[test]
    fn long_paths_need_many() {
        let all = |ms| u64::from(wanted(Duration::from_millis(ms))) + 1;
        assert_eq!(all(0), 1);
        assert_eq!(all(4), 1);
        for ms in [5, 10, 80, 300] {
            assert!(all(ms) * WINDOW * 1000 >= CIPHER_RATE * ms, "{ms}");
            assert!((all(ms) - 1) * WINDOW * 1000 < CIPHER_RATE * ms, "{ms}");
        }
        assert_eq!(wanted(Duration::MAX), u16::MAX);
    }

    /// Goal: clients that end, talk nonsense or say nothing are no channels, and none of them stays.
    #[test]
    fn clients_that_do_not_come_up_are_ended() {
        use crate::message::{Bytes, Fixed};
        let at =
            ChannelAddress { program: Bytes(b"/haul".to_vec()), name: Fixed([1; 16]), token: Fixed([2; 32]) };
        for script in ["exit 1", "head -c 100000 /dev/zero", "printf 'HAUL\\001'"] {
            let words: Vec<OsString> = ["sh", "-c", script].map(OsString::from).into();
            let (links, clients) = open_all(&words, &at, 3, &Stop::never());
            assert!(links.is_empty() && clients.0.is_empty(), "{script}");
        }
        let words: Vec<OsString> =
            ["sh", "-c", "echo motd; printf 'HAUL\\002'; cat >&2"].map(OsString::from).into();
        let (links, clients) = open_all(&words, &at, 2, &Stop::never());
        assert_eq!((links.len(), clients.0.len()), (2, 2));
        let none = ChannelAddress { program: Bytes(b"a\nb".to_vec()), ..at };
        assert!(open_all(&words, &none, 2, &Stop::never()).0.is_empty());
    }
}
