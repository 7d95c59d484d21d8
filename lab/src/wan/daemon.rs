//! The process that carries packets: one thread per NIC, and one that answers on the control socket.
//!
//! In: TUN devices at both ends of each NIC's link, requests on a unix socket. Out: packets when they are
//! due, answers. It makes nothing that outlives it but the socket file; the kernel removes the devices with
//! their descriptors, so that it may be killed at any moment.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::lateness::Lateness;
use super::line::{Counts, Line, Nanos, Path};
use super::options::Change;
use super::{netns, tun};

/// Packets per turn and direction: both directions and the control socket get theirs, however busy one of
/// them is.
const BATCH: usize = 16;
/// Longest request, in bytes.
const REQUEST_MAX: u64 = 64 << 10;
/// How long a client of the control socket may take to say or to hear a line.
const CLIENT_PATIENCE: Duration = Duration::from_secs(5);
/// Longest sleep of a thread that has nothing to do.
const IDLE: Nanos = 1_000_000_000;

/// What `up` hands to the daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Config {
    pub namespaces: [String; 2],
    pub devices: Vec<String>,
    pub path: Path,
    pub seed: u64,
    pub socket: std::path::PathBuf,
}

/// Which directions a change is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    Both,
    AToB,
    BToA,
}

/// What can be asked on the control socket, one line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    Set { nic: Option<usize>, way: Way, change: Change },
    Stats { reset: bool },
}

enum Order {
    Set(Way, Change, Sender<Result<[Path; 2], String>>),
    Stats { reset: bool, reply: Sender<[Direction; 2]> },
}

#[derive(Clone)]
struct Direction {
    path: Path,
    counts: Counts,
    lateness: Lateness,
    write_failures: u64,
}

struct Nic {
    orders: Sender<Order>,
    wake: OwnedFd,
}

/// Runs until it is killed. Calls `ready` when packets flow.
///
/// # Errors
/// If a device or the socket cannot be made.
pub fn serve(config: &Config, ready: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut ends: Vec<Vec<OwnedFd>> = Vec::new();
    for namespace in &config.namespaces {
        let open = || config.devices.iter().map(|device| tun::open(device)).collect();
        let opened: std::io::Result<_> = netns::inside(namespace, open)?;
        ends.push(opened.with_context(|| format!("make TUN devices in {namespace}"))?);
    }
    let [b_ends, a_ends] = [ends.pop(), ends.pop()].map(Option::unwrap_or_default);
    let listener = UnixListener::bind(&config.socket)
        .with_context(|| format!("listen on {}", config.socket.display()))?;
    let started = Instant::now();
    let mut nics = Vec::new();
    for (index, (a, b)) in a_ends.into_iter().zip(b_ends).enumerate() {
        let (orders, received) = channel();
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("make an eventfd")?;
        let woken = wake.try_clone().context("duplicate an eventfd")?;
        let lines = [0, 1].map(|way| Line::new(config.path, config.seed + 2 * index as u64 + way));
        let link = Link { ends: [a, b], lines, started, orders: received, woken, failures: [0; 2] };
        let carry = std::thread::Builder::new().name(format!("wan-nic-{index}"));
        carry.spawn(move || link.carry()).context("start a thread")?;
        nics.push(Nic { orders, wake });
    }
    ready()?;
    // A client that went away in between is no reason to end.
    for client in listener.incoming().flatten() {
        let _ = answer(&client, &nics, started);
    }
    bail!("the control socket {} was closed", config.socket.display())
}

fn answer(client: &UnixStream, nics: &[Nic], started: Instant) -> anyhow::Result<()> {
    client.set_read_timeout(Some(CLIENT_PATIENCE))?;
    client.set_write_timeout(Some(CLIENT_PATIENCE))?;
    let mut line = String::new();
    BufReader::new(std::io::Read::take(client, REQUEST_MAX)).read_line(&mut line)?;
    let request = serde_json::from_str(&line).map_err(|error| format!("not understood: {error}"));
    let reply = match request.and_then(|request| obey(request, nics, started)) {
        Ok(value) => json!({ "ok": value }),
        Err(error) => json!({ "error": error }),
    };
    let mut client = client;
    writeln!(client, "{reply}")?;
    Ok(())
}

fn obey(request: Request, nics: &[Nic], started: Instant) -> Result<Value, String> {
    match request {
        Request::Set { nic, way, change } => {
            if nic.is_some_and(|nic| nic >= nics.len()) {
                return Err(format!("there are {} NICs, counted from 0", nics.len()));
            }
            let chosen = nics.iter().enumerate().filter(|(index, _)| nic.is_none_or(|nic| nic == *index));
            let mut paths = Vec::new();
            for (index, nic) in chosen {
                let [a_to_b, b_to_a] = nic.ask(|reply| Order::Set(way, change.clone(), reply))??;
                paths.push(json!({ "nic": index, "a_to_b": a_to_b, "b_to_a": b_to_a }));
            }
            Ok(Value::Array(paths))
        }
        Request::Stats { reset } => {
            let all: Result<Vec<_>, String> =
                nics.iter().map(|nic| nic.ask(|reply| Order::Stats { reset, reply })).collect();
            Ok(report(&all?, started))
        }
    }
}

impl Nic {
    fn ask<T>(&self, order: impl FnOnce(Sender<T>) -> Order) -> Result<T, String> {
        let (reply, answer) = channel();
        self.orders.send(order(reply)).map_err(|_| "the NIC's thread has ended".to_owned())?;
        rustix::io::write(&self.wake, &1u64.to_ne_bytes())
            .map_err(|error| format!("wake a thread: {error}"))?;
        answer.recv_timeout(CLIENT_PATIENCE).map_err(|_| "the NIC's thread does not answer".to_owned())
    }
}

fn report(nics: &[[Direction; 2]], started: Instant) -> Value {
    let mut lateness = Lateness::default();
    let (mut bytes, mut packets, mut drops) = (0, 0, 0);
    for direction in nics.iter().flatten() {
        let counts = &direction.counts;
        lateness.merge(&direction.lateness);
        bytes += counts.bytes;
        packets += counts.packets;
        drops += counts.drops_buffer + counts.drops_loss + counts.drops_down + direction.write_failures;
    }
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let one = |direction: &Direction| {
        json!({
            "path": direction.path,
            "counts": direction.counts,
            "write_failures": direction.write_failures,
            "lateness_us": direction.lateness.summary(),
        })
    };
    let nics: Vec<_> = nics.iter().map(|[a, b]| json!({ "a_to_b": one(a), "b_to_a": one(b) })).collect();
    json!({
        "bytes": bytes,
        "packets": packets,
        "drops": drops,
        "lateness_us": lateness.summary(),
        "cpu_seconds": cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
        "uptime_seconds": started.elapsed().as_secs_f64(),
        "nics": nics,
    })
}

/// Asks the daemon behind `socket`.
///
/// # Errors
/// If nobody listens, or the daemon refuses; the text is its own.
pub fn ask(socket: &std::path::Path, request: &Request) -> anyhow::Result<Value> {
    let mut stream =
        UnixStream::connect(socket).with_context(|| format!("connect to {}", socket.display()))?;
    stream.set_read_timeout(Some(CLIENT_PATIENCE * 2))?;
    let line = serde_json::to_string(request)?;
    writeln!(stream, "{line}").context("ask the daemon")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).context("hear the daemon's answer")?;
    let mut reply: Value = serde_json::from_str(&line).context("read the daemon's answer")?;
    match reply.get("error").and_then(Value::as_str) {
        Some(error) => Err(anyhow!("{error}")),
        None => Ok(reply["ok"].take()),
    }
}

/// One NIC: `ends[0]` at host a, `ends[1]` at host b; `lines[0]` from a to b, `lines[1]` back.
struct Link {
    ends: [OwnedFd; 2],
    lines: [Line; 2],
    started: Instant,
    orders: Receiver<Order>,
    woken: OwnedFd,
    failures: [u64; 2],
}

impl Link {
    fn now(&self) -> Nanos {
        self.started.elapsed().as_nanos() as Nanos
    }

    fn carry(mut self) {
        // Both make it less late and nothing else: without the right to them it goes on.
        if let Err(error) = tun::prefer_this_thread() {
            eprintln!("wan: SCHED_RR was refused ({error}): packets will be later on a busy machine");
        }
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let mut lateness = [Lateness::default(), Lateness::default()];
        loop {
            loop {
                match self.orders.try_recv() {
                    Ok(order) => self.handle(order, &mut lateness),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            let mut more = [Arrivals::Maybe; 2];
            for (way, more) in more.iter_mut().enumerate() {
                *more = self.receive(way);
                self.deliver(way, &mut lateness[way]);
            }
            if more.contains(&Arrivals::Maybe) {
                continue;
            }
            let now = self.now();
            let due = self.lines.iter().filter_map(Line::next_due).min().unwrap_or(now + IDLE);
            if due > now {
                self.sleep((due - now).min(IDLE), more);
            }
        }
    }

    fn receive(&mut self, way: usize) -> Arrivals {
        for _ in 0..BATCH {
            let Some(space) = self.lines[way].space() else { return Arrivals::NoRoom };
            match rustix::io::read(&self.ends[way], space) {
                Ok(0) | Err(Errno::AGAIN | Errno::INTR) => return Arrivals::None,
                // The device is gone, with its namespace for instance: there is nothing left to do for this
                // process, and its descriptor would never let the thread sleep again.
                Err(error) => {
                    eprintln!("wan: read from a TUN device: {error}");
                    std::process::exit(1);
                }
                Ok(len) => {
                    let now = self.now();
                    self.lines[way].offer(len, now);
                }
            }
        }
        Arrivals::Maybe
    }

    fn deliver(&mut self, way: usize, lateness: &mut Lateness) {
        let mut now = self.now();
        for _ in 0..BATCH {
            let Some(due) = self.lines[way].next_due() else { return };
            if due > now {
                now = self.now();
                if due > now {
                    return;
                }
            }
            let packet = self.lines[way].first().expect("what is due is there");
            // A device that is not up yet refuses; the packet is lost, as on a cable without a host.
            if rustix::io::write(&self.ends[1 - way], packet).is_err() {
                self.failures[way] += 1;
            }
            lateness.add(now - due);
            self.lines[way].pop();
        }
    }

    fn sleep(&self, time: Nanos, more: [Arrivals; 2]) {
        let wants =
            |way: usize| if more[way] == Arrivals::NoRoom { PollFlags::empty() } else { PollFlags::IN };
        let mut fds = [
            PollFd::new(&self.ends[0], wants(0)),
            PollFd::new(&self.ends[1], wants(1)),
            PollFd::new(&self.woken, PollFlags::IN),
        ];
        let timeout =
            Timespec { tv_sec: (time / 1_000_000_000) as i64, tv_nsec: (time % 1_000_000_000) as i64 };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => panic!("poll on own descriptors: {error}"),
        }
        if fds[2].revents().contains(PollFlags::IN) {
            let _ = rustix::io::read(self.woken.as_fd(), &mut [0; 8]);
        }
    }

    fn handle(&mut self, order: Order, lateness: &mut [Lateness; 2]) {
        match order {
            Order::Set(way, change, reply) => {
                let now = self.now();
                let mut paths = [*self.lines[0].path(), *self.lines[1].path()];
                for (index, path) in paths.iter_mut().enumerate() {
                    if matches!((way, index), (Way::Both, _) | (Way::AToB, 0) | (Way::BToA, 1)) {
                        *path = change.apply(path);
                    }
                }
                let checked = paths.iter().try_for_each(Path::check);
                if checked.is_ok() {
                    for (line, path) in
                        self.lines.iter_mut().zip(paths).filter(|(line, path)| line.path() != path)
                    {
                        line.change(path, now);
                    }
                }
                // Whoever asked may have gone.
                let _ = reply.send(checked.map(|()| paths));
            }
            Order::Stats { reset, reply } => {
                let all = [0, 1].map(|way| Direction {
                    path: *self.lines[way].path(),
                    counts: self.lines[way].counts,
                    lateness: lateness[way].clone(),
                    write_failures: self.failures[way],
                });
                if reset {
                    *lateness = Default::default();
                    self.failures = [0; 2];
                    self.lines.iter_mut().for_each(|line| line.counts = Counts::default());
                }
                let _ = reply.send(all);
            }
        }
    }
}

/// What a look for packets found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arrivals {
    /// A full batch: there may be more.
    Maybe,
    None,
    /// Memory is full: packets wait in the device.
    NoRoom,
}
