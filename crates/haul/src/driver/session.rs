//! One session, of whatever end: its mailbox and its turns, the other end and the user, how it begins and how
//! it is over.
//!
//! In: links that are up, what an [`End`] does in each turn. Out: a [`Report`].
//! What every end has is here, once: control and what joins later, pulse, stop, live settings, progress and
//! notices, tables, choices, the exchange of reports. What an end does with the data is its own: it has a
//! machine, storage, and streams of its own kind.
//! Invariants: nothing in a turn blocks but the wait for the next event; a turn takes up a bounded number of
//! events, so that deadlines are met whatever the other end says.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, select};
use haul_core::ids::{SessionEpoch, StreamId, TargetId, Time};
use haul_core::schedule::table::Table;
use haul_core::schedule::{Health, TargetState};
use haul_core::transfer::SessionEnd;
use haul_core::wire::{Agreed, EndReport, Failure, LiveSettings, Message, STREAMS_MAX};

use super::choices::{Choices, InWords};
use super::hello::Opening;
use super::live_settings::SettingsExchange;
use super::mailbox::{Event, Mailbox};
use super::notices::Hangs;
use super::processors::Load;
use super::streams::{Lines, Lost};
use super::view::{Idle, View};
use super::{Clock, EPOCH, Links, Notices, Pulse, Report, Stopping, TICK, Tally, Teller, Watch, local, lost};
use crate::events::Progress;
use crate::handle::LiveSetting;
use haul_base::errno;
use haul_base::meter::Meter;
use haul_base::role::Role;
use haul_storage::{Post, Stuck};
use haul_transport::Link;
use haul_transport::rejoin::{JoinEvent, Joins};
use haul_transport::stream::{ControlEvent, ControlHandle, ControlStream};

/// Events that a turn of the loop takes up before the machine is asked again, at most: a peer that says more
/// than is handled must not keep it from its deadlines.
const TURN_MAX: usize = 1024;
/// The other end's report is waited for this long.
const REPORT_MAX: Duration = Duration::from_secs(5);

/// What one end of a session does with the data.
pub(super) trait End: Sized {
    /// This end.
    const ROLE: Role;
    /// What this end decides.
    const LIVE_SETTINGS: &'static [LiveSetting];
    /// It can be steered, and its storage targets are seen.
    const HAS_LIVE_SETTINGS: bool = true;
    /// What is lost can join again.
    const REJOINS: bool = true;
    /// The other end must hear that all is done, unless the user has enough.
    const LAST_WORD: bool = false;
    /// What it is asked to do.
    type Request;
    /// What was agreed besides, and found.
    type Setup;
    /// What its threads post.
    type Own: Send + 'static;
    /// What comes over a channel of its own, which it can leave full.
    type Feed;

    /// Agrees with the other end.
    ///
    /// # Errors
    /// Why there is nothing to begin.
    fn set_up(
        opening: &Opening<'_, Self::Own>,
        request: &Self::Request,
    ) -> Result<(Agreed, Self::Setup), Failure>;

    /// Puts its parts together; `data`: the streams of the start that are up.
    ///
    /// # Errors
    /// Why a part could not be made.
    fn start(
        session: &mut Session<'_, Self::Own>,
        data: Vec<(StreamId, Link)>,
        request: &Self::Request,
        setup: Self::Setup,
    ) -> Result<Self, Failure>;

    /// Why a live setting cannot be turned though both ends could.
    fn fixed(&self, _setting: LiveSetting) -> Option<&'static str> {
        None
    }

    /// Where what comes besides the mailbox is taken from, while it is wanted.
    fn feed(&self) -> Option<&Receiver<Self::Feed>> {
        None
    }
    /// It came; `None`: nothing more will.
    fn handle_feed(&mut self, _fed: Option<Self::Feed>) {}

    /// Does what its machine asks, until it asks for nothing more.
    fn act(&mut self, session: &mut Session<'_, Self::Own>) -> Option<SessionEnd>;
    /// Applies what somebody turned, here or at the other end, and says how things stand.
    fn steer(&mut self, session: &mut Session<'_, Self::Own>);
    /// Nothing is to be done until something comes.
    fn rest(&mut self, _session: &Session<'_, Self::Own>) {}
    fn next_deadline(&self) -> Option<Time>;
    /// One of its threads posted this.
    fn handle(&mut self, own: Self::Own, session: &mut Session<'_, Self::Own>);
    /// The other end says what only this kind of end takes.
    fn hear(&mut self, message: Message, session: &mut Session<'_, Self::Own>);
    /// A data stream joined.
    fn handle_stream(
        &mut self,
        stream: (StreamId, SessionEpoch),
        link: Link,
        session: &mut Session<'_, Self::Own>,
    );
    /// Time went by.
    fn tick(&mut self, now: Time, session: &mut Session<'_, Self::Own>);
    /// The other end is silent, or control does not come back.
    fn control_lost(&mut self, failure: Failure);
    /// The user wants a stop.
    fn stop(&mut self, session: &mut Session<'_, Self::Own>);
    /// That took too long.
    fn is_overdue(&self, stopping: &mut Stopping, pulse: &Pulse) -> bool {
        stopping.is_overdue(pulse)
    }

    /// Payload that this end sent or received, bytes.
    fn payload(&self) -> u64;
    /// Data streams that are up here.
    fn streams(&self) -> usize;
    /// What hangs.
    fn stuck(&self) -> Vec<Stuck>;
    /// What it waits for that is away, in words.
    fn in_wait(&self) -> Option<String> {
        None
    }
    /// How far it is, if that is told.
    fn progress(&self, session: &Session<'_, Self::Own>) -> Option<Progress>;
    fn is_paused(&self) -> bool {
        false
    }
    /// How its storage targets stand.
    fn targets(&self) -> impl Iterator<Item = TargetState>;
    /// Those of them that are not well.
    fn unwell(&self) -> impl Iterator<Item = (TargetId, Health)>;
    fn name_of(&self, target: TargetId) -> String;

    /// The session is over: says so to its storage and streams, and what it did. `strays`: see [`Links`].
    fn finish(
        &mut self,
        session: &mut Session<'_, Self::Own>,
        how: &SessionEnd,
        request: &Self::Request,
        strays: &AtomicU64,
    ) -> Closing;
    /// Both ends have said all.
    fn leave(self) {}
}

/// What one end says at the end.
pub(super) struct Closing {
    pub(super) own: EndReport,
    pub(super) chosen: InWords,
    pub(super) resumed: bool,
    /// Bytes of unfinished files that a resume finds, as this end knows.
    pub(super) kept: u64,
    /// Bytes that came and did not go on from here, for they were there.
    pub(super) spared: u64,
}

/// The other end, and the line to it.
pub(super) struct OtherEnd {
    pub(super) control: ControlHandle,
    pub(super) lines: Lines,
    pulse: Pulse,
    /// The control stream is gone for good.
    lost: bool,
    /// Its report, if it came with its last messages.
    report: Option<EndReport>,
}

impl OtherEnd {
    pub(super) fn send(&self, message: Message) {
        self.control.send(message);
    }

    /// Control is away, and waited for.
    pub(super) fn is_dark(&self) -> bool {
        self.lines.is_dark()
    }

    /// It has much to take that it was told already.
    pub(super) fn is_behind(&self) -> bool {
        self.control.is_behind()
    }
}

/// Whoever watches and steers this end, and what is told to him.
pub(super) struct User<'a> {
    pub(super) watch: &'a Watch,
    pub(super) tally: Tally,
    pub(super) notices: Notices,
    settings: SettingsExchange,
    view: View,
    choices: Choices,
    load: Load,
}

impl<'a> User<'a> {
    pub(super) fn new<E: End>(watch: &'a Watch, agreed: &Agreed) -> User<'a> {
        User {
            watch,
            tally: Tally::default(),
            notices: Notices::new(E::ROLE),
            settings: SettingsExchange::new(agreed.live_settings && E::HAS_LIVE_SETTINGS, E::LIVE_SETTINGS),
            view: View::new(agreed.tables && E::HAS_LIVE_SETTINGS, E::ROLE),
            choices: Choices::new(agreed.choices),
            load: Load::new(),
        }
    }

    /// What the other end says behind its last word to the machine.
    fn hear_late(&self, message: &Message) {
        self.view.hear_late(message);
        self.choices.hear(message);
        self.load.hear(message);
    }
}

/// What every end has.
pub(super) struct Session<'a, T> {
    pub(super) clock: Clock,
    pub(super) agreed: Agreed,
    pub(super) meter: Arc<Meter>,
    pub(super) other: OtherEnd,
    pub(super) user: User<'a>,
    pub(super) mailbox: Mailbox<T>,
}

/// Runs one end of a session until it is over.
pub(super) fn run<E: End>(links: Links, request: &E::Request, watch: &Watch) -> Report {
    let mailbox = Mailbox::new();
    let gone = Arc::new(AtomicBool::new(false));
    let post: Post<ControlEvent> = {
        let gone = gone.clone();
        mailbox.post_event(move |event| {
            let said = matches!(&event, ControlEvent::Message(Message::Abort(_) | Message::Stop { .. }));
            if said || matches!(&event, ControlEvent::Lost { .. }) {
                gone.store(true, Ordering::Release);
            }
            Event::Control(event)
        })
    };
    let control = match ControlStream::spawn(links.control, EPOCH, post) {
        Ok(control) => control,
        Err(e) => return Report::failed(local(errno::text(e)), watch),
    };
    let opening = Opening {
        mailbox: &mailbox,
        control: &control,
        watch,
        session: links.session,
        protection: links.protection,
        streams: links.streams,
        waits: links.waits,
        patience: links.patience,
        gone: &gone,
    };
    let (agreed, setup) = match E::set_up(&opening, request) {
        Ok(agreed) => agreed,
        Err(failure) => return give_up(control, failure, watch),
    };
    let lines = {
        let joins = if E::REJOINS { links.joins.clone() } else { Joins::Never };
        let up = links.data.iter().map(|(stream, _)| *stream);
        Lines::start(joins, EPOCH, up, links.streams, links.patience, mailbox.post_event(Event::Join))
    };
    let mut session = Session {
        clock: Clock::new(),
        agreed,
        meter: Arc::default(),
        other: OtherEnd { control, lines, pulse: Pulse::new(), lost: false, report: None },
        user: User::new::<E>(watch, &agreed),
        mailbox,
    };
    let mut end = match E::start(&mut session, links.data, request, setup) {
        Ok(end) => end,
        Err(failure) => return give_up(session.other.control, failure, watch),
    };
    let how = session.drive(&mut end);
    let Closing { own, chosen, resumed, kept, spared } =
        end.finish(&mut session, &how, request, &links.strays);
    let (user, control) = (&mut session.user, &session.other.control);
    let unwell = user.view.finish(session.clock.now(), control, watch, |target| end.name_of(target));
    user.choices.finish(&chosen, control, watch);
    let processors = user.load.finish(end.payload(), control, watch);
    let waits = E::LAST_WORD && how == SessionEnd::Complete;
    let far = session.exchange_reports(own, waits);
    let user = session.user;
    let unwell = user.view.both(unwell);
    let chosen = user.choices.both(chosen, watch);
    let processors = [processors, user.load.far()];
    end.leave();
    Report { end: how, tally: user.tally, own, far, processors, resumed, kept, spared, chosen, unwell }
}

/// There is nothing to begin, and the other end hears why.
fn give_up(mut control: ControlHandle, failure: Failure, watch: &Watch) -> Report {
    control.send(Message::Abort(failure.clone()));
    control.close();
    Report::failed(failure, watch)
}

/// What holds an end up.
fn hangs<E: End>(end: &E) -> Hangs {
    Hangs { away: end.in_wait(), stuck: end.stuck() }
}

impl<T: Send + 'static> Session<'_, T> {
    /// Turn for turn, until it is over.
    fn drive<E: End<Own = T>>(&mut self, end: &mut E) -> SessionEnd {
        let (clock, watch, events) = (self.clock, self.user.watch, self.mailbox.events.clone());
        self.other.pulse = Pulse::new();
        let mut stopping = Stopping::default();
        let mut teller = Teller::new();
        if E::HAS_LIVE_SETTINGS {
            self.join_control(end);
        }
        loop {
            if let Some(how) = end.act(self) {
                // Whoever draws a bar sees where it ended.
                Teller::new().tell(watch, || end.progress(self));
                return how;
            }
            if E::HAS_LIVE_SETTINGS {
                end.steer(self);
            }
            self.user.load.look(|| end.payload());
            teller.tell(watch, || end.progress(self));
            let dark = self.other.is_dark();
            self.user.notices.tell(watch, &self.other.control, dark, || hangs(end));
            if E::HAS_LIVE_SETTINGS {
                self.show_targets(end);
            }
            end.rest(self);
            let wait = clock.until(end.next_deadline(), TICK);
            let event = match end.feed() {
                None => events.recv_timeout(wait),
                Some(feed) => select! {
                    recv(events) -> event => event.map_err(|_| RecvTimeoutError::Disconnected),
                    recv(feed) -> fed => {
                        end.handle_feed(fed.ok());
                        Err(RecvTimeoutError::Timeout)
                    },
                    default(wait) => Err(RecvTimeoutError::Timeout),
                },
            };
            match event {
                Ok(event) => {
                    self.handle(event, end);
                    // What else has come is taken up before the machine is asked again.
                    for event in events.try_iter().take(TURN_MAX) {
                        self.handle(event, end);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return SessionEnd::Failed(local("internal error: the session's mailbox closed"));
                }
            }
            end.tick(clock.now(), self);
            if let Err(text) = self.other.lines.beat(clock.now()) {
                self.control_is_over(lost(text), end);
            }
            if !self.other.is_dark()
                && let Err(text) = self.other.pulse.beat(&self.other.control)
            {
                self.silent(&text, end);
            }
            if stopping.begins(watch) {
                self.other.pulse.set_ends();
                end.stop(self);
            }
            if end.is_overdue(&mut stopping, &self.other.pulse) {
                return SessionEnd::Stopped;
            }
        }
    }

    /// This end is in charge: says what can be turned in this session.
    fn join_control<E: End<Own = T>>(&self, end: &E) {
        let streams = if self.other.lines.can_join() { STREAMS_MAX } else { end.streams() as u16 };
        self.user.settings.join(self.user.watch, streams, |setting| end.fixed(setting));
        self.user.view.join(self.user.watch);
    }

    /// Lets the targets of this end be seen, if somebody looks.
    fn show_targets<E: End<Own = T>>(&mut self, end: &E) {
        let idle = Idle { dark: self.other.is_dark(), paused: end.is_paused() };
        let table = || Table::of(end.targets(), |target| end.name_of(target));
        let who = (&self.other.control, self.user.watch);
        self.user.view.tend(self.clock.now(), idle, who, end.unwell(), table);
    }

    /// What somebody turned, if it is not applied yet.
    pub(super) fn take_settings(&mut self) -> Option<LiveSettings> {
        self.user.settings.take(&self.other.control, self.user.watch)
    }

    /// How things stand here. May be called often: only what is new is told.
    pub(super) fn tell_settings(&mut self, stands: LiveSettings) {
        self.user.settings.stands(stands, &self.other.control, self.user.watch);
    }

    /// What is waited for, in words.
    pub(super) fn waiting<E: End<Own = T>>(&self, end: &E) -> Option<String> {
        self.other.lines.waiting().or_else(|| self.user.notices.waiting(&hangs(end)))
    }

    fn handle<E: End<Own = T>>(&mut self, event: Event<T>, end: &mut E) {
        match event {
            Event::Own(own) => end.handle(own, self),
            Event::Join(event) => self.handle_join(event, end),
            Event::Control(event) => {
                event.taken(&self.other.control);
                match event {
                    ControlEvent::Message(message) => self.hear(message, end),
                    ControlEvent::Lost { epoch, why, how } => {
                        let (control, now) = (&self.other.control, self.clock.now());
                        let after = self.other.lines.control_lost((epoch, why, how), control, now);
                        if let Lost::Over(failure) = after {
                            self.control_is_over(failure, end);
                        }
                    }
                }
            }
        }
    }

    fn hear<E: End<Own = T>>(&mut self, message: Message, end: &mut E) {
        let user = &mut self.user;
        match message {
            Message::Report(report) => return self.other.report = Some(*report),
            _ => {
                self.other.pulse.heard();
                self.other.lines.heard();
            }
        }
        match message {
            Message::LiveSettings(settings) if user.settings.agreed() => user.settings.hear(settings),
            message if user.view.takes(&message) => user.view.hear(message, user.watch),
            message if user.choices.takes(&message) => user.choices.hear(&message),
            message if user.load.hear(&message) => {}
            message => end.hear(message, self),
        }
    }

    fn handle_join<E: End<Own = T>>(&mut self, event: JoinEvent, end: &mut E) {
        let other = &mut self.other;
        let was_dark = other.is_dark();
        let joined = other.lines.handle(event, &other.control, self.clock.now());
        if was_dark && !other.is_dark() {
            other.pulse.rejoined();
        }
        if let Some((stream, epoch, link)) = joined {
            end.handle_stream((stream, epoch), link, self);
        }
    }

    /// Handle does not come back.
    fn control_is_over<E: End<Own = T>>(&mut self, failure: Failure, end: &mut E) {
        self.other.lost = true;
        end.control_lost(failure);
    }

    /// The other end says nothing: its link is cut, and joined again where that is possible.
    fn silent<E: End<Own = T>>(&mut self, text: &str, end: &mut E) {
        match self.other.lines.can_join() {
            true => self.other.control.cut(text),
            false => end.control_lost(lost(text)),
        }
    }

    /// Sends the report of this end, waits for the other end's unless it came already, and closes control: at
    /// the near end without waiting for the other end to close it too, whose report was its last word. While
    /// the lines are dark after an end that the other must hear of (`waits`), they are waited for as before.
    fn exchange_reports(&mut self, own: EndReport, waits: bool) -> Option<EndReport> {
        let OtherEnd { control, lines, lost, report: far, .. } = &mut self.other;
        let (user, clock) = (&self.user, self.clock);
        if *lost {
            control.close();
            return None;
        }
        control.send(Message::Report(Box::new(own)));
        let waits = || waits && !user.watch.handle.stopped();
        let mut deadline = Instant::now() + REPORT_MAX;
        while far.is_none() && (!lines.is_dark() || waits()) {
            match self.mailbox.events.recv_timeout(TICK) {
                Ok(Event::Control(event)) => {
                    event.taken(control);
                    match event {
                        ControlEvent::Message(Message::Report(report)) => *far = Some(*report),
                        ControlEvent::Message(message) => user.hear_late(&message),
                        ControlEvent::Lost { epoch, why, how } => {
                            if let Lost::Over(_) = lines.control_lost((epoch, why, how), control, clock.now())
                            {
                                break;
                            }
                        }
                    }
                }
                // A stream is of no use any more.
                Ok(Event::Join(event)) => drop(lines.handle(event, control, clock.now())),
                Ok(Event::Own(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if lines.beat(clock.now()).is_err() {
                break;
            }
            match lines.is_dark() {
                true => deadline = Instant::now() + REPORT_MAX,
                false if Instant::now() >= deadline => break,
                false => {}
            }
        }
        match user.watch.is_near() && far.is_some() && !lines.is_dark() {
            true => control.close_at_once(),
            false => control.close(),
        }
        far.take()
    }
}
