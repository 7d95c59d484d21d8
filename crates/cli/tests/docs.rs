//! What the pages say is there: tests, options, targets, files, and what must be absent.
//!
//! In: the Markdown pages of the repository. Out: a failure for each statement that the tree does not bear
//! out.
//! Left out: whether a test shows what the page says that it shows; a reader has to judge that.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Every page but `docs/cli.md`, which is generated from the help texts.
const PAGES: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/decisions.md",
    "docs/internals.md",
    "docs/semantics.md",
    "docs/metadata.md",
    "docs/security.md",
    "docs/tuning.md",
    "docs/ftp.md",
    "docs/ftp-between.md",
    "docs/ftp-coming.md",
    "docs/ftp-destination.md",
    "docs/lab.md",
    "docs/scheduling.md",
    "docs/wire.md",
    "docs/library.md",
    "docs/stable.md",
    "docs/gridftp-server.md",
    "docs/interop.md",
    "docs/volumes.md",
];

/// A page of which the first cell of each row has words of other programs.
const OF_OTHERS: &str = "docs/ftp-coming.md";
/// A setting of vsftpd's that has the form of a function's name.
const SETTING_OF_VSFTPD: &str = "anon_upload_enable";
/// The page of `lab/lab`, whose options are its own and those of peers.
const OF_LAB: &str = "docs/lab.md";

/// The crates of the product.
const CRATES: &[&str] = &[
    "core",
    "gridftp",
    "gsi",
    "ftp",
    "ftpd",
    "base",
    "storage",
    "transport",
    "volume",
    "launch",
    "haul",
    "probe",
    "cli",
];

/// Goal: each promise of `docs/semantics.md` names tests, and each of these is a test in the file that is
/// named.
/// Method: every list item before the last section; every `test:` line, its function sought behind `#[test]`.
#[test]
fn promises_have_their_tests() {
    let page = read("docs/semantics.md");
    let promises = page.split("\n## Not promised").next().expect("split yields at least one part");
    assert_ne!(promises, page, "the page has a section of what is not promised");
    let mut missing = Vec::new();
    let mut tests = 0;
    for item in promises.split("\n- ").skip(1) {
        let item = item.split("\n\n").next().unwrap_or(item);
        let named: Vec<&str> =
            item.lines().filter_map(|line| line.trim().strip_prefix("test: ")).flat_map(spans).collect();
        if named.is_empty() {
            missing.push(format!("no test for: {}", item.lines().next().unwrap_or_default()));
        }
        tests += named.len();
        missing.extend(named.into_iter().filter(|name| !is_test(name)).map(|name| format!("no test {name}")));
    }
    assert!(tests > 50, "only {tests} tests were found on the page: has its form changed?");
    assert!(missing.is_empty(), "docs/semantics.md:\n{}", missing.join("\n"));
}

/// Goal: functions and tests that a page names in passing exist.
/// Method: code spans of at least three words joined by underscores, sought behind `fn`.
#[test]
fn named_functions_exist() {
    let code: Vec<String> = CRATES
        .iter()
        .flat_map(|krate| ["src", "tests"].map(|dir| root().join("crates").join(krate).join(dir)))
        .flat_map(|dir| rust_files(&dir))
        .map(read)
        .collect();
    let mut wrong = Vec::new();
    for page in PAGES {
        for span in spans(&read(page)) {
            let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            if span.matches('_').count() < 2 || !span.chars().all(is_name) || span == SETTING_OF_VSFTPD {
                continue;
            }
            let head = format!("fn {span}(");
            if !code.iter().any(|text| text.contains(&head)) {
                wrong.push(format!("{page}: no function {span}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Goal: no page is looked at by nobody.
/// Method: each Markdown file of `docs` that is no figure of `docs/results`.
#[test]
fn every_page_is_looked_at() {
    let pages = fs::read_dir(root().join("docs")).expect("list the pages").flatten();
    let names = pages.map(|page| format!("docs/{}", page.file_name().to_string_lossy()));
    let mut names: Vec<String> =
        names.filter(|name| name.ends_with(".md") && name != "docs/cli.md").collect();
    names.retain(|name| !PAGES.contains(&name.as_str()));
    assert!(names.is_empty(), "not in PAGES: {names:?}");
}

/// Goal: every option and subcommand that a page shows is in `docs/cli.md`.
/// Method: code spans that begin with `--` or `haul `, and lines of code blocks that begin with `haul `.
#[test]
fn options_exist() {
    let help = read("docs/cli.md");
    let known = options(&help);
    assert!(
        known.contains("--durability") && known.contains("--dry-run"),
        "docs/cli.md holds the help texts"
    );
    // As the first help text lists them; and the one that is hidden.
    let list = help.split("Commands:\n").nth(1).expect("a list of commands");
    let list = list.lines().take_while(|line| line.starts_with("  "));
    let mut commands: Vec<&str> = list.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.contains(&"cp") && commands.contains(&"completions"), "{commands:?}");
    commands.push("agent");
    let lab: String = rust_files(&root().join("lab/src")).into_iter().map(read).collect();
    let is_of_lab = |option: &str| {
        let name = option.trim_start_matches('-');
        let field = name.replace('-', "_");
        // A field, one that is called otherwise, or an option that it gives to a peer.
        let heads = [format!(" {field}: "), format!("({field}: "), format!("long = \"{name}\"")];
        heads.iter().any(|head| lab.contains(head)) || lab.contains(&format!("\"{option}\""))
    };
    let mut wrong = Vec::new();
    for page in PAGES {
        let text = if *page == OF_OTHERS { without_first_cells(&read(page)) } else { read(page) };
        for code in code(&text) {
            let code = code.trim_start_matches("$ ");
            if let Some(rest) = code.strip_prefix("haul ") {
                let command = rest.split_whitespace().next().unwrap_or_default();
                if !commands.contains(&command) {
                    wrong.push(format!("{page}: no command in `{code}`"));
                }
            } else if !code.starts_with("--") {
                continue;
            }
            let is_known = |option: &&str| known.contains(option) || *page == OF_LAB && is_of_lab(option);
            let unknown = options(code).into_iter().filter(|option| !is_known(option));
            wrong.extend(unknown.map(|option| format!("{page}: no option {option}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Goal: what a page calls by `make` is a target, and what it links to is a file.
/// Method: code that begins with `make `; links that are no addresses.
#[test]
fn targets_and_links_exist() {
    let makefile = read("Makefile");
    let mut wrong = Vec::new();
    for page in PAGES.iter().chain(&["docs/cli.md"]) {
        let text = read(page);
        for code in code(&text) {
            let Some(target) = code.strip_prefix("make ").and_then(|rest| rest.split_whitespace().next())
            else {
                continue;
            };
            if !makefile.lines().any(|line| line.starts_with(&format!("{target}:"))) {
                wrong.push(format!("{page}: no target {target}"));
            }
        }
        let dir = root().join(page).parent().expect("a page lies in a directory").to_owned();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = link.split('#').next().unwrap_or_default();
            if !path.contains("://") && !path.is_empty() && !dir.join(path).exists() {
                wrong.push(format!("{page}: no file {link}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Goal: what `ARCHITECTURE.md` calls absent is absent, and each crate's map has all its files.
/// Method: each `absent:` comment against the code of its folders, without comments and tests; every source
/// file's name sought in its crate's `README.md`.
#[test]
fn the_map_is_true() {
    let page = read("ARCHITECTURE.md");
    let mut wrong = Vec::new();
    let mut rules = 0;
    for rule in page.split("<!-- absent: ").skip(1).filter_map(|rest| rest.split(" -->").next()) {
        rules += 1;
        let (patterns, paths) = rule.rsplit_once(" in ").expect("absent: `PATTERN` in PATH");
        let patterns = spans(patterns);
        assert!(!patterns.is_empty(), "no pattern in: {rule}");
        for path in paths.split_whitespace() {
            let files = sources(&root().join(path));
            assert!(!files.is_empty(), "no source file below {path}");
            for file in files {
                let code = code_of(&file);
                let found = patterns.iter().filter(|pattern| code.contains(**pattern));
                wrong.extend(found.map(|pattern| format!("{}: {pattern}", file.display())));
            }
        }
    }
    assert!(rules > 10, "only {rules} rules were found on the page: has its form changed?");

    for krate in CRATES.iter().filter(|krate| **krate != "cli") {
        let dir = root().join("crates").join(krate);
        let (map, src) = (read(dir.join("README.md")), dir.join("src"));
        for file in sources(&src).into_iter().filter(|file| !file.ends_with("lib.rs")) {
            let stem = file.file_stem().and_then(|stem| stem.to_str()).expect("our names are UTF-8");
            let named = map.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == stem);
            // `bootstrap/*.rs` stands for the files in it.
            let parent = file.parent().and_then(Path::file_name).and_then(|name| name.to_str());
            let starred = parent.is_some_and(|parent| map.contains(&format!("{parent}/*.rs")));
            if !named && !starred {
                wrong.push(format!("{} is not on the map of its crate", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "ARCHITECTURE.md:\n{}", wrong.join("\n"));
}

/// Goal: the stays of an object are functions of the files that the page names.
/// Method: in each row of that table, the spans before each file in brackets, sought behind `fn` in the files
/// whose path ends so.
#[test]
fn stays_are_where_the_page_says() {
    let page = read("docs/internals.md");
    let stays =
        page.split("\n## The stays of an object").nth(1).expect("the page counts the stays of an object");
    let table = stays.split("\n| stays,").next().unwrap_or_default();
    let files: Vec<PathBuf> =
        CRATES.iter().flat_map(|krate| sources(&root().join("crates").join(krate).join("src"))).collect();
    let mut wrong = Vec::new();
    let mut sought = 0;
    for row in table.lines().filter(|line| line.starts_with("| ")) {
        // `NAME` `NAME` (`FILE`), ...
        for (before, file) in row.split(".rs`").filter_map(|group| group.rsplit_once(" (`")) {
            let file = format!("{file}.rs");
            let before = before.rsplit(", ").next().unwrap_or(before);
            let code: Vec<String> =
                files.iter().filter(|path| without_src(path).ends_with(&file)).map(read).collect();
            for name in spans(before) {
                sought += 1;
                let is_there = |text: &String| {
                    [format!("fn {name}("), format!("fn {name}<")].iter().any(|head| text.contains(head))
                };
                if !code.iter().any(is_there) {
                    wrong.push(format!("no {name} in {file}"));
                }
            }
        }
    }
    assert!(sought > 90, "only {sought} stays were found on the page: has its form changed?");
    assert!(wrong.is_empty(), "docs/internals.md:\n{}", wrong.join("\n"));
}

/// Goal: every protection that can be removed is on the list with a test that is there, and nothing else is.
/// Method: `haul_mutant::removed("NAME")` in the code against `protections.txt`; the last two words of each
/// test's path against the functions behind `#[test]`.
#[test]
fn protections_have_their_tests() {
    let mut used = BTreeSet::new();
    for krate in CRATES {
        for file in rust_files(&root().join("crates").join(krate).join("src")) {
            let text = read(&file);
            let names =
                text.split("haul_mutant::removed(\"").skip(1).filter_map(|rest| rest.split('"').next());
            used.extend(names.map(str::to_owned));
        }
    }
    let code: Vec<String> = CRATES
        .iter()
        .flat_map(|krate| ["src", "tests"].map(|dir| root().join("crates").join(krate).join(dir)))
        .flat_map(|dir| rust_files(&dir))
        .map(read)
        .collect();
    let (mut listed, mut lines) = (BTreeSet::new(), BTreeSet::new());
    let mut wrong = Vec::new();
    for line in read("crates/mutant/protections.txt").lines().filter(|line| !line.starts_with('#')) {
        let [name, package, test] = line.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            wrong.push(format!("not NAME | PACKAGE | TEST: {line}"));
            continue;
        };
        let head =
            format!("fn {}(", test.rsplit("::").next().unwrap_or(test).rsplit('/').next().unwrap_or(test));
        let is_ours = |krate: &&str| package == "haul" || package.strip_prefix("haul-") == Some(krate);
        if !CRATES.iter().any(is_ours) || !code.iter().any(|text| text.contains(&head)) {
            wrong.push(format!("{name}: no test {package} {test}"));
        }
        listed.insert(name.to_owned());
        if !lines.insert(line.to_owned()) {
            wrong.push(format!("{line} stands twice"));
        }
    }
    wrong.extend(used.symmetric_difference(&listed).map(|name| format!("{name}: in code or list alone")));
    assert!(wrong.is_empty(), "crates/mutant/protections.txt:\n{}", wrong.join("\n"));
}

/// A page without what stands in the first cell of each row of its tables.
fn without_first_cells(page: &str) -> String {
    let line = |line: &str| match line.strip_prefix("| ").and_then(|row| row.split_once(" | ")) {
        Some((_, rest)) => format!("| {rest}\n"),
        None => format!("{line}\n"),
    };
    page.lines().map(line).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[track_caller]
fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()))
}

/// The code spans of a text without code blocks.
fn spans(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Code spans, and lines of code blocks without what follows a `#`.
fn code(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (index, part) in page.split("```").enumerate() {
        if index % 2 == 0 {
            // A span may go on in the next line.
            found.extend(spans(part).into_iter().map(|span| span.replace('\n', " ")));
        } else {
            let lines = part.lines().skip(1).filter_map(|line| line.split('#').next());
            found.extend(lines.map(|line| line.trim().to_owned()));
        }
    }
    found
}

/// The long options in a text, without their values.
fn options(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    words.filter(|word| word.len() > 2 && word.starts_with("--") && !word[2..].starts_with('-')).collect()
}

/// Whether `FILE::NAME` is a test function `NAME` of the file `crates/FILE.rs`.
fn is_test(marker: &str) -> bool {
    let Some((file, name)) = marker.rsplit_once("::") else { return false };
    let Ok(text) = fs::read_to_string(root().join("crates").join(format!("{file}.rs"))) else { return false };
    let head = format!("fn {name}(");
    let mut lines = text.lines().map(str::trim);
    let mut marked = false;
    lines.any(|line| {
        let here = marked && line.starts_with(&head);
        // Other attributes may stand between.
        marked = line == "#[test]" || (marked && line.starts_with("#["));
        here
    })
}

/// `crates/storage/walk.rs` of `crates/storage/src/walk.rs`, as the pages name files.
fn without_src(path: &Path) -> PathBuf {
    path.components().filter(|part| part.as_os_str() != "src").collect()
}

/// Goal: comments are as wide as the code, so that they can be read beside it.
/// Method: every line of every Rust file that is a comment; left out is what stands in columns.
#[test]
fn comments_are_no_wider_than_the_code() {
    const WIDTH: usize = 110;
    let files = ["crates", "lab", "fuzz"].into_iter().flat_map(|dir| rust_files(&root().join(dir)));
    let wide: Vec<String> = files
        .filter(|path| !path.components().any(|part| part.as_os_str() == "target"))
        .flat_map(|path| {
            let text = read(&path);
            let lines = (1..).zip(text.lines()).filter(|(_, line)| {
                let comment = line.trim_start();
                let columns = comment.trim_start_matches(['/', '!', ' ']).contains("   ");
                comment.starts_with("//") && line.chars().count() > WIDTH && !columns
            });
            lines.map(|(at, _)| format!("{}:{at}", path.display())).collect::<Vec<_>>()
        })
        .collect();
    assert!(wide.is_empty(), "wider than {WIDTH} columns:\n{}", wide.join("\n"));
}

/// The Rust files at or below `path`, sorted.
fn rust_files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("list a folder").path()).collect();
    paths.sort();
    let is_rust =
        |path: &PathBuf| path.is_dir() || path.extension().is_some_and(|extension| extension == "rs");
    paths.into_iter().filter(is_rust).flat_map(|path| rust_files(&path)).collect()
}

/// Those of them that are no test files: neither by their name nor because their module is declared for tests
/// only.
fn sources(path: &Path) -> Vec<PathBuf> {
    let is_test = |path: &PathBuf| {
        path.to_str().is_some_and(|path| path.ends_with("tests.rs") || path.contains("tests/"))
            || is_declared_for_tests(path)
    };
    rust_files(path).into_iter().filter(|path| !is_test(path)).collect()
}

/// Whether the file of the module above, `io.rs` of `io/fault.rs`, has `#[cfg(test)]` before this module.
fn is_declared_for_tests(path: &Path) -> bool {
    let (Some(dir), Some(stem)) = (path.parent(), path.file_stem().and_then(|stem| stem.to_str())) else {
        return false;
    };
    let above = [dir.with_extension("rs"), dir.join("lib.rs"), dir.join("main.rs")];
    above.iter().filter_map(|file| fs::read_to_string(file).ok()).any(|text| {
        let heads = ["", "pub ", "pub(crate) "].map(|public| format!("{public}mod {stem};"));
        text.lines()
            .zip(text.lines().skip(1))
            .any(|(before, line)| is_for_tests(before) && heads.iter().any(|head| line == head))
    })
}

/// An attribute that keeps what follows out of the program.
fn is_for_tests(line: &str) -> bool {
    ["#[cfg(test)]", "#[cfg(any(test, feature = \"testing\"))]"].contains(&line)
}

/// The code of a file up to its test module, without comments.
fn code_of(path: &Path) -> String {
    let text = read(path);
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}
