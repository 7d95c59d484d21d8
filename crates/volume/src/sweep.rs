//! Removes the bytes of files that have no name any more and that nobody has open.
//!
//! In: what the catalog says. Out: files that are removed at all servers, and a catalog that knows it.
//! Each server sees to the files that it gathers, and no other: one machine decides what becomes of a file.
//! Invariants: the catalog hears that bytes are gone only after every server has said that it has none and
//! will have none after a crash; what could not be done is done later, also by the next life.
//! Left out: when nobody can use a file any more, which the catalog knows.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use haul_core::volume::catalog::Failure;
use haul_core::volume::{FileNo, ServerNo};

use crate::catalog::client::{Client as Catalog, Terms};
use crate::client::{self, Client, VolumeError};
use crate::dial::Keys;

/// Between two looks when there was nothing to do, or something failed.
const REST: Duration = Duration::from_secs(5);
/// How often it looks whether it is over.
const STEP: Duration = Duration::from_millis(100);
/// What is asked of the catalog, or of servers, may take so long; then it is asked anew.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a sweeper is told.
pub struct Config {
    pub keys: Keys,
    pub me: ServerNo,
    /// Where the catalog is.
    pub catalog: SocketAddr,
    /// Where each server of the volume listens.
    pub servers: Vec<SocketAddr>,
    /// Bytes.
    pub stripe_size: u64,
    /// Told what goes wrong, in words.
    pub notice: Arc<dyn Fn(&str) + Send + Sync>,
}

/// A thread that sweeps until this is dropped.
pub struct Sweeper {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sweeper {
    /// Starts to sweep.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(config: Config) -> io::Result<Sweeper> {
        Sweeper::start_for(config, Arc::new(|_, _| ()))
    }

    /// The same, and tells of the terms that the catalog counts, and of epochs of files that it raises.
    ///
    /// # Errors
    /// As of [`Sweeper::start`].
    pub fn start_for(config: Config, terms: Terms) -> io::Result<Sweeper> {
        let over = Arc::new(AtomicBool::new(false));
        let work = Work { config, over: over.clone(), terms };
        let thread = thread::Builder::new().name("haul-vol-sweep".into()).spawn(move || work.run())?;
        Ok(Sweeper { over, thread: Some(thread) })
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        // It may wait for a server: that ends by itself.
        drop(self.thread.take());
    }
}

struct Work {
    config: Config,
    over: Arc<AtomicBool>,
    terms: Terms,
}

impl Work {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    fn rest(&self) {
        let until = Instant::now() + REST;
        while !self.is_over() && Instant::now() < until {
            thread::sleep(STEP);
        }
    }

    fn run(&self) {
        // What was said last: a catalog that is away is no news each time.
        let mut said = String::new();
        while !self.is_over() {
            let why = match self.connected() {
                Err(why) => why,
                Ok((catalog, client)) => loop {
                    match self.sweep(&catalog, &client) {
                        Ok(()) => said.clear(),
                        Err(why) => break why,
                    }
                    if self.is_over() {
                        let _ = catalog.leave();
                        return;
                    }
                    self.rest();
                },
            };
            if why != said && !self.is_over() {
                (self.config.notice)(&format!("removing the bytes of files without a name: {why}"));
                said = why;
            }
            self.rest();
        }
    }

    /// A client of the catalog, and one of the servers under the number that the catalog gave.
    fn connected(&self) -> Result<(Catalog, Client), String> {
        let Config { keys, catalog, servers, stripe_size, .. } = &self.config;
        let catalog = Catalog::connect(keys.clone(), *catalog, PATIENCE).map_err(in_words)?;
        catalog.tell_terms(self.terms.clone());
        let config = client::Config {
            keys: keys.clone(),
            number: catalog.number(),
            servers: servers.clone(),
            stripe_size: *stripe_size,
            write_threshold: None,
            patience: PATIENCE,
        };
        let client = Client::start_for(config, &catalog).map_err(|error| haul_base::errno::text(&error))?;
        Ok((catalog, client))
    }

    /// Removes all that there is now.
    fn sweep(&self, catalog: &Catalog, client: &Client) -> Result<(), String> {
        let servers = u16::try_from(self.config.servers.len()).unwrap_or(u16::MAX);
        let striping = client.striping();
        let mut after = FileNo(0);
        while !self.is_over() {
            let page = catalog.to_remove(self.config.me, after).map_err(in_words)?;
            let Some(last) = page.last() else { return Ok(()) };
            after = *last;
            let mine = page.into_iter().filter(|file| striping.gatherer(*file) == self.config.me);
            let begun: Vec<_> = mine.map(|file| (file, client.remove(file))).collect();
            let (mut gone, mut failed) = (Vec::new(), None);
            for (file, waiting) in begun {
                match waiting.wait() {
                    Ok(()) | Err(VolumeError::Gone) => gone.push(file),
                    Err(error) => failed = Some(error.to_string()),
                }
            }
            if !gone.is_empty() {
                for server in (0..servers).map(ServerNo) {
                    catalog.removed(server, gone.clone()).map_err(in_words)?;
                }
            }
            if let Some(why) = failed {
                return Err(why);
            }
        }
        Ok(())
    }
}

fn in_words(failure: Failure) -> String {
    failure.words.into()
}
