//! The near end: runs ssh, agrees with the agent on keys, and dials.
//!
//! In: a [`RemoteSpec`] and an [`AgentRequest`]. Out: [`Connected`].
//! Invariants: the direct path is all streams or none (others may join later: `redial`), over one pair of addresses or
//! several (`race`); what the far end says about addresses is only where to dial, never whom to trust. If anything about the direct path fails, the ssh pipe is the path.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use haul_core::ids::StreamId;
use haul_core::tune::Choice;
use haul_core::wire::{STREAMS_MAX, VERSION, VERSION_MIN};

use super::listener::Session;
use super::message::{
    self, ADDRESSES_MAX, AgentHello, AgentReply, Bytes, Decision, Fixed, Listening, MAGIC, NearHello,
    PROGRAM_LEN_MAX,
};
use super::push::{STAGE0, start_haul};
use super::race::{self, Caller};
use super::redial::{Redial, Redialler};
use super::ssh::{Ssh, dial_name};
use super::start::{self, Dialled};
use super::words::escape;
use super::{BootstrapError, BootstrapKind, Connected, Path, RemoteSpec, harden};
use crate::job::{AgentRequest, Role};
use crate::transport::path::{self, EndFacts, Plan};
use crate::transport::rejoin::Joins;
use crate::transport::tcp::HostLimits;
use crate::transport::tls;

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
    let identity = tls::Identity::generate()?;
    let tell = |protocol, session: &Session| NearHello {
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
    let encode = |near: NearHello| {
        let frame = message::encode(&near);
        let frame = frame.map_err(|e| BootstrapError::local("cannot tell the far end what to do", e))?;
        Ok::<_, BootstrapError>([MAGIC, &frame].concat())
    };
    let fresh = || Session::new().map_err(|e| BootstrapError::local("no random numbers", e));
    let mut session = fresh()?;
    let words = encode(tell(VERSION, &session))?;
    let mut ssh = Ssh::start(spec, STAGE0, login)?;
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
            let dialled = start::dial(&caller, race::ways(&at), spec.streams, most, &plan_for);
            match dialled {
                Ok(Dialled { addr, links, plan, used, control, coming }) => {
                    agreed = plan.streams.value;
                    tell_streams(&mut ssh, agreed, notes)?;
                    let redial = Redial::new(caller, at, used, control, coming);
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
        guard,
    })
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
