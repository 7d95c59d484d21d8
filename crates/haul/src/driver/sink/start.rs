//! The parts of a sink's session, made and put together.
//!
//! In: what was agreed, the request, the streams of the start. Out: an end in which the engine and the streams run, and nothing
//! is under way yet.

use std::collections::HashMap;
use std::sync::Arc;

use haul_core::ids::StreamId;
use haul_core::stage::Stage;
use haul_core::transfer::sink::{Sink, SinkConfig};
use haul_core::wire::{Failure, Message};

use super::engine::Engine;
use super::setup::Setup;
use super::{Arrived, Names, Network, Own, Place, Session, SinkEnd, SinkRequest, Storage, start_receiver};
use crate::buffer::Pool;
use crate::driver::net::Receive;
use crate::driver::{EPOCH, protocol};
use crate::storage::descriptors::budget;
use crate::storage::null::NullSink;
use crate::storage::sink::{EngineConfig, Ground, Left, Places, Stripes, WriteEngine};
use crate::transport::Link;

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
    let (agreed, meter) = (session.agreed, session.meter.clone());
    let post = session.mailbox.post(Own::Done);
    let (mut greeting_epoch, mut limits, mut object_len) = (0, None, None);
    let mut targets = Arc::default();
    let (place, engine, not_kept) = match setup.place {
        None => (None, Engine::Null(NullSink::new(post)), Arc::default()),
        Some((tree, owner, journal)) => {
            greeting_epoch = owner.epoch();
            let tree = Arc::new(tree);
            let still_owner = {
                let owner = owner.clone();
                Arc::new(move || owner.still_owner())
            };
            let ground = Ground::of(&tree, setup.tag);
            object_len = ground.object_len.filter(|_| agreed.layouts);
            let config = EngineConfig {
                tree: tree.clone(),
                tag: setup.tag,
                old_tags: setup.resume.replayed.tags.clone(),
                left: Left {
                    names: setup.names.clone(),
                    parts: setup.resume.replayed.partials.values().map(|p| (p.tag, p.number)).collect(),
                    clean: setup.clean,
                },
                adopt: setup.adopt,
                confirm: owner.follows_unproven() || setup.resume.replayed.may_be_overtaken(),
                threads: usize::from(request.writers),
                dir_owner: setup.policy.owner,
                still_owner,
                journal: Some(journal),
                storage: request.storage.clone(),
                memory: request.memory,
                places: Places::of(&ground).filter(|_| agreed.targets),
                stripes: Stripes::new(request.layout, ground.provider),
                durable: setup.policy.durable,
            };
            targets = config.places.as_ref().map(Places::targets).unwrap_or_default();
            let several = config.places.is_some();
            let engine = WriteEngine::new(config, meter.clone(), post)
                .map_err(|e| protocol(format!("starting the writing threads: {e}")))?;
            limits = several.then(|| engine.limits());
            let not_kept = engine.not_kept();
            (Some(Place { tree, owner, yields: false, ends: false }), Engine::Files(engine), not_kept)
        }
    };
    let greeting = Message::Destination {
        wait: setup.wait,
        rename: setup.rename,
        epoch: greeting_epoch,
        resumed: setup.resumed,
    };
    let pool = Pool::new(request.memory);
    #[cfg(test)]
    crate::driver::tests::keep_pool(&pool);
    let mut receivers = HashMap::new();
    let sockets = data.iter().filter_map(|(_, link)| link.socket.as_deref());
    let mut receive = Receive::start(sockets, session.other.lines.first().into(), request.window);
    for (stream, link) in data {
        receive.add(link.socket.as_deref());
        receivers.insert(stream, start_receiver(link, (stream, EPOCH), &pool, session)?);
    }
    let config = SinkConfig {
        agreed,
        policy: setup.policy,
        memory: request.memory,
        wait: setup.wait,
        files_open_max: budget().sink_files as u32,
        tag: setup.tag,
        targets: limits,
        round_trip: receive.round_trip(),
        names: setup.names,
    };
    session.meter.set_idle(Stage::SinkStorage, false);
    session.meter.set_idle(Stage::SinkHost, false);
    let end = SinkEnd {
        machine: Sink::new(config, setup.resume),
        storage: Storage { place, engine, targets, not_kept, ended: false },
        names: Names::default(),
        payload: Arrived { pool, buffers: HashMap::new() },
        network: Network { receivers, receive },
        paused: false,
        hears: request.hears.clone(),
        resumed: setup.resumed,
        found: setup.found,
        complete: false,
    };
    if let Some(len) = object_len {
        session.other.send(Message::ObjectLen(len));
    }
    session.other.send(greeting);
    Ok(end)
}
