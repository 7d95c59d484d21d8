//! The addresses of this host, and which device leads where: what the kernel says over rtnetlink.
//!
//! In: nothing, or an address. Out: [`Address`]es that others may reach, [`Route`]s.
//! Invariants: no privilege is needed and nothing is changed; where the kernel does not answer (a sandbox),
//! there is nothing, and whoever asked goes on with the address that it knows.
//! Left out: changes while a session runs; several next hops of one route (the kernel spreads connections
//! over them).

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

/// Most addresses of a host that are looked at.
const ADDRESSES_MAX: usize = 64;
/// Longest answer that is read at once, bytes; the kernel's are at most half of it.
const ANSWER_LEN_MAX: usize = 64 * 1024;
/// Most answers to one question.
const ANSWERS_MAX: usize = 64;
/// The kernel answers at once, or something is in its way.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

/// No device is faster, Mbit/s.
const MBIT_MAX: u64 = 10_000_000;

// Of linux/netlink.h, rtnetlink.h, if_addr.h and if.h.
const AF_NETLINK: i32 = 16;
const HEAD_LEN: usize = 16;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const IFINFO_LEN: usize = 16;
const IFADDR_LEN: usize = 8;
const RTMSG_LEN: usize = 12;
const IFLA_IFNAME: u16 = 3;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_PREFSRC: u16 = 7;
const RTN_UNICAST: u8 = 1;
const RT_SCOPE_LINK: u8 = 253;
/// Up, and with a carrier. (`IFF_RUNNING` follows the carrier only after up to a second.)
const IFF_UP_LOWER_UP: u32 = 0x1_0001;
const IFF_LOOPBACK: u32 = 8;
/// Deprecated, not yet known to be the only one, or known not to be.
const IFA_F_UNFIT: u32 = 0x20 | 0x40 | 0x08;

/// An address of this host that others may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// The kernel's number of the device; never 0.
    pub device: u32,
    pub ip: IpAddr,
}

/// How packets leave for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub device: u32,
    /// The address that they leave from.
    pub from: Option<IpAddr>,
}

/// The addresses of devices that are up and have a carrier, without those that only this host or its
/// neighbours know.
pub fn addresses() -> Vec<Address> {
    ask_addresses().unwrap_or_default()
}

fn ask_addresses() -> io::Result<Vec<Address>> {
    let mut up = BTreeSet::new();
    ask(RTM_GETLINK, NLM_F_DUMP, &[0; IFINFO_LEN], RTM_NEWLINK, |info| {
        if let (Some(index), Some(flags)) = (u32_at(info, 4), u32_at(info, 8))
            && flags & IFF_UP_LOWER_UP == IFF_UP_LOWER_UP
            && flags & IFF_LOOPBACK == 0
        {
            up.insert(index);
        }
    })?;
    let mut found = Vec::new();
    ask(RTM_GETADDR, NLM_F_DUMP, &[0; IFADDR_LEN], RTM_NEWADDR, |info| {
        let (Some(&[_, _, flags, scope]), Some(device)) = (info.first_chunk(), u32_at(info, 4)) else {
            return;
        };
        let attributes = info.get(IFADDR_LEN..).unwrap_or_default();
        let flags = attribute(attributes, IFA_FLAGS).and_then(|f| u32_at(f, 0)).unwrap_or(flags.into());
        // Of a point-to-point device the first is the other end's.
        let ip =
            attribute(attributes, IFA_LOCAL).or_else(|| attribute(attributes, IFA_ADDRESS)).and_then(address);
        if let Some(ip) = ip.filter(|ip| is_global(*ip))
            && scope < RT_SCOPE_LINK
            && flags & IFA_F_UNFIT == 0
            && up.contains(&device)
            && found.len() < ADDRESSES_MAX
        {
            found.push(Address { device, ip });
        }
    })?;
    Ok(found)
}

/// Whether others than this host and its neighbours can know `ip`.
pub fn is_global(ip: IpAddr) -> bool {
    !ip.is_loopback()
        && !ip.is_unspecified()
        && !ip.is_multicast()
        && match ip {
            IpAddr::V4(ip) => !ip.is_link_local() && !ip.is_broadcast(),
            IpAddr::V6(ip) => !ip.is_unicast_link_local() && ip.to_ipv4_mapped().is_none(),
        }
}

/// How packets leave for `to`, those that are sent from `from` if it is named. `None`: they do not, or `to`
/// is this host, or the kernel does not say.
pub fn route(to: IpAddr, from: Option<IpAddr>) -> Option<Route> {
    let bytes = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let (family, bits) = if to.is_ipv4() { (2, 32) } else { (10, 128) };
    let mut question = vec![0; RTMSG_LEN];
    question[..3].copy_from_slice(&[family, bits, if from.is_some() { bits } else { 0 }]);
    for (kind, ip) in [(RTA_DST, Some(to)), (RTA_SRC, from)] {
        if let Some(ip) = ip {
            let ip = bytes(ip);
            question.extend((ip.len() as u16 + 4).to_ne_bytes());
            question.extend(kind.to_ne_bytes());
            question.extend(ip);
        }
    }
    let mut found = None;
    ask(RTM_GETROUTE, 0, &question, RTM_NEWROUTE, |info| {
        let attributes = info.get(RTMSG_LEN..).unwrap_or_default();
        let device = attribute(attributes, RTA_OIF).and_then(|oif| u32_at(oif, 0));
        if let (Some(&RTN_UNICAST), Some(device)) = (info.get(7), device) {
            found =
                Some(Route { device, from: from.or(attribute(attributes, RTA_PREFSRC).and_then(address)) });
        }
    })
    .ok()?;
    found
}

/// The rate of the device by which packets leave for `to`, bytes per second. `None`: it says none (tunnels,
/// virtual devices), or `to` is this host.
pub fn device_rate(to: IpAddr) -> Option<u64> {
    let device = route(to, None)?.device;
    let mut name = None;
    ask(RTM_GETLINK, NLM_F_DUMP, &[0; IFINFO_LEN], RTM_NEWLINK, |info| {
        if u32_at(info, 4) == Some(device) {
            let text = attribute(info.get(IFINFO_LEN..).unwrap_or_default(), IFLA_IFNAME);
            name =
                text.and_then(|text| std::str::from_utf8(text.strip_suffix(&[0])?).ok().map(str::to_owned));
        }
    })
    .ok()?;
    rate_of(Path::new("/sys/class/net"), &name?, device)
}

/// What `root`, which is `/sys/class/net` but in tests, says of a device.
fn rate_of(root: &Path, name: &str, device: u32) -> Option<u64> {
    let dir = root.join(name);
    let number = |file: &str| fs::read_to_string(dir.join(file)).ok()?.trim().parse::<u64>().ok();
    // In a namespace that has no view of its own it may be another's device of that name; and a tunnel's
    // speed is made up.
    if number("ifindex") != Some(device.into()) || dir.join("tun_flags").exists() {
        return None;
    }
    // Mbit/s; none and all ones are what drivers say that do not know.
    number("speed").filter(|mbit| (1..MBIT_MAX).contains(mbit)).map(|mbit| mbit * 125_000)
}

/// Asks the kernel; `hear` gets the body of each answer of this `kind`.
fn ask(question: u16, flags: u16, body: &[u8], kind: u16, mut hear: impl FnMut(&[u8])) -> io::Result<()> {
    let mut socket = Socket::new(Domain::from(AF_NETLINK), Type::DGRAM, Some(Protocol::from(0)))?;
    socket.set_read_timeout(Some(ANSWER_WAIT))?;
    let mut message = ((HEAD_LEN + body.len()) as u32).to_ne_bytes().to_vec();
    message.extend(question.to_ne_bytes());
    message.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    // Sequence and port: there is one question on this socket.
    message.extend([0; 8]);
    message.extend(body);
    socket.send(&message)?;
    let mut buffer = vec![0; ANSWER_LEN_MAX];
    for _ in 0..ANSWERS_MAX {
        let len = socket.read(&mut buffer)?;
        let mut rest = &buffer[..len];
        while let (Some(len), Some(&[a, b])) = (u32_at(rest, 0), rest.get(4..).and_then(<[u8]>::first_chunk))
        {
            let len = len as usize;
            let Some(info) = rest.get(HEAD_LEN..len) else { break };
            match u16::from_ne_bytes([a, b]) {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR => {
                    let errno = u32_at(info, 0).map_or(0, |errno| errno as i32);
                    return Err(io::Error::from_raw_os_error(errno.saturating_neg()));
                }
                is if is == kind => hear(info),
                _ => {}
            }
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        if flags & NLM_F_DUMP == 0 {
            return Ok(());
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "an answer without end"))
}

/// The value of the first attribute of this kind.
fn attribute(mut rest: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let (&[a, b, c, d], _) = rest.split_first_chunk()?;
        let len = usize::from(u16::from_ne_bytes([a, b]));
        let value = rest.get(4..len)?;
        if u16::from_ne_bytes([c, d]) == kind {
            return Some(value);
        }
        rest = rest.get(len.next_multiple_of(4)..)?;
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    v4().or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Goal: what the kernel says here agrees with what its sockets do.
    /// Method: a UDP socket that is connected leaves from the address that the route names; this host's own
    /// addresses and loopback are no routes.
    #[test]
    fn routes_are_the_kernels() {
        assert!(ask_addresses().is_ok(), "it answers");
        for own in addresses() {
            assert!(is_global(own.ip) && own.device > 0, "{own:?}");
            assert_eq!(route(own.ip, None), None, "{own:?} is this host");
        }
        assert_eq!(route(ip("127.0.0.1"), None), None);
        for to in ["192.0.2.1", "2001:db8::1"].map(ip) {
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let leaves = UdpSocket::bind(any).ok().filter(|socket| socket.connect((to, 9)).is_ok());
            let from = leaves.and_then(|socket| socket.local_addr().ok()).map(|addr| addr.ip());
            let route = route(to, None);
            assert_eq!(route.is_some(), from.is_some(), "{to}");
            if let Some(named) = route.and_then(|route| route.from) {
                assert_eq!(Some(named), from, "{to}");
            }
        }
    }

    /// Goal: a device's rate is what it says, in bytes; what is unknown, made up or another device's is none.
    #[test]
    fn rates_are_those_of_the_device() {
        let root = tempfile::tempdir().unwrap();
        let device = |name: &str, files: &[(&str, &str)]| {
            let dir = root.path().join(name);
            fs::create_dir(&dir).unwrap();
            files.iter().for_each(|(file, text)| fs::write(dir.join(file), text).unwrap());
        };
        device("eth0", &[("ifindex", "2\n"), ("speed", "25000\n")]);
        device("eth1", &[("ifindex", "3\n"), ("speed", "-1\n")]);
        device("eth2", &[("ifindex", "4\n"), ("speed", "4294967295\n")]);
        device("tun0", &[("ifindex", "5\n"), ("speed", "10\n"), ("tun_flags", "0x1\n")]);
        let rate = |name, index| rate_of(root.path(), name, index);
        assert_eq!(rate("eth0", 2), Some(3_125_000_000));
        assert_eq!([rate("eth0", 3), rate("eth1", 3), rate("eth2", 4), rate("tun0", 5)], [None; 4]);
        assert_eq!([rate("nonesuch", 2), device_rate(ip("127.0.0.1"))], [None; 2]);
    }

    /// Goal: only addresses that mean this host elsewhere are told to others.
    #[test]
    fn addresses_of_neighbours_are_not_global() {
        for good in ["10.0.0.1", "192.0.2.1", "172.17.0.1", "2001:db8::1", "fd00::1"] {
            assert!(is_global(ip(good)), "{good}");
        }
        for bad in [
            "127.0.0.1",
            "::1",
            "0.0.0.0",
            "::",
            "169.254.1.1",
            "fe80::1",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
            "::ffff:10.0.0.1",
        ] {
            assert!(!is_global(ip(bad)), "{bad}");
        }
    }

    /// Goal: attributes that lie about their length end the search.
    #[test]
    fn attributes_are_bounded() {
        let one =
            |len: u16, kind: u16, value: &[u8]| [&len.to_ne_bytes(), &kind.to_ne_bytes(), value].concat();
        let list = [one(5, 1, &[7, 0, 0, 0]), one(8, 2, &[1, 2, 3, 4])].concat();
        assert_eq!(attribute(&list, 1), Some(&[7][..]));
        assert_eq!(attribute(&list, 2).and_then(address), Some(ip("1.2.3.4")));
        assert_eq!(attribute(&list, 3), None);
        for len in [0, 3, 9, u16::MAX] {
            assert_eq!(attribute(&one(len, 1, &[0; 4]), 2), None, "{len}");
        }
        assert_eq!(attribute(&list[..10], 2), None);
    }
}
