//! Where channels of an ssh connection come in: the far end's half of [`super::channels`].
//!
//! In: processes `haul agent --channel` that sshd started on this host. Out: their stdin and stdout, handed
//! over, so that the agent itself reads and writes them and no byte is copied on the way; a [`Link`] for
//! each.
//!
//! Invariants: the socket has an abstract name, so that nothing lies in a file system and nothing stays when
//! the agent is killed; whoever connects must be this user, as the kernel says, and show the token, 32 random
//! bytes that crossed only ssh's pipes; who hands something over looks at the user first, too. The listener
//! is shut when the channels are up. A helper ends when the agent has done with its channel, or is gone.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

use super::arrived::{Arrived, Decided, JOIN_WAIT};
use super::join_handshake::random;
use super::message::{self, Bytes, CHANNEL_MAGIC, Decision, FURTHER_MAX, Fixed};
use super::{BootstrapError, BootstrapKind};
use haul_transport::{Link, pipe};

/// How long a helper may take to say who it is.
const HELPER_WAIT: Duration = Duration::from_secs(5);
/// Number and token.
const WORDS_LEN: usize = 2 + 32;

/// Agent to near end: where helpers find it, or why not.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ChannelReply {
    At(ChannelAddress),
    None(String),
}

/// Where a helper finds the agent.
#[derive(Serialize, Deserialize)]
pub(super) struct ChannelAddress {
    /// The agent's own program.
    pub program: Bytes,
    /// Names the socket.
    pub name: Fixed<16>,
    pub token: Fixed<32>,
}

/// Near end to helper.
#[derive(Serialize, Deserialize)]
pub(super) struct HelperTask {
    pub name: Fixed<16>,
    pub token: Fixed<32>,
    pub index: u16,
}

fn address(name: &Fixed<16>) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("haul-{}", data_encoding::HEXLOWER.encode(&name.0)))
}

type Came = Arc<Mutex<BTreeMap<u16, Link>>>;

/// Those that came.
fn guests(came: &Came) -> MutexGuard<'_, BTreeMap<u16, Link>> {
    came.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The agent's socket for helpers, and who came. Dropped, it is shut.
pub(super) struct ChannelListener {
    listener: UnixListener,
    came: Came,
}

impl ChannelListener {
    /// Opens one.
    ///
    /// # Errors
    /// The program cannot be named, or the system's answer.
    pub(super) fn open() -> io::Result<(ChannelListener, ChannelAddress)> {
        let program = std::env::current_exe()?.into_os_string().into_vec();
        let (mut name, mut token) = ([0; 16], [0; 32]);
        random(&mut name)?;
        random(&mut token)?;
        let at = ChannelAddress { program: Bytes::bounded(program)?, name: Fixed(name), token: Fixed(token) };
        let listener = UnixListener::bind_addr(&address(&at.name)?)?;
        let came = Came::default();
        let (door, guests) = (listener.try_clone()?, came.clone());
        // Ends when the listener is shut.
        let serve = move || {
            door.incoming().map_while(Result::ok).for_each(|helper| drop(admit(helper, &token, &guests)))
        };
        thread::Builder::new().name("haul-channels".into()).spawn(serve)?;
        Ok((ChannelListener { listener, came }, at))
    }

    /// The channels that the near end names, in its order; the others are closed.
    pub(super) fn take(self, indices: &[u16]) -> Option<Vec<Link>> {
        let mut came = guests(&self.came);
        indices.iter().map(|index| came.remove(index)).collect()
    }
}

impl Drop for ChannelListener {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        guests(&self.came).clear();
    }
}

/// The far end's part when further channels are tried: opens the listener, says where it is, and waits for
/// the near end's last word. Out: the pipe with the channels that came up, and the number of data streams,
/// `streams.0` unless it says another, at most `streams.1`.
///
/// # Errors
/// The near end is gone, or says what cannot be.
pub(super) fn answer(
    streams: (u16, u16),
    decided: &Receiver<Decided>,
    say: &mut dyn FnMut(&ChannelReply) -> Result<(), BootstrapError>,
) -> Result<(Arrived, u16), BootstrapError> {
    let wrong = |what: &str| BootstrapError::new(BootstrapKind::Peer, what);
    let (mut listener, reply) = match ChannelListener::open() {
        Ok((listener, at)) => (Some(listener), ChannelReply::At(at)),
        Err(error) => (
            None,
            ChannelReply::None(format!("no socket for further channels: {}", haul_base::errno::text(error))),
        ),
    };
    say(&reply)?;
    let deadline = Instant::now() + JOIN_WAIT;
    let (mut streams, most) = streams;
    loop {
        let word = decided.recv_deadline(deadline);
        match word.map_err(|_| wrong("the near end did not decide in time"))? {
            (Ok(Decision::Streams(n)), None) if (1..=most).contains(&n) => streams = n,
            (Ok(Decision::Mux), Some(input)) => {
                return Ok((Arrived::Mux { input, channels: Vec::new() }, streams));
            }
            (Ok(Decision::Over(named)), Some(input)) if named.len() < streams.into() => {
                let channels = listener.take().and_then(|listener| listener.take(&named));
                let channels =
                    channels.ok_or_else(|| wrong("the near end named a channel that is not there"))?;
                return Ok((Arrived::Mux { input, channels }, streams));
            }
            (Err(_), _) => return Err(wrong("ssh ended before the near end had decided")),
            (Ok(_), _) => return Err(wrong("the near end asked for what is not possible")),
        }
    }
}

/// Is the other end this user's?
fn is_ours(socket: &UnixStream) -> io::Result<()> {
    match rustix::net::sockopt::socket_peercred(socket)?.uid == rustix::process::geteuid() {
        true => Ok(()),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Takes a helper's descriptors if it has the token, and greets the near end through them.
fn admit(helper: UnixStream, token: &[u8; 32], came: &Came) -> io::Result<()> {
    is_ours(&helper)?;
    helper.set_read_timeout(Some(HELPER_WAIT))?;
    let mut said = [0; WORDS_LEN];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(&helper, &mut [IoSliceMut::new(&mut said)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(handed) = message {
            fds.extend(handed);
        }
    }
    let known = aws_lc_rs::constant_time::verify_slices_are_equal(&said[2..], token).is_ok()
        || haul_mutant::removed("listener-token");
    if got.bytes != said.len() || got.flags.contains(ReturnFlags::CTRUNC) || !known {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let index = u16::from_le_bytes([said[0], said[1]]);
    let [input, output] = <[OwnedFd; 2]>::try_from(fds).map_err(|_| io::ErrorKind::InvalidData)?;
    let mut came = guests(came);
    if index >= FURTHER_MAX || came.contains_key(&index) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut greets = File::from(output.try_clone()?);
    let link = pipe::link(input, output, Some(Box::new(helper)))?;
    // Before the greeting is heard the near end does not name it. The pipe is empty, so this cannot wait.
    came.insert(index, link);
    greets.write_all(CHANNEL_MAGIC)
}

/// `haul agent --channel`: hands `input` and `output` to the agent that the task in `input` names, and waits
/// until it has done with them.
///
/// # Errors
/// There is no such agent of this user.
pub fn channel(input: BorrowedFd<'_>, output: BorrowedFd<'_>) -> Result<(), BootstrapError> {
    let hand_over = || {
        let task: HelperTask = message::read_frame(&mut File::from(input.try_clone_to_owned()?))?;
        let mut agent = UnixStream::connect_addr(&address(&task.name)?)?;
        is_ours(&agent)?;
        let said = [&task.index.to_le_bytes()[..], &task.token.0].concat();
        let fds = [input.as_fd(), output.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        sendmsg(&agent, &[IoSlice::new(&said)], &mut control, SendFlags::NOSIGNAL)?;
        // It says nothing; its end is heard.
        agent.read(&mut [0]).map(drop)
    };
    hand_over().map_err(|source| BootstrapError {
        source: Some(source),
        ..BootstrapError::new(BootstrapKind::Local, "this channel's agent cannot be reached")
    })
}

#[cfg(test)]
mod tests {
    use std::io::PipeReader;

    use crossbeam_channel::bounded;

    use super::*;

    /// Nothing here takes so long; it turns a helper that is let in, and stays, into a failure.
    const HANG: Duration = Duration::from_secs(20);

    /// The end of a helper.
    struct Helper(Receiver<bool>);

    impl Helper {
        /// What it says at its end.
        fn join(self) -> bool {
            self.0.recv_timeout(HANG).expect("the helper ends")
        }

        fn is_running(&self) -> bool {
            self.0.is_empty()
        }
    }

    /// A helper that was told this, and the other end of its stdout.
    fn helper(at: &ChannelAddress, token: [u8; 32], index: u16) -> (Helper, PipeReader) {
        let ((input, mut told), (said, output)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        let task = HelperTask { name: at.name, token: Fixed(token), index };
        told.write_all(&message::encode(&task).unwrap()).unwrap();
        let (over, ended) = bounded(1);
        thread::spawn(move || {
            let handed = channel(input.as_fd(), output.as_fd()).is_ok();
            drop((told, input, output));
            let _ = over.send(handed);
        });
        (Helper(ended), said)
    }

    /// Goal: a channel comes in with the token and under a number of its own only; a helper ends with the
    /// agent's interest.
    #[test]
    fn only_who_knows_the_token_is_let_in() {
        let (listener, at) = ChannelListener::open().unwrap();
        let heard = |mut said: PipeReader| {
            let mut all = Vec::new();
            said.read_to_end(&mut all).map(|_| all).unwrap()
        };
        let (liar, said) = helper(&at, [0; 32], 0);
        assert!(liar.join() && heard(said).is_empty());
        let (first, mut heard_first) = helper(&at, at.token.0, 1);
        message::skip_to(CHANNEL_MAGIC, &mut heard_first).unwrap();
        for index in [1, FURTHER_MAX] {
            let (second, said) = helper(&at, at.token.0, index);
            assert!(second.join() && heard(said).is_empty(), "{index}");
        }
        let (third, mut said) = helper(&at, at.token.0, 7);
        message::skip_to(CHANNEL_MAGIC, &mut said).unwrap();
        assert!(first.is_running());
        let mut links = listener.take(&[1]).expect("it came");
        assert_eq!(links.len(), 1);
        // The one that was not named is closed.
        assert!(third.join());
        links[0].writer.write_all(b"x").unwrap();
        drop(links);
        assert!(first.join());
        assert!(heard(heard_first).contains(&b'x'));
        let late = helper(&at, at.token.0, 2).0;
        assert!(!late.join(), "the listener is still open");
    }

    /// Goal: a near end that names what is not there, or too much, is wrong; without channels it may go on.
    #[test]
    fn the_near_end_names_what_is_there() {
        let end = |word: Decision| {
            let (sender, decided) = bounded::<Decided>(2);
            sender.send((Ok(Decision::Streams(3)), None)).unwrap();
            sender.send((Ok(word), Some(Box::new(io::empty())))).unwrap();
            answer((4, 4), &decided, &mut |_| Ok(())).map(|(_, streams)| streams).map_err(|error| error.kind)
        };
        assert_eq!(end(Decision::Mux), Ok(3));
        assert_eq!(end(Decision::Over(Vec::new())), Ok(3));
        for wrong in [Decision::Over(vec![0]), Decision::Over(vec![0, 1, 2]), Decision::Direct] {
            assert_eq!(end(wrong.clone()), Err(BootstrapKind::Peer), "{wrong:?}");
        }
    }
}
