//! Walks of FTP servers that say one thing here and another there: whatever they say, each entry arrives or
//! is told.

use std::path::Path;

use crate::support::liar::{Liar, Lies};
use crate::support::run::Haul;
use crate::support::{Room, read};

const ITSELF: &str = "drwxr-xr-x   2 0        0            4096 Nov 25  2019 .\r\n";

/// `haul cp --json -r --patience=2s URL SINK`.
fn cp(liar: &Liar, sink: &Path) -> Haul {
    Haul::cp(["-r", "--patience=2s"]).args([liar.url("/d/")]).args([sink])
}

fn good() -> Lies {
    Lies::default().file("/d/good", b"good")
}

/// Goal: what is listed as a file and then told to be a directory is walked, with all that is in it.
/// Method: by MLSD without a size, by LIST with a size that SIZE does not tell.
#[test]
fn what_is_told_to_be_a_directory_is_walked() {
    let has = || good().file("/d/sub/inside", b"inside").file("/d/sub/more/deep", b"deep");
    let by_mlsd = "type=cdir; .\r\ntype=file;size=4;modify=20200102030405; good\r\ntype=file; sub\r\n";
    let one = "-rw-r--r--   1 0        0               4 Nov 25  2019 ";
    let by_list = |names: &[&str]| -> Vec<u8> {
        let lines = names.iter().map(|name| format!("{one}{name}\r\n"));
        [ITSELF.to_owned()].into_iter().chain(lines).collect::<String>().into_bytes()
    };
    let listed = has().list(b"").lists("LIST -a", "/d", &by_list(&["good", "sub"]));
    let listed = listed.lists("LIST -a", "/d/sub", &by_list(&["inside", "more"]));
    let listed = listed.lists("LIST -a", "/d/sub/more", &by_list(&["deep"]));
    for liar in [has().lists("MLSD", "/d", by_mlsd.as_bytes()).start(), listed.start()] {
        let room = Room::new();
        let sink = room.dir("sink");
        cp(&liar, &sink).run().sane().exits(0);
        for (path, content) in [("good", "good"), ("sub/inside", "inside"), ("sub/more/deep", "deep")] {
            assert_eq!(read(sink.join(path)), content.as_bytes(), "{path}");
        }
    }
}
