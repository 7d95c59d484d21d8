use std::fs;
use std::path::Path;

use super::*;

/// A file of everything that is needed, and something of all that there is.
const GOOD: &str = r#"
title = "A title"
question = "Why?"
duration = "2m"
rounds = 2
limit = "30s"
networks = ["loopback", "rtt=50ms rate=10Gbit"]
source = { on = "tmpfs" }
sink = { on = "model", spec = "disk", targets = 2 }
ratio = ["other"]

[[workload]]
files = 100
size = "1MiB"
scale = 0.1

[[axis]]
name = "threads"
values = [1, 2, 4]
set = ["streams", "readers"]

[[axis]]
name = "order"
values = ["loose", "none"]

[[competitor]]
peer = "haul"
settings = { durability = "none" }
axes = ["threads", "order"]

[[competitor]]
peer = "haul"
label = "other"

[plot]
kind = "lines"
x = "threads"
y = ["rate", "cpu"]
series = "order"
panels = "network"
log_x = true

[quick]
networks = ["loopback"]
axes = { threads = [1] }
"#;

/// The competitors are two, and the plot must tell them apart.
fn good() -> String {
    GOOD.replace("series = \"order\"", "series = \"competitor\"")
        .replace("values = [\"loose\", \"none\"]", "values = [\"loose\"]")
}

/// Goal: every experiment that is shipped can be run as it is and with `--quick`, and says how long it takes.
/// Method: all files of the folder, read as `lab run` does.
#[test]
fn shipped_experiments_are_right() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments");
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let experiment =
            Experiment::parse(&path.display().to_string(), &text).unwrap_or_else(|error| panic!("{error:#}"));
        let all = experiment.cells().unwrap().len();
        let quick = experiment.clone().quick();
        assert!(quick.cells().unwrap().len() < all, "{}: --quick leaves nothing out", path.display());
        assert_eq!(quick.rounds, 1);
        names.push(path.file_stem().unwrap().to_str().unwrap().to_owned());
    }
    names.sort();
    assert_eq!(
        names,
        [
            "congestion",
            "darkness",
            "disk-order",
            "emulator",
            "frozen",
            "gridftp",
            "gridftp-far",
            "gridftp-private",
            "gridftp-private-far",
            "gridftp-put",
            "gridftp-put-far",
            "gridftp-server",
            "gridftp-server-far",
            "gridftp-striped",
            "kills",
            "nics",
            "overhead",
            "peers-100k",
            "peers-10k",
            "peers-large",
            "protect",
            "schedule-threads",
            "sink-congested",
            "source-congested",
            "spill",
            "volume-atlas",
            "volume-catalog",
            "volume-clients",
            "volume-dpss",
            "volume-dpss-far",
            "volume-memory",
            "volume-postmark",
            "volume-random",
            "volume-sizes",
            "volume-start",
            "wan-rates-10g",
            "wan-rates-10g-loss",
            "wan-rates-1g",
            "wan-rates-1g-loss",
            "wan-stock-10g",
            "wan-stock-1g",
            "wan-threads",
            "wan-whole-10g",
            "wan-whole-1g",
        ]
    );
}

/// Goal: cells are all combinations of what a competitor has, with the settings of its axes.
/// Method: two networks, one competitor with axes of three and one values, one without.
#[test]
fn cells_are_all_combinations() {
    let experiment = Experiment::parse("x", &good()).unwrap();
    let cells = experiment.cells().unwrap();
    assert_eq!(cells.len(), 2 * (3 + 1));
    let cell = &cells[2];
    assert_eq!((cell.network, cell.competitor, cell.axes["threads"].as_str()), (0, 0, "4"));
    let settings: Vec<_> = cell.settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(settings, ["durability=none", "order=loose", "readers=4", "streams=4"]);
    assert!(cells[3].settings.is_empty() && cells[3].axes.is_empty());
    let workload = experiment.workloads[0].workload().unwrap();
    assert_eq!((workload.files, workload.size), (10, 1 << 20));
    assert_eq!(experiment.workloads[0].name(), "100 x 1MiB (scale 0.1)");
    let quick = experiment.quick();
    assert_eq!((quick.cells().unwrap().len(), quick.rounds), (2, 1));
    let some = good().replace("\"order\"]\n\n", "\"order\"]\nonly = { threads = [1, 4] }\n\n");
    let some = Experiment::parse("x", &some).unwrap().cells().unwrap();
    let threads: Vec<_> = some.iter().filter_map(|cell| cell.axes.get("threads")).collect();
    assert_eq!(threads, ["1", "4", "1", "4"]);
    assert!(network("loopback").unwrap().is_none());
    let path = network("rtt=50ms rate=10Gbit").unwrap().unwrap().path().unwrap();
    assert_eq!((path.delay_ns, path.rate), (25_000_000, 10_000_000_000));
}

/// Goal: what is not known or cannot be is refused, with the file's name and the key.
/// Method: one thing changed in a file that is right.
#[test]
fn wrong_files_are_refused_by_name() {
    for (from, to, words) in [
        ("rounds = 2", "rounds = 2\nround = 3", &["round"][..]),
        ("rounds = 2", "rounds = 0", &["rounds = 0"]),
        ("rounds = 2", "", &["rounds"]),
        ("limit = \"30s\"", "limit = \"soon\"", &["limit", "soon"]),
        ("limit = \"30s\"", "limit = \"0s\"", &["limit"]),
        ("\"loopback\", \"rtt", "\"moon\", \"rtt", &["networks", "moon"]),
        ("rate=10Gbit", "rate=10Gbit speed=1", &["networks", "speed"]),
        ("\"loopback\", \"rtt=50ms rate=10Gbit\"", "\"lan\", \"lan\"", &["networks", "twice"]),
        ("on = \"tmpfs\"", "on = \"tape\"", &["source", "tape"]),
        ("on = \"tmpfs\"", "on = \"tmpfs\", spec = \"disk\"", &["[source]", "spec"]),
        ("spec = \"disk\", ", "", &["[sink]", "spec"]),
        ("targets = 2", "targets = 0", &["[sink]", "targets"]),
        ("on = \"tmpfs\"", "on = \"none\"", &["[source]", "\"haul\"", "none"]),
        ("scale = 0.1", "scale = 2.0", &["scale = 2"]),
        ("scale = 0.1", "scale = 0.001", &["no file is left"]),
        ("size = \"1MiB\"", "size = \"1XB\"", &["size", "XB"]),
        ("peer = \"haul\"\nsettings", "peer = \"pigeon\"\nsettings", &["pigeon", "rsync"]),
        ("label = \"other\"", "label = \"haul\"", &["label", "twice"]),
        ("durability = \"none\"", "durability = [1]", &["durability"]),
        ("durability = \"none\"", "readers = 3", &["readers", "twice"]),
        (
            "axes = [\"threads\", \"order\"]",
            "axes = [\"threads\", \"order\"]\nonly = { speed = [1] }",
            &["only", "speed"],
        ),
        ("targets = 2", "targets = 2, stripe_count = 3", &["[sink]", "stripe_count = 3"]),
        ("targets = 2", "targets = 2, congestion = { steps = [] }", &["[sink]", "congestion", "step"]),
        (
            "targets = 2",
            "targets = 3, congestion = { steps = [{ for_ms = 5 }] }",
            &["[sink]", "all 3 targets", "10 files"],
        ),
        ("spec = \"disk\"", "spec = { preset = \"disk\", dept = 4 }", &["[sink]", "spec", "dept"]),
        ("on = \"tmpfs\"", "on = \"tmpfs\", congestion = { steps = [] }", &["[source]", "congestion"]),
        ("axes = [\"threads\", \"order\"]", "axes = [\"threads\"]", &["order", "no competitor"]),
        ("axes = [\"threads\", \"order\"]", "axes = [\"threads\", \"order\", \"size\"]", &["size"]),
        ("values = [1, 2, 4]", "values = []", &["threads", "values"]),
        ("values = [1, 2, 4]", "values = [0, 2]", &["[plot]", "log_x"]),
        ("ratio = [\"other\"]", "ratio = [\"none\"]", &["ratio"]),
        ("x = \"threads\"", "x = \"depth\"", &["[plot]", "depth"]),
        ("panels = \"network\"\n", "", &["[plot]", "network has 2 values"]),
        ("series = \"competitor\"", "series = \"threads\"", &["[plot]", "differ"]),
        ("kind = \"lines\"", "kind = \"bars\"\nlog_y = true", &["log_y"]),
        ("y = [\"rate\", \"cpu\"]", "y = []", &["[plot]", "y:"]),
        ("y = [\"rate\", \"cpu\"]", "y = [\"joy\"]", &["joy"]),
        ("threads = [1] }", "speed = [1] }", &["[quick]", "speed"]),
        ("[quick]", "[quick]\ncompetitors = [\"none\"]", &["[quick]", "none"]),
        ("[quick]", "[quick]\nseries = 3", &["series"]),
    ] {
        let text = good();
        assert_eq!(text.matches(from).count(), 1, "{from}");
        let Err(error) = Experiment::parse("some.toml", &text.replace(from, to)) else {
            panic!("{to:?} was taken")
        };
        let said = format!("{error:#}");
        for word in words.iter().chain(&["some.toml"]) {
            assert!(said.contains(word), "{to:?}: {said:?} does not name {word:?}");
        }
    }
}
