//! What a ring has registered: files, so that they are not looked up for each operation, and memory, so that
//! its pages are pinned once.
//!
//! In: the file or memory of an operation. Out: its index in the ring's table, or none, and then the
//! operation goes without. Registration saves time and changes nothing else: where it fails it ends, and what
//! is registered already stays.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use io_uring::Submitter;
use rustix::io::Errno;

use super::update_buffer;
use crate::io::IoFile;
use haul_base::buffer::Slab;
use haul_base::errno;

/// Most files registered at a time; more are used by their descriptors.
pub(super) const FILES_MAX: u32 = 256;
/// Files that were used once, remembered so that the second use registers them. Small files are used once.
const ONCE_MAX: usize = 64;
/// Most memories registered at a time.
pub(super) const BUFFERS_MAX: u16 = 1024;
/// Registered memory makes way for other memory when so many operations went by without it. Less, and a pool
/// that is larger than what may be registered would be registered anew for each operation, which costs more
/// than it saves.
pub(super) const STALE_OPS: u64 = 1024;

/// Files in the ring's table. The kernel holds an entry's file open on its own, so this must not: it looks
/// whether somebody else does.
pub(super) struct Files {
    pub(super) on: bool,
    pub(super) entries: Vec<FileEntry>,
    pub(super) by_address: HashMap<usize, u32>,
    pub(super) free: Vec<u32>,
    once: VecDeque<usize>,
}

pub(super) struct FileEntry {
    index: u32,
    /// Keeps the address from being used again, and nothing else alive.
    file: Weak<IoFile>,
}

/// Memory in the ring's table: its pages are pinned once instead of with each operation.
pub(super) struct Buffers {
    pub(super) on: bool,
    pub(super) entries: Vec<Option<BufferEntry>>,
    pub(super) by_slab: HashMap<u64, u16>,
    pub(super) registered: u64,
    registered_max: u64,
    /// Operations so far.
    clock: u64,
}

pub(super) struct BufferEntry {
    slab: Slab,
    in_flight: u32,
    /// The clock at its last use.
    used: u64,
}

impl Files {
    pub(super) fn new(on: bool) -> Files {
        Files {
            on,
            entries: Vec::new(),
            by_address: HashMap::new(),
            free: (0..FILES_MAX).collect(),
            once: VecDeque::new(),
        }
    }

    /// The file's index in the table, if it has or gets one.
    pub(super) fn index_of(&mut self, submitter: &Submitter<'_>, file: &Arc<IoFile>, fd: i32) -> Option<u32> {
        let address = Arc::as_ptr(file).addr();
        if let Some(&index) = self.by_address.get(&address) {
            return Some(index);
        }
        if !self.on {
            return None;
        }
        if !self.once.contains(&address) {
            if self.once.len() == ONCE_MAX {
                self.once.pop_front();
            }
            self.once.push_back(address);
            return None;
        }
        let index = self.free.pop()?;
        if submitter.register_files_update(index, &[fd]).is_err() {
            self.free.push(index);
            self.on = false;
            return None;
        }
        self.by_address.insert(address, index);
        self.entries.push(FileEntry { index, file: Arc::downgrade(file) });
        Some(index)
    }

    /// Lets go of files that nobody else holds.
    pub(super) fn sweep(&mut self, submitter: &Submitter<'_>) {
        let Files { entries, by_address, free, on, .. } = self;
        entries.retain(|entry| {
            if entry.file.strong_count() > 0 {
                return true;
            }
            by_address.remove(&entry.file.as_ptr().addr());
            match submitter.register_files_update(entry.index, &[-1]) {
                Ok(_) => free.push(entry.index),
                Err(_) => *on = false,
            }
            false
        });
    }

    /// Lets go of all files.
    pub(super) fn clear(&mut self, submitter: &Submitter<'_>) {
        for entry in self.entries.drain(..) {
            let _ = submitter.register_files_update(entry.index, &[-1]);
        }
    }
}

impl Buffers {
    pub(super) fn new(registered_max: u64) -> Buffers {
        Buffers {
            on: registered_max > 0,
            entries: Vec::new(),
            by_slab: HashMap::new(),
            registered: 0,
            registered_max,
            clock: 0,
        }
    }

    /// The memory's index in the table, if it has or gets one, and one operation more that uses it.
    pub(super) fn take(
        &mut self,
        submitter: &Submitter<'_>,
        slab: Slab,
        remarks: &mut Vec<String>,
    ) -> Option<u16> {
        self.clock += 1;
        let index = match self.by_slab.get(&slab.id) {
            Some(&index) => index,
            None => self.register(submitter, slab, remarks)?,
        };
        let entry = self.entries[index as usize].as_mut().expect("the index names an entry");
        entry.in_flight += 1;
        entry.used = self.clock;
        Some(index)
    }

    pub(super) fn give_back(&mut self, index: u16) {
        let entry = self.entries[index as usize].as_mut().expect("an entry stays while it is in flight");
        entry.in_flight -= 1;
    }

    fn register(&mut self, submitter: &Submitter<'_>, slab: Slab, remarks: &mut Vec<String>) -> Option<u16> {
        if !self.on || slab.len as u64 > self.registered_max {
            return None;
        }
        let index = loop {
            let fits = self.registered + slab.len as u64 <= self.registered_max;
            let free = self.entries.iter().position(Option::is_none).or_else(|| {
                let end = self.entries.len();
                (end < usize::from(BUFFERS_MAX)).then_some(end)
            });
            match free {
                Some(index) if fits => break index,
                _ => self.evict(submitter)?,
            }
        };
        if let Err(error) = update_buffer(submitter, index as u16, slab.address, slab.len) {
            self.on = false;
            let kept = self.registered >> 20;
            let hint = match Errno::from_io_error(&error) {
                Some(Errno::NOMEM | Errno::PERM) => "; raise the limit of locked memory (ulimit -l)",
                _ => "",
            };
            remarks.push(format!(
                "no more than {kept} MiB of buffers are registered: {}{hint}",
                errno::text(error)
            ));
            return None;
        }
        if index == self.entries.len() {
            self.entries.push(None);
        }
        self.entries[index] = Some(BufferEntry { slab, in_flight: 0, used: self.clock });
        self.by_slab.insert(slab.id, index as u16);
        self.registered += slab.len as u64;
        Some(index as u16)
    }

    /// Unregisters the memory that was not used for longest, if that is long enough.
    fn evict(&mut self, submitter: &Submitter<'_>) -> Option<()> {
        let entries = self.entries.iter().enumerate().filter_map(|(i, entry)| Some((i, entry.as_ref()?)));
        let (index, oldest) =
            entries.filter(|(_, entry)| entry.in_flight == 0).min_by_key(|(_, entry)| entry.used)?;
        if oldest.used + STALE_OPS > self.clock || update_buffer(submitter, index as u16, 0, 0).is_err() {
            return None;
        }
        let BufferEntry { slab, .. } = self.entries[index].take().expect("it was found");
        self.by_slab.remove(&slab.id);
        self.registered -= slab.len as u64;
        Some(())
    }
}
