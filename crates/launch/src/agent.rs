//! The far end: `haul agent`, started by ssh.
//!
//! In: the pipe to the near end, the address that ssh's server was reached at, this host's addresses. Out:
//! the request and the joined streams.
//! Invariants: until control is joined the port dies with the pipe, and all streams of the start must have
//! joined after [`JOIN_WAIT`]; from then on it stays open for further joins as long as the session, and the
//! loss of ssh loses nothing.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{after, bounded, never, select};
use haul_core::ids::StreamId;
use haul_core::wire::{STREAMS_MAX, VERSION, VERSION_MIN};

use super::arrived::{Arrived, Decided, JOIN_WAIT, watch_pipe};
use super::errand::{ErrandLine, Errands};
use super::happy_eyeballs::Caller;
use super::join_handshake::Session;
use super::listener::{At, Listener};
use super::message::{
    self, AgentHello, AgentReply, Bytes, Decision, FarDialled, MAGIC, NearHello, NotListening,
    PROGRAM_LEN_MAX, Wish,
};
use super::named::{named, place};
use super::request::Request;
use super::reverse;
use super::{BootstrapError, BootstrapKind, Path, channel_listener};
use haul_base::errno;
use haul_base::escape;
use haul_base::role::Role;
use haul_transport::Protect;
use haul_transport::path::EndFacts;
use haul_transport::rejoin::{Door, Joins};
use haul_transport::routes::{self};
use haul_transport::{Link, tcp, tls};

/// Most words of the near end after its hello.
const DECISIONS_MAX: usize = 6;
/// How often a control without its pipe is looked at: does the near end live?
const LOOK: Duration = Duration::from_millis(100);

/// What the agent takes from its environment; only `cli` reads it.
#[derive(Clone, Debug)]
pub struct AgentEnv<R: Request> {
    /// `$SSH_CONNECTION`: client address, client port, server address, server port.
    pub ssh_connection: Option<String>,
    /// The least protection that the owner of this end accepts.
    pub least_protect: Protect,
    /// `None`: nothing is known of this host's storage.
    pub storage_rate: Option<StorageRate<R>>,
    /// `None`: questions of the near end are not answered.
    pub answers: Option<Answers<R::Question>>,
    /// `None`: it does nothing but copies.
    pub errands: Option<Errands>,
    #[doc(hidden)]
    pub hooks: AgentHooks,
}

impl<R: Request> Default for AgentEnv<R> {
    fn default() -> Self {
        let (least_protect, hooks) = (Protect::default(), AgentHooks::default());
        AgentEnv {
            ssh_connection: None,
            least_protect,
            storage_rate: None,
            answers: None,
            errands: None,
            hooks,
        }
    }
}

/// Says what the storage that a request goes to is known to give, bytes per second.
#[derive(Clone)]
pub struct StorageRate<R>(pub Arc<dyn Fn(&R) -> Option<u64> + Send + Sync>);

impl<R> std::fmt::Debug for StorageRate<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StorageRate")
    }
}

/// Answers a question of the near end by JSON texts that it gives to its second argument, the last one the
/// answer, at least one every few seconds; `false` from there: nobody wants to hear more.
#[derive(Clone)]
pub struct Answers<Q>(pub AnswerFn<Q>);

/// See [`Answers`].
pub type AnswerFn<Q> = Arc<dyn Fn(&Q, &mut dyn FnMut(String) -> bool) + Send + Sync>;

impl<Q> std::fmt::Debug for Answers<Q> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Answers")
    }
}

/// Lies that tests let the agent tell.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AgentHooks {
    /// Says this port instead of its own.
    pub port: Option<u16>,
    /// Says these protocol versions instead of its own.
    pub versions: Option<(u16, u16)>,
    /// Cannot dial.
    pub no_dial: bool,
}

/// The far end's side of a session that is up.
pub struct AgentConnected {
    pub session: [u8; 16],
    pub control: Link,
    /// Those of the start that have come, at least one. The others are the first that come by `joins`.
    pub data: Vec<(StreamId, Link)>,
    /// Data streams of the start, 1 to `streams`.
    pub streams: u16,
    /// How further streams come up, and control again.
    pub joins: Joins,
    pub path: Path,
    /// [`Path::protect`].
    pub protect: &'static str,
    /// The protocol version that the near end chose.
    pub protocol: u16,
    /// The near program's version, escaped.
    pub near_version: String,
    /// Connections that were not ours.
    pub strays: Arc<AtomicU64>,
}

/// Speaks with the near end over `input` and `output` (the agent's stdin and stdout) until all streams are
/// up.
/// Give it the bare descriptors: with [`Path::Ssh`] all data goes through them, and the buffers of
/// `std::io::stdin` and `stdout` only cost time there.
/// stdout and stderr may be closed at any time once the session is up: do not panic on writing there.
/// `None`: it was an errand, which is done.
///
/// # Errors
/// If the near end is gone, says something else than a near end does, or does not join in time. Where the
/// near end still listens it was told.
pub fn agent<R: Request, I, W>(
    mut input: I,
    mut output: W,
    env: AgentEnv<R>,
) -> Result<Option<(R, AgentConnected)>, BootstrapError>
where
    I: Read + Send + 'static,
    W: Write + Send + 'static,
{
    let lost = |e| BootstrapError {
        source: Some(e),
        ..BootstrapError::new(BootstrapKind::Peer, "the near end is gone")
    };
    let (protocol_min, protocol_max) = env.hooks.versions.unwrap_or((VERSION_MIN, VERSION));
    let hello = AgentHello { protocol_min, protocol_max, program: env!("CARGO_PKG_VERSION").into() };
    let frame = message::encode(&hello).map_err(lost)?;
    output.write_all(&[MAGIC, &frame].concat()).and_then(|()| output.flush()).map_err(lost)?;

    message::skip_to_magic(&mut input).map_err(lost)?;
    let said = message::read_frame::<serde_json::Value>(&mut input);
    if let (Ok(said), Some(Errands(errand))) = (&said, &env.errands)
        && let Some(name) = said.get("errand").and_then(serde_json::Value::as_str)
    {
        errand(name, &mut ErrandLine { input: &mut input, output: &mut output });
        return Ok(None);
    }
    let mut say = |reply: &AgentReply| {
        let frame = message::encode(reply).map_err(lost)?;
        output.write_all(&frame).and_then(|()| output.flush()).map_err(lost)
    };
    let near: NearHello<R> = match said.and_then(|said| Ok(serde_json::from_value(said)?)) {
        Ok(near) => near,
        // A later haul may ask for what this one does not know, a scheme say.
        Err(e) if e.kind() == io::ErrorKind::InvalidData => {
            let version = env!("CARGO_PKG_VERSION");
            let what = format!("haul {version} here does not understand what it is asked: {e}");
            say(&AgentReply::Error(what.clone()))?;
            return Err(BootstrapError::new(BootstrapKind::Peer, what));
        }
        Err(e) => return Err(lost(e)),
    };
    let streams = match near.streams {
        n @ 1..=STREAMS_MAX if (VERSION_MIN..=VERSION).contains(&near.protocol) => n,
        _ => {
            let what =
                format!("protocol {} with {} data streams is not possible", near.protocol, near.streams);
            say(&AgentReply::Error(what.clone()))?;
            return Err(BootstrapError::new(BootstrapKind::Peer, what));
        }
    };
    let needs = near.request.needs();
    if let (Some(name), Role::Source) = (&needs.congestion, needs.role)
        && let Err(error) = tcp::usable(name)
    {
        say(&AgentReply::Error(error.to_string()))?;
        return Err(BootstrapError::new(BootstrapKind::Usage, error.to_string()));
    }
    if needs.protect < env.least_protect {
        let what = "data without encryption is forbidden here (see docs/security.md); leave out `protect`";
        say(&AgentReply::Error(what.into()))?;
        return Err(BootstrapError::new(BootstrapKind::Refused, what));
    }
    if let Err(what) = near.request.check() {
        say(&AgentReply::Error(what.into()))?;
        return Err(BootstrapError::new(BootstrapKind::Usage, what));
    }
    if let (Some(question), Some(Answers(answer))) = (near.request.question(), &env.answers) {
        let mut heard = Ok(());
        answer(question, &mut |json| {
            heard = say(&AgentReply::Told(json));
            heard.is_ok()
        });
        heard?;
    }
    let identity = tls::Identity::generate()?;
    let key = Bytes(identity.public());
    let bare = needs.protect == Protect::Integrity;
    let session = Session { id: near.session.0, secret: near.secret.0, bare };
    let strays = Arc::new(AtomicU64::new(0));
    let (client, server) = addresses(env.ssh_connection.as_deref());
    let vias = near.vias();
    // A receive buffer must be fixed before connections are made; only the sink's matters.
    let window = needs.window.filter(|_| needs.role == Role::Sink);
    let listener = match place(&vias, server) {
        _ if near.dial == Wish::Far => Err("this end is to dial".to_string()),
        None => Err("the address that ssh reached is not known; name one with `via`".to_string()),
        Some(at) => {
            let pin = tls::Pin(near.key.0.clone());
            let (session, identity) = (session.clone(), identity.clone());
            let strays = Arc::clone(&strays);
            let known = client.into_iter().collect();
            let opened =
                Listener::open(&at, near.ports, (session, streams), (identity, pin), known, strays, window);
            opened.map_err(|e| {
                let ports = near.ports.map(|(a, b)| format!(" ports {a}-{b}")).unwrap_or_default();
                let at = match at {
                    At::Everywhere => "any address".into(),
                    At::Only(addresses) => {
                        addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
                    }
                };
                format!("cannot listen on {at}{ports}: {}", errno::text(e))
            })
        }
    };
    let listening = match &listener {
        Ok(l) => {
            let port = env.hooks.port.unwrap_or(l.addr.port());
            let failed =
                l.failed.iter().map(|(address, e)| format!("{address}: {}", errno::text(e))).collect();
            let works = |via: &IpAddr| l.failed.iter().all(|(failed, _)| failed != via);
            let vias: Vec<IpAddr> = vias.into_iter().filter(works).collect();
            Ok(named(&vias, server.unwrap_or(l.addr.ip()), &routes::addresses(), port, failed))
        }
        Err(why) => Err(NotListening { why: why.clone() }),
    };
    let storage = env.storage_rate.and_then(|storage| (storage.0)(&near.request));
    let facts = Some(EndFacts::here(needs.memory, client, storage));
    let can_dial = !env.hooks.no_dial;
    say(&AgentReply::Ready { key, streams, listening, client, facts, can_dial, channels: true })?;

    let (mut arrived, mut streams) = gather(listener.ok(), streams, input)?;
    if let Arrived::Reverse { at, decided } = arrived {
        let caller = Caller { name: None, session, identity, pin: tls::Pin(near.key.0), window };
        let mut say = |word: &FarDialled| {
            let frame = message::encode(word).map_err(lost)?;
            output.write_all(&frame).and_then(|()| output.flush()).map_err(lost)
        };
        (arrived, streams) = reverse::answer(at, caller, near.streams, &decided, &mut say)?;
    }
    if let Arrived::Channels { decided } = arrived {
        let mut say = |reply: &channel_listener::ChannelReply| {
            let frame = message::encode(reply).map_err(lost)?;
            output.write_all(&frame).and_then(|()| output.flush()).map_err(lost)
        };
        (arrived, streams) = channel_listener::answer((streams, near.streams), &decided, &mut say)?;
    }
    let (control, data, joins, path) = match arrived {
        Arrived::Direct { listener, control, data } => {
            let path = Path::Direct { addr: listener.addr };
            (control, data, Joins::Accept(Arc::new(listener)), path)
        }
        Arrived::Dialled { addr, control, data, joins } => (control, data, joins, Path::Reverse { addr }),
        Arrived::Reverse { .. } | Arrived::Channels { .. } => {
            return Err(BootstrapError::new(BootstrapKind::Peer, "asked for the same twice"));
        }
        Arrived::Mux { input, channels } => {
            let here = streams - channels.len() as u16;
            let links = super::share_pipe(input, Box::new(output), here, channels, needs.memory)?;
            let mut links = links.into_iter();
            let control = links.next().expect("there is always a control stream");
            (control, (1..).map(StreamId).zip(links).collect(), Joins::Never, Path::Ssh)
        }
    };
    let program: String = near.program.chars().take(PROGRAM_LEN_MAX).collect();
    let connected = AgentConnected {
        session: near.session.0,
        control,
        data,
        streams,
        joins,
        path,
        protect: path.protect(needs.protect),
        protocol: near.protocol,
        near_version: escape::line(program.as_bytes()),
        strays,
    };
    Ok(Some((near.request, connected)))
}

/// Client and server address of `$SSH_CONNECTION`, as far as they are plain addresses. One with a scope
/// (link-local) cannot be dialled from elsewhere without knowing the other's interfaces.
fn addresses(ssh_connection: Option<&str>) -> (Option<IpAddr>, Option<IpAddr>) {
    let mut fields = ssh_connection.unwrap_or("").split(' ');
    let client = fields.next().and_then(|f| f.parse().ok());
    let server = fields.nth(1).and_then(|f| f.parse().ok());
    (client, server)
}

/// Waits for the near end's decision, and for control and one data stream: the others come to a session that
/// runs. What there is comes back with the number of data streams that it says, at most `most`. Without a
/// direct path the listener is closed when this returns.
fn gather<R>(
    mut listener: Option<Listener>,
    most: u16,
    mut input: R,
) -> Result<(Arrived, u16), BootstrapError>
where
    R: Read + Send + 'static,
{
    let deadline = Instant::now() + JOIN_WAIT;
    let gone = |what: &str| BootstrapError::new(BootstrapKind::Peer, what);
    // The number of streams and the decision.
    let (sender, decided) = bounded::<Decided>(DECISIONS_MAX);
    thread::Builder::new()
        .name("haul-decision".into())
        .spawn(move || {
            for _ in 0..DECISIONS_MAX {
                let decision = message::read_frame::<Decision>(&mut input);
                let more = Decision::is_followed;
                if !decision.as_ref().is_ok_and(more) {
                    let _ = sender.send((decision, Some(Box::new(input))));
                    return;
                }
                let _ = sender.send((decision, None));
            }
        })
        .map_err(|e| BootstrapError::local("cannot start a thread", e))?;
    let mut streams = most;
    let (mut control, mut data): (Option<Link>, Vec<(StreamId, Link)>) = (None, Vec::new());
    // The pipe has nothing more to say: it said `Direct`, or it is gone while control is up.
    let mut pipe_done = false;
    loop {
        if pipe_done
            && !data.is_empty()
            && let Some(control) = control.take()
            && let Some(listener) = listener.take()
        {
            return Ok((Arrived::Direct { listener, control, data }, streams));
        }
        let orphaned = listener.as_ref().is_some_and(Door::is_orphaned);
        if orphaned && control.as_ref().is_some_and(Link::is_left) {
            return Err(gone("the near end is gone"));
        }
        let wait = deadline.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            return Err(gone("the near end did not connect in time"));
        }
        let joined = listener.as_ref().map_or_else(never, |l| l.joined.clone());
        let words = decided.clone();
        let decided = if pipe_done { never() } else { decided.clone() };
        select! {
            recv(joined) -> link => match link {
                Ok((StreamId(0), link)) => control = Some(link),
                Ok(joined) => data.push(joined),
                Err(_) => return Err(gone("the listener ended")),
            },
            recv(decided) -> answer => match answer {
                Ok((Ok(Decision::Streams(n)), None)) if (1..=most).contains(&n) => streams = n,
                Ok((Ok(Decision::Mux), Some(input))) => {
                    return Ok((Arrived::Mux { input, channels: Vec::new() }, streams));
                }
                Ok((Ok(Decision::Channels), None)) => return Ok((Arrived::Channels { decided: words }, streams)),
                // What came in so far is closed with the port.
                Ok((Ok(Decision::Reverse(at)), None)) => return Ok((Arrived::Reverse { at, decided: words }, streams)),
                Ok((Ok(Decision::Direct), Some(input))) if listener.is_some() => {
                    pipe_done = true;
                    if let Some(l) = &listener {
                        watch_pipe(input, Arc::clone(&l.orphaned));
                    }
                }
                Ok((Ok(Decision::Direct), _)) => return Err(gone("the near end wants a port where there is none")),
                Ok((Ok(_), _)) => {
                    return Err(gone("the near end named a number of streams that is not possible"));
                }
                Ok((Err(_), _)) | Err(_) if listener.as_ref().is_some_and(Listener::has_control) => {
                    pipe_done = true;
                    listener.iter().for_each(|l| l.orphaned.store(true, Ordering::Release));
                }
                Ok((Err(_), _)) | Err(_) => return Err(gone("ssh ended before the near end had connected")),
            },
            recv(after(if orphaned { wait.min(LOOK) } else { wait })) -> _ => {}
        }
    }
}

#[cfg(test)]
#[path = "agent_tests.rs"]
mod tests;
