//! Where a server has its data: at its own address, or at the nodes of a striped one, which may be other
//! hosts.
//!
//! In: what it says of itself (`SPAS`) over the control connection. Out: the hosts that are its nodes, and
//! whether an address that it names is to be used.
//! Invariants: at most [`NODES_MAX`]; none that the server could only have named to do harm: no address of
//! nobody, no private one of a public server, no loopback but its own, no port of a service elsewhere.
//! What this assumes: that whoever speaks over the control connection is the server. Where nothing protects
//! that, whoever could change it on its way could change all that is asked for as well; somebody elsewhere
//! gains nothing by it. And that a node dials from the host at which it listens: one that does not is
//! refused.

use std::net::{IpAddr, SocketAddr};

use haul_gridftp::address::parse_spas;
use haul_gridftp::reply::Reply;

/// Most nodes of one server that are used.
pub(crate) const NODES_MAX: usize = 32;
/// Ports below are those of services.
const PORT_MIN: u16 = 1024;

/// The nodes of one server, as it named them.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    hosts: Vec<IpAddr>,
    /// How many it has; several may be on one host.
    count: usize,
    elsewhere: bool,
}

impl Nodes {
    /// Takes the answer to `SPAS`. One that is not to be believed in any part says nothing. `control`: where
    /// commands go; `local`: this host.
    pub(crate) fn of(reply: &Reply, (control, local): (IpAddr, IpAddr)) -> Nodes {
        let told = parse_spas(reply).unwrap_or_default();
        let all = || told.iter().map(|told| node(*told, control, local));
        let all = match haul_mutant::removed("ftp-nodes-are-all-believed-or-none") {
            true => Some(all().flatten().collect()),
            false => all().collect::<Option<Vec<SocketAddr>>>(),
        };
        let all = all.unwrap_or_default();
        if all.len() > NODES_MAX {
            return Nodes::default();
        }
        let mut hosts: Vec<IpAddr> = all.iter().map(SocketAddr::ip).collect();
        hosts.sort_unstable();
        hosts.dedup();
        Nodes { count: all.len(), elsewhere: hosts.iter().any(|host| *host != control), hosts }
    }

    /// How many it has; 0 where it said nothing.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Some are at other hosts than commands go to.
    pub(crate) fn are_elsewhere(&self) -> bool {
        self.elsewhere
    }

    /// One of them is at this host.
    pub(crate) fn has(&self, host: IpAddr) -> bool {
        self.hosts.contains(&host.to_canonical())
    }

    /// The hosts.
    pub(crate) fn hosts(&self) -> &[IpAddr] {
        &self.hosts
    }
}

/// A node, just where the server says; `None`: it is not to be used.
pub(crate) fn node(told: SocketAddr, control: IpAddr, local: IpAddr) -> Option<SocketAddr> {
    let used = believed(told, control, local, true).ok()?;
    (used.ip() == told.ip().to_canonical()).then_some(used)
}

/// Where `other` is to connect to, by what a server says and where its commands go. `nodes`: data may go to
/// other hosts than commands do.
pub(crate) fn believed(
    told: SocketAddr,
    control: IpAddr,
    other: IpAddr,
    nodes: bool,
) -> Result<SocketAddr, String> {
    let told = SocketAddr::new(told.ip().to_canonical(), told.port());
    let is_private = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.is_private() || ip.is_loopback() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    };
    let is_none = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unspecified() || ip.is_multicast(),
    };
    let is_of_ours = is_private(told.ip()) && !is_private(control);
    let is_harm =
        is_none(told.ip()) || is_of_ours && !haul_mutant::removed("ftp-nodes-are-not-in-our-network");
    let may_differ = nodes && !is_harm;
    let ip = if may_differ { told.ip() } else { control };
    if ip != control && told.port() < PORT_MIN {
        return Err(format!("{told} is the port of a service at another host, and no server is sent there"));
    }
    if ip.is_loopback() && !other.is_loopback() {
        return Err(format!(
            "it listens at {ip}, where the other server cannot reach it; name it by an address that both can"
        ));
    }
    Ok(SocketAddr::new(ip, told.port()))
}

#[cfg(test)]
mod tests {
    use haul_gridftp::address::spas_reply;

    use super::*;

    /// Goal: a server cannot have the other one connect to a host of its choice: in stream mode it is always
    /// the one that its commands go to, and of data nodes no port of a service, no address of nobody.
    /// Method: what servers say against where their commands go.
    #[test]
    fn no_server_is_sent_where_another_wants_it() {
        let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        for (told, control, other, nodes, used) in [
            ("192.0.2.1:5000", "192.0.2.1", "192.0.2.2", false, Some("192.0.2.1:5000")),
            // Behind a gateway, and on purpose.
            ("10.0.0.5:5000", "192.0.2.1", "192.0.2.2", false, Some("192.0.2.1:5000")),
            ("198.51.100.9:25", "192.0.2.1", "192.0.2.2", false, Some("192.0.2.1:25")),
            ("0.0.0.0:5000", "192.0.2.1", "192.0.2.2", true, Some("192.0.2.1:5000")),
            ("10.0.0.5:5000", "192.0.2.1", "192.0.2.2", true, Some("192.0.2.1:5000")),
            ("127.0.0.1:5000", "192.0.2.1", "192.0.2.2", true, Some("192.0.2.1:5000")),
            ("224.0.0.1:5000", "192.0.2.1", "192.0.2.2", true, Some("192.0.2.1:5000")),
            // A data node.
            ("198.51.100.9:5000", "192.0.2.1", "192.0.2.2", true, Some("198.51.100.9:5000")),
            ("10.0.0.5:5000", "10.0.0.1", "10.0.0.2", true, Some("10.0.0.5:5000")),
            ("198.51.100.9:25", "192.0.2.1", "192.0.2.2", true, None),
            // Of its own that is another host's.
            ("127.0.0.1:5000", "127.0.0.1", "192.0.2.2", false, None),
            ("127.0.0.1:5000", "127.0.0.1", "192.0.2.2", true, None),
            ("127.0.0.1:5000", "127.0.0.1", "127.0.0.1", true, Some("127.0.0.1:5000")),
            ("[2001:db8::5]:5000", "2001:db8::1", "2001:db8::2", false, Some("[2001:db8::1]:5000")),
        ] {
            let got = believed(address(told), ip(control), ip(other), nodes);
            assert_eq!(got.ok(), used.map(address), "{told} of {control} for {other}");
        }
    }

    /// Goal: of what a server says of its nodes all is used or nothing, and one whose nodes are elsewhere is
    /// known for that.
    #[test]
    fn nodes_are_all_believed_or_none() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let told = |hosts: &[&str]| {
            let at = |host: &&str| SocketAddr::new(ip(host), 5000);
            let reply = spas_reply(&hosts.iter().map(at).collect::<Vec<_>>()).expect("a reply");
            Nodes::of(&reply, (ip("192.0.2.1"), ip("192.0.2.2")))
        };
        let here = told(&["192.0.2.1", "192.0.2.1"]);
        assert_eq!((here.count(), here.are_elsewhere(), here.hosts()), (2, false, &[ip("192.0.2.1")][..]));
        let other = told(&["198.51.100.1", "198.51.100.2"]);
        assert_eq!((other.count(), other.are_elsewhere()), (2, true));
        assert!(other.has(ip("198.51.100.2")) && !other.has(ip("192.0.2.1")));
        for bad in ["10.0.0.1", "127.0.0.1", "0.0.0.0", "224.0.0.1"] {
            let none = told(&["198.51.100.1", bad]);
            assert_eq!((none.count(), none.hosts()), (0, &[][..]), "{bad}");
        }
        assert_eq!(told(&vec!["192.0.2.1"; NODES_MAX + 1]).count(), 0);
    }
}
