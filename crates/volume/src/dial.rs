//! A connection to a server that is made again as often as it is lost.
//!
//! In: where the server is, who dials. Out: that a connection stands, what comes over it, that it is gone; in
//! this order, from one thread.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use haul_core::volume::client::Striping;
use haul_core::volume::wire::{Message, VolumeId, Who};
use haul_core::volume::{ServerNo, Session};
use haul_transport::tls::{self, Identity, Pin};
use haul_transport::{TransportError, tcp};

use crate::line::{Bytes, Mouth, speak};

/// A server has so long to take a connection and to show who it is.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Between two tries, at first and at most.
const REST: Duration = Duration::from_millis(50);
const REST_MAX: Duration = Duration::from_secs(2);

/// Whose volume it is, and the key that all who belong to it have in common.
#[derive(Clone)]
pub struct Keys {
    pub volume: VolumeId,
    pub identity: Identity,
    pub pin: Pin,
}

/// Which server of a volume, where it listens, and how files lie on all of them.
#[derive(Clone)]
pub struct To {
    pub server: ServerNo,
    pub at: SocketAddr,
    pub striping: Striping,
}

/// What happens to a connection.
pub enum Line {
    /// It stands, and the join is said.
    Up(Session, Mouth),
    Said(Message, Bytes),
    /// It is gone, or could not be made: why. It is tried again.
    Down(String),
}

/// When dropped, a connection that was lost is not made again.
pub struct Dialler {
    over: Arc<AtomicBool>,
}

impl Dialler {
    /// Starts to connect. `first` is the first session's number: higher than any that `who` ever had.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(
        keys: Keys,
        to: To,
        who: Who,
        first: u64,
        post: impl Fn(Line) + Send + 'static,
    ) -> std::io::Result<Dialler> {
        let over = Arc::new(AtomicBool::new(false));
        let is_over = over.clone();
        std::thread::Builder::new().name("haul-vol-dial".into()).spawn(move || {
            let (mut session, mut rest) = (first, REST);
            while !is_over.load(Ordering::Acquire) {
                let begun = Instant::now();
                let why = match connect(&keys, to.at) {
                    Err(error) => haul_base::errno::with_causes(&error),
                    Ok(link) => talk(link, &keys, &to, (who, Session(session)), &post, &is_over),
                };
                session += 1;
                post(Line::Down(why));
                // What stood for a while is tried again at once.
                rest = if begun.elapsed() > REST_MAX { REST } else { (rest * 2).min(REST_MAX) };
                std::thread::sleep(rest);
            }
        })?;
        Ok(Dialler { over })
    }
}

impl Drop for Dialler {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
    }
}

/// One connection, on which nothing was said yet.
pub(crate) fn connect(keys: &Keys, to: SocketAddr) -> Result<haul_transport::Link, TransportError> {
    let stream = tcp::connect(&to, None, None, CONNECT_MAX).map_err(|source| TransportError {
        what: format!("connecting to the volume's server {to}"),
        source: Some(source),
    })?;
    let _ = stream.set_nodelay(true);
    tls::client(stream, &keys.identity, &keys.pin, CONNECT_MAX)
}

/// Returns why it ended.
fn talk(
    link: haul_transport::Link,
    keys: &Keys,
    to: &To,
    (who, session): (Who, Session),
    post: &impl Fn(Line),
    is_over: &AtomicBool,
) -> String {
    let (mut incoming, mouth) = match speak(link, "haul-vol-say", None) {
        Ok(both) => both,
        Err(error) => return format!("starting a thread: {}", haul_base::errno::text(&error)),
    };
    let (server, striping) = (to.server, to.striping.clone());
    let join = Message::Join { volume: keys.volume, who, session, to: server, striping };
    mouth.say(join, Bytes::default());
    let close = mouth.closer();
    post(Line::Up(session, mouth));
    loop {
        match incoming.receive(|_| Ok(())) {
            _ if is_over.load(Ordering::Acquire) => return String::new(),
            Ok(Some((Message::Refused(why), _))) => {
                close();
                return format!("the server ended it: {why}");
            }
            Ok(Some((message, bytes))) => post(Line::Said(message, bytes)),
            Ok(None) => return "the server ended it".into(),
            Err(error) => {
                close();
                return error.to_string();
            }
        }
    }
}
