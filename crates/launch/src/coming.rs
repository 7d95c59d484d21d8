//! Data streams of the start that are dialled as soon as the path is known, and join when the session runs.
//!
//! In: how many, and over which way. Out: joins, posted once somebody wants to hear of them.
//! Invariants: none is named before [`Coming::open`], for until then the session may go another way; what
//! nobody asks for is closed, and is no stranger to the far end.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use haul_core::ids::StreamId;

use super::happy_eyeballs::{Caller, Way};
use super::join_handshake::Connected;
use super::listener::FIRST_EPOCH;
use haul_transport::Post;
use haul_transport::rejoin::JoinEvent;

/// How long each may take.
const WAIT: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct Coming {
    caller: Arc<Caller>,
    /// All that were dialled.
    pub ids: Vec<StreamId>,
    state: Mutex<ComingState>,
}

#[derive(Default)]
struct ComingState {
    /// Who hears of those that come from now on.
    post: Option<Post<JoinEvent>>,
    /// What came before that; without a connection, it did not come.
    kept: Vec<(StreamId, Option<Connected>)>,
}

impl Coming {
    /// Begins to dial the streams `ids` over `way`.
    pub(super) fn dial(caller: &Arc<Caller>, way: Way, ids: RangeInclusive<u16>) -> Arc<Coming> {
        let ids: Vec<StreamId> = ids.map(StreamId).collect();
        let (caller, state) = (caller.clone(), Mutex::default());
        let coming = Arc::new(Coming { caller, ids, state });
        let deadline = Instant::now() + WAIT;
        for &stream in &coming.ids {
            let comes = coming.clone();
            let work = move || {
                let connected = comes.caller.handshake(&way, true, WAIT, deadline).ok();
                comes.came(stream, connected);
            };
            if thread::Builder::new().name("haul-dial".into()).spawn(work).is_err() {
                coming.came(stream, None);
            }
        }
        coming
    }

    fn state(&self) -> MutexGuard<'_, ComingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn came(&self, stream: StreamId, connected: Option<Connected>) {
        let mut state = self.state();
        match state.post.clone() {
            Some(post) => {
                drop(state);
                post(self.join(stream, connected));
            }
            None => state.kept.push((stream, connected)),
        }
    }

    fn join(&self, stream: StreamId, connected: Option<Connected>) -> JoinEvent {
        let name = (stream, FIRST_EPOCH);
        match connected.and_then(|connected| connected.join_at_once(&self.caller.session, name).ok()) {
            Some(link) => JoinEvent::Stream { stream, epoch: FIRST_EPOCH, link },
            None => JoinEvent::Failed { stream, why: "it did not come up".into(), refused: false },
        }
    }

    /// From now on each is joined when it comes; one event for each.
    pub(super) fn open(&self, post: &Post<JoinEvent>) {
        let kept = {
            let mut state = self.state();
            state.post = Some(post.clone());
            std::mem::take(&mut state.kept)
        };
        for (stream, connected) in kept {
            post(self.join(stream, connected));
        }
    }
}
