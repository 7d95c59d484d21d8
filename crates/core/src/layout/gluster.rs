//! GlusterFS: the value of the extended attribute `trusted.glusterfs.pathinfo` or `glusterfs.pathinfo`.
//!
//! In: the text, nodes in brackets:
//! `(<DISTRIBUTE:v-dht> (<REPLICATE:v-replicate-0> <POSIX(/b1):h1:/b1/f> <POSIX(/b2):h2:/b2/f>))`.
//! Out: a [`Layout`]: a file lies whole on one child of the distribution, which is a brick (`host:/brick`) or
//! a replicated or dispersed set of bricks (its name). Of a sharded file the answer tells the first shard's
//! place only; where the others lie no client can ask, so that such a file counts as lying there as well.
//! Paths in the text may have any byte and are not escaped: a brick's base path is known to be repeated
//! behind its host, and that is held on to.
//! Source: `posix-inode-fd-ops.c`, `dht-common.c`, `afr-inode-read.c`, `ec-combine.c`.

use super::{Layout, LayoutError, TargetName};

/// Nodes within nodes, at most: distribute, tier, replicate or disperse, brick, and room for more.
const DEPTH_MAX: usize = 16;

/// Reads the attribute's value.
///
/// # Errors
/// It is not of that form.
pub fn gluster(text: &[u8]) -> Result<Layout, LayoutError> {
    let text = text.strip_suffix(b"\0").unwrap_or(text);
    let text = String::from_utf8_lossy(text);
    target(&text, 0).map(Layout::flat)
}

/// The target that a node stands for: the first brick or set of bricks below distribution.
fn target(text: &str, depth: usize) -> Result<TargetName, LayoutError> {
    if depth > DEPTH_MAX {
        return Err(LayoutError::Form("too many nodes within nodes"));
    }
    let text = text.trim();
    if let Some(leaf) = text.strip_prefix("<POSIX(") {
        return brick(leaf);
    }
    let inner = text.strip_prefix('(').ok_or(LayoutError::Form("a node does not begin with a bracket"))?;
    let head = inner.strip_prefix('<').ok_or(LayoutError::Form("a node has no type"))?;
    // Names of translators have no brackets; only paths have anything.
    let (head, children) = head.split_once('>').ok_or(LayoutError::Form("a node's type has no end"))?;
    let (kind, name) = head.split_once(':').ok_or(LayoutError::Form("a node has no name"))?;
    match kind {
        "REPLICATE" | "EC" => Ok(TargetName::new(name)),
        _ => target(children, depth + 1),
    }
}

/// `host:/brick` of what follows `<POSIX(`: `/brick):host:/brick/path>`.
fn brick(leaf: &str) -> Result<TargetName, LayoutError> {
    // The base may hold anything, `):` too. The one that is the base is the one that is repeated behind the
    // host.
    for (end, _) in leaf.match_indices("):") {
        let (base, rest) = (&leaf[..end], &leaf[end + 2..]);
        let base = base.trim_end_matches('/');
        if let Some(host) = rest.find(&format!(":{base}/")).map(|at| &rest[..at])
            && !host.is_empty()
            && !base.is_empty()
        {
            return Ok(TargetName::new(&format!("{host}:{base}")));
        }
    }
    Err(LayoutError::Form("a brick has no host"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> String {
        gluster(text.as_bytes()).unwrap().at(1 << 40).target.as_str().to_owned()
    }

    /// Goal: the answers of every kind of volume.
    #[test]
    fn real_answers() {
        let one = "<POSIX(/lab/brick/b4/d):host:/lab/brick/b4/d/f1>";
        assert_eq!(at(one), "host:/lab/brick/b4/d");
        assert_eq!(at(&format!("(<DISTRIBUTE:gv-dht> {one})\0")), "host:/lab/brick/b4/d");
        let copies = "(<REPLICATE:v-replicate-0> <POSIX(/b1):h1:/b1/f> <POSIX(/b2):h2:/b2/f>)";
        assert_eq!(at(copies), "v-replicate-0");
        assert_eq!(at(&format!("(<DISTRIBUTE:v-dht> {copies})")), "v-replicate-0");
        assert_eq!(at("(<DISTRIBUTE:v-dht> (<EC:v-disperse-3> <POSIX(/b):h:/b/f>))"), "v-disperse-3");
        assert_eq!(at("<POSIX(/b/):fe80::1:/b/f>"), "fe80::1:/b");
    }

    /// Goal: names of files and bricks may hold what looks like structure.
    #[test]
    fn hostile_paths() {
        assert_eq!(at("<POSIX(/b):h:/b/x> <POSIX(/c):g:/c/f>"), "h:/b");
        assert_eq!(at("(<DISTRIBUTE:d> <POSIX(/a):b):h:/a):b/f>)"), "h:/a):b");
        assert_eq!(at("<POSIX(/b c):h:/b c/(<EC:no>)>"), "h:/b c");
    }

    /// Goal: nonsense is refused without a panic, however deep.
    #[test]
    fn broken_answers_are_refused() {
        let deep = "(<DISTRIBUTE:d> ".repeat(100_000);
        let prefixes = "(<DISTRIBUTE:v-dht> (<EC:v> <POSIX(/b):h:/b/f>))";
        for bad in
            ["", "(", "(<", "(<A>", "(<A:b>", "<POSIX(", "<POSIX(/b):", "<POSIX():h:/>", "x", deep.as_str()]
        {
            assert!(gluster(bad.as_bytes()).is_err(), "{}", &bad[..bad.len().min(20)]);
        }
        for end in 0..prefixes.len() {
            let _ = gluster(&prefixes.as_bytes()[..end]);
        }
        let _ = gluster(b"\xff\xfe(<");
    }
}
