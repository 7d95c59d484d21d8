//! What a sink agrees with the source, and claims at the destination, before the first entry.
//!
//! In: control, what the user asked. Out: what was agreed, the user's choices, a claim. Invariants: the far
//! end takes no names but those that follow from the command.

use std::collections::HashSet;

use haul_core::entry::Name;
use haul_core::wire::{
    Agreed, Failure, FailureKind, Hello, Message, ROOTS_MAX, SinkOptions, SourceRoot, capability,
};

use super::super::hello::Opening;
use super::super::owners::Owners;
use super::super::{ROOT_STAYS, protocol};
use super::{Own, SinkRequest};
use crate::events::Event;
use haul_base::escape;
use haul_base::stop::Stop;
use haul_storage::null::Synthetic;
use haul_storage::options::LayoutChoice;
use haul_storage::place::Destination;
use haul_storage::place::Place;
use haul_storage::store::{Claimed, Coming, SinkStore, WriteOrder};
use haul_storage::stores;

/// What was agreed and found before the first entry.
pub(super) struct Setup {
    pub(super) policy: SinkOptions,
    pub(super) claimed: Claimed,
    pub(super) owners: Owners,
}

pub(super) fn set_up(opening: &Opening<'_, Own>, request: &SinkRequest) -> Result<(Agreed, Setup), Failure> {
    let (agreed, roots, policy, owners) = hear(opening, request)?;
    let store = store_of(request, opening.stop())?;
    if let Some(lacks) = store.capabilities().lacks() {
        let shown = escape::name(&request.destination.shown());
        return Err(protocol(format!("destination {shown}: it {lacks}, which a copy cannot do yet")));
    }
    let coming = coming(request, &roots, policy, &agreed);
    let claimed = store.claim(&coming, opening)?;
    Ok((agreed, Setup { policy, claimed, owners }))
}

/// What the store is told of what will come.
pub(crate) fn coming<'a>(
    request: &'a SinkRequest,
    roots: &'a [SourceRoot],
    policy: SinkOptions,
    agreed: &Agreed,
) -> Coming<'a> {
    let SinkRequest { part, in_place, in_place_asked, ref what, ref sources_here, .. } = *request;
    let (lease, tells_root) = (agreed.lease, agreed.root);
    Coming { roots, policy, lease, what, part, in_place, in_place_asked, sources_here, tells_root }
}

/// Where the user wants the data.
pub(crate) fn store_of(request: &SinkRequest, stop: Stop) -> Result<Box<dyn SinkStore>, Failure> {
    let store = stores::sink(&Destination {
        place: &request.destination,
        home: request.home.as_deref(),
        state: request.state_dir.as_deref(),
        parts: request.parts_dir.as_deref(),
        ssh: (&request.ssh.0, request.ssh.1),
        data_channel: request.data_channel,
        volumes: request.volumes.as_deref(),
        patience: request.patience,
        retry: request.retry.clone(),
        links: request.links,
        stop,
    })?;
    let can = store.capabilities();
    let refused = |why: &str| {
        let shown = escape::name(&request.destination.shown());
        let text = format!("destination {shown}: {why}");
        Err(Failure { kind: FailureKind::Usage, errno: 0, text: text.into() })
    };
    if request.part.is_some() && !can.ranges {
        return refused("it takes files as a whole alone; leave `range` out");
    }
    if request.layout != LayoutChoice::Auto && can.write_order == WriteOrder::Ascending {
        return refused("nobody can say there how files lie; leave `layout` out");
    }
    if request.in_place && !store.capabilities().in_place {
        let shown = escape::name(&request.destination.shown());
        let text = format!(
            "destination {shown}: nothing can be written in place there; leave `in_place` and `to` out"
        );
        return Err(Failure { kind: FailureKind::Usage, errno: 0, text: text.into() });
    }
    Ok(store)
}

/// Whether what comes was asked for; only the near end can say.
fn was_asked(request: &SinkRequest, roots: &[SourceRoot], policy: SinkOptions) -> Result<(), Failure> {
    match &request.asked {
        Some((typed, own)) if !(policy == *own && Asked::of(typed).covers(roots)) => {
            Err(protocol("the far end wants to send what was not asked for"))
        }
        _ => Ok(()),
    }
}

/// Destinations that can have FIFOs, sockets and devices, or lose nothing of them.
const NODES: [&str; 2] = ["file", "null"];

/// Why what depends on names cannot be done.
const MAY_NOT_NAME: &str = "the haul at the other end is older, and may not say what owners are called there: map them by number, or have the same version \
                            at both ends";

/// Says hello, and hears what will come. Whom owners are mapped to is known then.
pub(crate) fn hear<T>(
    opening: &Opening<'_, T>,
    request: &SinkRequest,
) -> Result<(Agreed, Vec<SourceRoot>, SinkOptions, Owners), Failure> {
    let mut ours = opening.hello(request.memory);
    if request.destination.scheme().server {
        // Nobody can write a hole there: it comes as the zeros that it is.
        ours.capabilities.retain(|can| can.kind != capability::HOLES);
    }
    if !NODES.contains(&request.destination.scheme().name) {
        ours.capabilities.retain(|can| can.kind != capability::SPECIALS);
    }
    opening.send(Message::Hello(ours.clone()));
    let (agreed, theirs) = opening.agree(&ours)?;
    let (mut roots, policy) = hear_sources(opening, &theirs)?;
    was_asked(request, &roots, policy)?;
    let names = request.given.needs_names() && !haul_mutant::removed("sources-tell-the-names");
    if names && !theirs.capabilities.iter().any(|c| c.kind == capability::REMADE) {
        return Err(protocol(MAY_NOT_NAME));
    }
    let owners = Owners::new(&request.given, policy.owner)?;
    owners.hear_roots(&mut roots);
    if !agreed.root && SourceRoot::of_destination(&roots, &policy).is_some() {
        opening.watch.tell(Event::Note(ROOT_STAYS.to_owned()));
    }
    Ok((agreed, roots, policy, owners))
}

/// What will come: the roots of all messages that tell of them, and the user's choices.
fn hear_sources<T>(
    opening: &Opening<'_, T>,
    theirs: &Hello,
) -> Result<(Vec<SourceRoot>, SinkOptions), Failure> {
    let in_parts = theirs.capabilities.iter().any(|c| c.kind == capability::SOURCE_ROOTS);
    let mut all = Vec::new();
    loop {
        let (mut part, policy) = opening.expect(|message| match message {
            Message::SourceRoots(part) if in_parts && !part.is_empty() => Ok(Some((part, None))),
            Message::Sources { roots, policy } => Ok(Some((roots, Some(policy)))),
            _ => Ok(None),
        })?;
        if all.len() + part.len() > ROOTS_MAX {
            return Err(protocol(format!("the other end names more than {ROOTS_MAX} sources")));
        }
        all.append(&mut part);
        if let Some(policy) = policy {
            return Ok((all, policy));
        }
    }
}

/// What a place at a server becomes, by its text; `None`: it is at none.
fn at_server(place: &Place) -> Option<Option<Name>> {
    #[cfg(feature = "volume")]
    if let Some(becomes) = haul_storage::vol::becomes(place) {
        return Some(becomes);
    }
    #[cfg(feature = "ftp")]
    return haul_storage::ftp::becomes(place);
    #[cfg(not(feature = "ftp"))]
    {
        let _ = place;
        None
    }
}

/// The source roots that follow from what was typed: the last component of each path, or contents where it
/// ends in none.
struct Asked<'a> {
    names: HashSet<&'a [u8]>,
    made: Vec<Name>,
    contents: bool,
    /// What `~` and `~name` are called is known to the far end alone.
    home: bool,
}

impl Asked<'_> {
    fn of(typed: &[Place]) -> Asked<'_> {
        let mut asked = Asked { names: HashSet::new(), made: Vec::new(), contents: false, home: false };
        for place in typed {
            let Some(path) = place.file_path() else {
                asked.made.extend(Synthetic::of(place).map(|made| made.name()));
                match at_server(place) {
                    Some(Some(name)) => asked.made.push(name),
                    Some(None) => asked.contents = true,
                    None => {}
                }
                continue;
            };
            let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            asked.names.insert(last);
            asked.contents |= matches!(last, b"" | b"." | b"..");
            asked.home |= path.starts_with(b"~") && !path.contains(&b'/');
        }
        asked
    }

    fn covers(&self, roots: &[SourceRoot]) -> bool {
        roots.iter().all(|root| match root {
            SourceRoot::Named { name, .. } => {
                self.home || self.names.contains(name.as_bytes()) || self.made.contains(name)
            }
            SourceRoot::Contents { .. } => self.contents,
        })
    }
}

#[cfg(test)]
mod tests {
    use haul_core::entry::Meta;

    use super::*;

    /// Goal: a far end can send under the names that follow from the command, and no others.
    /// Method: paths as typed against roots that a source may claim.
    #[test]
    fn only_what_was_typed_is_taken() {
        let typed =
            |paths: &[&str]| paths.iter().map(|p| Place::parse(p.as_bytes()).unwrap()).collect::<Vec<_>>();
        let named =
            |name: &str| SourceRoot::Named { name: Name::new(name.as_bytes()).expect("legal"), is_dir: true };
        let contents = SourceRoot::Contents { of: None, meta: Meta::default() };
        let paths = typed(&["a/data", "~/x y", "/only/this"]);
        for good in ["data", "x y", "this"] {
            assert!(Asked::of(&paths).covers(&[named(good)]));
        }
        for bad in [".bashrc", "a", "only", "dat"] {
            assert!(!Asked::of(&paths).covers(&[named(bad)]), "{bad}");
        }
        assert!(!Asked::of(&paths).covers(std::slice::from_ref(&contents)), "contents were not asked for");
        for path in ["data/", ".", "a/..", "/"] {
            assert!(Asked::of(&typed(&[path])).covers(std::slice::from_ref(&contents)), "{path}");
            assert!(!Asked::of(&typed(&[path])).covers(&[named("data")]), "{path}");
        }
        assert!(Asked::of(&typed(&["~"])).covers(&[named("user")]));
        assert!(Asked::of(&typed(&["zero://5"])).covers(&[named("zero")]));
        assert!(
            !Asked::of(&typed(&["zero://5"])).covers(&[named("5")])
                && !Asked::of(&paths).covers(&[named("null")])
        );
    }

    /// Goal: of what lies at a server a far end can send, too, what follows from the text of its path.
    #[cfg(feature = "ftp")]
    #[test]
    fn of_servers_only_what_was_typed_is_taken() {
        let named =
            |name: &str| SourceRoot::Named { name: Name::new(name.as_bytes()).expect("legal"), is_dir: true };
        let contents = SourceRoot::Contents { of: None, meta: Meta::default() };
        let takes = |word: &str, root: SourceRoot| {
            Asked::of(&[Place::parse(word.as_bytes()).expect("a place")]).covers(&[root])
        };
        for (word, name) in
            [("ftp://h/a/data", "data"), ("ftps://u:p@h:2121/x%20y", "x y"), ("gsiftp://h/~/notes", "notes")]
        {
            assert!(takes(word, named(name)), "{word}");
            assert!(!takes(word, contents.clone()), "{word}");
            for bad in [".bashrc", "a", "h", "x%20y"] {
                assert!(!takes(word, named(bad)), "{word} {bad}");
            }
        }
        for word in ["ftp://h", "ftp://h/", "ftps://h/data/", "ftp://h/~", "ftp://h/~/", "ftp://h/a/.."] {
            assert!(takes(word, contents.clone()), "{word}");
            assert!(!takes(word, named("data")) && !takes(word, named("h")), "{word}");
        }
    }
}
