//! What a source agrees with the sink before the first entry.
//!
//! In: control, the sources as typed. Out: a [`Setup`]: where the data comes from, what it is called at the sink, the
//! limits of the session.

use haul_core::entry::Name;
use haul_core::wire::{
    Agreed, Capability, Failure, Message, ROOTS_PART_MAX, SourceRoot, Stage as FailureStage, capability,
};

use super::super::{policy, protocol};
use super::{Own, SourceRequest};
use crate::driver::hello::Opening;
use crate::storage::descriptors::FEW_DESCRIPTORS;
use crate::storage::null::Made;
use crate::storage::source::roots::{RootSpec, resolve_sources, source_roots};

/// Length of objects where nothing asks for another one, bytes; and what the stripes of a destination make of it at least.
const OBJECT_LEN: u32 = 4 << 20;
const OBJECT_LEN_LEAST: u32 = 1 << 20;

/// What a sink says before the first entry.
enum Answer {
    /// Whether to wait for states, a new name, whether something is resumed.
    Open(bool, Option<Name>, bool),
    ObjectLen(u32),
}

/// Where the data comes from.
pub(super) enum Origin {
    Files(Vec<RootSpec>),
    Made(Made),
}

impl Origin {
    /// What the sources as typed mean.
    fn of(request: &SourceRequest) -> Result<Origin, Failure> {
        let paths: Vec<Vec<u8>> = request.sources.iter().map(|path| path.0.clone()).collect();
        match (&paths[..], paths.iter().find_map(|path| Made::parse(path))) {
            ([_], Some(made)) => return made.map(Origin::Made).map_err(|text| refused(true, text)),
            (_, Some(_)) => {
                return Err(refused(true, "null:// and zero:// are copied alone, without other sources"));
            }
            (_, None) => {}
        }
        let recursive = request.options.recursive || request.options.archive;
        let roots = resolve_sources(&paths, recursive, request.home.as_deref());
        roots.map(Origin::Files).map_err(|e| refused(e.is_usage(), e.to_string()))
    }

    /// What the sink is told of them.
    fn announced(&self) -> Result<Vec<SourceRoot>, Failure> {
        match self {
            Origin::Files(roots) => source_roots(roots).map_err(|e| refused(e.is_usage(), e.to_string())),
            Origin::Made(made) => Ok(vec![made.root()]),
        }
    }
}

/// Sources that cannot be taken; `usage`: for the command says so, and not what lies there.
fn refused(usage: bool, text: impl Into<Box<str>>) -> Failure {
    let stage = if usage { FailureStage::Usage } else { FailureStage::Walk };
    Failure { stage, errno: 0, text: text.into() }
}

/// What was agreed before the first entry.
pub(super) struct Setup {
    pub(super) origin: Origin,
    pub(super) wait: bool,
    /// `haul cp a.txt dir/b.txt`: the name that the single file gets.
    pub(super) rename: Option<Name>,
    pub(super) resumed: bool,
    pub(super) object_size: u32,
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
    opening.send(Message::Hello(ours.clone()));
    let options = &request.options;
    let policy = policy(options);
    // Neither depends on the sink's hello, so neither waits for it.
    let told = Origin::of(request).and_then(|origin| Ok((origin.announced()?, origin)));
    if let Ok((roots, _)) = &told {
        let sources = Message::Sources { roots: roots.clone(), policy };
        sources.split().into_iter().for_each(|message| opening.send(message));
    }
    let (agreed, _) = opening.agree(&ours)?;
    let (announced, origin) = told?;
    let single = matches!(announced[..], [SourceRoot::Named { is_dir: false, .. }]);
    let hear = |message: Message| match message {
        Message::Destination { wait, rename, resumed, .. } => Ok(Some(Answer::Open(wait, rename, resumed))),
        Message::ObjectLen(len) if agreed.layouts => Ok(Some(Answer::ObjectLen(len))),
        _ => Ok(None),
    };
    let (mut object_len, mut answer) = (None, opening.expect(hear)?);
    if let Answer::ObjectLen(len) = answer {
        (object_len, answer) = (Some(len), opening.expect(hear)?);
    }
    let Answer::Open(wait, rename, resumed) = answer else {
        return Err(protocol("the sink tells the length of objects twice"));
    };
    if rename.is_some() && !single {
        return Err(protocol("the sink renames a source that is not a single file"));
    }
    let object_len = object_len.map(|len| len.clamp(OBJECT_LEN_LEAST, OBJECT_LEN));
    let wanted = options.object_size.or(object_len).unwrap_or(OBJECT_LEN);
    let object_size = wanted.min(agreed.limits.object_len);
    let fits_stripes = options.object_size.is_none() && object_len.is_some_and(|len| len < OBJECT_LEN);
    // The tree of sources does not know a made-up file, so its name is told here.
    let rename = match &origin {
        Origin::Made(made) => Some(rename.unwrap_or_else(|| made.name())),
        Origin::Files(_) => rename,
    };
    Ok((agreed, Setup { origin, wait, rename, resumed, object_size, fits_stripes }))
}
