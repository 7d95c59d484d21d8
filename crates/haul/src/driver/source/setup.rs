//! What a source agrees with the sink before the first entry.
//!
//! In: control, the sources as typed. Out: a [`Setup`]: where the data comes from, what it is called at the
//! sink, the limits of the session.

use std::sync::atomic::Ordering;
use std::time::Duration;

use haul_core::entry::Name;
use haul_core::wire::{Agreed, Capability, Failure, Message, ROOTS_PART_MAX, SourceRoot, capability};

use super::super::{policy, protocol};
use super::{Own, SourceRequest};
use crate::driver::ROOT_STAYS;
use crate::driver::hello::Opening;
use crate::events::Event;
use crate::options::Resume;
use haul_storage::descriptors::FEW_DESCRIPTORS;
use haul_storage::place::Sources;
use haul_storage::store::SourceStore;
use haul_storage::stores;

/// Length of objects where nothing asks for another one, bytes; and what the stripes of a destination make of
/// it at least.
const OBJECT_LEN: u32 = crate::options::OBJECT_SIZE_DEFAULT as u32;
const OBJECT_LEN_LEAST: u32 = 1 << 20;

/// What a sink says before the first entry.
enum Answer {
    /// Whether to wait for states, a new name, whether something is resumed.
    Open(bool, Option<Name>, bool),
    ObjectLen(u32),
    TimeGrain(u32),
}

/// What was agreed before the first entry.
pub(super) struct Setup {
    pub(super) store: Box<dyn SourceStore>,
    pub(super) wait: bool,
    /// `haul cp a.txt dir/b.txt`: the name that the single file gets.
    pub(super) rename: Option<Name>,
    pub(super) resumed: bool,
    /// The sink makes the destination root what a source is.
    pub(super) root: bool,
    pub(super) object_size: u32,
    /// How coarsely the sink keeps mtimes, as far as it said.
    pub(super) kept: Duration,
    /// The destination's stripes ask for it.
    fits_stripes: bool,
}

impl Setup {
    pub(super) fn chosen(&self, request: &SourceRequest) -> Vec<(String, String)> {
        let text = |name: &str, value: String| (name.to_owned(), value);
        let asked = |set: bool, default: &'static str| if set { "as asked" } else { default };
        let options = &request.options;
        let object = match options.object_size {
            Some(size) if size > self.object_size => "the most that a quarter of the buffers can hold",
            None if self.fits_stripes => "the stripes of the destination",
            size => asked(size.is_some(), "the default"),
        };
        let readers = match request.claim.is_short() {
            true => FEW_DESCRIPTORS,
            false => asked(options.readers.is_some(), "one for each processor, 2 to 8"),
        };
        let memory = &request.memory_why;
        vec![
            text("object size", format!("{} bytes ({object})", self.object_size)),
            text("readers", format!("{} ({readers})", request.readers)),
            text("source buffers", format!("{} bytes ({memory})", request.memory)),
        ]
    }
}

pub(super) fn set_up(
    opening: &Opening<'_, Own>,
    request: &SourceRequest,
) -> Result<(Agreed, Setup), Failure> {
    let mut ours = opening.hello(request.memory);
    if request.sources.len() > ROOTS_PART_MAX {
        let (kind, value) = (capability::SOURCE_ROOTS, Box::default());
        ours.capabilities.push(Capability { kind, required: true, value });
    }
    if request.options.given().any() && !haul_mutant::removed("older-sinks-give-nothing-else") {
        let (kind, value) = (capability::REMADE, Box::default());
        ours.capabilities.push(Capability { kind, required: true, value });
    }
    opening.send(Message::Hello(ours.clone()));
    let options = &request.options;
    let policy = policy(options);
    // Neither depends on the sink's hello, so neither waits for it.
    let sources = Sources {
        places: &request.sources,
        recursive: options.recursive || options.archive,
        part: options.part(),
        home: request.home.as_deref(),
        replicas: &request.replicas,
        retry: request.retry.clone(),
        ssh: (&request.ssh.0, request.ssh.1),
        patience: options.patience.map(|seconds| Duration::from_secs(seconds.into())),
        data_channel: options.data_channel,
        volumes: request.volumes.as_deref(),
        trust: options.resume == Resume::Trust,
        links: options.link_rule(),
        stop: opening.stop(),
    };
    let told = stores::source(&sources).and_then(|store| Ok((store.roots()?, store)));
    if let Ok((roots, _)) = &told {
        let sources = Message::Sources { roots: roots.clone(), policy };
        sources.split().into_iter().for_each(|message| opening.send(message));
    }
    let (agreed, _) = opening.agree(&ours)?;
    let (announced, store) = match told {
        Ok(told) => told,
        // If it was cut short because the other end has enough, that one says why.
        Err(failure) if opening.gone.load(Ordering::Acquire) => {
            let said = opening.expect::<()>(|_| Err(failure.clone()));
            return Err(said.err().unwrap_or(failure));
        }
        Err(failure) => return Err(failure),
    };
    let single = matches!(announced[..], [SourceRoot::Named { is_dir: false, .. }]);
    let hear = |message: Message| match message {
        Message::Destination { wait, rename, resumed, .. } => Ok(Some(Answer::Open(wait, rename, resumed))),
        Message::ObjectLen(len) if agreed.layouts => Ok(Some(Answer::ObjectLen(len))),
        Message::TimeGrain(grain) => Ok(Some(Answer::TimeGrain(grain))),
        _ => Ok(None),
    };
    let (mut object_len, mut grain) = (None, None);
    let (wait, rename, resumed) = loop {
        let (told, known, what) = match opening.expect(hear)? {
            Answer::Open(wait, rename, resumed) => break (wait, rename, resumed),
            Answer::ObjectLen(len) => (len, &mut object_len, "the length of objects"),
            Answer::TimeGrain(told) => (told, &mut grain, "how coarsely it keeps times"),
        };
        if known.replace(told).is_some() {
            return Err(protocol(format!("the sink tells {what} twice")));
        }
    };
    let kept = Duration::from_nanos(grain.unwrap_or(0).into());
    if rename.is_some() && !single {
        return Err(protocol("the sink renames a source that is not a single file"));
    }
    let object_len = object_len.map(|len| len.clamp(OBJECT_LEN_LEAST, OBJECT_LEN));
    let wanted = options.object_size.or(object_len).unwrap_or(OBJECT_LEN);
    let object_size = wanted.min(agreed.limits.object_len);
    let fits_stripes = options.object_size.is_none() && object_len.is_some_and(|len| len < OBJECT_LEN);
    let of_root = SourceRoot::of_destination(&announced, &policy).is_some();
    let root = of_root && agreed.root;
    if of_root && !root {
        opening.watch.tell(Event::Note(ROOT_STAYS.to_owned()));
    }
    Ok((agreed, Setup { store, wait, rename, resumed, root, object_size, kept, fits_stripes }))
}
