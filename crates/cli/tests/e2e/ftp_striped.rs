//! Striped servers, whose data are at other hosts than their commands.

use crate::support::compare::{BELOW, Opts, assert_no_debris, assert_same};
use crate::support::ftpd::contents;
use crate::support::striped::Striped;
use crate::support::{Room, tree};

/// Length of the large file: four connections, two at each node.
const BIG: usize = 24 << 20;

/// Goal: a tree comes from a striped server whose data nodes are other hosts, and goes there, byte by byte;
/// both nodes have a good part of the large file, each way.
/// Method: a server of Globus with three hosts; what the nodes' devices carried.
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
    for node in 0..2 {
        let (sent, came) = (between[node].0 - before[node].0, after[node].1 - between[node].1);
        assert!(sent > BIG as u64 / 8 && came > BIG as u64 / 8, "node {node}: {sent} sent, {came} came");
    }
}
