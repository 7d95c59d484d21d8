//! Striped servers, whose data are at other hosts than their commands.

use crate::support::compare::{BELOW, Opts, assert_no_debris, assert_same};
use crate::support::ftpd::contents;
use crate::support::striped::Striped;
use crate::support::{Room, tree};

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
