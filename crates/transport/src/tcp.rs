//! What the kernel says of TCP connections, and what it lets us set.
//!
//! In: sockets, the host's own settings below `/proc/sys`. Out: a [`TcpSample`] of a connection, the
//! [`HostLimits`] of this host, and the names of the congestion controls that this process may use.
//!
//! Older kernels say less: what is missing is `None`, never zero. Nothing that is set here can make a
//! connection fail: who asks for more than the kernel allows is told so and goes on with what there is.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketType};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::Connection;
use haul_base::errno;
use haul_base::sys;

/// Room for the kernel's structure, bytes. It grew from 104 to some 250 and goes on growing; what lies behind
/// is not asked for.
const INFO_LEN: usize = 256;
/// Most names of congestion controls that are looked at; kernels have about a dozen.
const CONTROLS_MAX: usize = 64;
/// Longest name of a congestion control, bytes: the kernel's own limit, less its end.
pub const CONTROL_LEN_MAX: usize = 15;

/// A TCP connection at one moment. Counts are since it was opened. `None`: this kernel does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpSample {
    /// Smoothed round-trip time and its variation.
    pub rtt: Duration,
    pub rtt_var: Duration,
    /// The shortest round trip of late (some kernels: of the last five minutes).
    pub min_rtt: Option<Duration>,
    /// What was lately acknowledged, bytes per second.
    pub delivery_rate: Option<u64>,
    /// The last such measurement was held down by us: there was not enough to send.
    pub app_limited: bool,
    /// Segments that may be under way, and bytes in each.
    pub cwnd: u32,
    pub mss: u32,
    /// Segments that are under way, and those that were sent again in all.
    pub unacked: u32,
    pub retrans: u32,
    pub bytes_retrans: Option<u64>,
    pub bytes_sent: Option<u64>,
    pub bytes_acked: Option<u64>,
    pub bytes_received: Option<u64>,
    /// Segments that the other end is known to have, in whatever order; wraps.
    pub delivered: Option<u32>,
    /// Bytes in the send buffer that were never sent.
    pub notsent: Option<u32>,
    /// Time in which there was something to send; of that, time held up by the receiver's window, and by our
    /// send buffer.
    pub busy: Option<Duration>,
    pub rwnd_limited: Option<Duration>,
    pub sndbuf_limited: Option<Duration>,
    /// By how many segments others were overtaken at most (3 at the start), and how often that happened.
    pub reordering: u32,
    pub reord_seen: Option<u32>,
    /// Largest packet of the path, bytes.
    pub pmtu: u32,
    /// Bytes that the receiver's window allows.
    pub snd_wnd: Option<u32>,
}

impl TcpSample {
    /// Bytes that may be under way by the congestion window.
    pub fn cwnd_bytes(&self) -> u64 {
        u64::from(self.cwnd) * u64::from(self.mss)
    }

    /// Reads what the kernel filled in. `None`: too little even for the oldest kernel that is supported.
    fn parse(info: &[u8]) -> Option<TcpSample> {
        // Offsets of `struct tcp_info` in linux/tcp.h: fields are only ever added at its end.
        let u32_at = |at: usize| Some(u32::from_ne_bytes(info.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_ne_bytes(info.get(at..at + 8)?.try_into().ok()?));
        let micros = |value: u32| Duration::from_micros(u64::from(value));
        let micros64 = |value: u64| Duration::from_micros(value);
        Some(TcpSample {
            app_limited: info.get(7)? & 1 == 1,
            mss: u32_at(16)?,
            unacked: u32_at(24)?,
            pmtu: u32_at(60)?,
            rtt: micros(u32_at(68)?),
            rtt_var: micros(u32_at(72)?),
            cwnd: u32_at(80)?,
            reordering: u32_at(88)?,
            retrans: u32_at(100)?,
            bytes_acked: u64_at(120),
            bytes_received: u64_at(128),
            notsent: u32_at(144),
            // All ones: no round trip was measured yet.
            min_rtt: u32_at(148).filter(|rtt| *rtt != u32::MAX).map(micros),
            delivery_rate: u64_at(160),
            busy: u64_at(168).map(micros64),
            rwnd_limited: u64_at(176).map(micros64),
            sndbuf_limited: u64_at(184).map(micros64),
            delivered: u32_at(192),
            bytes_sent: u64_at(200),
            bytes_retrans: u64_at(208),
            reord_seen: u32_at(220),
            snd_wnd: u32_at(228),
        })
    }
}

/// Asks the kernel about a connection.
///
/// # Errors
/// If this is no TCP socket. A connection that is over can still be asked.
pub fn sample(socket: impl AsFd) -> io::Result<TcpSample> {
    let mut info = [0; INFO_LEN];
    let len = sys::tcp_info(socket, &mut info)?;
    TcpSample::parse(&info[..len])
        .ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, format!("TCP_INFO of {len} bytes only")))
}

/// What this host allows a connection. `None`: it does not say (in a container, say).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostLimits {
    /// Largest receive and send buffer that the kernel grows by itself, bytes (`net.ipv4.tcp_rmem`,
    /// `tcp_wmem`).
    pub rmem_auto: Option<u64>,
    pub wmem_auto: Option<u64>,
    /// Largest buffers that a program can fix, bytes, as the kernel counts them: twice `net.core.rmem_max`
    /// and `wmem_max`.
    pub rmem_fixed: Option<u64>,
    pub wmem_fixed: Option<u64>,
}

impl HostLimits {
    /// Reads them from below `root`, which is `/proc/sys/net` but in tests.
    pub fn read(root: &Path) -> HostLimits {
        let number = |text: &str| text.parse::<u64>().ok();
        let last = |name: &str| read_words(&root.join(name)).last().and_then(|word| number(word));
        let doubled = |name: &str| last(name).map(|bytes| bytes.saturating_mul(2));
        HostLimits {
            rmem_auto: last("ipv4/tcp_rmem"),
            wmem_auto: last("ipv4/tcp_wmem"),
            rmem_fixed: doubled("core/rmem_max"),
            wmem_fixed: doubled("core/wmem_max"),
        }
    }

    /// Those of this host.
    pub fn here() -> HostLimits {
        HostLimits::read(Path::new("/proc/sys/net"))
    }

    /// The send buffer to fix for `bytes` under way; `None`: the kernel's own growth does as well or better.
    pub fn fixed_send(&self, bytes: u64) -> Option<u64> {
        fixed(bytes, self.wmem_auto, self.wmem_fixed)
    }

    /// The receive buffer to fix, likewise.
    pub fn fixed_receive(&self, bytes: u64) -> Option<u64> {
        fixed(bytes, self.rmem_auto, self.rmem_fixed)
    }
}

/// A fixed buffer switches the kernel's own growth off, so it must be worth it. Half of a buffer may be
/// overhead.
fn fixed(bytes: u64, auto: Option<u64>, fixed: Option<u64>) -> Option<u64> {
    let (auto, fixed) = (auto?, fixed?);
    let want = bytes.saturating_mul(2);
    (want > auto && fixed > auto).then(|| want.min(fixed))
}

/// Fixes the send buffer of a connection at `bytes` as the kernel counts them, and says what it has now: the
/// kernel gives no more than its limit.
///
/// # Errors
/// The system's answer.
pub fn fix_send(socket: impl AsFd, bytes: u64) -> io::Result<u64> {
    // The kernel doubles what it is given.
    let half = usize::try_from(bytes / 2).unwrap_or(usize::MAX).min(i32::MAX as usize);
    sockopt::set_socket_send_buffer_size(&socket, half)?;
    Ok(sockopt::socket_send_buffer_size(&socket)? as u64)
}

/// What a connection over a long path holds of data that was never sent, bytes. The kernel's buffer grows to
/// twice what is under way, and what lies there is bound to this stream: the last to end would be one that
/// crawls, with all that it had taken. A sender is woken when half of this is left, 1.7 ms of 10 Gbit/s.
const UNSENT_MAX: u32 = 4 << 20;

/// Keeps what waits to be sent where any stream can take it. What cannot be set stays.
pub fn bound_unsent(socket: &TcpStream) {
    let _ = SockRef::from(socket).set_tcp_notsent_lowat(UNSENT_MAX);
}

/// Fixes the receive buffer, likewise. Has its full effect only before the connection is made: on the socket
/// that will connect, or on the one that listens.
///
/// # Errors
/// The system's answer.
pub fn fix_receive(socket: impl AsFd, bytes: u64) -> io::Result<()> {
    let half = usize::try_from(bytes / 2).unwrap_or(usize::MAX).min(i32::MAX as usize);
    Ok(sockopt::set_socket_recv_buffer_size(socket, half)?)
}

/// Fixes the receive buffer of a connection that is up at `bytes` as the kernel counts them, lets the window
/// use it, and says what there is now: the kernel gives no more than its limit. (A window that is fixed after
/// the connection was made stays as it began, but for the second step; its scale always has room for the
/// limit.)
///
/// # Errors
/// The system's answer.
pub fn widen_receive(socket: impl AsFd, bytes: u64) -> io::Result<u64> {
    fix_receive(&socket, bytes)?;
    let given = sockopt::socket_recv_buffer_size(&socket)? as u64;
    sys::set_window_clamp(&socket, given)?;
    Ok(given)
}

/// Dials `addr`, from `local` if that is named. `window`: bytes under way that the receive buffer shall hold,
/// which must be fixed before.
///
/// # Errors
/// The system's answer, and a time-out.
pub fn connect(
    addr: &SocketAddr,
    local: Option<IpAddr>,
    window: Option<u64>,
    wait: Duration,
) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(*addr), Type::STREAM, Some(Protocol::TCP))?;
    if let Some(window) = window {
        fix_receive(&socket, window.saturating_mul(2))?;
    }
    if let Some(local) = local {
        socket.bind(&SocketAddr::new(local, 0).into())?;
    }
    socket.connect_timeout(&(*addr).into(), wait)?;
    Ok(socket.into())
}

/// The congestion controls that this process may use, in the kernel's order.
///
/// That is those of `tcp_allowed_congestion_control`, and all that are loaded for who is privileged: each is
/// tried on a socket that is never connected.
pub fn controls() -> Vec<String> {
    let root = Path::new("/proc/sys/net/ipv4");
    let mut names = read_words(&root.join("tcp_available_congestion_control"));
    for name in read_words(&root.join("tcp_allowed_congestion_control")) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let Ok(socket) = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None) else {
        return Vec::new();
    };
    names.retain(|name| sockopt::set_tcp_congestion(&socket, name).is_ok());
    names
}

/// The congestion control of a connection.
///
/// # Errors
/// The system's answer.
pub fn control(socket: impl AsFd) -> io::Result<String> {
    Ok(sockopt::tcp_congestion(socket)?)
}

/// Sets the congestion control of a connection, at any time of its life; it holds for what this end sends.
///
/// # Errors
/// It is not there, or not allowed; the text names those that are.
pub fn set_control(socket: impl AsFd, name: &str) -> io::Result<()> {
    sockopt::set_tcp_congestion(socket, name).map_err(|error| {
        let can = controls().join(", ");
        let text = format!(
            "congestion control '{name}' cannot be used here ({}); possible are: {can}",
            errno::text(error)
        );
        io::Error::new(io::ErrorKind::InvalidInput, text)
    })
}

/// Whether this process may use the congestion control `name`.
///
/// # Errors
/// It may not; the text names those that it may.
pub fn usable(name: &str) -> io::Result<()> {
    set_control(rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?, name)
}

impl Connection for TcpStream {
    fn is_left(&self) -> bool {
        let mut fds = [PollFd::new(self, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok() && !fds[0].revents().is_empty()
    }
    fn ends(&self) -> Option<[SocketAddr; 2]> {
        Some([self.local_addr().ok()?, self.peer_addr().ok()?])
    }
    fn sample(&self) -> Option<TcpSample> {
        sample(self).ok()
    }
    fn control(&self) -> Option<String> {
        control(self).ok()
    }
    fn controls(&self) -> Vec<String> {
        controls()
    }
    fn set_control(&self, name: &str) -> io::Result<()> {
        set_control(self, name)
    }
    fn bound_unsent(&self) {
        bound_unsent(self);
    }
    fn fix_send(&self, bytes: u64) -> io::Result<u64> {
        fix_send(self, bytes)
    }
    fn widen_receive(&self, bytes: u64) -> io::Result<u64> {
        widen_receive(self, bytes)
    }
    fn receive_buffer(&self) -> Option<u64> {
        sockopt::socket_recv_buffer_size(self).ok().map(|bytes| bytes as u64)
    }
}

fn read_words(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().take(CONTROLS_MAX).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    /// Goal: what is read is what happened on the connection, at both ends.
    /// Method: 8 MiB over loopback; every field that has a known value then, or a bound.
    #[test]
    fn a_connection_says_what_it_did() {
        const LEN: u64 = 8 << 20;
        let (mut near, mut far) = pair();
        let reader = thread::spawn(move || {
            let n = io::copy(&mut (&mut far).take(LEN), &mut io::sink()).unwrap();
            far.write_all(b"!").unwrap();
            (n, far)
        });
        for _ in 0..LEN >> 20 {
            near.write_all(&[7; 1 << 20]).unwrap();
        }
        near.read_exact(&mut [0]).unwrap();
        let (n, far) = reader.join().unwrap();
        assert_eq!(n, LEN);
        let (sent, received) = (sample(&near).unwrap(), sample(&far).unwrap());
        // The answer came after everything was read, so all but its own acknowledgement is over.
        assert!((LEN..=LEN + 1).contains(&sent.bytes_acked.unwrap()), "{sent:?}");
        assert!(sent.bytes_sent.unwrap() >= LEN && sent.bytes_received == Some(1), "{sent:?}");
        assert_eq!((received.bytes_received, sent.unacked, sent.notsent), (Some(LEN), 0, Some(0)));
        assert!(sent.cwnd > 1 && sent.mss > 500 && sent.pmtu > sent.mss, "{sent:?}");
        assert!(sent.rtt > Duration::ZERO && sent.min_rtt.unwrap() > Duration::ZERO, "{sent:?}");
        assert!(sent.min_rtt.unwrap() < Duration::from_secs(1), "{sent:?}");
        // Time is counted in the kernel's ticks, of which this may have taken none.
        assert!(sent.delivery_rate.unwrap() > 0 && sent.busy.is_some(), "{sent:?}");
        assert!(sent.busy.unwrap() >= sent.rwnd_limited.unwrap() && sent.snd_wnd.unwrap() > 0, "{sent:?}");
        assert_eq!(sent.cwnd_bytes(), u64::from(sent.cwnd) * u64::from(sent.mss));
        assert!(sample(fs::File::open("/proc/self/stat").unwrap()).is_err());
    }

    /// Goal: a receiver that does not read is seen at the sender as the limit.
    #[test]
    fn a_receiver_that_does_not_read_is_seen() {
        let (mut near, far) = pair();
        near.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        while near.write_all(&[0; 1 << 20]).is_ok() {}
        let sent = sample(&near).unwrap();
        assert!(sent.rwnd_limited.unwrap() > Duration::from_millis(100), "{sent:?}");
        assert!(sent.notsent.unwrap() > 0, "{sent:?}");
        drop(far);
    }

    /// Goal: an older kernel, which fills less, is understood; what it does not fill is `None`.
    /// Method: the same bytes cut at the ends of the structure in Linux 3.x, 4.6, 4.9, 4.18 and 5.4.
    #[test]
    fn short_answers_have_gaps_not_zeroes() {
        let info: Vec<u8> = (0..INFO_LEN).map(|i| i as u8).collect();
        assert!(TcpSample::parse(&info[..103]).is_none() && TcpSample::parse(&[]).is_none());
        let oldest = TcpSample::parse(&info[..104]).unwrap();
        assert_eq!((oldest.bytes_acked, oldest.min_rtt, oldest.snd_wnd), (None, None, None));
        assert_eq!(oldest.rtt, Duration::from_micros(u64::from(u32::from_ne_bytes([68, 69, 70, 71]))));
        let with_bytes = TcpSample::parse(&info[..136]).unwrap();
        assert!(with_bytes.bytes_received.is_some() && with_bytes.notsent.is_none());
        let with_rate = TcpSample::parse(&info[..168]).unwrap();
        assert!(with_rate.delivery_rate.is_some() && with_rate.busy.is_none());
        let with_limits = TcpSample::parse(&info[..192]).unwrap();
        assert!(with_limits.sndbuf_limited.is_some() && with_limits.bytes_sent.is_none());
        let cut_within = TcpSample::parse(&info[..230]).unwrap();
        assert!(cut_within.reord_seen.is_some() && cut_within.snd_wnd.is_none());
    }

    /// Goal: limits are read as they stand there; a host that does not say them has none.
    #[test]
    fn limits_are_read() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(HostLimits::read(dir.path()), HostLimits::default());
        for (name, text) in [
            ("ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
            ("ipv4/tcp_wmem", "4096\t16384\t4194304\n"),
            ("core/rmem_max", "212992\n"),
            ("core/wmem_max", "junk\n"),
        ] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let limits = HostLimits::read(dir.path());
        let expected = HostLimits {
            rmem_auto: Some(6 << 20),
            wmem_auto: Some(4 << 20),
            rmem_fixed: Some(425_984),
            wmem_fixed: None,
        };
        assert_eq!(limits, expected);
        assert!(HostLimits::here().rmem_auto.is_some());
    }

    /// Goal: a buffer is fixed only where more is needed than the kernel grows to, and more can be had.
    #[test]
    fn buffers_are_fixed_only_where_that_gains() {
        let host = |auto, fixed| HostLimits {
            wmem_auto: Some(auto),
            wmem_fixed: Some(fixed),
            rmem_auto: Some(auto),
            rmem_fixed: Some(fixed),
        };
        let roomy = host(4 << 20, 64 << 20);
        assert_eq!(roomy.fixed_send(1 << 20), None);
        assert_eq!(roomy.fixed_send(2 << 20), None);
        assert_eq!(roomy.fixed_send(8 << 20), Some(16 << 20));
        assert_eq!(roomy.fixed_receive(u64::MAX), Some(64 << 20));
        assert_eq!(host(6 << 20, 425_984).fixed_receive(160 << 20), None);
        assert_eq!(HostLimits::default().fixed_send(160 << 20), None);
    }

    /// Goal: a receive buffer that is widened while the connection is up is one that the peer can fill.
    /// Method: nobody reads; a window that is fixed alone stays at what it began with, which is less.
    #[test]
    fn a_window_can_be_widened_later() {
        let (near, far) = pair();
        let given = widen_receive(&far, 400_000).unwrap();
        assert!((100_000..=400_000).contains(&given), "{given}");
        near.set_nonblocking(true).unwrap();
        let filled = || {
            while (&near).write(&[0; 4096]).is_ok() {}
            sample(&near).unwrap().bytes_acked.unwrap() > given / 3
        };
        let start = std::time::Instant::now();
        while !filled() {
            assert!(start.elapsed() < Duration::from_secs(20), "{:?}", sample(&near));
            thread::yield_now();
        }
    }

    /// Goal: buffers and congestion control can be set, also while data flows; what cannot be set says what
    /// can.
    #[test]
    fn a_connection_can_be_set() {
        let (mut near, mut far) = pair();
        assert_eq!(fix_send(&near, 300_000).unwrap(), 300_000);
        fix_receive(&far, 200_000).unwrap();
        assert_eq!(sockopt::socket_send_buffer_size(&near).unwrap(), 300_000);
        assert_eq!(sockopt::socket_recv_buffer_size(&far).unwrap(), 200_000);
        let names = controls();
        assert!(names.contains(&"reno".to_owned()), "every kernel has it: {names:?}");
        for name in &names {
            set_control(&near, name).unwrap();
            assert_eq!(control(&near).unwrap(), *name);
            near.write_all(b"through").unwrap();
            let mut got = [0; 7];
            far.read_exact(&mut got).unwrap();
            assert_eq!(&got, b"through");
        }
        let error = set_control(&near, "nonesuch").unwrap_err().to_string();
        assert!(error.contains("'nonesuch'") && error.contains("reno"), "{error}");
        assert!(set_control(&near, "a name that is much longer than sixteen bytes").is_err());
        assert_eq!(control(&near).unwrap(), *names.last().unwrap());
    }
}
