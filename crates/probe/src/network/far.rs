//! The way from there to here: the far end's bench, and what it tells.
//!
//! In: what to try ([`NetworkTrial`]), in the request that started the agent. Out: [`Said`], one JSON text
//! each on the control stream, from which the near end makes the same [`super::Network`] as if it had
//! measured itself. What a far end says is believed as far as it harms nobody: figures may be wrong, lists
//! are bounded.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::bench::{Bench, Seen};
use super::tried::{Shared, sweep};
use super::{Event, LeftOut, Point, Progress};
use haul::api::Handle;
use haul::options::NetworkTrial;
use haul::trial::Connection;
use haul::trial::{Look, SharedTrial, Trial, Turn};

/// Most points, and settings that were left out, that are taken from a far end.
const POINTS_MAX: usize = 4096;
/// Texts of a far end are cut after so many characters.
const TEXT_MAX: usize = 512;
/// Settings that were left out go in lists of so many: each fits one text.
const LEFT_OUT_EACH: usize = 50;

/// What a source that measures says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Said {
    /// It begins: so many settings, and the system's own congestion control.
    Began {
        settings: usize,
        own: String,
        direct: bool,
    },
    Point(Point),
    Progress(Progress),
    LeftOut(Vec<LeftOut>),
    Seen(Seen),
    /// It cannot: why.
    Refused(String),
}

/// A bench that tells the other end.
struct Telling {
    bench: Arc<Mutex<Option<Bench>>>,
    says: Arc<Mutex<VecDeque<Said>>>,
    handle: Handle,
    over: bool,
}

impl Trial for Telling {
    fn look(&mut self, look: &Look<'_>) -> Option<Turn> {
        let mut bench = self.bench.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = bench.as_mut()?.look(look);
        if !self.over && bench.as_ref().is_some_and(Bench::is_over) {
            self.over = true;
            let (sweep, seen) = bench.take().expect("it is there, see above").into_parts();
            let mut says = self.says.lock().unwrap_or_else(PoisonError::into_inner);
            says.extend(sweep.into_parts().1.chunks(LEFT_OUT_EACH).map(|some| Said::LeftOut(some.to_vec())));
            says.push_back(Said::Seen(seen));
            drop(says);
            self.handle.stop();
        }
        turn
    }

    fn refused(&mut self, why: String) {
        Shared(self.bench.clone()).refused(why);
    }

    fn say(&mut self) -> Option<Vec<u8>> {
        let said = self.says.lock().unwrap_or_else(PoisonError::into_inner).pop_front()?;
        Some(serde_json::to_vec(&said).expect("plain fields serialise"))
    }
}

/// The trial of a far end that was asked to measure. It ends the session by `handle`.
pub(crate) fn trial(ask: &NetworkTrial, connection: &Connection, handle: &Handle) -> SharedTrial {
    let says: Arc<Mutex<VecDeque<Said>>> = Arc::default();
    let push = {
        let says = says.clone();
        move |said| says.lock().unwrap_or_else(PoisonError::into_inner).push_back(said)
    };
    // The bench ends itself; what it saw has to be said before the session ends.
    let own = Handle::new();
    let limits = (Duration::from_millis(ask.time_ms), ask.bytes.unwrap_or(u64::MAX));
    let bench = match sweep(&ask.only, ask.full, connection) {
        Ok((sweep, settings)) => {
            let name = connection.controls.first().cloned().unwrap_or_default();
            push(Said::Began { settings, own: name, direct: !connection.controls.is_empty() });
            let tell = Box::new(move |event| match event {
                Event::Point(point) => push(Said::Point(point)),
                Event::Progress(progress) => push(Said::Progress(progress)),
                Event::Note(_) | Event::Started { .. } => {}
            });
            Some(Bench::new(sweep, connection.rtt.unwrap_or_default(), limits, own, tell))
        }
        Err(why) => {
            push(Said::Refused(why));
            None
        }
    };
    let over = bench.is_none();
    Arc::new(Mutex::new(Telling { bench: Arc::new(Mutex::new(bench)), says, handle: handle.clone(), over }))
}

/// What was heard of a far end.
#[derive(Default)]
pub(super) struct Heard {
    pub(super) began: Option<(usize, String, bool)>,
    pub(super) points: Vec<Point>,
    pub(super) left_out: Vec<LeftOut>,
    pub(super) seen: Option<Seen>,
    pub(super) refused: Option<String>,
}

impl Heard {
    /// Takes one text; what is to be told of it.
    pub(super) fn hear(&mut self, json: &[u8]) -> Option<Event> {
        let cut = |text: String| text.chars().take(TEXT_MAX).collect::<String>();
        match serde_json::from_slice::<Said>(json) {
            Ok(Said::Began { settings, own, direct }) => self.began = Some((settings, cut(own), direct)),
            Ok(Said::Point(point)) if self.points.len() < POINTS_MAX && is_sound(&point) => {
                self.points.push(point.clone());
                return Some(Event::Point(point));
            }
            Ok(Said::Progress(progress)) if is_name(&progress.setting.congestion) => {
                return Some(Event::Progress(progress));
            }
            Ok(Said::LeftOut(some)) => {
                let room = POINTS_MAX - self.left_out.len().min(POINTS_MAX);
                let some = some.into_iter().filter(|one| is_name(&one.setting.congestion));
                let cut = some.map(|one| LeftOut { why: cut(one.why), ..one });
                self.left_out.extend(cut.take(room));
            }
            Ok(Said::Seen(seen)) => self.seen = Some(seen),
            Ok(Said::Refused(why)) => self.refused = Some(cut(why)),
            // A later haul may say more; what it says is not needed.
            Ok(Said::Point(_) | Said::Progress(_)) | Err(_) => {}
        }
        None
    }
}

/// Figures that can be reckoned with, and a name that can be one.
fn is_sound(point: &Point) -> bool {
    let figures =
        [point.rate, point.seconds, point.rtt_min, point.rtt_median, point.rtt_p99, point.cpu_seconds];
    figures.iter().all(|figure| figure.is_finite() && *figure >= 0.0)
        && is_name(&point.setting.congestion)
        && (1..=haul_core::wire::STREAMS_MAX).contains(&point.setting.streams)
}

/// Of a congestion control.
fn is_name(text: &str) -> bool {
    text.len() <= haul_transport::tcp::CONTROL_LEN_MAX
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use haul_core::ids::{StreamId, Time};
    use haul_core::wire::TRIAL_LEN_MAX;

    use super::super::{Limit, Setting};
    use super::*;
    use haul_transport::path::EndFacts;
    use haul_transport::tcp::{HostLimits, TcpSample};

    fn point(streams: u16, rate: f64) -> Point {
        Point {
            setting: Setting { streams, window: None, congestion: "cubic".into() },
            rate,
            bytes: 1,
            seconds: 2.0,
            sent: 1,
            resent: 0,
            rtt_min: 0.0,
            rtt_median: 0.0,
            rtt_p99: 0.0,
            cpu_seconds: 0.1,
            limit: Limit::Path,
            rising: false,
        }
    }

    fn text(said: &Said) -> Vec<u8> {
        serde_json::to_vec(said).unwrap()
    }

    fn connection() -> Connection {
        let limits =
            HostLimits { wmem_fixed: Some(8 << 20), rmem_fixed: Some(8 << 20), ..HostLimits::default() };
        let end = EndFacts { limits, ..EndFacts::here(None, None, None) };
        Connection {
            address: None,
            path: String::new(),
            protect: String::new(),
            rtt: Some(Duration::from_millis(20)),
            near: end,
            far: Some(end),
            streams: 64,
            controls: vec!["cubic".into(), "reno".into()],
        }
    }

    /// Goal: what a far bench measures is what is heard here, all of it, in texts that the wire takes; when
    /// it is done the session ends.
    /// Method: a bench in virtual time on a line of 100 MB/s, whose words are heard at once.
    #[test]
    fn what_is_measured_there_is_heard_here() {
        let (ask, handle) =
            (NetworkTrial { time_ms: 120_000, full: true, ..NetworkTrial::default() }, Handle::new());
        let shared = trial(&ask, &connection(), &handle);
        let mut far = shared.lock().unwrap();
        let (mut heard, mut told) = (Heard::default(), 0);
        let (mut streams, mut taken, mut rates) = (2, 0, BTreeMap::new());
        for step in 1..40_000_u64 {
            let now = Time(step * 50_000_000);
            taken += u64::from(streams).min(10) * 500_000;
            let flows: Vec<_> = (1..=streams).map(|id| (StreamId(id), TcpSample::default())).collect();
            let cpu = Duration::from_millis(step);
            let look = Look { now, taken, taken_at: now, streams, flows: &flows, sent: taken, again: 0, cpu };
            if let Some(turn) = far.look(&look) {
                streams = turn.streams;
                rates.insert(streams, f64::from(streams.min(10)) * 1e7);
            }
            while let Some(json) = far.say() {
                assert!(json.len() <= TRIAL_LEN_MAX);
                told += usize::from(matches!(heard.hear(&json), Some(Event::Point(_))));
            }
            if handle.stopped() {
                break;
            }
        }
        assert!(handle.stopped() && far.say().is_none());
        assert_eq!(heard.began, Some((7 * 2 * 4, "cubic".into(), true)));
        assert_eq!((told, heard.points.len() + heard.left_out.len()), (heard.points.len(), 7 * 2 * 4));
        assert!(heard.points.len() > 20 && heard.left_out.iter().all(|left| left.why.contains("no time")));
        for point in &heard.points {
            assert!((point.rate / rates[&point.setting.streams] - 1.0).abs() < 0.01, "{point:?}");
        }
        assert!(heard.seen.is_some_and(|seen| seen.taken > 0 && seen.seconds > 60.0));
    }

    /// Goal: a far end that cannot says why, and nothing else.
    #[test]
    fn a_far_end_that_cannot_says_why() {
        let only = super::super::Only { controls: vec!["nonesuch".into()], ..Default::default() };
        let shared = trial(&NetworkTrial { only, ..NetworkTrial::default() }, &connection(), &Handle::new());
        let mut heard = Heard::default();
        heard.hear(&shared.lock().unwrap().say().unwrap());
        assert!(heard.refused.is_some_and(|why| why.contains("'nonesuch' cannot be used")));
        assert!(shared.lock().unwrap().say().is_none());
    }

    /// Goal: a hostile far end fills no memory and tells no figure that cannot be one.
    #[test]
    fn lies_are_bounded() {
        let mut heard = Heard::default();
        for junk in [&b""[..], b"{", b"[]", b"{\"later\":1}", b"{\"point\":{}}", b"\xff"] {
            assert!(heard.hear(junk).is_none());
        }
        for bad in [point(0, 1.0), point(65, 1.0), point(1, -1.0), Point { seconds: -0.1, ..point(1, 1.0) }] {
            assert!(heard.hear(&text(&Said::Point(bad))).is_none());
        }
        let long = Setting { streams: 1, window: None, congestion: "x".repeat(100) };
        assert!(heard.hear(&text(&Said::Point(Point { setting: long, ..point(1, 1.0) }))).is_none());
        assert!(heard.points.is_empty());
        for _ in 0..POINTS_MAX + 10 {
            heard.hear(&text(&Said::Point(point(1, 1.0))));
            let left = LeftOut { setting: point(1, 1.0).setting, why: "y".repeat(2000) };
            heard.hear(&text(&Said::LeftOut(vec![left])));
        }
        assert_eq!((heard.points.len(), heard.left_out.len()), (POINTS_MAX, POINTS_MAX));
        assert!(heard.left_out.iter().all(|left| left.why.len() == TEXT_MAX));
        heard.hear(&text(&Said::Refused("z".repeat(9000))));
        assert_eq!(heard.refused.map(|why| why.len()), Some(TEXT_MAX));
    }
}
