//! The list on stdout: what a dry run would copy, and with `-i` what each entry changed.
//!
//! In: entries as they end. Out: a line each, escaped for people, or with `-0` bytes as they are, ended by
//! NUL. Nothing is kept but counts.
//! Left out: JSON, which has stdout for itself.

use std::io::{self, Write};

use haul::api::{Change, EntryEnd, EntryKind, Summary};

use super::human::{self, Manner};
use crate::escape;
use crate::progress::count;

/// Writes the list. After the first error it is silent: the copy is worth more.
pub struct List<W: Write> {
    out: Option<W>,
    manner: Manner,
    /// Lines of the short form.
    mapped: u64,
    /// Lines were written since the last flush.
    pending: bool,
}

/// Which form the list has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    None,
    /// The first mappings of a dry run, and how many more there are.
    Short,
    /// Every name, with what changes if that is asked for.
    Names,
}

impl<W: Write> List<W> {
    /// `None`: stdout is not for lists.
    pub fn new(out: Option<W>, manner: Manner) -> List<W> {
        List { out, manner, mapped: 0, pending: false }
    }

    fn form(&self) -> Form {
        let Manner { dry_run, itemize, print0, verbose, .. } = self.manner;
        match (self.out.is_some(), dry_run) {
            (false, _) => Form::None,
            _ if itemize => Form::Names,
            (_, true) if print0 || verbose > 0 => Form::Names,
            (_, true) => Form::Short,
            (_, false) => Form::None,
        }
    }

    /// An entry of so many bytes that ended, told as `change` says; perhaps a hard link of another one. True:
    /// it is told here, and nowhere else.
    pub fn entry(
        &mut self,
        path: &[u8],
        kind: EntryKind,
        (end, change): (EntryEnd, Change),
        bytes: u64,
        link_of: Option<&[u8]>,
    ) -> io::Result<bool> {
        // Nothing changes of what is skipped; why it is, people are told.
        if self.form() != Form::Names || end == EntryEnd::Skipped {
            return Ok(false);
        }
        let Manner { itemize, unchanged, .. } = self.manner;
        let changes = match end {
            EntryEnd::Copied => true,
            EntryEnd::Unchanged => !change.is_none(),
            EntryEnd::Skipped => false,
        };
        // Names alone do not say which of them change.
        if !changes && unchanged && !itemize {
            return Ok(false);
        }
        if changes || unchanged {
            let mut line = Vec::new();
            if self.manner.itemize {
                line.extend_from_slice(
                    itemized(kind, (end, link_of.is_some()), change, self.manner.sends).as_bytes(),
                );
                line.push(b' ');
            }
            match self.manner.print0 {
                true => line.extend_from_slice(path),
                false => line.extend_from_slice(escape::name(path).as_bytes()),
            }
            if kind == EntryKind::Dir {
                line.push(b'/');
            }
            if let Some(first) = link_of.filter(|_| changes && !self.manner.print0) {
                line.extend_from_slice(format!(" => {}", escape::name(first)).as_bytes());
            }
            if let Some(part) = self.manner.part.filter(|_| !self.manner.print0) {
                line.extend_from_slice(format!(" ({})", part.known(Some(bytes)).in_words()).as_bytes());
            }
            self.line(line)?;
        }
        Ok(true)
    }

    /// One of the first mappings of a dry run.
    pub fn mapping(
        &mut self,
        source: &[u8],
        destination: &[u8],
        what: (Option<u64>, bool),
    ) -> io::Result<()> {
        if self.form() != Form::Short {
            return Ok(());
        }
        self.mapped += 1;
        self.line(human::plan(source, destination, what, self.manner.part).into_bytes())
    }

    /// Ends the list.
    pub fn end(&mut self, summary: &Summary) -> io::Result<()> {
        let made = summary.dirs + summary.symlinks + summary.specials + summary.hard_links;
        let all = summary.files + made + summary.amended;
        let more = all.saturating_sub(self.mapped);
        if self.form() == Form::Short && more > 0 {
            self.line(format!("and {} more (-i lists them all)", count(more)).into_bytes())?;
        }
        self.flush()
    }

    /// Something waits to be flushed.
    pub fn is_pending(&self) -> bool {
        self.pending
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.pending = false;
        self.attempt(|out| out.flush())
    }

    fn line(&mut self, mut line: Vec<u8>) -> io::Result<()> {
        self.pending = true;
        line.push(if self.manner.print0 { 0 } else { b'\n' });
        self.attempt(|out| out.write_all(&line))
    }

    fn attempt(&mut self, act: impl FnOnce(&mut W) -> io::Result<()>) -> io::Result<()> {
        let Some(out) = &mut self.out else { return Ok(()) };
        let result = act(out);
        if result.is_err() {
            self.out = None;
        }
        result
    }
}

/// rsync's eleven characters; `is_name`: it is a hard link; `sends`: the destination is at another host.
pub fn itemized(kind: EntryKind, (end, is_name): (EntryEnd, bool), change: Change, sends: bool) -> String {
    let is_new = change.has(Change::NEW);
    let first = match (end, kind) {
        (EntryEnd::Copied, _) if is_name => 'h',
        (EntryEnd::Copied, EntryKind::File) => {
            if sends {
                '<'
            } else {
                '>'
            }
        }
        (EntryEnd::Copied, EntryKind::Dir | EntryKind::Special | EntryKind::Device) if is_new => 'c',
        (EntryEnd::Copied, EntryKind::Symlink) => 'c',
        _ => '.',
    };
    let what = match kind {
        EntryKind::File => 'f',
        EntryKind::Dir => 'd',
        EntryKind::Symlink => 'L',
        EntryKind::Special => 'S',
        EntryKind::Device => 'D',
    };
    let mut text = String::from_iter([first, what]);
    if is_new {
        text += "+++++++++";
        return text;
    }
    if first == '.' && change.is_none() || first == 'h' && change == Change::LINKED {
        return text + "         ";
    }
    let letters = [
        (Change::TARGET, 'c'),
        (Change::SIZE, 's'),
        (Change::TIME, 't'),
        (Change::MODE, 'p'),
        (Change::OWNER, 'o'),
        (Change::GROUP, 'g'),
        (Change::NONE, 'u'),
        (Change::ACL, 'a'),
        (Change::XATTRS, 'x'),
    ];
    text.extend(letters.map(|(one, letter)| if change.has(one) { letter } else { '.' }));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the eleven characters are rsync's.
    /// Method: a table taken from rsync 3.5.0.
    #[test]
    fn eleven_characters_are_those_of_rsync() {
        use EntryEnd::{Copied, Unchanged};
        use EntryKind::{Device, Dir, File, Special, Symlink};
        let both = |a: Change, b| a.with(b, true);
        for (kind, end, change, sends, want) in [
            (File, Copied, Change::NEW, false, ">f+++++++++"),
            (File, Copied, Change::NEW, true, "<f+++++++++"),
            (File, Copied, both(Change::SIZE, Change::TIME), false, ">f.st......"),
            (File, Copied, Change::TIME, true, "<f..t......"),
            (File, Copied, Change::NONE, false, ">f........."),
            (File, Unchanged, Change::MODE, false, ".f...p....."),
            (File, Unchanged, both(Change::OWNER, Change::GROUP), true, ".f....og..."),
            (File, Unchanged, both(Change::XATTRS, Change::ACL), true, ".f.......ax"),
            (File, Copied, both(Change::TIME, Change::XATTRS), false, ">f..t.....x"),
            (Dir, Copied, Change::NEW, true, "cd+++++++++"),
            (Dir, Copied, Change::TIME, false, ".d..t......"),
            (File, Unchanged, Change::NONE, false, ".f         "),
            (Dir, Unchanged, Change::NONE, true, ".d         "),
            (Symlink, Unchanged, both(Change::OWNER, Change::GROUP), false, ".L....og..."),
            (Symlink, Copied, Change::NEW, false, "cL+++++++++"),
            (Symlink, Copied, Change::TARGET, false, "cLc........"),
            (Special, Copied, Change::NEW, false, "cS+++++++++"),
            (Device, Copied, Change::NEW, true, "cD+++++++++"),
            (Device, Unchanged, both(Change::TIME, Change::MODE), false, ".D..tp....."),
        ] {
            let got = itemized(kind, (end, false), change, sends);
            assert_eq!((got.as_str(), got.len()), (want, 11));
        }
        let linked = |change| itemized(File, (Copied, true), both(Change::LINKED, change), true);
        let got = [Change::NEW, Change::TIME, Change::NONE].map(linked);
        assert_eq!(got, ["hf+++++++++", "hf..t......", "hf         "]);
        assert_eq!(itemized(File, (Unchanged, true), Change::NONE, false), ".f         ");
    }

    /// Goal: names are escaped for people and raw for programs, and only what changed is told.
    #[test]
    fn names_are_safe_or_raw() {
        for (print0, want) in [
            (false, &b">f+++++++++ a\\nb\ncd+++++++++ d/\n"[..]),
            (true, b">f+++++++++ a\nb\0cd+++++++++ d/\0"),
        ] {
            let mut out = Vec::new();
            let mut list = List::new(Some(&mut out), Manner { itemize: true, print0, ..Manner::default() });
            for (path, kind, end, change) in [
                (&b"a\nb"[..], EntryKind::File, EntryEnd::Copied, Change::NEW),
                (b"same", EntryKind::File, EntryEnd::Unchanged, Change::NONE),
                (b"left", EntryKind::File, EntryEnd::Skipped, Change::NONE),
                (b"d", EntryKind::Dir, EntryEnd::Copied, Change::NEW),
            ] {
                assert_eq!(list.entry(path, kind, (end, change), 0, None).unwrap(), end != EntryEnd::Skipped);
            }
            list.end(&Summary { files: 100, ..Summary::default() }).unwrap();
            assert_eq!(out, want);
        }
    }

    /// Goal: what is unchanged is listed where that is asked for, and where the list is of names alone it is
    /// left to the lines about entries.
    #[test]
    fn unchanged_entries_are_listed_if_asked_for() {
        for (itemize, dry_run, want) in [(true, false, ".f          same\n"), (false, true, "")] {
            let mut out = Vec::new();
            let manner = Manner { itemize, dry_run, unchanged: true, verbose: 2, ..Manner::default() };
            let mut list = List::new(Some(&mut out), manner);
            let here =
                list.entry(b"same", EntryKind::File, (EntryEnd::Unchanged, Change::NONE), 0, None).unwrap();
            assert_eq!(here, itemize);
            list.end(&Summary::default()).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), want);
        }
        let manner = Manner { unchanged: true, verbose: 2, ..Manner::default() };
        assert_eq!(
            human::entry(b"same", (EntryKind::File, EntryEnd::Unchanged), manner).as_deref(),
            Some("same (unchanged)")
        );
    }

    /// Goal: the short form of a dry run says how many it leaves out; a copy without `-i` lists nothing.
    #[test]
    fn the_short_form_says_how_many_more() {
        let mut out = Vec::new();
        let mut list = List::new(Some(&mut out), Manner { dry_run: true, ..Manner::default() });
        list.mapping(b"a", b"h:dst/a", (Some(1000), false)).unwrap();
        list.mapping(b"m", b"h:dst/m", (None, true)).unwrap();
        assert!(!list.entry(b"a", EntryKind::File, (EntryEnd::Copied, Change::NEW), 0, None).unwrap());
        list.end(&Summary { files: 1200, dirs: 1, amended: 3, unchanged: 9, ..Summary::default() }).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "a -> h:dst/a (1.00 kB)\nm -> h:dst/m (metadata only)\nand 1,202 more (-i lists them all)\n"
        );
        let mut out = Vec::new();
        let mut list = List::new(Some(&mut out), Manner { verbose: 2, ..Manner::default() });
        assert!(!list.entry(b"a", EntryKind::File, (EntryEnd::Copied, Change::NEW), 0, None).unwrap());
        list.end(&Summary { files: 1, ..Summary::default() }).unwrap();
        assert!(out.is_empty());
    }
}
