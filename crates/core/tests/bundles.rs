//! How many small files a source reads in one go.

use std::time::Duration;

use haul_core::entry::{EntryKind, Extras, Fingerprint, Meta, Name};
use haul_core::ids::{DirId, FileId, Generation, Holder, StreamId, TargetId, Time};
use haul_core::schedule::Policy;
use haul_core::transfer::op::SourceOp;
use haul_core::transfer::source::{Lies, Source, SourceAction, SourceConfig};
use haul_core::wire::{Agreed, Announced, Message};

/// Goal: a store that reads few in one go gets several bundles at a time, none longer than it said, each file
/// in one.
/// Method: forty files of a byte, of which eight reads may be under way.
#[test]
fn no_bundle_has_more_files_than_the_store_takes() {
    for (bundle_files, want) in [(5, vec![5; 8]), (512, vec![40]), (1, vec![1; 8])] {
        let mut source = Source::new(SourceConfig {
            agreed: Agreed::plain(100),
            memory: 1 << 30,
            reads_max: 8,
            reads_total: 8,
            bundle_files,
            policy: Policy::ADAPTIVE,
            wait: false,
            verify: false,
            compares: true,
            patience: Duration::ZERO,
            dry: false,
            root: false,
            clones: false,
            changed: Default::default(),
        });
        source.handle_stream_up(StreamId(1));
        for id in 1..=40 {
            let fingerprint = Fingerprint { size: 1, ..Fingerprint::default() };
            let kind = EntryKind::File { fingerprint, object_size: 1 << 20, sparse: false, striped: false };
            let entry = Announced {
                id: FileId(id),
                generation: Generation(0),
                parent: DirId::ROOT,
                name: Name::new(format!("f{id}").as_bytes()).expect("legal"),
                meta: Meta::default(),
                kind,
                extras: Extras::default(),
            };
            source.handle_entry(entry, Lies::At(TargetId(0)), Time(0));
        }
        source.handle_message(Message::Grant { by: Holder::ALONE, sink_target: 0, total: 1 << 40 });
        let mut files = Vec::new();
        let bundles: Vec<usize> = std::iter::from_fn(|| source.poll_action())
            .filter_map(|action| match action {
                SourceAction::Submit(SourceOp::ReadBundle { files: read }) => {
                    files.extend(read.iter().map(|file| file.id));
                    Some(read.len())
                }
                _ => None,
            })
            .collect();
        assert_eq!(bundles, want, "{bundle_files}");
        files.dedup();
        assert_eq!(files.len(), want.iter().sum::<usize>(), "a file is read twice");
    }
}
