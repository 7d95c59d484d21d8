//! The parts of a source's session, made and put together.
//!
//! In: what was agreed, the request, the streams of the start. Out: a session in which walk, engine and streams run, and nothing is
//! under way yet.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crossbeam_channel::Sender;
use haul_core::ids::{StreamId, Time};
use haul_core::transfer::BUNDLE_LEN_MAX;
use haul_core::transfer::source::{QUEUED_MAX, Source, SourceConfig};
use haul_core::wire::{Failure, Knobs, NotKept, STREAMS_MAX, credit_cost};

use super::setup::{Origin, Setup};
use super::{Event, STAT_THREADS, Session, SourceRequest, start_sender};
use crate::api::Knob;
use crate::buffer::Pool;
use crate::driver::choices::Choices;
use crate::driver::net::Net;
use crate::driver::processors::Load;
use crate::driver::spill::Spill;
use crate::driver::steer::Steering;
use crate::driver::streams::Lines;
use crate::driver::view::View;
use crate::driver::{Clock, EPOCH, Notices, Tally, protocol};
use crate::job::{Role, Verify};
use crate::meter::Meter;
use crate::storage::null::{self, MadeEngine};
use crate::storage::source::tree::SourceTree;
use crate::storage::source::{ReadConfig, ReadEngine};
use crate::storage::spill::SpillDone;
use crate::storage::walk::Walk;
use crate::storage::{Post, SourceCompletion, SourceEngine};
use crate::transport::Link;

/// The engine for what the sources are.
fn start_engine(
    setup: &Setup,
    config: ReadConfig,
    tree: &Arc<SourceTree>,
    meter: &Arc<Meter>,
    post: Post<SourceCompletion>,
) -> std::io::Result<Box<dyn SourceEngine>> {
    Ok(match &setup.origin {
        Origin::Files(_) => Box::new(ReadEngine::start(tree.clone(), post, meter.clone(), config)?),
        Origin::Made(made) => {
            let readers = config.readers;
            let config = null::lane_config(2 * readers, readers, setup.object_size);
            Box::new(MadeEngine::start(*made, setup.agreed.digest, config, meter.clone(), post)?)
        }
    })
}

impl Session {
    /// The parts of a session whose ends have agreed; `data`: the streams of the start, of how many that `first` asked for.
    pub(super) fn start(
        (data, first): (Vec<(StreamId, Link)>, u16),
        lines: Lines,
        sender: Sender<Event>,
        request: &SourceRequest,
        setup: &Setup,
    ) -> Result<Session, Failure> {
        let meter = Arc::new(Meter::default());
        let changed = request.options.changed.choice();
        let tree = Arc::new(SourceTree::with_clock(request.clock.clone()).on_change(changed));
        let post: Post<SourceCompletion> = {
            let sender = sender.clone();
            Arc::new(move |done| drop(sender.send(Event::Done(done))))
        };
        let config = ReadConfig {
            readers: usize::from(request.readers),
            storage: request.options.source_storage.clone(),
            memory: request.memory,
            digest: setup.agreed.digest,
        };
        let reads_max = config.reads_max(setup.object_size);
        let reads_total = config.reads_total(setup.object_size);
        let engine = start_engine(setup, config.clone(), &tree, &meter, post)
            .map_err(|e| protocol(format!("starting the reading threads: {e}")))?;
        let mut machine = Source::new(SourceConfig {
            entries_max: setup.agreed.limits.entries,
            memory: request.memory,
            reads_max,
            reads_total,
            policy: request.options.schedule,
            wait: setup.wait,
            holes: setup.agreed.holes,
            digest: setup.agreed.digest,
            targets: setup.agreed.targets,
            layouts: setup.agreed.layouts,
            lease: setup.agreed.lease,
            verify: request.options.verify == Verify::Disk,
            dry: request.options.dry_run,
            changed,
            patience: lines.patience(),
        });
        let clock = Clock::new();
        let sockets = data.iter().filter_map(|(stream, link)| Some((*stream, link.socket.clone()?)));
        let mut net =
            Net::start(clock.now(), sockets, &request.options, request.pacer.clone(), lines.can_join());
        net.expect(clock.now(), first);
        // Frames that a stream's thread still holds when the machine has written them off.
        let frame_len = u64::from(setup.object_size).max(BUNDLE_LEN_MAX);
        let streams = if lines.can_join() { usize::from(STREAMS_MAX) } else { data.len() };
        let slack = streams as u64 * u64::from(QUEUED_MAX) * credit_cost(frame_len);
        let mut senders = HashMap::new();
        for (stream, link) in data {
            senders.insert(stream, start_sender(link, (stream, EPOCH), &meter, &sender, &request.pacer)?);
            machine.handle_stream_up(stream);
        }
        let object_size = setup.object_size;
        let walk = match &setup.origin {
            Origin::Files(roots) => {
                Walk::start(roots.clone(), tree.clone(), STAT_THREADS, move |_| object_size)
                    .map_err(|e| protocol(format!("starting the walk: {e}")))?
            }
            Origin::Made(made) => Walk::of(made.walk(object_size)),
        };
        let post: Post<SpillDone> = {
            let sender = sender.clone();
            Arc::new(move |done| drop(sender.send(Event::Spill(done))))
        };
        let spill = Spill::start(&request.options, object_size.into(), &mut machine, post)?;
        let pool = Pool::new(request.memory + slack);
        #[cfg(test)]
        crate::driver::tests::keep_pool(&pool);
        Ok(Session {
            machine,
            tree,
            engine,
            walk,
            walked: false,
            ahead: VecDeque::new(),
            rename: setup.rename.clone(),
            senders,
            pool,
            spill,
            buffers: HashMap::new(),
            kinds: HashMap::new(),
            meter,
            tally: Tally::default(),
            far: None,
            placed: None,
            not_kept: [0; NotKept::COUNT],
            left_out: Vec::new(),
            holes: setup.agreed.holes,
            unencrypted: setup.agreed.auth_only,
            checking: Default::default(),
            trusts: request.options.resume == crate::job::Resume::Trust,
            lost: false,
            notices: Notices::new("source"),
            steering: Steering::new(setup.agreed.knobs, &[Knob::Rate, Knob::Streams, Knob::Readers]),
            view: View::new(setup.agreed.tables, Role::Source),
            choices: Choices::new(setup.agreed.choices),
            load: Load::new(),
            turned: Knobs::default(),
            reading: config,
            rate: request.pacer.rate(),
            object_size: setup.object_size,
            net,
            trial: request.trial.clone(),
            looked: None,
            taken: (Time(0), 0),
            lines,
            clock,
            sender,
            pacer: request.pacer.clone(),
        })
    }
}
