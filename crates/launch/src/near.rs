//! The near end: runs ssh, agrees with the agent on keys, and dials.
//!
//! In: a [`RemoteSpec`] and a [`Request`]. Out: [`Connected`].
//! Invariants: the direct path is all streams or none (others may join later: `redial`), over one pair of
//! addresses or several (`happy_eyeballs`); what the far end says about addresses is only where to dial,
//! never whom to trust. If anything about the direct path fails, the ssh pipe is the path.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use haul_core::ids::StreamId;
use haul_core::tune::Choice;
use haul_core::wire::{STREAMS_MAX, VERSION, VERSION_MIN};

use super::channels::{self, Further};
use super::happy_eyeballs::{self, Caller};
use super::join_handshake::Session;
use super::message::{
    self, ADDRESSES_MAX, AgentHello, AgentReply, Bytes, Decision, Fixed, Listening, MAGIC, NearHello,
    NotListening, PROGRAM_LEN_MAX, Wish,
};
use super::push::{stage0, start_haul};
use super::redial::{Other, Redial, Redialler};
use super::request::{Needs, Request};
use super::reverse::{self, Taken, Terms};
use super::ssh::{ANSWER_WAIT, Ssh, dial_name};
use super::ssh_sharing::Sharing;
use super::start::{self, Dialled};
use super::{BootstrapError, BootstrapKind, Connected, Dialler, Path, RemoteSpec, SSH_CHANNELS_MAX};
use haul_base::escape;
use haul_base::role::Role;
use haul_transport::Protect;
use haul_transport::path::{self, EndFacts, Plan};
use haul_transport::rejoin::Joins;
use haul_transport::routes::Address;
use haul_transport::tcp::HostLimits;
use haul_transport::{Link, routes, tls};

/// How long ssh may say nothing when nobody types a password, if the user does not say; and at least, for a
/// login is more than a round trip.
const LOGIN_WAIT: Duration = Duration::from_secs(120);
const LOGIN_WAIT_MIN: Duration = Duration::from_secs(10);
const _: () = assert!(VERSION == VERSION_MIN, "what is said before the far end has spoken names one version");
/// Streams in one ssh connection: they share its window, so that more bring nothing.
const MUX_STREAMS: u16 = 4;
/// Suggested to the firewall office when the user gave no `--port`.
const PORTS_SUGGESTED: (u16, u16) = (50000, 50031);

/// Starts haul at the far end of `spec` with `request` and connects to it. Lines for the user (ssh's own, and
/// ours) go to `notes`. Blocks until the session is up or cannot be.
///
/// # Errors
/// Whatever stopped it, with a remedy where there is one; [`RemoteSpec::stop`] ends it within a second.
/// Nothing is left running.
pub fn connect<R: Request>(
    spec: &RemoteSpec,
    request: &R,
    notes: &mut dyn FnMut(String),
) -> Result<Connected, BootstrapError> {
    connect_and_hear(spec, request, notes, &mut |_| false)
}

/// As [`connect`], for a request with a question: `hear` takes what the far end says of it before there are
/// connections, JSON as it came. `false` from it ends the session.
///
/// # Errors
/// As [`connect`]'s; and when `hear` has enough.
pub fn connect_and_hear<R: Request>(
    spec: &RemoteSpec,
    request: &R,
    notes: &mut dyn FnMut(String),
    hear: &mut dyn FnMut(&str) -> bool,
) -> Result<Connected, BootstrapError> {
    let tickets = tickets(spec)?;
    let mut near = NearHandshake::hello(spec, request, tickets, (notes, hear))?;
    let mut direct = None;
    for way in WAYS {
        spec.stop.check()?;
        direct = way(&mut near, notes)?;
        if direct.is_some() {
            break;
        }
    }
    spec.stop.check()?;
    let further = match &direct {
        Some(_) => None,
        None => Some(near.fall_back(notes)?),
    };
    near.decide(direct, further, notes)
}

/// A way to connect the two ends: all streams, or none and why not ([`NearHandshake::closed`]).
type Way = fn(&mut NearHandshake<'_>, &mut dyn FnMut(String)) -> Result<Option<Direct>, BootstrapError>;

/// The ways, in the order in which they are tried. Where each one is closed all goes through ssh.
const WAYS: [Way; 2] = [|near, notes| near.dial(notes), |near, notes| near.be_dialled(notes)];

/// How many data streams there may be, if what is wished can be.
fn tickets(spec: &RemoteSpec) -> Result<u16, BootstrapError> {
    let tickets = spec.streams.unwrap_or(STREAMS_MAX);
    let why = if !(1..=STREAMS_MAX).contains(&tickets) {
        format!("{tickets} data streams, 1 to {STREAMS_MAX} are possible")
    } else if spec.ports.is_some_and(|(a, b)| a == 0 || a > b) {
        "the port range of `ports` is empty or starts at 0".into()
    } else if spec.ssh_channels.is_some_and(|n| !(1..=SSH_CHANNELS_MAX).contains(&n)) {
        format!("1 to {SSH_CHANNELS_MAX} channels of the ssh connection are possible")
    } else if spec.via.len() > ADDRESSES_MAX {
        format!("{} addresses to go via, {ADDRESSES_MAX} are possible", spec.via.len())
    } else {
        return Ok(tickets);
    };
    Err(BootstrapError::new(BootstrapKind::Usage, why))
}

/// What is known of both ends, from which the number of streams follows.
#[derive(Clone)]
struct Facts<'a> {
    spec: &'a RemoteSpec,
    needs: Needs,
    far_address: Option<IpAddr>,
    there: Option<EndFacts>,
    /// Most data streams.
    most: u16,
}

impl Facts<'_> {
    /// `to`: the address that was dialled, if this end did.
    fn plan(&self, rtt: Option<Duration>, to: Option<IpAddr>, paths: usize) -> Plan {
        let Facts { spec, ref needs, far_address, most, .. } = *self;
        let here = EndFacts::here(needs.memory, far_address, spec.storage_rate);
        let unknown =
            EndFacts { limits: HostLimits::default(), device: None, storage: None, widens: false, ..here };
        let there = self.there.unwrap_or(unknown);
        // The role is the agent's.
        let (source, sink) = match needs.role {
            Role::Sink => (&here, &there),
            Role::Source => (&there, &here),
        };
        let mut plan = path::plan(rtt, source, sink, needs.window, spec.streams);
        let start = needs.start.as_ref();
        match start.filter(|start| spec.streams.is_none() && Some(start.address) == to) {
            Some(start) => plan.streams = Choice { value: start.streams, why: start.why.clone() },
            None if spec.streams.is_none() && paths > 1 => plan.streams = each_path(plan.streams, paths),
            None => {}
        }
        plan.streams.value = plan.streams.value.clamp(1, most);
        plan
    }
}

/// Both ends know of each other, and are not connected.
struct NearHandshake<'a> {
    spec: &'a RemoteSpec,
    /// Which end shall dial.
    wish: Wish,
    /// Addresses to go via that are this host's, and the far end's.
    vias: (Vec<IpAddr>, Vec<IpAddr>),
    identity: tls::Identity,
    session: Session,
    ssh: Ssh,
    /// Whether the ssh connection can carry further channels.
    sharing: Result<Sharing, String>,
    protocol: u16,
    remote_version: String,
    begin: Instant,
    /// What the far end's answers to questions took.
    answering: Duration,
    key: Vec<u8>,
    listening: Option<Result<Listening, NotListening>>,
    client: Option<IpAddr>,
    can_dial: bool,
    can_share: bool,
    facts: Facts<'a>,
    /// Data streams that the far end counts on so far.
    agreed: u16,
    /// Ways that are closed.
    closed: Vec<Closed>,
    /// Connections that were not ours.
    strays: Arc<AtomicU64>,
}

impl<'a> NearHandshake<'a> {
    /// Starts haul there, and agrees with it on version, session and keys.
    fn hello<R: Request>(
        spec: &'a RemoteSpec,
        request: &R,
        tickets: u16,
        (notes, hear): (&mut dyn FnMut(String), &mut dyn FnMut(&str) -> bool),
    ) -> Result<NearHandshake<'a>, BootstrapError> {
        let needs = request.needs();
        let login = spec.patience.map_or(LOGIN_WAIT, |patience| patience.max(LOGIN_WAIT_MIN));
        let login = (!spec.interactive).then_some(login);
        let identity = tls::Identity::generate()?;
        let bare = needs.protect == Protect::Integrity;
        let wish = match (spec.dial, needs.role) {
            (Dialler::Auto, _) => Wish::Either,
            // The role is the far end's.
            (Dialler::Source, Role::Source) | (Dialler::Sink, Role::Sink) => Wish::Far,
            (Dialler::Source, Role::Sink) | (Dialler::Sink, Role::Source) => Wish::Near,
        };
        let vias = share_vias(&spec.via, wish, &routes::addresses());
        let tell = |protocol, session: &Session| NearHello {
            protocol,
            program: env!("CARGO_PKG_VERSION").into(),
            request: request.clone(),
            session: Fixed(session.id),
            key: Bytes(identity.public()),
            secret: Fixed(session.secret),
            streams: tickets,
            ports: spec.ports,
            via: vias.1.first().copied(),
            via_too: vias.1.iter().skip(1).copied().collect(),
            dial: wish,
        };
        let encode = |near: NearHello<R>| {
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
        spec.stop.check()?;
        let mut ssh = Ssh::start(spec, &shares, &stage0(), login)?;
        let told = start_haul(&mut ssh, spec, &words, notes)?;
        ssh.set_silence(ANSWER_WAIT);

        let hello: AgentHello = ssh.read_frame(notes)?;
        let program: String = hello.program.chars().take(PROGRAM_LEN_MAX).collect();
        let remote_version = escape::line(program.as_bytes());
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
        let (key, most, listening, client, there, can_dial, can_share) = match reply {
            AgentReply::Told(_) => {
                return Err(BootstrapError::new(BootstrapKind::Refused, "the rest was not waited for"));
            }
            AgentReply::Ready { key, streams, listening, client, facts, can_dial, channels } => {
                (key, streams, listening, client, facts, can_dial, channels)
            }
            AgentReply::Error(why) => {
                return Err(BootstrapError::new(
                    BootstrapKind::Refused,
                    format!("haul on {} refused: {}", ssh.host(), shown(&why)),
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
        Ok(NearHandshake {
            spec,
            wish,
            vias,
            identity,
            session,
            ssh,
            sharing,
            protocol,
            remote_version,
            begin,
            answering,
            key: key.0,
            listening: Some(listening),
            client,
            can_dial,
            can_share,
            facts: Facts { spec, needs, far_address, there, most },
            agreed: most,
            closed: Vec::new(),
            strays: Arc::default(),
        })
    }

    /// Bytes under way that each receive buffer here shall hold: it must be fixed before the connection is
    /// made.
    fn window(&self) -> Option<u64> {
        self.facts.needs.window.filter(|_| self.facts.needs.role == Role::Source)
    }

    /// The far end counts on so many streams from now on.
    fn tell_streams(&mut self, streams: u16, notes: &mut dyn FnMut(String)) -> Result<(), BootstrapError> {
        if std::mem::replace(&mut self.agreed, streams) == streams {
            return Ok(());
        }
        let frame = message::encode(&Decision::Streams(streams))
            .map_err(|e| BootstrapError::local("cannot tell the number of streams", e))?;
        // If the far end is gone, that shows at the next word.
        self.ssh.send(&frame, notes).map(drop)
    }

    /// Dials the far end's port.
    fn dial(&mut self, notes: &mut dyn FnMut(String)) -> Result<Option<Direct>, BootstrapError> {
        let at = match self.listening.take().filter(|_| self.wish != Wish::Far) {
            None => return Ok(None),
            Some(Ok(at)) => at,
            Some(Err(no)) => {
                let what = format!("haul on {} opened no port ({})", self.ssh.host(), shown(&no.why));
                self.closed.push(Closed { what, ask: None });
                return Ok(None);
            }
        };
        for failed in at.failed.iter().take(ADDRESSES_MAX) {
            notes(format!("haul on {} does not listen on {}", self.ssh.host(), shown(failed)));
        }
        let (name, session) = (Some(dial_name(self.spec).to_string()), self.session.clone());
        let (identity, pin) = (self.identity.clone(), tls::Pin(self.key.clone()));
        let caller = Arc::new(Caller { name, session, identity, pin, window: self.window() });
        let (facts, ways) = (self.facts.clone(), happy_eyeballs::ways(&at));
        let plan_for = |rtt, to, paths: usize| facts.plan(rtt, Some(to), paths);
        match start::dial(&caller, ways, (self.spec.streams, facts.most), &plan_for, &self.spec.stop) {
            Ok(Dialled { addr, links, plan, used, control, coming }) => {
                self.tell_streams(plan.streams.value, notes)?;
                let other = Other::Near { ended: self.ssh.far_ended() };
                let redial = Redial::new(caller, at, used, control, coming, other);
                let joins = Joins::Dial(Arc::new(Redialler(Arc::new(redial))));
                Ok(Some(Direct { path: Path::Direct { addr }, links, plan, joins }))
            }
            Err(why) => {
                self.closed.push(closed_port(&self.vias.1, self.ssh.host(), &at, why, self.client));
                Ok(None)
            }
        }
    }

    /// Has the far end dial a port here.
    fn be_dialled(&mut self, notes: &mut dyn FnMut(String)) -> Result<Option<Direct>, BootstrapError> {
        if self.wish == Wish::Near || !self.can_dial {
            if self.wish == Wish::Far {
                let what = format!("the haul on {} is too old to dial", self.ssh.host());
                self.closed.push(Closed { what, ask: None });
            }
            return Ok(None);
        }
        let (facts, client) = (self.facts.clone(), self.client);
        let terms = Terms {
            vias: &self.vias.0,
            client,
            peer: facts.far_address.filter(|_| self.wish == Wish::Either),
            ports: self.spec.ports,
            session: self.session.clone(),
            identity: self.identity.clone(),
            pin: tls::Pin(self.key.clone()),
            most: facts.most,
            window: self.window(),
            strays: self.strays.clone(),
            stop: self.spec.stop.clone(),
        };
        let agreed = &mut self.agreed;
        let plan = |rtt, paths: usize| {
            let plan = facts.plan(rtt, None, paths);
            *agreed = plan.streams.value;
            plan
        };
        match reverse::offer(terms, plan, &mut self.ssh, notes)? {
            Ok(Taken { listener, links, plan }) => {
                let addr = listener.addr;
                // What it listens on may be any address; the one that was dialled says more.
                let at = links[0].connection.as_ref().and_then(|connection| connection.ends());
                let addr = at.map_or(addr, |[local, _]| local);
                let path = Path::Reverse { addr: SocketAddr::new(addr.ip().to_canonical(), addr.port()) };
                Ok(Some(Direct { path, links, plan, joins: Joins::Accept(Arc::new(listener)) }))
            }
            Err(what) => {
                let server = self.closed.iter().find_map(|closed| closed.ask.as_ref());
                let from = server.map_or_else(|| self.ssh.host().to_string(), |ask| ask.to.clone());
                let to = client.map_or("this host".into(), |client| client.to_string());
                self.closed.push(Closed { what, ask: Some(Ask { from, to }) });
                Ok(None)
            }
        }
    }

    /// No port is open: all goes through ssh, over as many channels as it has.
    fn fall_back(&mut self, notes: &mut dyn FnMut(String)) -> Result<Further, BootstrapError> {
        let (what, ask) = explain(&self.closed, self.spec.ports);
        if self.wish != Wish::Either {
            let error = BootstrapError::new(BootstrapKind::Closed, what);
            return Err(error.remedy(format!(
                "{}`dial` auto tries every way",
                ask.map_or(String::new(), |ask| ask + "; ")
            )));
        }
        let ask = ask.map_or(String::new(), |ask| format!(". For the firewall office: {ask}"));
        notes(format!("{what}; data goes through ssh (slower){ask}"));
        match &self.sharing {
            Err(why) => Ok(Further::none(why)),
            Ok(_) if !self.can_share => Ok(Further::none("the far haul is too old for more")),
            Ok(sharing) => {
                // The first channel carries one data stream at least.
                let asked = self.spec.ssh_channels.map(|n| n - 1);
                let most = self.spec.streams.unwrap_or(self.facts.most) - 1;
                channels::open(&mut self.ssh, sharing, (asked, most), &self.spec.stop, notes)
            }
        }
    }

    /// Tells the far end what it came to, and hands the links over. `further`: where nothing is direct.
    fn decide(
        mut self,
        direct: Option<Direct>,
        further: Option<Further>,
        notes: &mut dyn FnMut(String),
    ) -> Result<Connected, BootstrapError> {
        // Nobody else comes.
        self.sharing = Err(String::new());
        let decision = match &further {
            None => Decision::Direct,
            Some(further) if further.links.is_empty() => Decision::Mux,
            Some(further) => Decision::Over(further.links.iter().map(|(index, _)| *index).collect()),
        };
        let frame = message::encode(&decision).map_err(|e| BootstrapError::local("cannot decide", e))?;
        if let Some(further) = &further
            && self.spec.streams.is_none()
        {
            let streams = if further.links.is_empty() { MUX_STREAMS } else { further.told.value };
            self.tell_streams(streams.min(self.facts.most), notes)?;
        }
        let told = self.ssh.send(&frame, notes)?;
        let mut ssh_channels = None;
        let Needs { protect, memory, .. } = self.facts.needs;
        let (path, mut links, plan, joins, guard) = match (direct, further) {
            // The agent has all its streams: that ssh is gone by now loses nothing.
            (Some(Direct { path, links, plan, joins }), _) => {
                (path, links, plan, joins, self.ssh.into_guard())
            }
            (None, Some(Further { links, clients, told: channels })) if told => {
                let (reader, writer, guard) = self.ssh.into_pipe(clients)?;
                let asked = self.spec.streams.is_some();
                let why = if asked { "as asked" } else { "all share the ssh connection" };
                let streams = self.agreed;
                let plan =
                    Plan { streams: Choice { value: streams, why: why.into() }, rtt: None, advice: None };
                let here = streams - links.len() as u16;
                let more = links.into_iter().map(|(_, link)| link).collect();
                let links = super::share_pipe(Box::new(reader), Box::new(writer), here, more, memory)?;
                ssh_channels = Some(channels);
                (Path::Ssh, links, plan, Joins::Never, guard)
            }
            (None, _) => return Err(self.ssh.ended(notes)),
        };
        let control = links.remove(0);
        let data = (1..).map(StreamId).zip(links).collect();
        Ok(Connected {
            session: self.session.id,
            control,
            data,
            joins,
            path,
            protect: path.protect(protect),
            protocol: self.protocol,
            remote_version: self.remote_version,
            plan,
            ssh_channels,
            strays: self.strays,
            far: self.facts.there,
            took: self.begin.elapsed().saturating_sub(self.answering),
            guard,
        })
    }
}

/// What the far end says, for people.
fn shown(text: &str) -> String {
    let text: String = text.chars().take(haul_core::wire::TEXT_LEN_MAX).collect();
    escape::line(text.as_bytes())
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
    .remedy(format!("update {older}, or name a fitting one on {host} with `remote_haul`")))
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
    let ask = format!("allow tcp {first}-{last} {}, and run with `ports` {first}-{last}", asks.join(" or "));
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

    /// Goal: addresses go to the end that listens: the other one than the user pinned, else the one that has
    /// them.
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

    /// Goal: the firewall office is told each direction that would do, with the ports that haul would use
    /// then.
    #[test]
    fn the_firewall_office_is_told_what_would_do() {
        let closed = |what: &str, ask: Option<(&str, &str)>| Closed {
            what: what.into(),
            ask: ask.map(|(from, to)| Ask { from: from.into(), to: to.into() }),
        };
        let both = [closed("a", Some(("n", "f"))), closed("b", Some(("f", "n")))];
        let (what, ask) = explain(&both, Some((7, 9)));
        assert_eq!(what, "a; b");
        assert_eq!(ask.unwrap(), "allow tcp 7-9 from n to f or from f to n, and run with `ports` 7-9");
        assert_eq!(explain(&[closed("a", None)], None), ("a".into(), None));
    }
}
