//! The parts of a sink's session, made and put together.
//!
//! In: what was agreed, the request, the streams of the start. Out: a session in which the engine and the streams run, and nothing
//! is under way yet.

use std::collections::HashMap;
use std::sync::Arc;

use crossbeam_channel::Sender;
use haul_core::ids::StreamId;
use haul_core::transfer::sink::{Sink, SinkConfig};
use haul_core::wire::{Failure, Message};

use super::engine::Engine;
use super::setup::Setup;
use super::{Event, Place, Session, SinkRequest, start_receiver};
use crate::api::Knob;
use crate::buffer::Pool;
use crate::driver::choices::Choices;
use crate::driver::net::Receive;
use crate::driver::processors::Load;
use crate::driver::steer::Steering;
use crate::driver::streams::Lines;
use crate::driver::view::View;
use crate::driver::{Clock, EPOCH, Notices, Tally, protocol};
use crate::job::Role;
use crate::meter::Meter;
use crate::storage::descriptors::budget;
use crate::storage::null::NullSink;
use crate::storage::sink::{EngineConfig, Ground, Left, Places, Stripes, WriteEngine};
use crate::storage::{Post, SinkCompletion};
use crate::transport::Link;

impl Session {
    /// The parts of a session whose ends have agreed; `data`: the streams of the start.
    ///
    /// # Errors
    /// The system gives no threads.
    pub(super) fn start(
        data: Vec<(StreamId, Link)>,
        lines: Lines,
        sender: Sender<Event>,
        request: &SinkRequest,
        setup: Setup,
    ) -> Result<Session, Failure> {
        let meter = Arc::new(Meter::default());
        let post: Post<SinkCompletion> = {
            let sender = sender.clone();
            Arc::new(move |done| drop(sender.send(Event::Done(done))))
        };
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
                object_len = ground.object_len.filter(|_| setup.agreed.layouts);
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
                    places: Places::of(&ground).filter(|_| setup.agreed.targets),
                    stripes: Stripes::new(request.layout, ground.provider),
                    durable: setup.policy.durable,
                };
                targets = config.places.as_ref().map(Places::targets).unwrap_or_default();
                let several = config.places.is_some();
                let engine = WriteEngine::new(config, meter.clone(), post)
                    .map_err(|e| protocol(format!("starting the writing threads: {e}")))?;
                limits = several.then(|| engine.limits());
                let not_kept = engine.not_kept();
                (Some(Place { tree, owner, like: setup.like }), Engine::Files(engine), not_kept)
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
        let mut receive = Receive::start(sockets, lines.first().into(), request.window);
        for (stream, link) in data {
            receive.add(link.socket.as_deref());
            receivers.insert(stream, start_receiver(link, (stream, EPOCH), &pool, &meter, &sender)?);
        }
        let config = SinkConfig {
            policy: setup.policy,
            memory: request.memory,
            entries_max: setup.agreed.limits.entries,
            wait: setup.wait,
            files_open_max: budget().sink_files as u32,
            tag: setup.tag,
            holes: setup.agreed.holes,
            digest: setup.agreed.digest,
            layouts: setup.agreed.layouts,
            shards: setup.agreed.shards,
            lease: setup.agreed.lease,
            targets: limits,
            round_trip: receive.round_trip(),
            names: setup.names,
        };
        Ok(Session {
            machine: Sink::new(config, setup.resume),
            place,
            not_kept,
            engine,
            receivers,
            buffers: HashMap::new(),
            places: HashMap::new(),
            dirs: HashMap::new(),
            meter,
            tally: Tally::default(),
            far: None,
            greeting,
            object_len,
            layouts: setup.agreed.layouts,
            resumed: setup.resumed,
            found: setup.found,
            unencrypted: setup.agreed.auth_only,
            lost: false,
            notices: Notices::new("sink"),
            steering: Steering::new(setup.agreed.knobs, &[Knob::Writers]),
            view: View::new(setup.agreed.tables, Role::Sink),
            choices: Choices::new(setup.agreed.choices),
            load: Load::new(),
            targets,
            paused: false,
            hears: request.hears.clone(),
            lines,
            complete: false,
            receive,
            yields: false,
            ends: false,
            clock: Clock::new(),
            sender,
            pool,
        })
    }
}
