//! The parts of a sink's session, made and put together.
//!
//! In: what was agreed and claimed, the request, the streams of the start. Out: an end in which the engine
//! and the streams run, and nothing is under way yet.

use std::collections::HashMap;

use haul_core::ids::StreamId;
use haul_core::stage::Stage;
use haul_core::transfer::sink::{Clones, Sink, SinkConfig};
use haul_core::wire::{Failure, Message};

use super::setup::Setup;
use super::{Arrived, Names, Network, Own, Session, SinkEnd, SinkRequest, Storage, start_receiver};
use crate::driver::EPOCH;
use crate::driver::net::Receive;
use crate::options::CLONE_LEN_MIN;
use crate::summary::{DEBRIS, IN_MEMORY};
use haul_base::buffer::Pool;
use haul_storage::store::{Claimed, Finding, Writing};
use haul_transport::Link;

/// The parts of an end that has agreed with the other; `data`: the streams of the start.
///
/// # Errors
/// The system gives no threads.
pub(super) fn start(
    session: &mut Session<'_>,
    data: Vec<(StreamId, Link)>,
    request: &SinkRequest,
    setup: Setup,
) -> Result<SinkEnd, Failure> {
    let Setup { policy, claimed, owners } = setup;
    let Claimed { mut job, resume, epoch, tag, wait, rename, resumed, names, root, found } = claimed;
    let agreed = session.agreed;
    let engine = job.start(Writing {
        agreed,
        policy,
        clones: request.clones.clone(),
        writers: usize::from(request.writers),
        storage: request.storage.clone(),
        layout: request.layout,
        memory: request.memory,
        budget: request.claim.budget(),
        meter: session.meter.clone(),
        post: session.mailbox.post(Own::Done),
    })?;
    let pool = Pool::new(request.memory);
    #[cfg(test)]
    crate::driver::tests::keep_pool(&pool);
    let mut receivers = HashMap::new();
    let sockets = data.iter().filter_map(|(_, link)| link.connection.as_deref());
    let mut receive = Receive::start(sockets, session.other.lines.first().into(), request.window);
    for (stream, link) in data {
        receive.add(link.connection.as_deref());
        receivers.insert(stream, start_receiver(link, (stream, EPOCH), &pool, session)?);
    }
    let ascending = engine.places();
    // What it has no place for yet must not be sent.
    let clones = request.clones.as_ref().filter(|_| engine.clones()).map(|clones| Clones {
        len_min: if clones.always { 1 } else { CLONE_LEN_MIN },
        always: clones.always,
    });
    // Nor what may be cloned.
    let wait = wait || ascending.is_some() || clones.is_some();
    let config = SinkConfig {
        agreed,
        policy,
        memory: request.memory,
        wait,
        files_open_max: request.claim.budget().sink_files as u32,
        tag,
        targets: engine.limits(),
        ascending,
        round_trip: receive.round_trip(),
        names,
        part: request.part,
        nodes: if agreed.specials { request.nodes } else { Default::default() },
        root,
        clones,
    };
    session.meter.set_idle(Stage::SinkStorage, false);
    session.meter.set_idle(Stage::SinkHost, false);
    if let Some(len) = engine.object_len().filter(|_| agreed.layouts) {
        session.other.send(Message::ObjectLen(len));
    }
    if let Some(grain) = engine.time_grain() {
        session.other.send(Message::TimeGrain(grain));
    }
    session.other.send(Message::Destination { wait, rename, epoch, resumed });
    let mut machine = Sink::new(config, resume);
    machine.set_commit_cost(engine.commit_cost());
    Ok(SinkEnd {
        machine,
        storage: Storage { job, targets: engine.targets(), engine, ended: false, yields: false, ends: false },
        names: Names::default(),
        payload: Arrived { pool, buffers: HashMap::new() },
        network: Network { receivers, receive },
        paused: false,
        hears: request.hears.clone(),
        owners,
        resumed,
        found: found.into_iter().map(in_words).collect(),
        complete: false,
    })
}

/// For the summary, by name.
fn in_words(found: Finding) -> (String, String) {
    match found {
        Finding::Debris(text) => (DEBRIS.to_owned(), text),
        Finding::InMemory(kind) => (IN_MEMORY.to_owned(), kind.to_owned()),
    }
}
