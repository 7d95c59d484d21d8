//! The near end: runs ssh, agrees with the agent on keys, and dials.
//!
//! In: a [`RemoteSpec`] and an [`AgentRequest`]. Out: [`Connected`].
//! Invariants: the direct path is all streams or none (others may join later: `redial`), over one pair of addresses or
//! several (`race`); what the far end says about addresses is only where to dial, never whom to trust. If anything about the direct path fails, the ssh pipe is the path.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use haul_core::ids::StreamId;
use haul_core::tune::Choice;
use haul_core::wire::{STREAMS_MAX, VERSION, VERSION_MIN};

use super::listener::{FIRST_EPOCH, Met, Session};
use super::message::{
    self, ADDRESSES_MAX, AgentHello, AgentReply, Bytes, Decision, Fixed, Listening, MAGIC, NearHello,
    PROGRAM_LEN_MAX,
};
use super::push::{STAGE0, start_haul};
use super::race::{self, Caller, Race, Rules, Way};
use super::redial::{Redial, Redialler};
use super::ssh::{Ssh, dial_name};
use super::words::escape;
use super::{BootstrapError, BootstrapKind, Connected, Path, RemoteSpec, harden};
use crate::job::{AgentRequest, Role};
use crate::transport::path::{self, EndFacts, Plan};
use crate::transport::rejoin::Joins;
use crate::transport::tcp::HostLimits;
use crate::transport::{Link, tls};

/// How long the far end may be silent once it has said its first word.
pub(super) const ANSWER_WAIT: Duration = Duration::from_secs(60);
/// How long ssh may take to log in when nobody types a password.
const LOGIN_WAIT: Duration = Duration::from_secs(120);
/// How long the port is tried before everything goes through ssh.
const DIAL_WAIT: Duration = Duration::from_secs(3);
/// How long the data streams may take once control is up.
const DATA_WAIT: Duration = Duration::from_secs(10);
/// How long a further path may take to connect again once it has answered.
const PATH_CONNECT_WAIT: Duration = Duration::from_secs(2);
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
    if spec.via.len() > ADDRESSES_MAX {
        return Err(BootstrapError::new(
            BootstrapKind::Usage,
            format!("{} addresses to go via, {ADDRESSES_MAX} are possible", spec.via.len()),
        ));
    }
    harden();
    let login = if spec.interactive { None } else { Some(LOGIN_WAIT) };
    let mut ssh = Ssh::start(spec, STAGE0, login)?;
    start_haul(&mut ssh, spec, notes)?;
    ssh.set_silence(ANSWER_WAIT);

    let hello: AgentHello = ssh.read_frame(notes)?;
    let program: String = hello.program.chars().take(PROGRAM_LEN_MAX).collect();
    let remote_version = escape(program.as_bytes());
    let protocol = agree(&hello, &remote_version, ssh.host())?;
    let identity = tls::Identity::generate()?;
    let session = Session::new().map_err(|e| BootstrapError::local("no random numbers", e))?;
    let near = NearHello {
        protocol,
        program: env!("CARGO_PKG_VERSION").into(),
        request: request.clone(),
        session: Fixed(session.id),
        key: Bytes(identity.public()),
        secret: Fixed(session.secret),
        streams: tickets,
        ports: spec.ports,
        via: spec.via.first().copied(),
        via_too: spec.via.iter().skip(1).copied().collect(),
    };
    let frame =
        message::encode(&near).map_err(|e| BootstrapError::local("cannot tell the far end what to do", e))?;
    ssh.send(&[MAGIC, &frame].concat(), notes)?;
    let (key, most, listening, client, facts) = match ssh.read_frame(notes)? {
        AgentReply::Ready { key, streams, listening, client, facts } => {
            (key, streams, listening, client, facts)
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
    let plan_for = |rtt| {
        let here = EndFacts::here(request.options.memory);
        let there = facts.unwrap_or(EndFacts { limits: HostLimits::default(), ..here });
        // The role is the agent's.
        let (source, sink) = match request.role {
            Role::Sink => (&here, &there),
            Role::Source => (&there, &here),
        };
        let mut plan = path::plan(rtt, source, sink, request.options.window, spec.streams);
        plan.streams.value = plan.streams.value.min(most);
        plan
    };
    // What the far end counts on so far.
    let mut agreed = most;
    let tell_streams = |ssh: &mut Ssh, streams: u16, notes: &mut dyn FnMut(String)| {
        if streams == most {
            return Ok(());
        }
        let frame = message::encode(&Decision::Streams(streams))
            .map_err(|e| BootstrapError::local("cannot tell the number of streams", e))?;
        // If the far end is gone, that shows at the next word.
        ssh.send(&frame, notes).map(drop)
    };

    let id = session.id;
    let direct = match listening {
        Ok(at) => {
            for failed in at.failed.iter().take(ADDRESSES_MAX) {
                let failed: String = failed.chars().take(haul_core::wire::TEXT_LEN_MAX).collect();
                notes(format!("haul on {} does not listen on {}", ssh.host(), escape(failed.as_bytes())));
            }
            // A receive buffer must be fixed before the connection is made.
            let window = request.options.window.filter(|_| request.role == Role::Source);
            let name = dial_name(spec).to_string();
            let caller = Arc::new(Caller { name, session, identity, pin: tls::Pin(key.0), window });
            let rules =
                Rules { paths: spec.streams != Some(1), known: false, deadline: Instant::now() + DIAL_WAIT };
            let mut race = Race::start(caller.clone(), race::ways(&at), rules);
            let dialled = match race.control(FIRST_EPOCH) {
                Ok((won, control)) => {
                    let others = race.others(won);
                    let first = race.way(won);
                    let mut plan = plan_for(path::rtt(&control));
                    let mut paths = vec![(first, None)];
                    paths.extend(others.into_iter().map(|(way, met)| (way, Some(met))));
                    let start = request
                        .options
                        .start
                        .as_ref()
                        .filter(|start| spec.streams.is_none() && start.address == first.remote.ip());
                    if let Some(start) = start {
                        let value = start.streams.clamp(1, most);
                        plan.streams = Choice { value, why: start.why.clone() };
                    } else if spec.streams.is_none() && paths.len() > 1 {
                        plan.streams = each_path(plan.streams, paths.len(), most);
                    }
                    agreed = plan.streams.value;
                    paths.truncate(agreed.into());
                    let ways: Vec<Way> = paths.iter().map(|(way, _)| *way).collect();
                    tell_streams(&mut ssh, agreed, notes)?;
                    dial_data(&caller, paths, agreed).map(|data| {
                        let mut used: Vec<_> = ways.into_iter().map(|way| (way, BTreeSet::new())).collect();
                        let mut links = vec![control];
                        for (stream, (link, path)) in (1..).map(StreamId).zip(data) {
                            used[path].1.insert(stream);
                            links.push(link);
                        }
                        Dialled { addr: first.remote, links, plan, used, control: first }
                    })
                }
                Err(_) => Err("is closed to us"),
            };
            match dialled {
                Ok(Dialled { addr, links, plan, used, control }) => {
                    let redial = Redial::new(caller, at, used, control);
                    Some((addr, links, plan, Joins::Dial(Arc::new(Redialler(Arc::new(redial))))))
                }
                Err(why) => {
                    notes(firewall_note(spec, ssh.host(), &at, why, client));
                    None
                }
            }
        }
        Err(no) => {
            let why: String = no.why.chars().take(haul_core::wire::TEXT_LEN_MAX).collect();
            notes(format!(
                "haul on {} opened no port ({}); data goes through ssh (slower)",
                ssh.host(),
                escape(why.as_bytes())
            ));
            None
        }
    };
    let decision = if direct.is_some() { Decision::Direct } else { Decision::Mux };
    let frame = message::encode(&decision).map_err(|e| BootstrapError::local("cannot decide", e))?;
    if direct.is_none() && spec.streams.is_none() && agreed == most {
        agreed = MUX_STREAMS.min(most);
        tell_streams(&mut ssh, agreed, notes)?;
    }
    let told = ssh.send(&frame, notes)?;
    let (addr, mut links, plan, joins, guard) = match direct {
        // The agent has all its streams: that ssh is gone by now loses nothing.
        Some((addr, links, plan, joins)) => (Some(addr), links, plan, joins, ssh.into_guard()),
        None if !told => return Err(ssh.ended(notes)),
        None => {
            let (reader, writer, guard) = ssh.into_pipe()?;
            let why = if spec.streams.is_some() { "as asked" } else { "all share the ssh connection" };
            let streams = agreed;
            let plan = Plan { streams: Choice { value: streams, why: why.into() }, rtt: None, advice: None };
            let links = super::share_pipe(Box::new(reader), Box::new(writer), streams, request)?;
            (None, links, plan, Joins::Never, guard)
        }
    };
    let control = links.remove(0);
    let data = (1..).map(StreamId).zip(links).collect();
    let path = addr.map_or(Path::Ssh, |addr| Path::Direct { addr });
    Ok(Connected {
        session: id,
        control,
        data,
        joins,
        path,
        protect: path.protect(),
        protocol,
        remote_version,
        plan,
        far: facts,
        guard,
    })
}

/// What one path needs, for each of `paths`; no more than `most` in all.
fn each_path(one: Choice<u16>, paths: usize, most: u16) -> Choice<u16> {
    let paths = u16::try_from(paths).unwrap_or(u16::MAX);
    let value = one.value.saturating_mul(paths).min(most);
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

/// What the start brought: control, the data streams in order, the path of each, and control's.
struct Dialled {
    addr: SocketAddr,
    links: Vec<Link>,
    plan: Plan,
    used: Vec<(Way, BTreeSet<StreamId>)>,
    control: Way,
}

/// All data streams at once over `paths` in turn, or none. What is up on a path already is used first; a path that fails
/// now is done without, but for the first. Returns each stream's link and the path that it took.
fn dial_data(
    caller: &Caller,
    paths: Vec<(Way, Option<Met>)>,
    streams: u16,
) -> Result<Vec<(Link, usize)>, &'static str> {
    let deadline = Instant::now() + DATA_WAIT;
    let (ways, mut met): (Vec<Way>, Vec<Option<Met>>) = paths.into_iter().unzip();
    let ways = &ways;
    let data: Vec<Option<(Link, usize)>> = thread::scope(|scope| {
        let join = |stream: u16, met: Option<Met>| {
            move || {
                let name = (StreamId(stream), FIRST_EPOCH);
                let path = usize::from(stream - 1) % ways.len();
                let joined = match met {
                    Some(met) => {
                        let left = deadline.saturating_duration_since(Instant::now());
                        met.join(&caller.session, name, left)
                    }
                    None => {
                        // A path that answered a moment ago does so again, or leaves time for the first.
                        let connect = if path == 0 { DATA_WAIT } else { PATH_CONNECT_WAIT };
                        caller.join(&ways[path], name, connect, deadline)
                    }
                };
                match joined {
                    Ok(link) => Some((link, path)),
                    Err(_) if path > 0 => {
                        caller.join(&ways[0], name, DATA_WAIT, deadline).ok().map(|link| (link, 0))
                    }
                    Err(_) => None,
                }
            }
        };
        let threads: Vec<_> = (1..=streams)
            .map(|stream| {
                let met = met.get_mut(usize::from(stream - 1)).and_then(Option::take);
                scope.spawn(join(stream, met))
            })
            .collect();
        threads.into_iter().map(|t| t.join().ok().flatten()).collect()
    });
    let data: Option<Vec<_>> = data.into_iter().collect();
    data.ok_or("took only a part of our connections")
}

/// The one line for the firewall office.
fn firewall_note(spec: &RemoteSpec, host: &str, at: &Listening, why: &str, client: Option<IpAddr>) -> String {
    let (first, last) = spec.ports.unwrap_or(PORTS_SUGGESTED);
    let from = client.map_or("this host".into(), |c| c.to_string());
    let to = match spec.via.is_empty() {
        true => at.address.to_string(),
        false => spec.via.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", "),
    };
    format!(
        "tcp port {} of {host} {why}; data goes through ssh (slower). For the firewall office: allow tcp {first}-{last} \
         from {from} to {to}, and run with --port {first}-{last}",
        at.port
    )
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
}
