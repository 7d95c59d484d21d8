//! What is said of a part of a file that is copied (`--range`, `--to`), and what a dry run says of copies in place.

use crate::ranges::Pair;
use crate::support::set_mode;
use crate::support::way::Way;

/// Goal: a list tells of the part that goes into a file, and not how the whole of that file differs from it.
/// Method: a part into a file of another length, mode and time, and into none; lists of dry runs and copies, short, itemized and of
/// names alone, and the events.
#[test]
fn lists_tell_of_the_part() {
    let pair = Pair::new();
    set_mode(&pair.source, 0o640);
    for (stood, letters) in [(true, "f........."), (false, "f+++++++++")] {
        let sink = pair.stands(stood);
        let part = |options: &[&str]| {
            let options = [&["--range=7:3000001", "--to=5"], options].concat();
            let done = Way::Here.plain(&options, &[&pair.source], &sink).run().sane().exits(0);
            String::from_utf8_lossy(&done.stdout).into_owned()
        };
        assert!(part(&["-n"]).contains("(3.00 MB from byte 7 on, to byte 5)"), "{}", part(&["-n"]));
        let line = format!(">{letters} file (3000001 bytes from byte 7 on, to byte 5)\n");
        assert_eq!(part(&["-n", "-i"]), line);
        assert_eq!(part(&["-n", "-i", "-0"]), format!(">{letters} file\0"));
        let events = Way::Here.cp(&["-n", "-v", "--range=7:3000001", "--to=5"], &[&pair.source], &sink);
        let events = events.run().sane().exits(0);
        let events = String::from_utf8_lossy(&events.stdout).into_owned();
        assert!(events.contains(&format!("\"change\":\">{letters}\"")), "{events}");
        assert_eq!(part(&["-i"]), line);
    }
    // All of a file is compared with the part that it is to be.
    let sink = pair.stands(true);
    let run = |options: &[&str]| {
        let run = Way::Here.plain(options, &[&pair.source], &sink).run().sane().exits(0);
        String::from_utf8_lossy(&run.stdout).into_owned()
    };
    assert_eq!(run(&["-i", "--range=24000000:"]), ">f.stp..... file (3 bytes from byte 24000000 on)\n");
}
