//! The network side of a source: its sockets set and sampled, and what was chosen for them.
//!
//! In: the sockets of the data streams, the user's options, the time. Out: sockets with the congestion
//! control and the buffers that fit the path, the number of streams that would be best, and all of it in
//! words for the report.
//!
//! Nothing here can end a session: a socket that cannot be asked is left out, one that cannot be set stays as
//! it is and the report says so. Where streams have no sockets of their own (in one process, through ssh),
//! nothing is chosen.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use haul_core::ids::{StreamId, Time};
use haul_core::tune::congestion::{self, Facts, LossMeter};
use haul_core::tune::start::RATE_DEFAULT;
use haul_core::tune::streams::{Flow, Sample, Streams};
use haul_core::tune::{LOCAL_RTT, show_ms, show_rate, show_size};
use haul_core::wire::STREAMS_MAX;

use crate::options::{Options, Start};
use haul_transport::pace::Pacer;
use haul_transport::tcp::HostLimits;
use haul_transport::{Connection, TcpSample};

mod turn;

/// Sockets are asked this often.
const SAMPLE_EVERY: Duration = Duration::from_millis(200);

struct Watched {
    socket: Arc<dyn Connection>,
    last: Option<TcpSample>,
}

/// The data streams of a source, as the kernel sees them.
pub(crate) struct Net {
    flows: BTreeMap<StreamId, Watched>,
    sampled: Option<Time>,
    /// Nothing flowed since then, for a reason that is none of the path.
    skipped: bool,
    /// Bytes that streams delivered which are gone; likewise bytes sent and sent again.
    gone: (u64, u64, u64),
    streams: Option<Streams>,
    /// The number that the user named while data flowed.
    asked: Option<u16>,
    /// The user named a congestion control, or another than what there is cannot be set.
    pinned: bool,
    pacer: Arc<Pacer>,
    /// What the pacer had waited in all at the last sample.
    waited: Duration,
    usable: Vec<String>,
    control: String,
    why: String,
    loss: LossMeter,
    /// Bytes sent, and sent again, in all.
    sent: (u64, u64),
    rtt: Duration,
    buffers: Option<String>,
    /// What the passport of the network says of this path.
    start: Option<Start>,
    /// Bytes under way that a trial wants the send buffers to hold.
    window: Option<u64>,
}

impl Net {
    /// Watches `sockets` and sets them as the path wants it. `movable`: streams can join and part while data
    /// flows.
    pub(crate) fn start(
        now: Time,
        sockets: impl IntoIterator<Item = (StreamId, Arc<dyn Connection>)>,
        options: &Options,
        pacer: Arc<Pacer>,
        movable: bool,
    ) -> Net {
        let mut net = Net {
            flows: BTreeMap::new(),
            sampled: None,
            skipped: false,
            gone: (0, 0, 0),
            streams: None,
            asked: None,
            pinned: options.congestion.is_some(),
            pacer,
            waited: Duration::ZERO,
            usable: Vec::new(),
            control: String::new(),
            why: "the system's default".into(),
            loss: LossMeter::default(),
            sent: (0, 0),
            rtt: Duration::ZERO,
            buffers: None,
            window: None,
            start: None,
        };
        for (stream, socket) in sockets {
            net.add(stream, socket);
        }
        let Some(first) = net.flows.values().next() else { return net };
        net.usable = first.socket.controls();
        net.control = first.socket.control().unwrap_or_default();
        let samples = net.flows.values().filter_map(|flow| flow.socket.sample());
        net.rtt = samples.map(|sample| sample.min_rtt.unwrap_or(sample.rtt)).min().unwrap_or_default();
        if net.rtt >= LOCAL_RTT {
            net.flows.values().for_each(|flow| flow.socket.bound_unsent());
        }
        // The far end's address: this end's own, where this is the far one.
        let ends = first.socket.ends().map(|ends| ends.map(|end| end.ip().to_canonical()));
        let at_end = |start: &Start| ends.is_some_and(|ends| ends.contains(&start.address));
        net.start = options.start.clone().filter(at_end);
        let known = net.start.as_ref().and_then(|start| Some((start.congestion.clone()?, start.why.clone())));
        match (&options.congestion, known.filter(|(name, _)| net.usable.contains(name))) {
            (Some(name), _) => net.set_control(name.clone(), "as asked".into()),
            (None, Some((name, why))) => net.set_control(name, why),
            (None, None) => net.choose_control(),
        }
        net.size_buffers(options.window);
        let count = u16::try_from(net.flows.len()).unwrap_or(STREAMS_MAX);
        // A number that the user named stays.
        let search = movable && options.streams.is_none();
        net.streams = search.then(|| Streams::new(now, count, STREAMS_MAX, net.rtt));
        net
    }

    /// Streams of the start are still on their way: so many there will be.
    pub(crate) fn expect(&mut self, now: Time, count: u16) {
        if let Some(streams) = self.streams.as_mut().filter(|_| usize::from(count) > self.flows.len()) {
            *streams = Streams::new(now, count, STREAMS_MAX, self.rtt);
        }
    }

    /// A stream came: it is watched from now on, and set as the others are.
    pub(crate) fn add(&mut self, stream: StreamId, socket: Arc<dyn Connection>) {
        if !self.control.is_empty() {
            // As for the others: what cannot be set stays.
            let _ = socket.set_control(&self.control);
        }
        if let Some(window) = self.window {
            let _ = socket.fix_send(window.saturating_mul(2));
        }
        if self.rtt >= LOCAL_RTT {
            socket.bound_unsent();
        }
        self.flows.insert(stream, Watched { socket, last: None });
    }

    /// A stream is over.
    pub(crate) fn remove(&mut self, stream: StreamId) {
        if let Some(sample) = self.flows.remove(&stream).and_then(|flow| flow.last) {
            self.gone.0 += sample.bytes_acked.unwrap_or(0);
            self.gone.1 += sample.bytes_sent.unwrap_or(0);
            self.gone.2 += sample.bytes_retrans.unwrap_or(0);
        }
    }

    /// The user named a number of streams: it stays, and no other is looked for.
    pub(crate) fn pin_streams(&mut self, count: u16) {
        self.streams = None;
        self.asked = Some(count);
    }

    /// Nothing flows now, and that says nothing of the path: somebody paused, or the network is away.
    pub(crate) fn skip(&mut self) {
        self.skipped = true;
    }

    /// Asks the sockets, about five times a second, and changes what has to be. `Some`: so many streams would
    /// be best from now on; whoever can open and park streams does so. Never `Some` where the user named a
    /// number. Parked streams are open and idle: what they delivered counts, how they fare does not.
    pub(crate) fn tick(&mut self, now: Time, is_parked: impl Fn(StreamId) -> bool) -> Option<u16> {
        let since = self.sampled.map(|then| now.since(then));
        if self.flows.is_empty() || since.is_some_and(|since| since < SAMPLE_EVERY) {
            return None;
        }
        self.sampled = Some(now);
        let span = since.unwrap_or(SAMPLE_EVERY).as_secs_f64();
        let mut flows = Vec::with_capacity(self.flows.len());
        let (mut delivered, mut sent, mut again) = self.gone;
        // A quarter more than the path, and some jitter: packets wait in a queue.
        let (long, mut waiting) = (self.rtt + self.rtt / 4 + Duration::from_millis(2), 0);
        for (stream, flow) in &mut self.flows {
            let Some(sample) = flow.socket.sample() else { continue };
            delivered += sample.bytes_acked.unwrap_or(0);
            sent += sample.bytes_sent.unwrap_or(0);
            again += sample.bytes_retrans.unwrap_or(0);
            if let Some(rtt) = sample.min_rtt {
                self.rtt = self.rtt.min(rtt);
            }
            if !is_parked(*stream) {
                waiting += usize::from(sample.rtt > long);
                flows.push(fared(&flow.last.unwrap_or_default(), &sample, span));
            }
            flow.last = Some(sample);
        }
        self.sent = (sent, again);
        let queued = waiting * 2 > flows.len() && !self.rtt.is_zero();
        self.loss.handle_sent(now, sent, again, queued);
        if !self.pinned {
            self.choose_control();
        }
        let waited = self.pacer.waited();
        // The streams spent more than a fifth of their time waiting for the user's limit.
        let rate_limited = (waited - self.waited).as_secs_f64() > 0.2 * span * flows.len() as f64;
        self.waited = waited;
        let sample = Sample { now, delivered, flows: &flows, rate_limited, queued };
        let streams = self.streams.as_mut()?;
        if std::mem::take(&mut self.skipped) {
            // What the sockets say is of a time in which they had to be idle.
            streams.handle_gap(now);
            return None;
        }
        streams.handle_sample(&sample)
    }

    /// The congestion control, the buffers, and what the streams were found to be worth, with reasons.
    pub(crate) fn report(&self) -> Vec<(String, String)> {
        let mut lines = Vec::new();
        if self.control.is_empty() {
            return lines;
        }
        let text = |name: &str, value: String| (name.to_owned(), value);
        lines.push(text("congestion control", format!("{} ({})", self.control, self.why)));
        let loss = match self.sent {
            (sent @ 1.., again @ 1..) => format!(", {:.4} % sent again", again as f64 / sent as f64 * 100.0),
            _ => String::new(),
        };
        lines.push(text("round trip", format!("{}{loss}", show_ms(self.rtt))));
        lines.extend(self.buffers.clone().map(|buffers| text("socket buffers", buffers)));
        if let Some(start) = &self.start {
            let rate = show_rate(start.rate as f64);
            lines.push(text("rate to expect", format!("{rate} ({})", start.why)));
        }
        if let Some(rate) = self.pacer.rate() {
            lines.push(text("rate", format!("{} at most (as asked)", show_rate(rate as f64))));
        }
        if let Some(asked) = self.asked {
            lines.push(text("streams asked for", format!("{asked} (while it ran, by haul ctl)")));
        }
        if let Some(streams) = self.streams.as_ref().filter(|streams| !streams.why().is_empty()) {
            lines.push(text("streams found", streams.why().to_owned()));
        }
        lines
    }

    fn choose_control(&mut self) {
        if self.rtt.is_zero() {
            return;
        }
        let lossy = self.loss.is_lossy();
        // What was measured on this path counts for more than the rule, as long as the path is what it was.
        if self.start.as_ref().is_some_and(|start| start.congestion.is_some() && (start.lossy || !lossy)) {
            return;
        }
        let facts = Facts { usable: &self.usable, current: &self.control, rtt: self.rtt, lossy };
        if let Some(choice) = congestion::choose(&facts) {
            self.set_control(choice.value, choice.why);
        }
    }

    /// All streams alike, also while data flows: the kernel goes on from the window that there is.
    fn set_control(&mut self, name: String, why: String) {
        for flow in self.flows.values() {
            if let Err(error) = flow.socket.set_control(&name) {
                self.why = format!("the system's default; {error}");
                // It would fail each time.
                self.pinned = true;
                return;
            }
        }
        (self.control, self.why) = (name, why);
    }

    /// The kernel's own growth is left alone, unless it ends too early and more can be had.
    fn size_buffers(&mut self, window: Option<u64>) {
        let each = share_of(self.rtt, self.flows.len());
        let (bytes, why) = match window {
            Some(window) => (Some(window.saturating_mul(2)), "as asked"),
            None if self.start.as_ref().is_some_and(|start| start.window.is_some()) => {
                let window = self.start.as_ref().and_then(|start| start.window);
                (window.map(|window| window.saturating_mul(2)), "from the network passport")
            }
            None => (HostLimits::here().fixed_send(each), "more than the system's own growth allows"),
        };
        let Some(bytes) = bytes else { return };
        // The kernel may give less.
        let given = self.flows.values().filter_map(|flow| flow.socket.fix_send(bytes).ok()).min();
        self.buffers = given.map(|given| match given < bytes {
            true => format!(
                "{} to send from ({why} {}, the most that is allowed)",
                show_size(given),
                show_size(bytes)
            ),
            false => format!("{} to send from ({why})", show_size(given)),
        });
    }
}

/// The receive buffers of a sink's data streams: left to the kernel's own growth, unless it ends too early
/// and more can be had.
#[derive(Default)]
pub(crate) struct Receive {
    bytes: Option<u64>,
    given: Option<u64>,
    rtt: Option<Duration>,
}

impl Receive {
    /// `sockets`: of the start, `count` when all have come. `window`: the user named one, which was set
    /// before they connected.
    pub(crate) fn start<'a>(
        sockets: impl IntoIterator<Item = &'a dyn Connection>,
        count: usize,
        window: Option<u64>,
    ) -> Receive {
        let samples = sockets.into_iter().filter_map(|socket| socket.sample());
        let rtt = samples.map(|sample| sample.min_rtt.unwrap_or(sample.rtt)).min();
        let each = share_of(rtt.filter(|rtt| *rtt >= LOCAL_RTT).unwrap_or_default(), count);
        let bytes = HostLimits::here().fixed_receive(each).filter(|_| window.is_none());
        Receive { bytes, given: None, rtt }
    }

    /// Of the path, the shortest that a stream found. Streams that are no sockets say nothing of theirs.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.rtt
    }

    /// Takes a stream that came: measures its path, and widens its buffer. What cannot be set stays.
    pub(crate) fn add(&mut self, socket: Option<&dyn Connection>) {
        let found =
            socket.and_then(|socket| socket.sample()).map(|sample| sample.min_rtt.unwrap_or(sample.rtt));
        self.rtt = self.rtt.into_iter().chain(found).min();
        let (Some(bytes), Some(socket)) = (self.bytes, socket) else { return };
        if let Ok(given) = socket.widen_receive(bytes) {
            self.given = Some(self.given.map_or(given, |least| least.min(given)));
        }
    }

    pub(crate) fn report(&self) -> Option<(String, String)> {
        let given = show_size(self.given?);
        let text = format!("{given} to receive into (more than the system's own growth allows)");
        Some(("sink socket buffers".into(), text))
    }
}

/// What each of `count` streams has under way when a path of this length is full, bytes.
fn share_of(rtt: Duration, count: usize) -> u64 {
    let product = u128::from(RATE_DEFAULT) * rtt.as_nanos() / 1_000_000_000;
    u64::try_from(product / count.max(1) as u128).unwrap_or(u64::MAX)
}

/// How a stream fared between two samples, `span` seconds apart.
fn fared(then: &TcpSample, now: &TcpSample, span: f64) -> Flow {
    let share = |then: Option<Duration>, now: Option<Duration>| {
        let time = now.unwrap_or_default().saturating_sub(then.unwrap_or_default());
        (time.as_secs_f64() / span).min(1.0)
    };
    let more =
        |then: Option<u64>, now: Option<u64>| now.unwrap_or(0).saturating_sub(then.unwrap_or(0)) as f64;
    // A kernel that does not count the time says at least whether there was enough to send.
    let busy = match now.busy {
        Some(_) => share(then.busy, now.busy),
        None => f64::from(u8::from(!now.app_limited)),
    };
    Flow {
        busy,
        rwnd_limited: share(then.rwnd_limited, now.rwnd_limited),
        sndbuf_limited: share(then.sndbuf_limited, now.sndbuf_limited),
        lost: more(then.bytes_retrans, now.bytes_retrans) / more(then.bytes_sent, now.bytes_sent).max(1.0),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use super::*;
    use haul_transport::tcp;

    /// Goal: sockets are set as asked and watched, a pinned control stays, and what one delivered before it
    /// ended counts.
    /// Method: three loopback connections in virtual time; one is removed.
    #[test]
    fn sockets_are_set_and_watched() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut far = Vec::new();
        let near: Vec<_> = (1..=3)
            .map(|i| {
                let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                far.push(listener.accept().unwrap().0);
                (StreamId(i), Arc::new(near))
            })
            .collect();
        let options =
            Options { congestion: Some("reno".into()), window: Some(100_000), ..Options::default() };
        let pacer = Arc::new(Pacer::new(Some(10_000_000)));
        let mut net = Net::start(
            Time(0),
            near.iter().map(|(stream, socket)| (*stream, socket.clone() as _)),
            &options,
            pacer,
            true,
        );
        for (_, socket) in &near {
            assert_eq!(tcp::control(&**socket).unwrap(), "reno");
            assert_eq!(rustix::net::sockopt::socket_send_buffer_size(&**socket).unwrap(), 200_000);
        }
        let echo: Vec<_> =
            far.into_iter().map(|mut far| thread::spawn(move || far.read_exact(&mut [0; 50_000]))).collect();
        for (_, socket) in &near {
            (&**socket).write_all(&[0; 50_000]).unwrap();
        }
        for echo in echo {
            echo.join().unwrap().unwrap();
        }
        let second = 1_000_000_000;
        assert_eq!(net.tick(Time(second), |_| false), None);
        assert_eq!(net.flows.values().filter(|flow| flow.last.is_some()).count(), 3);
        assert_eq!(net.tick(Time(second + 1), |_| false), None);
        net.remove(StreamId(2));
        assert!(net.gone.1 >= 50_000, "{:?}", net.gone);
        net.tick(Time(2 * second), |_| false);
        let lines = net.report();
        let line = |name: &str| lines.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
        assert_eq!(line("congestion control"), Some("reno (as asked)"));
        assert_eq!(line("rate"), Some("10 MB/s at most (as asked)"));
        assert!(
            line("socket buffers").unwrap().contains("as asked") && line("round trip").is_some(),
            "{lines:?}"
        );
        let none = Net::start(Time(0), [], &options, Arc::new(Pacer::new(None)), true);
        assert_eq!(none.report(), []);
    }

    /// Goal: where no stream has come yet nobody knows the path; the first that comes shows what it is.
    #[test]
    fn a_stream_that_comes_shows_the_round_trip() {
        let mut receive = Receive::start([], 2, None);
        receive.add(None);
        assert_eq!(receive.round_trip(), None);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        receive.add(Some(&near));
        let found = receive.round_trip();
        assert!(found.is_some_and(|found| found < Duration::from_millis(100)), "{found:?}");
        receive.add(None);
        assert_eq!(receive.round_trip(), found);
    }

    /// Goal: once the user named a number of streams no other is looked for, and the report says so; what the
    /// sockets did in a pause is no sample.
    #[test]
    fn a_number_is_pinned_and_a_pause_is_no_sample() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _far = listener.accept().unwrap();
        let near = [(StreamId(1), Arc::new(near) as _)];
        let mut net = Net::start(Time(0), near, &Options::default(), Arc::new(Pacer::new(None)), true);
        let tick = |net: &mut Net, ms: u64| net.tick(Time(ms * 1_000_000), |_| false);
        // Settled, then half of a measurement.
        for ms in (200..=1200).step_by(200) {
            assert_eq!(tick(&mut net, ms), None);
        }
        let before = net.streams.as_ref().unwrap().limit();
        net.skip();
        // A second later the measurement would be over: all idle, as an end that is the limit.
        assert_eq!(tick(&mut net, 2400), None);
        assert!(!net.skipped);
        assert_eq!(net.streams.as_ref().unwrap().limit(), before);
        net.pin_streams(7);
        (2600..20_000).step_by(200).for_each(|ms| assert_eq!(tick(&mut net, ms), None));
        assert!(net.streams.is_none());
        assert!(net.report().iter().any(|(_, value)| value.starts_with("7 (")), "{:?}", net.report());
    }

    /// Goal: a control that paces is not kept on loopback, whatever the system's default is.
    #[test]
    fn loopback_is_not_paced() {
        let usable = tcp::controls();
        let Some(paced) = usable.iter().find(|name| name.starts_with("bbr")) else { return };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _far = listener.accept().unwrap();
        tcp::set_control(&near, paced).unwrap();
        let near = Arc::new(near);
        let net = Net::start(
            Time(0),
            [(StreamId(1), near.clone() as _)],
            &Options::default(),
            Arc::new(Pacer::new(None)),
            false,
        );
        let now = tcp::control(&*near).unwrap();
        assert!(!now.starts_with("bbr") && now == net.control, "{now}");
        assert!(net.why.contains("pacing"), "{}", net.why);
    }
}
