//! What two hellos agree on.

use haul_core::ids::Holder;
use haul_core::wire::*;

/// Goal: two ends agree on the highest common version and the smaller limits, or say exactly why not.
/// Method: every pair of small version ranges against a model; each other condition alone.
#[test]
fn negotiation_finds_the_common_ground() {
    let base = Hello {
        version_min: 1,
        version_max: 1,
        session: [7; 16],
        capabilities: vec![],
        limits: Limits { object_len: 4 << 20, entries: 1000, streams: 8 },
    };
    let ranges = || (1..6u16).flat_map(|min| (min..6).map(move |max| (min, max)));
    for a in ranges() {
        for b in ranges() {
            let ours = Hello { version_min: a.0, version_max: a.1, ..base.clone() };
            let theirs = Hello { version_min: b.0, version_max: b.1, ..base.clone() };
            let common = (1..6).rev().find(|v| (a.0..=a.1).contains(v) && (b.0..=b.1).contains(v));
            match (negotiate(&ours, &theirs), common) {
                (Ok(agreed), Some(version)) => assert_eq!(agreed.version, version),
                (Err(error), None) => assert_eq!(error, WireError::Version { ours: a, theirs: b }),
                other => panic!("{a:?} {b:?}: {other:?}"),
            }
        }
    }
    let theirs = |limits: Limits| Hello { limits, ..base.clone() };
    let agreed = negotiate(&base, &theirs(Limits { object_len: 3 << 20, entries: 2000, streams: 2 }));
    assert_eq!(
        agreed,
        Ok(Agreed {
            version: 1,
            limits: Limits { object_len: 2 << 20, entries: 1000, streams: 2 },
            shards: 1,
            lease: Holder::ALONE,
            holes: false,
            targets: false,
            layouts: false,
            live_settings: false,
            tables: false,
            choices: false,
            parts: false,
            in_place: false,
            metadata: false,
            hard_links: false,
            root: false,
            specials: false,
            auth_only: false,
            digest: DigestKind::Blake3,
        })
    );
    let good = base.limits;
    for limits in [
        Limits { object_len: 0, ..good },
        Limits { object_len: OBJECT_LEN_MIN - 1, ..good },
        Limits { entries: 0, ..good },
        Limits { streams: 0, ..good },
    ] {
        assert!(matches!(negotiate(&base, &theirs(limits)), Err(WireError::BadValue { .. })), "{limits:?}");
    }
    let huge = Hello {
        limits: Limits { object_len: u32::MAX, entries: u32::MAX, streams: u16::MAX },
        ..base.clone()
    };
    let agreed = negotiate(&huge, &huge).expect("more than we take is no error");
    assert_eq!((agreed.limits.object_len, agreed.limits.streams), (OBJECT_LEN_MAX, STREAMS_MAX));

    let naming = |kind, required| Hello {
        capabilities: vec![Capability { kind, required, value: [].into() }],
        ..base.clone()
    };
    let capability = |required| naming(0x1234, required);
    assert!(negotiate(&base, &capability(false)).is_ok());
    let error = negotiate(&base, &capability(true)).expect_err("unknown and required");
    assert_eq!(error, WireError::UnknownRequired { what: "capability", kind: 0x1234 });
    assert!(error.to_string().contains("0x1234"));
    // One that the source names alone, for the sink to know.
    assert!(negotiate(&base, &naming(capability::REMADE, true)).is_ok());
    let holes = |required| naming(capability::HOLES, required);
    for required in [false, true] {
        let agreed = |a: &Hello, b: &Hello| negotiate(a, b).map(|agreed| agreed.holes);
        assert_eq!(agreed(&holes(false), &holes(required)), Ok(true), "both know holes");
        assert_eq!(agreed(&base, &holes(required)), Ok(false));
        assert_eq!(agreed(&holes(required), &base), Ok(false));
    }
    let targets = naming(capability::TARGETS, false);
    let agreed = |a: &Hello, b: &Hello| negotiate(a, b).map(|agreed| (agreed.targets, agreed.holes));
    assert_eq!(agreed(&targets, &targets), Ok((true, false)), "both know targets");
    assert_eq!(agreed(&base, &targets), Ok((false, false)));
    assert_eq!(agreed(&targets, &holes(false)), Ok((false, false)), "one knows the one, one the other");
    let live_settings = naming(capability::LIVE_SETTINGS, false);
    let agreed = |a: &Hello, b: &Hello| negotiate(a, b).map(|agreed| (agreed.live_settings, agreed.holes));
    assert_eq!(agreed(&live_settings, &live_settings), Ok((true, false)), "both know live settings");
    assert_eq!(agreed(&base, &live_settings), Ok((false, false)));
    assert_eq!(agreed(&live_settings, &holes(false)), Ok((false, false)), "one knows the one, one the other");
    let tables = naming(capability::TABLES, false);
    let agreed = |a: &Hello, b: &Hello| negotiate(a, b).map(|agreed| (agreed.tables, agreed.live_settings));
    assert_eq!(agreed(&tables, &tables), Ok((true, false)), "both know tables");
    assert_eq!(agreed(&tables, &live_settings), Ok((false, false)), "one knows the one, one the other");
    let choices = naming(capability::CHOICES, false);
    let agreed = |a: &Hello, b: &Hello| negotiate(a, b).map(|agreed| (agreed.choices, agreed.tables));
    assert_eq!(agreed(&choices, &choices), Ok((true, false)), "both know choices");
    assert_eq!(agreed(&choices, &tables), Ok((false, false)), "one knows the one, one the other");
    // What protects data is never one end's alone.
    for kind in [
        capability::XXH3,
        capability::AUTH_ONLY,
        capability::RANGES,
        capability::IN_PLACE,
        capability::MANNERS,
    ] {
        for required in [false, true] {
            let wants = naming(kind, required);
            let agreed = negotiate(&wants, &wants).expect("both want it");
            assert_eq!(agreed.digest == DigestKind::Xxh3, kind == capability::XXH3);
            assert_eq!(agreed.auth_only, kind == capability::AUTH_ONLY);
            assert_eq!(agreed.parts, kind == capability::RANGES);
            assert_eq!(agreed.in_place, kind == capability::IN_PLACE);
            for (ours, theirs) in [(&wants, &base), (&base, &wants)] {
                assert!(matches!(negotiate(ours, theirs), Err(WireError::OneSided { .. })), "{kind}");
            }
        }
    }
    let weak = Hello {
        capabilities: [capability::XXH3, capability::AUTH_ONLY]
            .map(|kind| Capability { kind, required: true, value: [].into() })
            .into(),
        ..base.clone()
    };
    assert_eq!(negotiate(&weak, &weak), Err(WireError::WeakDigest));
    let other = Hello { session: [8; 16], ..base.clone() };
    assert_eq!(negotiate(&base, &other), Err(WireError::WrongSession));
}
