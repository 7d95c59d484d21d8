//! What a stream's join takes: what the streams of a session have in common, and the half of the end that
//! dials.
//!
//! In: a connected socket, the [`Session`], the other end's key. Out: a [`Connected`], and a joined [`Link`]
//! once it has a name; its guard is taken at once. The half of the end that listens is [`super::listener`].

use std::io::{self, Read};
use std::net::TcpStream;
use std::time::Duration;

use haul_core::ids::{SessionEpoch, StreamId};
use haul_core::wire::{JOINED_LEN, Join, Joined};

use haul_transport::frames::FrameKeys;
use haul_transport::path;
use haul_transport::rejoin::bound_stalls;
use haul_transport::{Link, TransportError, Unseal, tls};

/// How long the answer to a name may take that nobody waits for; and to send it.
const JOINED_WAIT: Duration = Duration::from_secs(10);

/// What the streams of one session have in common.
#[derive(Clone)]
pub(super) struct Session {
    pub id: [u8; 16],
    /// Each join is proved with it ([`Join::prove`]); it came through ssh.
    pub secret: [u8; 32],
    /// Data streams are authenticated and not encrypted.
    pub bare: bool,
}

impl Session {
    /// A session with random names.
    pub(super) fn new() -> io::Result<Session> {
        let mut session = Session { id: [0; 16], secret: [0; 32], bare: false };
        random(&mut session.id)?;
        random(&mut session.secret)?;
        Ok(session)
    }
}

impl Session {
    /// A stream that joined, as its frames will be guarded.
    pub(super) fn guard(
        &self,
        link: &mut Link,
        name: (StreamId, SessionEpoch),
        near: bool,
    ) -> Result<(), TransportError> {
        self.frame_keys(name, near).map_or(Ok(()), |keys| link.bare(keys))
    }

    /// The keys of a stream whose frames guard themselves.
    fn frame_keys(&self, name: (StreamId, SessionEpoch), near: bool) -> Option<FrameKeys> {
        (self.bare && name.0 != StreamId(0)).then(|| FrameKeys::new(&self.secret, &self.id, name, near))
    }
}

/// Fills `bytes` from the kernel.
pub(super) fn random(bytes: &mut [u8]) -> io::Result<()> {
    aws_lc_rs::rand::fill(bytes).map_err(|_| io::Error::other("no entropy"))
}

/// A connection whose other end has shown that it is ours. It has no name yet; who is not needed may be
/// dropped.
pub(super) struct Connected {
    link: Link,
    timer: TcpStream,
}

/// TLS: the near end's first part of a join. All within `wait`, as far as TLS keeps to it.
pub(super) fn handshake(
    socket: TcpStream,
    identity: &tls::Identity,
    pin: &tls::Pin,
    wait: Duration,
) -> Result<Connected, TransportError> {
    let wait = wait.max(Duration::from_millis(1));
    let timer = prepare(&socket, wait).map_err(unprepared)?;
    let link = tls::client(socket, identity, pin, wait)?;
    Ok(Connected { link, timer })
}

impl Connected {
    /// Says the stream's name, and waits for the far end's word that it is joined.
    pub(super) fn join(
        self,
        session: &Session,
        (stream, epoch): (StreamId, SessionEpoch),
        wait: Duration,
    ) -> Result<Link, TransportError> {
        let Connected { mut link, timer } = self;
        set_timeouts(&timer, Some(wait.max(Duration::from_millis(1)))).map_err(unprepared)?;
        let mut answer = [0; JOINED_LEN];
        let said = introduce(&mut link, session, (stream, epoch));
        said.and_then(|()| link.reader.read_exact(&mut answer)).map_err(unjoined)?;
        accepted(&answer, (stream, epoch)).map_err(|what| TransportError { what, source: None })?;
        settle(&timer).map_err(unprepared)?;
        session.guard(&mut link, (stream, epoch), true)?;
        Ok(link)
    }

    /// [`Connected::join`] without waiting for the answer, so that what is said next travels with the name.
    /// The answer comes before all else that is read: a refusal, or none within [`JOINED_WAIT`], is the error
    /// of the first read.
    pub(super) fn join_at_once(
        self,
        session: &Session,
        name: (StreamId, SessionEpoch),
    ) -> Result<Link, TransportError> {
        let Connected { mut link, timer } = self;
        set_timeouts(&timer, Some(JOINED_WAIT)).map_err(unprepared)?;
        introduce(&mut link, session, name).map_err(unjoined)?;
        settle(&timer).and_then(|()| timer.set_read_timeout(Some(JOINED_WAIT))).map_err(unprepared)?;
        let unseal = match session.frame_keys(name, true) {
            Some(keys) => Some(link.bare_out(keys)?),
            None => None,
        };
        let answer = Some(Answer { timer, name, bytes: [0; JOINED_LEN], len: 0, unseal });
        Ok(Link { reader: Box::new(Answered { inner: link.reader, answer }), ..link })
    }

    /// The round-trip time, as far as the handshake shows it.
    pub(super) fn rtt(&self) -> Option<Duration> {
        path::rtt(&self.link)
    }
}

/// Names the stream, with a proof.
fn introduce(
    link: &mut Link,
    session: &Session,
    (stream, epoch): (StreamId, SessionEpoch),
) -> io::Result<()> {
    let mut nonce = [0; 16];
    random(&mut nonce)?;
    let name = Join::prove(&session.secret, session.id, stream, epoch, nonce);
    link.writer.write_all(&name.encode())?;
    link.writer.flush()
}

/// Is the answer to this name that it is taken? Else what it is.
fn accepted(answer: &[u8; JOINED_LEN], (stream, epoch): (StreamId, SessionEpoch)) -> Result<(), String> {
    match Joined::decode(answer) {
        Ok((Joined::Accepted, s, e)) if (s, e) == (stream, epoch) => Ok(()),
        answer => Err(format!("the far end did not take stream {stream}: {answer:?}")),
    }
}

/// The reading half of a stream whose name was not answered yet.
struct Answered {
    inner: Box<dyn Read + Send>,
    /// `None`: it was, and the stream is taken.
    answer: Option<Answer>,
}

struct Answer {
    timer: TcpStream,
    name: (StreamId, SessionEpoch),
    bytes: [u8; JOINED_LEN],
    /// So much of it came.
    len: usize,
    /// What follows the answer guards itself.
    unseal: Option<Unseal>,
}

impl Read for Answered {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while let Some(answer) = &mut self.answer {
            if answer.len == JOINED_LEN {
                accepted(&answer.bytes, answer.name).map_err(io::Error::other)?;
                answer.timer.set_read_timeout(None)?;
                answer.unseal.iter().for_each(|unseal| unseal());
                self.answer = None;
                break;
            }
            let silent = |e: io::Error| match e.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    let what = format!("the far end did not answer the join of stream {}", answer.name.0);
                    io::Error::new(io::ErrorKind::TimedOut, what)
                }
                _ => e,
            };
            match self.inner.read(&mut answer.bytes[answer.len..]).map_err(silent)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => answer.len += n,
            }
        }
        self.inner.read(out)
    }
}

fn unjoined(error: io::Error) -> TransportError {
    TransportError { what: "join a session".into(), source: Some(error) }
}

fn unprepared(error: io::Error) -> TransportError {
    TransportError { what: "prepare a connection".into(), source: Some(error) }
}

/// Bounds each wait on `socket`, and keeps a second handle to change that behind TLS.
pub(super) fn prepare(socket: &TcpStream, wait: Duration) -> io::Result<TcpStream> {
    socket.set_nonblocking(false)?;
    socket.set_nodelay(true)?;
    let timer = socket.try_clone()?;
    set_timeouts(&timer, Some(wait))?;
    Ok(timer)
}

pub(super) fn set_timeouts(socket: &TcpStream, wait: Option<Duration>) -> io::Result<()> {
    socket.set_read_timeout(wait)?;
    socket.set_write_timeout(wait)
}

/// Joined: reads wait as long as it takes, but the connection may not stand still.
pub(super) fn settle(socket: &TcpStream) -> io::Result<()> {
    set_timeouts(socket, None)?;
    bound_stalls(socket)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    struct Silent;

    impl Read for Silent {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }
    }

    /// Goal: a far end that does not answer a name is an error of the first read that says so.
    #[test]
    fn silence_is_no_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let timer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let name = (StreamId(7), SessionEpoch(1));
        let answer = Answer { timer, name, bytes: [0; JOINED_LEN], len: 3, unseal: None };
        let mut stream = Answered { inner: Box::new(Silent), answer: Some(answer) };
        let silent = stream.read(&mut [0; 7]).unwrap_err();
        assert_eq!(silent.kind(), io::ErrorKind::TimedOut);
        assert!(silent.to_string().contains("did not answer the join of stream 7"), "{silent}");
    }
}
