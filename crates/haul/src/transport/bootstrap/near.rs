//! The near end: runs ssh, agrees with the agent on keys, and dials.
//!
//! In: a [`RemoteSpec`] and an [`AgentRequest`]. Out: [`Connected`].
//! Invariants: the direct path is all streams or none (others may join later: `redial`), over one pair of addresses or
//! several (`race`); what the far end says about addresses is only where to dial, never whom to trust. If anything about the direct path fails, the ssh pipe is the path.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use haul_core::ids::StreamId;
use haul_core::tune::Choice;
use haul_core::wire::{STREAMS_MAX, VERSION, VERSION_MIN};

use super::channels::{self, Further};
use super::meet::Session;
use super::message::{
    self, ADDRESSES_MAX, AgentHello, AgentReply, Bytes, Decision, Fixed, Listening, MAGIC, NearHello,
    PROGRAM_LEN_MAX, Wish,
};
use super::push::{stage0, start_haul};
use super::race::{self, Caller};
use super::redial::{Other, Redial, Redialler};
use super::reverse::{self, Taken, Terms};
use super::share::Sharing;
use super::ssh::{Ssh, dial_name};
use super::start::{self, Dialled};
use super::words::escape;
use super::{BootstrapError, BootstrapKind, Connected, Dialler, Path, RemoteSpec, SSH_CHANNELS_MAX, harden};
use crate::job::{AgentRequest, Protect, Role};
use crate::transport::path::{self, EndFacts, Plan};
use crate::transport::rejoin::Joins;
use crate::transport::routes::Address;
use crate::transport::tcp::HostLimits;
use crate::transport::{Link, routes, tls};

/// How long the far end may be silent once it has said its first word.
pub(super) const ANSWER_WAIT: Duration = Duration::from_secs(60);
/// How long ssh may take to log in when nobody types a password.
const LOGIN_WAIT: Duration = Duration::from_secs(120);
const _: () = assert!(VERSION == VERSION_MIN, "what is said before the far end has spoken names one version");
/// Streams in one ssh connection: they share its window, so that more bring nothing.
const MUX_STREAMS: u16 = 4;
/// Suggested to the firewall office when the user gave no `--port`.
const PORTS_SUGGESTED: (u16, u16) = (50000, 50031);

/// Starts haul at the far end of `spec` with `request` and connects to it. Lines for the user (ssh's own, and
/// ours) go to `notes`. Blocks until the session is up or cannot be.
///
/// From the first call on, this process writes no core files and cannot be traced by others of the same user.
///
/// # Errors
/// Whatever stopped it, with a remedy where there is one. Nothing is left running.
pub fn connect(
    spec: &RemoteSpec,
    request: &AgentRequest,
    notes: &mut dyn FnMut(String),
) -> Result<Connected, BootstrapError> {
    connect_and_hear(spec, request, notes, &mut |_| false)
}

/// As [`connect`], for a request with a question: `hear` takes what the far end says of it before there are connections, JSON as
/// it came. `false` from it ends the session.
///
/// # Errors
/// As [`connect`]'s; and when `hear` has enough.
pub fn connect_and_hear(
    spec: &RemoteSpec,
    request: &AgentRequest,
    notes: &mut dyn FnMut(String),
    hear: &mut dyn FnMut(&str) -> bool,
) -> Result<Connected, BootstrapError> {
    let tickets = spec.streams.unwrap_or(STREAMS_MAX);
    if !(1..=STREAMS_MAX).contains(&tickets) {
        return Err(BootstrapError::new(
            BootstrapKind::Usage,
            format!("{tickets} data streams, 1 to {STREAMS_MAX} are possible"),
        ));
    }
    if spec.ports.is_some_and(|(a, b)| a == 0 || a > b) {
        return Err(BootstrapError::new(
            BootstrapKind::Usage,
            "the port range of --port is empty or starts at 0",
        ));
    }
    if spec.ssh_channels.is_some_and(|n| !(1..=SSH_CHANNELS_MAX).contains(&n)) {
        return Err(BootstrapError::new(
            BootstrapKind::Usage,
            format!("1 to {SSH_CHANNELS_MAX} channels of the ssh connection are possible"),
        ));
    }
    if spec.via.len() > ADDRESSES_MAX {
        return Err(BootstrapError::new(
            BootstrapKind::Usage,
            format!("{} addresses to go via, {ADDRESSES_MAX} are possible", spec.via.len()),
        ));
    }
    harden();
    let login = if spec.interactive { None } else { Some(LOGIN_WAIT) };
    let identity = tls::Identity::generate()?;
    let bare = request.options.protect == Protect::Integrity;
    let wish = match (spec.dial, request.role) {
        (Dialler::Auto, _) => Wish::Either,
        // The role is the far end's.
        (Dialler::Source, Role::Source) | (Dialler::Sink, Role::Sink) => Wish::Far,
        (Dialler::Source, Role::Sink) | (Dialler::Sink, Role::Source) => Wish::Near,
    };
    let (ours, theirs) = share_vias(&spec.via, wish, &routes::addresses());
    let tell = |protocol, session: &Session| NearHello {
        protocol,
        program: env!("CARGO_PKG_VERSION").into(),
        request: request.clone(),
        session: Fixed(session.id),
        key: Bytes(identity.public()),
        secret: Fixed(session.secret),
        streams: tickets,
        ports: spec.ports,
        via: theirs.first().copied(),
        via_too: theirs.iter().skip(1).copied().collect(),
        dial: wish,
    };
    let encode = |near: NearHello| {
        let frame = message::encode(&near);
        let frame = frame.map_err(|e| BootstrapError::local("cannot tell the far end what to do", e))?;
        Ok::<_, BootstrapError>([MAGIC, &frame].concat())
    };
    let fresh = || {
        let session = Session::new().map_err(|e| BootstrapError::local("no random numbers", e))?;
        Ok::<_, BootstrapError>(Session { bare, ..session })
    };
    let begin = Instant::now();
    let mut session = fresh()?;
    let words = encode(tell(VERSION, &session))?;
    let sharing = Sharing::find(spec);
    let shares = sharing.as_ref().map_or(Vec::new(), Sharing::first);
    let mut ssh = Ssh::start(spec, &shares, &stage0(), login)?;
    let told = start_haul(&mut ssh, spec, &words, notes)?;
    ssh.set_silence(ANSWER_WAIT);

    let hello: AgentHello = ssh.read_frame(notes)?;
    let program: String = hello.program.chars().take(PROGRAM_LEN_MAX).collect();
    let remote_version = escape(program.as_bytes());
    let protocol = agree(&hello, &remote_version, ssh.host())?;
    if !told {
        // Somebody else may have read the words that were too early; what they said is never used.
        session = fresh()?;
        ssh.send(&encode(tell(protocol, &session))?, notes)?;
    }
    let (greeted, mut answering) = (Instant::now(), Duration::ZERO);
    let reply = loop {
        match ssh.read_frame(notes)? {
            AgentReply::Told(json) if hear(&json) => answering = greeted.elapsed(),
            reply => break reply,
        }
    };
    let (key, most, listening, client, facts, can_dial, can_share) = match reply {
        AgentReply::Told(_) => {
            return Err(BootstrapError::new(BootstrapKind::Refused, "the rest was not waited for"));
        }
        AgentReply::Ready { key, streams, listening, client, facts, can_dial, channels } => {
            (key, streams, listening, client, facts, can_dial, channels)
        }
        AgentReply::Error(why) => {
            let why: String = why.chars().take(haul_core::wire::TEXT_LEN_MAX).collect();
            return Err(BootstrapError::new(
                BootstrapKind::Refused,
                format!("haul on {} refused: {}", ssh.host(), escape(why.as_bytes())),
            ));
        }
    };
    if !(1..=tickets).contains(&most) {
        return Err(BootstrapError::new(
            BootstrapKind::Peer,
            format!("haul on {} offered {most} data streams for {tickets}", ssh.host()),
        ));
    }
    let far_address = listening.as_ref().ok().map(|at| at.address);
    // `to`: the address that was dialled, if this end did.
    let plan_for = |rtt, to: Option<IpAddr>, paths: usize| {
        let here = EndFacts::here(request.options.memory, far_address, spec.storage_rate);
        let unknown =
            EndFacts { limits: HostLimits::default(), device: None, storage: None, widens: false, ..here };
        let there = facts.unwrap_or(unknown);
        // The role is the agent's.
        let (source, sink) = match request.role {
            Role::Sink => (&here, &there),
            Role::Source => (&there, &here),
        };
        let mut plan = path::plan(rtt, source, sink, request.options.window, spec.streams);
        let start = request.options.start.as_ref();
        match start.filter(|start| spec.streams.is_none() && Some(start.address) == to) {
            Some(start) => plan.streams = Choice { value: start.streams, why: start.why.clone() },
            None if spec.streams.is_none() && paths > 1 => plan.streams = each_path(plan.streams, paths),
            None => {}
        }
        plan.streams.value = plan.streams.value.clamp(1, most);
        plan
    };
    // What the far end counts on so far.
    let mut agreed = most;
    let tell_streams = |ssh: &mut Ssh, streams: u16, before: u16, notes: &mut dyn FnMut(String)| {
        if streams == before {
            return Ok(());
        }
        let frame = message::encode(&Decision::Streams(streams))
            .map_err(|e| BootstrapError::local("cannot tell the number of streams", e))?;
        // If the far end is gone, that shows at the next word.
        ssh.send(&frame, notes).map(drop)
    };

    let id = session.id;
    let window = request.options.window.filter(|_| request.role == Role::Source);
    let pin = tls::Pin(key.0);
    let mut closed: Vec<Closed> = Vec::new();
    let mut direct = match listening {
        _ if wish == Wish::Far => None,
        Ok(at) => {
            for failed in at.failed.iter().take(ADDRESSES_MAX) {
                let failed: String = failed.chars().take(haul_core::wire::TEXT_LEN_MAX).collect();
                notes(format!("haul on {} does not listen on {}", ssh.host(), escape(failed.as_bytes())));
            }
            // A receive buffer must be fixed before the connection is made.
            let (name, session) = (Some(dial_name(spec).to_string()), session.clone());
            let (identity, pin) = (identity.clone(), pin.clone());
            let caller = Arc::new(Caller { name, session, identity, pin, window });
            match start::dial(&caller, race::ways(&at), spec.streams, most, &|rtt, to, paths| {
                plan_for(rtt, Some(to), paths)
            }) {
                Ok(Dialled { addr, links, plan, used, control, coming }) => {
                    let before = std::mem::replace(&mut agreed, plan.streams.value);
                    tell_streams(&mut ssh, agreed, before, notes)?;
                    let other = Other::Near { ended: ssh.far_ended() };
                    let redial = Redial::new(caller, at, used, control, coming, other);
                    let joins = Joins::Dial(Arc::new(Redialler(Arc::new(redial))));
                    Some(Direct { path: Path::Direct { addr }, links, plan, joins })
                }
                Err(why) => {
                    closed.push(closed_port(&theirs, ssh.host(), &at, why, client));
                    None
                }
            }
        }
        Err(no) => {
            let why: String = no.why.chars().take(haul_core::wire::TEXT_LEN_MAX).collect();
            let what = format!("haul on {} opened no port ({})", ssh.host(), escape(why.as_bytes()));
            closed.push(Closed { what, ask: None });
            None
        }
    };
    let strays = Arc::new(AtomicU64::new(0));
    if direct.is_none() && wish != Wish::Near && can_dial {
        let (ports, strays) = (spec.ports, strays.clone());
        let peer = far_address.filter(|_| wish == Wish::Either);
        let terms = Terms { vias: &ours, client, peer, ports, session, identity, pin, most, window, strays };
        let server = closed.iter().find_map(|closed| closed.ask.as_ref()).map(|ask| ask.to.clone());
        let plan = |rtt, paths: usize| {
            let plan = plan_for(rtt, None, paths);
            agreed = plan.streams.value;
            plan
        };
        match reverse::offer(terms, plan, &mut ssh, notes)? {
            Ok(Taken { listener, links, plan }) => {
                let addr = listener.addr;
                // What it listens on may be any address; the one that was dialled says more.
                let at = links[0].socket.as_ref().and_then(|socket| socket.local_addr().ok());
                let addr = at.unwrap_or(addr);
                let path = Path::Reverse { addr: SocketAddr::new(addr.ip().to_canonical(), addr.port()) };
                direct = Some(Direct { path, links, plan, joins: Joins::Accept(Arc::new(listener)) });
            }
            Err(what) => {
                let from = server.unwrap_or_else(|| ssh.host().to_string());
                let to = client.map_or("this host".into(), |client| client.to_string());
                closed.push(Closed { what, ask: Some(Ask { from, to }) });
            }
        }
    } else if direct.is_none() && wish == Wish::Far {
        let what = format!("the haul on {} is too old to dial", ssh.host());
        closed.push(Closed { what, ask: None });
    }
    if direct.is_none() {
        let (what, ask) = explain(&closed, spec.ports);
        if wish != Wish::Either {
            let error = BootstrapError::new(BootstrapKind::Closed, what);
            return Err(error.remedy(format!(
                "{}--dial auto tries every way",
                ask.map_or(String::new(), |ask| ask + "; ")
            )));
        }
        let ask = ask.map_or(String::new(), |ask| format!(". For the firewall office: {ask}"));
        notes(format!("{what}; data goes through ssh (slower){ask}"));
    }
    let further = match (&direct, &sharing) {
        (Some(_), _) => None,
        (None, Err(why)) => Some(Further::none(why)),
        (None, Ok(_)) if !can_share => Some(Further::none("the far haul is too old for more")),
        (None, Ok(sharing)) => {
            // The first channel carries one data stream at least.
            let (asked, most) = (spec.ssh_channels.map(|n| n - 1), spec.streams.unwrap_or(most) - 1);
            Some(channels::open(&mut ssh, sharing, asked, most, notes)?)
        }
    };
    // Nobody else comes.
    drop(sharing);
    let decision = match &further {
        None => Decision::Direct,
        Some(further) if further.links.is_empty() => Decision::Mux,
        Some(further) => Decision::Over(further.links.iter().map(|(index, _)| *index).collect()),
    };
    let frame = message::encode(&decision).map_err(|e| BootstrapError::local("cannot decide", e))?;
    if let Some(further) = &further
        && spec.streams.is_none()
    {
        let streams = if further.links.is_empty() { MUX_STREAMS } else { further.told.value };
        let before = std::mem::replace(&mut agreed, streams.min(most));
        tell_streams(&mut ssh, agreed, before, notes)?;
    }
    let told = ssh.send(&frame, notes)?;
    let mut ssh_channels = None;
    let (path, mut links, plan, joins, guard) = match direct {
        // The agent has all its streams: that ssh is gone by now loses nothing.
        Some(Direct { path, links, plan, joins }) => (path, links, plan, joins, ssh.into_guard()),
        None if !told => return Err(ssh.ended(notes)),
        None => {
            let Further { links, clients, told } = further.expect("made where nothing is direct");
            let (reader, writer, guard) = ssh.into_pipe(clients)?;
            let why = if spec.streams.is_some() { "as asked" } else { "all share the ssh connection" };
            let streams = agreed;
            let plan = Plan { streams: Choice { value: streams, why: why.into() }, rtt: None, advice: None };
            let here = streams - links.len() as u16;
            let channels = links.into_iter().map(|(_, link)| link).collect();
            let links = super::share_pipe(Box::new(reader), Box::new(writer), here, channels, request)?;
            ssh_channels = Some(told);
            (Path::Ssh, links, plan, Joins::Never, guard)
        }
    };
    let control = links.remove(0);
    let data = (1..).map(StreamId).zip(links).collect();
    Ok(Connected {
        session: id,
        control,
        data,
        joins,
        path,
        protect: path.protect(request.options.protect),
        protocol,
        remote_version,
        plan,
        ssh_channels,
        strays,
        far: facts,
        took: begin.elapsed().saturating_sub(answering),
        guard,
    })
}

/// What one path needs, for each of `paths`.
fn each_path(one: Choice<u16>, paths: usize) -> Choice<u16> {
    let paths = u16::try_from(paths).unwrap_or(u16::MAX);
    let value = one.value.saturating_mul(paths);
    Choice { value, why: format!("on {paths} paths; each: {}", one.why) }
}

/// The newest version that both ends speak.
fn agree(hello: &AgentHello, program: &str, host: &str) -> Result<u16, BootstrapError> {
    let newest = hello.protocol_max.min(VERSION);
    if newest >= hello.protocol_min.max(VERSION_MIN) {
        return Ok(newest);
    }
    let older =
        if hello.protocol_max < VERSION_MIN { format!("the haul on {host}") } else { "this haul".into() };
    Err(BootstrapError::new(
        BootstrapKind::Version,
        format!(
            "haul {} here speaks protocol {VERSION_MIN} to {VERSION}, haul {program} on {host} speaks {} to {}",
            env!("CARGO_PKG_VERSION"),
            hello.protocol_min,
            hello.protocol_max
        ),
    )
    .remedy(format!("update {older}, or name a fitting one on {host} with --remote-haul PATH")))
}

/// Own connections that are up, and what belongs to them.
struct Direct {
    path: Path,
    links: Vec<Link>,
    plan: Plan,
    joins: Joins,
}

/// A way that is closed: what was met, and what would open it.
struct Closed {
    what: String,
    ask: Option<Ask>,
}

/// Connections to be allowed.
struct Ask {
    from: String,
    to: String,
}

/// The far end's port cannot be reached.
fn closed_port(vias: &[IpAddr], host: &str, at: &Listening, why: &str, client: Option<IpAddr>) -> Closed {
    let from = client.map_or("this host".into(), |c| c.to_string());
    let to = match vias {
        [] => at.address.to_string(),
        vias => vias.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", "),
    };
    Closed { what: format!("tcp port {} of {host} {why}", at.port), ask: Some(Ask { from, to }) }
}

/// All of it in one line, and what to ask the firewall office for: one direction is enough.
fn explain(closed: &[Closed], ports: Option<(u16, u16)>) -> (String, Option<String>) {
    let what = closed.iter().map(|closed| closed.what.as_str()).collect::<Vec<_>>().join("; ");
    let asks = closed.iter().filter_map(|closed| closed.ask.as_ref());
    let asks: Vec<_> = asks.map(|Ask { from, to }| format!("from {from} to {to}")).collect();
    let (first, last) = ports.unwrap_or(PORTS_SUGGESTED);
    let ask = format!("allow tcp {first}-{last} {}, and run with --port {first}-{last}", asks.join(" or "));
    (what, (!asks.is_empty()).then_some(ask))
}

/// Which of the addresses that the user named are this host's, and which the far end's.
fn share_vias(vias: &[IpAddr], wish: Wish, own: &[Address]) -> (Vec<IpAddr>, Vec<IpAddr>) {
    vias.iter().partition(|via| match wish {
        Wish::Near => false,
        Wish::Far => true,
        Wish::Either => own.iter().any(|own| own.ip == **via),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: versions agree exactly when the ranges overlap, on the newest common one; else the error names
    /// both and says which side to update.
    #[test]
    fn versions_agree_where_ranges_overlap() {
        let hello =
            |protocol_min, protocol_max| AgentHello { protocol_min, protocol_max, program: "9.9".into() };
        assert_eq!(agree(&hello(VERSION_MIN, VERSION), "9.9", "h").unwrap(), VERSION);
        assert_eq!(agree(&hello(0, u16::MAX), "9.9", "h").unwrap(), VERSION);
        let newer = agree(&hello(VERSION + 1, VERSION + 3), "9.9", "h").unwrap_err();
        assert_eq!(newer.kind, BootstrapKind::Version);
        assert!(
            newer.to_string().contains("9.9") && newer.to_string().contains("update this haul"),
            "{newer}"
        );
        let older = agree(&hello(0, VERSION_MIN - 1), "0.0", "h").unwrap_err();
        assert!(older.to_string().contains("update the haul on h"), "{older}");
        assert!(agree(&hello(VERSION, VERSION_MIN - 1), "9.9", "h").is_err());
    }

    /// Goal: addresses go to the end that listens: the other one than the user pinned, else the one that has them.
    #[test]
    fn addresses_go_to_the_end_that_listens() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let vias = [ip("10.0.0.1"), ip("10.0.0.2"), ip("fd00::1")];
        let own = [ip("10.0.0.1"), ip("fd00::1")].map(|ip| Address { device: 2, ip });
        let share = |wish| share_vias(&vias, wish, &own);
        assert_eq!(share(Wish::Near), (vec![], vias.to_vec()));
        assert_eq!(share(Wish::Far), (vias.to_vec(), vec![]));
        assert_eq!(share(Wish::Either), (vec![vias[0], vias[2]], vec![vias[1]]));
    }

    /// Goal: the firewall office is told each direction that would do, with the ports that haul would use then.
    #[test]
    fn the_firewall_office_is_told_what_would_do() {
        let closed = |what: &str, ask: Option<(&str, &str)>| Closed {
            what: what.into(),
            ask: ask.map(|(from, to)| Ask { from: from.into(), to: to.into() }),
        };
        let both = [closed("a", Some(("n", "f"))), closed("b", Some(("f", "n")))];
        let (what, ask) = explain(&both, Some((7, 9)));
        assert_eq!(what, "a; b");
        assert_eq!(ask.unwrap(), "allow tcp 7-9 from n to f or from f to n, and run with --port 7-9");
        assert_eq!(explain(&[closed("a", None)], None), ("a".into(), None));
    }
}
