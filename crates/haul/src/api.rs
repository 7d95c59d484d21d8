//! The public API: run a copy, watch it, steer it, stop it.
//!
//! In: a [`CopyRequest`], an [`Observer`] that hears what happens, a [`Handle`] that can stop and steer it.
//! Out: a [`Summary`]. Nothing here prints or exits.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

pub use haul_core::change::Change;
pub use haul_core::layout::{Component, Layout};
pub use haul_core::schedule::Health;
pub use haul_core::stage::{Processors, Stage, StageTime, others_use_up};
pub use haul_core::tune::rate::RATE_MIN;

pub use crate::clean::{CleanJob, CleanReport};
pub use crate::endpoint::{Endpoint, EndpointError, Place, PlaceError, Scheme};
pub use crate::error::{Error, ErrorKind, Operation};
pub use crate::events::{Checking, EntryEnd, EntryKind, Event, Observer, OnEvent, Progress};
pub use crate::handle::{CopyPhase, CopyState, Handle, LiveSetting, SettingState};
pub use crate::layout::{FileLayout, layout};
use crate::options::Options;
pub use crate::request::{CopyRequest, RemoteOptions};
pub use crate::summary::{Chosen, ChosenKind, Held, Status, Summary};
pub use crate::target_tables::{Side, Sides, SlowTarget, TargetRow, TargetTable};
pub use haul_base::role::Role;
#[doc(hidden)]
pub use haul_launch::protocol_line;
pub use haul_launch::{Dialler, SSH_CHANNELS_MAX};
pub use haul_storage::sink::clean::age_in_words;
pub use haul_storage::store::Picks;

/// Runs a copy to its end; see [`Copy`], which asks for one step by step. What goes wrong is in the summary.
pub fn copy(request: CopyRequest, observer: Arc<dyn Observer>, handle: Handle) -> Summary {
    crate::copy::run(&request, observer, handle)
}

/// A copy that is about to be asked for: from where, to where, how.
///
/// ```
/// use haul::api::{Copy, Endpoint, Status};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let here = tempfile::tempdir()?;
/// let (from, to) = (here.path().join("data"), here.path().join("backup"));
/// std::fs::create_dir(&from)?;
/// std::fs::write(from.join("a"), b"forty-two")?;
///
/// let summary = Copy::from([&from]).to(&to).recursive().run();
/// assert_eq!((summary.status, summary.files, summary.bytes), (Status::Complete, 1, 9));
/// assert_eq!(std::fs::read(to.join("data/a"))?, b"forty-two");
///
/// // The same again moves only what is missing.
/// let again = Copy::from([&from]).to(&to).recursive().run();
/// assert_eq!((again.files, again.unchanged), (0, 1));
///
/// // What failed can be matched on, and has a sentence for people.
/// let nowhere = Copy::from([here.path().join("no")]).to(Endpoint::local("/tmp/x")).run();
/// assert_eq!(nowhere.error.map(|error| error.kind), Some(haul::api::ErrorKind::NotFound));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "nothing is copied before `run`"]
pub struct Copy {
    request: CopyRequest,
    observer: Arc<dyn Observer>,
    handle: Handle,
}

impl Copy {
    /// What is copied: paths of this host, or [`Endpoint`]s. All of them lie on one host. To where is still
    /// open: without [`Copy::to`] there is nothing to run.
    ///
    /// As with scp and rsync `dir` is the directory and `dir/` its contents. A symbolic link that is named is
    /// copied as a link, and one with a slash behind it followed.
    #[allow(clippy::should_implement_trait)]
    pub fn from<E: Into<Endpoint>>(sources: impl IntoIterator<Item = E>) -> CopyFrom {
        CopyFrom { sources: sources.into_iter().map(Into::into).collect() }
    }

    /// Directories with all that is in them.
    pub fn recursive(mut self) -> Copy {
        self.request.options.recursive = true;
        self
    }

    /// Every choice that there is, in place of those made before.
    pub fn options(mut self, options: Options) -> Copy {
        self.request.options = options;
        self
    }

    /// How the far end is reached and started, if there is one.
    pub fn remote(mut self, remote: RemoteOptions) -> Copy {
        self.request.remote = remote;
        self
    }

    /// Looks only: nothing is made or changed at the destination.
    pub fn dry_run(mut self) -> Copy {
        self.request.dry_run = true;
        self
    }

    /// Where passports of storage and networks are kept on this host; without it none is looked for.
    pub fn state_home(mut self, state: impl Into<PathBuf>) -> Copy {
        self.request.state_home = Some(state.into());
        self
    }

    /// Tells `observer` what happens, from haul's own threads and from the one that [`run`](Copy::run)s it:
    /// it must not block, nor take a lock that the caller holds. [`Event::Entry`] comes for each entry that
    /// ended well.
    pub fn observer(mut self, observer: impl Observer + 'static) -> Copy {
        (self.observer, self.request.verbose) = (Arc::new(observer), true);
        self
    }

    /// Calls `hear` with what happens; see [`Copy::observer`].
    ///
    /// ```
    /// use haul::api::{Copy, Event, Status};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let here = tempfile::tempdir()?;
    /// # let (from, to) = (here.path().join("a"), here.path().join("b"));
    /// # std::fs::write(&from, b"forty-two")?;
    /// let (tell, told) = std::sync::mpsc::channel();
    /// let hear = move |event| {
    ///     if let Event::Entry { path, bytes, .. } = event {
    ///         let _ = tell.send((path, bytes));
    ///     }
    /// };
    /// let summary = Copy::from([&from]).to(&to).on_event(hear).run();
    /// assert_eq!(summary.status, Status::Complete);
    /// assert_eq!(told.iter().collect::<Vec<_>>(), [(b"b".to_vec(), 9)]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_event(self, hear: impl Fn(Event) + Send + Sync + 'static) -> Copy {
        self.observer(OnEvent(hear))
    }

    /// Another thread stops, pauses or steers the copy by a clone of `handle`.
    pub fn handle(mut self, handle: &Handle) -> Copy {
        self.handle = handle.clone();
        self
    }

    /// Runs it to its end, and blocks until then.
    pub fn run(self) -> Summary {
        copy(self.request, self.observer, self.handle)
    }

    /// Runs it on a thread of its own.
    ///
    /// ```
    /// use haul::api::{Copy, Status};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let here = tempfile::tempdir()?;
    /// # let (from, to) = (here.path().join("data"), here.path().join("backup"));
    /// std::fs::write(&from, vec![7; 1_000_000])?;
    /// let running = Copy::from([&from]).to(&to).spawn()?;
    /// while !running.is_finished() {
    ///     let state = running.handle().state();
    ///     assert!(state.progress.bytes_done <= 1_000_000);
    ///     std::thread::yield_now();
    /// }
    /// let summary = running.join();
    /// assert_eq!((summary.status, summary.bytes), (Status::Complete, 1_000_000));
    /// assert_eq!(std::fs::read(&to)?, vec![7; 1_000_000]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Local`]: there is no thread for it, and nothing was done.
    pub fn spawn(self) -> Result<Running, Error> {
        let handle = self.handle.clone();
        let thread = std::thread::Builder::new().name("haul-copy".into()).spawn(move || self.run());
        let thread = thread.map_err(|error| Error::local(format!("starting a thread: {error}")))?;
        Ok(Running { handle, thread })
    }
}

/// A copy that runs on a thread of its own; see [`Copy::spawn`]. Whoever drops it lets the copy go on, and
/// may stop it by a handle that was kept. A program that returns from `main` meanwhile ends it as a kill
/// does: the same copy again goes on from there.
#[derive(Debug)]
pub struct Running {
    handle: Handle,
    thread: JoinHandle<Summary>,
}

impl Running {
    /// Stops, pauses and steers the copy.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Whether [`Running::join`] returns at once.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for its end. A panic of the copy's observer goes on here.
    pub fn join(self) -> Summary {
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// The sources of a copy whose destination is still open; see [`Copy::from`].
#[derive(Clone, Debug)]
#[must_use = "say where `to`"]
pub struct CopyFrom {
    sources: Vec<Endpoint>,
}

impl CopyFrom {
    /// Where they go: a directory, or, for a single file, its new name. What is there as a directory, or ends
    /// with a slash, is a directory; where nothing is, one source that is a file gets that name, and
    /// directories above it are made.
    pub fn to(self, destination: impl Into<Endpoint>) -> Copy {
        struct Nobody;
        impl Observer for Nobody {
            fn event(&self, _event: Event) {}
        }
        let request = CopyRequest::new(self.sources, destination.into());
        Copy { request, observer: Arc::new(Nobody), handle: Handle::new() }
    }
}

/// Whether plain files that the caller writes while the copy runs, by their names behind all links, are apart
/// from what is copied: none lies in a local source, is one, or has the name of a file that is copied.
///
/// # Errors
/// [`ErrorKind::Usage`], about the first that is not.
pub fn lists_are_apart(request: &CopyRequest, files: &[PathBuf]) -> Result<(), Error> {
    crate::copy::lists::are_apart(request, files)
}

/// For the program `haul`. `haul agent`: serves one session over stdin and stdout. Returns the exit code.
///
/// `home`: the user's home directory; `ssh_connection`: what sshd says of the connection
/// (`SSH_CONNECTION`), from which the address to listen on is taken; `prober`: what it does where it is asked
/// to measure; `errands`: where it is asked for something else than a copy.
#[doc(hidden)]
pub fn agent(
    home: Option<PathBuf>,
    ssh_connection: Option<String>,
    prober: &'static dyn crate::trial::Prober,
    errands: haul_launch::Errands,
) -> i32 {
    crate::copy::serve(home, ssh_connection, prober, errands)
}

/// For the program `haul`. `haul agent --channel`: brings a further channel of an ssh connection to the agent
/// of this user that the near end names on stdin, and waits until that has done with it. Returns the exit
/// code.
#[doc(hidden)]
pub fn agent_channel() -> i32 {
    use std::os::fd::AsFd;
    let handed = haul_launch::channel(std::io::stdin().as_fd(), std::io::stdout().as_fd());
    i32::from(handed.is_err())
}

/// Lists what jobs left below `root`; `remove` deletes what dead ones left, never what a running one needs.
/// `state`: the directory of their journals, where they were told to keep them elsewhere.
///
/// # Errors
/// `root` or `state` cannot be read.
pub fn clean(root: &Path, state: Option<&Path>, remove: bool) -> Result<CleanReport, Error> {
    crate::clean::run(root, state, remove)
}
