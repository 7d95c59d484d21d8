//! What a far end says it chose: who tells, what is taken of it, and peers that do not know it.

use haul_core::stage::Processors;
use haul_core::wire::{Chosen, Message, capability};

use super::evil::{Evil, hello, hello_knowing};
use super::*;
use crate::events::{Event, Observer};

struct Deaf;

impl Observer for Deaf {
    fn event(&self, _: Event) {}
}

/// A source that waits for grants, at the near end or at the far one.
fn start(bench: &Bench, near: bool) -> (thread::JoinHandle<Report>, Evil) {
    let (ours, theirs) = link_pairs(2).into_iter().unzip();
    fs::write(bench.src().join("big"), bytes(9, 3 << 20)).unwrap();
    let request = source_request(&[contents(&bench.src())]);
    let observer = near.then(|| Arc::new(Deaf) as Arc<dyn Observer>);
    let watch = Watch { observer, ..Watch::silent() };
    (spawn_end("source", move || source::run(links_of(ours), &request, &watch)), Evil::new(theirs))
}

fn chosen(name: &str, value: &str) -> Chosen {
    Chosen { name: name.into(), value: value.into() }
}

/// Goal: what the far end chose, and how busy its processors were, is in the near end's report, also when it
/// comes last, but for what this end chose itself; choices of a peer that did not agree are a violation.
#[test]
fn a_near_end_is_told() {
    let bench = Bench::new();
    let (source, mut evil) = start(&bench, true);
    evil.greet_source_as(hello_knowing(capability::CHOICES), false);
    evil.announced(1);
    evil.say(Message::Choices(vec![chosen("forgotten", "for there is a second one")]));
    evil.say(Message::Processors(Processors { count: 3, busy: 4 }));
    evil.say(Message::Abort(super::evil::a_failure()));
    evil.say(Message::Processors(Processors { count: 64, busy: 1000 }));
    evil.say(Message::Choices(vec![
        chosen("readers", "99"),
        chosen("odd\x1b", "\u{202e}"),
        chosen("odd\x1b", ""),
    ]));
    let told = evil.until(|m| matches!(m, Message::Choices(_)).then_some(()));
    assert!(told.is_none(), "a near end tells nothing");
    drop(evil);
    let report = finish("told", source);
    let readers: Vec<_> = report.chosen.iter().filter(|(name, _)| name == "readers").collect();
    assert!(readers.len() == 1 && !readers[0].1.contains("99"), "{:?}", report.chosen);
    let odd =
        [("odd\x1b", "\u{202e}"), ("odd\x1b", "")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(report.chosen[report.chosen.len() - 2..], odd);
    assert_eq!(
        report.processors,
        [None, Some(Processors { count: 64, busy: 1000 })],
        "no payload moved here"
    );
    let (source, mut evil) = start(&bench, true);
    evil.greet_source_as(hello(), false);
    evil.say(Message::Choices(vec![chosen("readers", "99")]));
    evil.until(|_| None::<()>);
    assert!(failure(&finish("unknown", source)).is_some_and(|text| text.contains("CHOICES")));
}

/// Goal: a far end tells what it chose before its report, if the other end knows choices; it takes none.
#[test]
fn a_far_end_tells() {
    for knows in [true, false] {
        let bench = Bench::new();
        let (source, mut evil) = start(&bench, false);
        evil.greet_source_as(if knows { hello_knowing(capability::CHOICES) } else { hello() }, false);
        evil.announced(1);
        if knows {
            evil.say(Message::Choices(vec![chosen("odd", "")]));
        }
        evil.say(Message::Abort(super::evil::a_failure()));
        // Behind its `Abort`.
        let heard: Vec<Message> = std::iter::from_fn(|| evil.hear()).collect();
        let report = heard.iter().position(|message| matches!(message, Message::Report(_)));
        assert_eq!(report, Some(heard.len() - 1), "{heard:?}");
        let told = heard.iter().find_map(|m| if let Message::Choices(told) = m { Some(told) } else { None });
        assert_eq!(told.is_some(), knows, "{heard:?}");
        assert!(
            told.is_none_or(|told| told.iter().any(|chosen| &*chosen.name == "source engine")),
            "{told:?}"
        );
        drop(evil);
        assert!(finish("tells", source).chosen.iter().all(|(name, _)| name != "odd"));
    }
}
