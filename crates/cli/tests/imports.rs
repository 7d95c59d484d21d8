//! No circle of imports: within each crate only a file and its own children may name each other.
//!
//! In: the sources of every crate. Out: a failure that names the modules of each circle.
//! Left out: what a macro writes; paths that begin with a name that was imported elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Modules of a crate by path (`sink::engine`; the crate's own file is empty), and which others each one
/// names.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Goal: in no crate do modules import each other in a circle, but for a file and its own children.
/// Method: paths that begin with `crate`, `super` or `self`, in code without tests, held against the files
/// that there are; what a child names of its own ancestors is left out; strongly connected parts of what
/// remains.
#[test]
fn no_imports_go_in_a_circle() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut wrong = Vec::new();
    let mut seen = 0;
    for krate in fs::read_dir(&crates).expect("list the crates").map(|entry| entry.expect("an entry").path())
    {
        let src = krate.join("src");
        let imports = imports_of(&src);
        seen += imports.values().map(BTreeSet::len).sum::<usize>();
        wrong.extend(circles(&imports).into_iter().map(|circle| {
            let named = |module: &String| {
                let others: Vec<&str> = imports[module]
                    .iter()
                    .filter(|other| circle.contains(*other))
                    .map(String::as_str)
                    .collect();
                format!("  {module} names {}", others.join(", "))
            };
            let lines: Vec<String> = circle.iter().map(named).collect();
            format!("{}:\n{}", src.display(), lines.join("\n"))
        }));
    }
    assert!(seen > 700, "only {seen} imports were found: has the code's form changed?");
    assert!(wrong.is_empty(), "circles of imports:\n{}", wrong.join("\n"));
}

/// Goal: a circle is found, and a file that uses its own children is none.
#[test]
fn circles_are_found() {
    let graph = |edges: &[(&str, &[&str])]| -> Imports {
        let node = |(from, to): &(&str, &[&str])| {
            (from.to_string(), to.iter().map(|to| to.to_string()).collect::<BTreeSet<_>>())
        };
        edges.iter().map(node).collect()
    };
    let none = graph(&[("a", &["a::b", "c"]), ("a::b", &[]), ("c", &[])]);
    assert!(circles(&none).is_empty());
    let three = graph(&[("a", &["b"]), ("b", &["c"]), ("c", &["a"]), ("d", &["a"])]);
    assert_eq!(circles(&three), [["a", "b", "c"].map(str::to_owned).into_iter().collect::<BTreeSet<_>>()]);
    assert_eq!(paths("use super::{x::{self, Y}, z as w};\ncrate::q::R").len(), 4);
    let modules = ["", "a", "a::b", "c"].map(|name| name.to_owned());
    let known = |name: &str| modules.iter().any(|module| module == name);
    assert_eq!(target("super::super::c::Thing", "a::b", known).as_deref(), Some("c"));
    assert_eq!(target("self::b::f", "a", known).as_deref(), Some("a::b"));
    assert_eq!(target("crate::a::b", "c", known).as_deref(), Some("a::b"));
}

/// Which modules name which others, without what a child names of its ancestors.
fn imports_of(src: &Path) -> Imports {
    let mut files = Vec::new();
    rust_files(src, &mut files);
    let modules: BTreeMap<String, PathBuf> =
        files.into_iter().map(|file| (module_of(src, &file), file)).collect();
    let known = |name: &str| modules.contains_key(name);
    let named = |(module, file): (&String, &PathBuf)| {
        let code = code_of(file);
        let targets = paths(&code).into_iter().filter_map(|path| target(&path, module, known));
        let is_other = |other: &String| {
            other != module && !other.is_empty() && !module.starts_with(&format!("{other}::"))
        };
        (module.clone(), targets.filter(is_other).collect())
    };
    modules.iter().map(named).collect()
}

/// The program's source files: tests lie in files of their own, or behind the code.
fn rust_files(dir: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for path in entries.map(|entry| entry.expect("list a folder").path()) {
        let name = path.file_name().and_then(|name| name.to_str()).expect("our names are UTF-8");
        match path.is_dir() {
            true if !name.ends_with("tests") => rust_files(&path, files),
            false if name.ends_with(".rs") && !name.ends_with("tests.rs") => files.push(path),
            _ => {}
        }
    }
}

fn module_of(src: &Path, file: &Path) -> String {
    let relative = file.strip_prefix(src).expect("it lies below").with_extension("");
    let parts: Vec<&str> = relative.iter().map(|part| part.to_str().expect("our names are UTF-8")).collect();
    match parts[..] {
        ["lib" | "main"] => String::new(),
        _ => parts.join("::"),
    }
}

/// The code of a file up to its test module, without comments.
fn code_of(file: &Path) -> String {
    let text = fs::read_to_string(file).expect("read a source file");
    let code = match text.find("#[cfg(test)]\nmod ").or_else(|| text.find("#[cfg(test)]\n#[path")) {
        Some(tests) => &text[..tests],
        None => &text[..],
    };
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Paths in a text that begin with `crate`, `super` or `self`, those in braces one by one.
fn paths(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for head in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(head) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            expand(&code[at..at + length(&code[at..])], &mut found);
        }
    }
    found
}

/// How long the path at the beginning of a text is, its braces included.
fn length(text: &str) -> usize {
    let mut depth = 0usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' if text[..at].ends_with("::") || depth > 0 => depth += 1,
            '}' if depth > 1 => depth -= 1,
            '}' if depth == 1 => return at + 1,
            _ if depth > 0 => {}
            c if c.is_alphanumeric() || c == '_' || c == ':' => {}
            _ => return at,
        }
    }
    text.len()
}

/// `a::{b, c::d}` as `a::b` and `a::c::d`.
fn expand(path: &str, found: &mut Vec<String>) {
    let Some((head, rest)) = path.split_once('{') else {
        let path = path.split(" as ").next().unwrap_or_default();
        found.push(path.split_whitespace().collect());
        return;
    };
    let body = &rest[..rest.rfind('}').unwrap_or(rest.len())];
    let (mut depth, mut from) = (0usize, 0);
    for (at, c) in body.char_indices().chain([(body.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let item = body[from..at].trim();
                if !item.is_empty() {
                    expand(&format!("{head}{item}"), found);
                }
                from = at + 1;
            }
            _ => {}
        }
    }
}

/// The module that a path in `module` leads into, as far as its words are modules.
fn target(path: &str, module: &str, known: impl Fn(&str) -> bool) -> Option<String> {
    let mut words = path.split("::").peekable();
    let mut at: Vec<&str> = module.split("::").filter(|part| !part.is_empty()).collect();
    match words.next()? {
        "crate" => at.clear(),
        "super" => drop(at.pop()),
        _ => {}
    }
    while words.next_if(|word| *word == "super").is_some() {
        at.pop();
    }
    for word in words {
        at.push(word);
        if !known(&at.join("::")) {
            at.pop();
            break;
        }
    }
    let found = at.join("::");
    known(&found).then_some(found)
}

/// Sets of modules from each of which one comes to all others of the set.
fn circles(imports: &Imports) -> Vec<BTreeSet<String>> {
    let reach: BTreeMap<&String, BTreeSet<&String>> =
        imports.keys().map(|module| (module, reachable(imports, module))).collect();
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for (module, there) in &reach {
        let both = |other: &&&String| reach.get(**other).is_some_and(|back| back.contains(module));
        let circle: BTreeSet<String> = there.iter().filter(both).map(|other| other.to_string()).collect();
        if circle.len() > 1 && !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

/// Everything that a module names, and what these name.
fn reachable<'a>(imports: &'a Imports, module: &str) -> BTreeSet<&'a String> {
    let (mut seen, mut ahead) = (BTreeSet::new(), vec![module]);
    while let Some(next) = ahead.pop() {
        for other in imports.get(next).into_iter().flatten() {
            if seen.insert(other) {
                ahead.push(other);
            }
        }
    }
    seen
}
