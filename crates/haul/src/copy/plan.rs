//! The plan of a copy: which of its ends runs here, where the other one runs, and what each is asked for.
//!
//! In: a `CopyRequest`. Out: the ends that are run here, what is asked of a far one, and, when a run is over,
//! whether its limit held it. Whoever needs another arrangement of ends (several hosts a side, two far ones)
//! changes this page.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use haul_core::reliability::Reliability;
use haul_core::wire::RATE_UNLIMITED;

use super::ends::{End, beside_server, memory, sink_request, source_request};
use crate::driver::sink::SinkRequest;
use crate::driver::source::SourceRequest;
use crate::driver::{Links, Report, Watch, policy};
use crate::endpoint::Endpoint;
use crate::endpoint::Place;
use crate::error::Error;
use crate::options::{AgentRequest, Reflink};
use crate::request::CopyRequest;
use haul_base::role::Role;
use haul_storage::descriptors::Share;
use haul_storage::manners::LinksThere;
use haul_storage::store::{CloneFrom, Originals};
use haul_transport::pace::Pacer;
use haul_transport::path;

/// The number of "Too many open files".
const EMFILE: i32 = 24;
/// Streams that waited for `--rate` for this share of their time were limited by it.
const RATE_WAITS: f64 = 0.2;
/// And so was a transfer that reached this share of it, where nobody here saw the streams wait.
const RATE_REACHED: f64 = 0.85;

/// Which end runs where.
pub(super) struct Plan<'a> {
    request: &'a CopyRequest,
    /// The end that runs in this process and tells of the copy.
    pub(super) near: Role,
    /// Where the other one runs; `None`: in this process too.
    pub(super) host: Option<&'a str>,
    /// Of a source that runs here.
    pacer: Arc<Pacer>,
    /// What of this process's descriptors the copy may have.
    share: Arc<Share>,
    /// What becomes of what fails at an end that runs here.
    retry: Arc<dyn Reliability>,
    /// How long ago the first attempt began, if this is another.
    begun: Option<Duration>,
    /// By which a sink in this process finds the files of the source.
    originals: Arc<Originals>,
}

impl<'a> Plan<'a> {
    /// # Errors
    /// Both ends are far, or other copies of this process leave too little for one more.
    pub(super) fn of(request: &'a CopyRequest, retry: &Arc<dyn Reliability>) -> Result<Plan<'a>, Error> {
        let source = request.sources.iter().find_map(Endpoint::host);
        let (near, host) = match (source, request.destination.host()) {
            (Some(_), Some(_)) => {
                return Err(Error::usage("copying from one remote host to another is not supported yet"));
            }
            (Some(host), None) => (Role::Sink, Some(host)),
            (None, Some(host)) => (Role::Source, Some(host)),
            // Of a dry run the sink tells, in the order in which it looks.
            (None, None) if request.dry_run => (Role::Sink, None),
            (None, None) => (Role::Source, None),
        };
        let pacer = Arc::new(Pacer::new(request.options.rate));
        let share = Share::take().map_err(|few| Error::system(few.to_string(), EMFILE))?;
        Ok(Plan {
            request,
            near,
            host,
            pacer,
            share,
            retry: retry.clone(),
            begun: None,
            originals: Arc::default(),
        })
    }

    /// The same, of an attempt of which the first one began so long ago.
    pub(super) fn begun(self, begun: Option<Duration>) -> Plan<'a> {
        Plan { begun, ..self }
    }

    /// What the far end is asked for.
    pub(super) fn ask(&self) -> AgentRequest {
        let options = self.request.options.clone();
        match self.near.other() {
            Role::Source => AgentRequest {
                replicas: self.replicas(),
                ..AgentRequest::new(Role::Source, self.sources(), None, options)
            },
            Role::Sink => {
                let destination = self.request.destination.place().clone();
                let begun_ms = self.begun.map(|ago| u64::try_from(ago.as_millis()).unwrap_or(u64::MAX));
                let ask = AgentRequest::new(Role::Sink, Vec::new(), Some(destination), options);
                AgentRequest { begun_ms, ..ask }
            }
        }
    }

    /// The end that runs here, over these links.
    pub(super) fn near_end(&self, links: &Links) -> End {
        self.end(self.near, links)
    }

    /// The other one, where it runs here too.
    pub(super) fn other_end(&self, links: &Links) -> End {
        self.end(self.near.other(), links)
    }

    fn end(&self, role: Role, links: &Links) -> End {
        let options = &self.request.options;
        let mut memory = memory(options, path::rtt(&links.control));
        if self.host.is_none() && self.sends_to_server() {
            memory = beside_server(options, memory);
        }
        match role {
            Role::Source => {
                let from = source_request(self.sources(), options, None, memory, (&self.share, &self.pacer));
                let (replicas, retry) = (self.replicas(), self.retry.clone());
                let volumes = self.request.state_home.clone();
                let (ssh, picks) = (self.ssh(), self.request.picks.clone());
                let sink_here = self.request.destination.local_path().filter(|_| self.host.is_none());
                let sink_here = sink_here.map(|path| PathBuf::from(OsStr::from_bytes(path)));
                let originals = self.clones().map(|clones| clones.originals);
                let mut from =
                    SourceRequest { replicas, retry, ssh, volumes, picks, sink_here, originals, ..from };
                // On one host they have the same names, which only a map may ask for.
                from.options.numeric_ids |= self.host.is_none() && !options.given().needs_names();
                End::Source(from.into())
            }
            Role::Sink => {
                let destination = self.request.destination.place().clone();
                let to = sink_request(destination, options, None, memory.value, &self.share);
                // A far source is held to what it was asked for.
                let asked = self.host.map(|_| (self.sources(), policy(options)));
                let parts_dir = self.request.state_home.as_ref().map(|dir| dir.join("uploads"));
                let (sources_here, retry) = (self.sources_here(), self.retry.clone());
                let volumes = self.request.state_home.clone();
                let (ssh, links) = (self.ssh(), LinksThere { begun: self.begun, ..to.links });
                let clones = self.clones();
                let to =
                    SinkRequest { asked, ssh, sources_here, clones, retry, parts_dir, volumes, links, ..to };
                End::sink(to, self.request.dry_run)
            }
        }
    }

    /// What may be cloned: files of this host, that are written on this host.
    fn clones(&self) -> Option<CloneFrom> {
        let options = &self.request.options;
        let ends = self.request.sources.iter().chain([&self.request.destination]);
        let both_here = self.host.is_none() && ends.map(Endpoint::place).all(|place| place.as_file().is_ok());
        let clones = both_here && !self.request.dry_run && options.reflink != Reflink::Never;
        clones.then(|| CloneFrom {
            originals: self.originals.clone(),
            sources: self.sources_here(),
            always: options.reflink == Reflink::Always,
            off: options.reads_all(),
        })
    }

    /// From storage that is no server's to a server.
    fn sends_to_server(&self) -> bool {
        let is_server = |end: &Endpoint| end.place().scheme().foreign;
        is_server(&self.request.destination) && !self.request.sources.iter().any(is_server)
    }

    fn sources(&self) -> Vec<Place> {
        self.request.sources.iter().map(|source| source.place().clone()).collect()
    }

    /// How a server is reached that ssh starts.
    fn ssh(&self) -> (Vec<String>, bool) {
        (self.request.remote.ssh.clone(), self.request.remote.interactive)
    }

    fn replicas(&self) -> Vec<Place> {
        self.request.replicas.iter().map(|replica| replica.place().clone()).collect()
    }

    /// The sources whose files a sink here could write into; none where they are another host's.
    fn sources_here(&self) -> Vec<PathBuf> {
        let places = self.request.sources.iter().filter(|_| self.host.is_none()).map(Endpoint::place);
        places
            .filter_map(|place| place.as_file().ok())
            .map(|path| PathBuf::from(OsStr::from_bytes(path)))
            .collect()
    }

    /// Whether the run of the near end was held by `--rate`, or by what that was set to meanwhile.
    pub(super) fn was_limited(&self, near: &Report, streams: u16, took: Duration, watch: &Watch) -> bool {
        if self.near == Role::Source || self.host.is_none() {
            // Nobody waits where there is no limit, and it may come and go while the copy runs.
            let whole = took.as_secs_f64() * f64::from(streams.max(1));
            return self.pacer.waited().as_secs_f64() > RATE_WAITS * whole;
        }
        let reached = near.far.as_ref().map_or(0, |far| far.payload) as f64 / took.as_secs_f64();
        // The last limit: what it was before is not known here.
        let rate = match watch.handle.live_settings().rate {
            0 => self.request.options.rate,
            RATE_UNLIMITED => None,
            rate => Some(rate),
        };
        rate.is_some_and(|rate| reached > RATE_REACHED * rate as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    /// Goal: one end runs here and the other where the user said; of two far ones none is run, and that is
    /// the command's fault.
    #[test]
    fn one_end_runs_here() {
        use Role::{Sink, Source};
        let endpoint = |text: &str| Endpoint::parse(text.as_ref(), |_| false).expect("an endpoint");
        let table = [
            ("a", "b", false, Some((Source, None))),
            ("a", "b", true, Some((Sink, None))),
            ("h:a", "b", false, Some((Sink, Some("h")))),
            ("h:a", "b", true, Some((Sink, Some("h")))),
            ("a", "h:b", false, Some((Source, Some("h")))),
            ("a", "h:b", true, Some((Source, Some("h")))),
            ("h:a", "h:b", false, None),
        ];
        for (from, to, dry_run, expected) in table {
            let plain = crate::copy::bare(vec![endpoint(from)], endpoint(to));
            let request = CopyRequest { dry_run, ..plain };
            match (Plan::of(&request, &crate::copy::again::policy(&request.options)), expected) {
                (Ok(plan), Some(wanted)) => {
                    assert_eq!((plan.near, plan.host), wanted, "{from} {to} {dry_run}");
                    let ask = plan.ask();
                    assert_eq!(ask.role, plan.near.other());
                    assert_eq!(ask.sources.is_empty(), ask.role == Sink);
                    assert_eq!(ask.destination.is_some(), ask.role == Sink);
                }
                (Err(refused), None) => assert_eq!(refused.kind, ErrorKind::Usage),
                (plan, _) => panic!("{from} {to} {dry_run}: {}", plan.is_ok()),
            }
        }
    }
}
