//! The parts of a source's session, made and put together.
//!
//! In: what was agreed, the request, the streams of the start. Out: an end in which walk, engine and streams
//! run, and nothing is under way yet.

use std::collections::HashMap;

use haul_core::ids::{StreamId, Time};
use haul_core::transfer::BUNDLE_LEN_MAX;
use haul_core::transfer::source::{QUEUED_MAX, Source, SourceConfig};
use haul_core::wire::{Failure, LiveSettings, STREAMS_MAX, credit_cost};

use super::network::{Network, start_sender};
use super::parts::{Payload, Storage};
use super::setup::Setup;
use super::walked::Walked;
use super::{Own, Session, SourceEnd, SourceRequest};
use crate::driver::net::Net;
use crate::driver::spill::Spill;
use crate::driver::{EPOCH, held};
use crate::options::{Resume, Verify};
use haul_base::buffer::Pool;
use haul_storage::manners::{ByName, Manners};
use haul_storage::store::{Keeps, Reading, SourceParts};
use haul_transport::Link;

/// The parts of an end that has agreed with the other; `data`: the streams of the start that are up.
pub(super) fn start(
    session: &mut Session<'_>,
    data: Vec<(StreamId, Link)>,
    request: &SourceRequest,
    setup: Setup,
) -> Result<SourceEnd, Failure> {
    let (agreed, options) = (session.agreed, &request.options);
    let can_join = session.other.lines.can_join();
    let changed = options.changed.choice();
    let object_size = setup.object_size;
    let mut nodes = options.nodes();
    if !agreed.specials {
        nodes.kept = Default::default();
    }
    let chosen = setup.chosen(request);
    let SourceParts { names, engine, walk } = setup.store.start(Reading {
        picks: request.picks.clone(),
        originals: request.originals.clone(),
        agreed,
        readers: usize::from(request.readers),
        storage: options.source_storage.clone(),
        memory: request.memory,
        object_size,
        clock: request.clock.clone(),
        kept: setup.kept,
        changed,
        no_links: options.no_links,
        manners: Manners { sink_here: request.sink_here.clone(), ..options.manners()? },
        by_name: match options.keeps_owners() && !options.numeric_ids {
            _ if options.given().needs_names() => ByName::Surely,
            true => ByName::Yes,
            false => ByName::No,
        },
        nodes,
        keeps: Keeps { xattrs: options.xattrs, acls: options.acls },
        hard_links: agreed.hard_links,
        budget: request.claim.budget(),
        meter: session.meter.clone(),
        post: session.mailbox.post(Own::Done),
    })?;
    let (reads_max, reads_total) = engine.reads_max(object_size);
    let mut machine = Source::new(SourceConfig {
        agreed,
        memory: request.memory,
        reads_max,
        reads_total,
        bundle_files: engine.bundle_files(),
        policy: options.schedule,
        wait: setup.wait,
        verify: options.verify == Verify::Disk,
        compares: engine.compares(),
        dry: options.dry_run,
        root: setup.root,
        clones: request.originals.is_some(),
        changed,
        patience: session.other.lines.patience(),
    });
    let now = session.clock.now();
    let sockets = data.iter().filter_map(|(stream, link)| Some((*stream, link.connection.clone()?)));
    let mut net = Net::start(now, sockets, options, request.pacer.clone(), can_join);
    net.expect(now, session.other.lines.first());
    // Frames that a stream's thread still holds when the machine has written them off.
    let frame_len = u64::from(object_size).max(BUNDLE_LEN_MAX);
    let streams = if can_join { usize::from(STREAMS_MAX) } else { data.len() };
    let slack = streams as u64 * u64::from(QUEUED_MAX) * credit_cost(frame_len);
    let mut senders = HashMap::new();
    for (stream, link) in data {
        senders.insert(stream, start_sender(link, (stream, EPOCH), session, &request.pacer)?);
        machine.handle_stream_up(stream);
    }
    let spill = Spill::start(options, object_size.into(), &mut machine, session.mailbox.post(Own::Spill))?;
    let pool = Pool::new(request.memory + slack);
    #[cfg(test)]
    crate::driver::tests::keep_pool(&pool);
    session.user.tally.renamed = setup.rename.is_some();
    Ok(SourceEnd {
        machine,
        chosen,
        resumed: setup.resumed,
        storage: Storage { names, engine, object_size },
        walked: Walked::new(walk, setup.rename),
        payload: Payload { pool, spill, buffers: HashMap::new() },
        network: Network {
            senders,
            net,
            pacer: request.pacer.clone(),
            rate: request.pacer.rate(),
            trial: request.trial.clone(),
            looked: None,
            taken: (Time(0), 0),
        },
        turned: LiveSettings::default(),
        checking: held::AtSource::new(options.resume == Resume::Trust),
        placed: None,
    })
}
