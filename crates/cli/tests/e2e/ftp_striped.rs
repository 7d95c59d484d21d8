//! Striped servers, whose data are at other hosts than their commands.

use crate::support::compare::{BELOW, Opts, assert_no_debris, assert_same};
use crate::support::ftpd::{Ftpd, Kind, contents};
use crate::support::run::Haul;
use crate::support::striped::Striped;
use crate::support::{Room, read, tree};

/// Length of the large file: four connections, two at each node.
const BIG: usize = 24 << 20;

/// Goal: a tree comes from a striped server whose data nodes are other hosts, and goes there, byte by byte;
/// by these nodes, and not by the front end.
/// Method: a server of Globus with three hosts; what their devices carried. Which node has which stripe is
/// its own affair: now and then one has both. With nodes of haul's each has its own, see `serve_striped`.
#[test]
fn striped_servers_of_several_hosts_send_and_receive() {
    need!("gridftp", "netns", "unshare", "ss");
    let (striped, room) = (Striped::start(), Room::new());
    let data = room.dir("data");
    tree::plain(&data, 61, 12, BIG);
    let (got, put) = (room.dir("got"), room.dir("put"));
    let before = striped.carried();
    striped.cp().args([striped.url(contents(&data))]).args([&got]).run().sane().exits(0).says("in blocks");
    let between = striped.carried();
    striped
        .cp()
        .args([contents(&data)])
        .args([striped.url(contents(&put))])
        .run()
        .sane()
        .exits(0)
        .says("in blocks");
    let after = striped.carried();
    for copy in [&got, &put] {
        // Its times are whole seconds.
        assert_same(&data, copy, Opts { metadata: false, ..BELOW });
        assert_no_debris(copy);
    }
    let told = format!("{before:?} {between:?} {after:?}");
    let sent: Vec<u64> = (0..3).map(|host| between[host].0 - before[host].0).collect();
    let came: Vec<u64> = (0..3).map(|host| after[host].1 - between[host].1).collect();
    for by in [sent, came] {
        assert!(by[0] < BIG as u64 / 4 && by[1] + by[2] > BIG as u64, "{by:?} of {told}");
    }
}

/// Goal: under the grid both nodes show whose they are before the server says that it begins, and a file goes
/// there and comes back; nobody waits for one of them while another one is waited for.
/// Method: movers of Globus with certificates; a patience that is longer than a test may take.
#[test]
fn each_node_shows_whose_it_is() {
    need!("gridftp");
    let (ftpd, room) = (Ftpd::start(Kind::GridftpGsiStriped), Room::new());
    let content = tree::bytes(&mut fastrand::Rng::with_seed(62), BIG);
    let from = room.file("from", &content);
    // Without anything delegated its front end does not reach its movers.
    for data in ["private", "shown"] {
        let (put, got) = (room.at(&format!("put-{data}")), room.at(&format!("got-{data}")));
        let cp = || {
            Haul::cp(["--patience=1000s", "--data-channel", data])
                .env("X509_CERT_DIR", ftpd.of_grid("authorities"))
                .env("X509_USER_PROXY", ftpd.of_grid("alice"))
        };
        cp().args([&from]).args([ftpd.url(&put)]).run().sane().exits(0);
        cp().args([ftpd.url(&put)]).args([&got]).run().sane().exits(0);
        assert!(read(&put) == content && read(&got) == content, "{data}");
    }
}
