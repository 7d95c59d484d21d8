//! How a file is opened, as with the standard library.

use haul_core::volume::layout::{Given, Placement};
use rustix::io::Errno;

use super::error::Why;

/// Bytes that a file holds of what was read ahead, if nobody says.
pub const AHEAD: u64 = 64 << 20;

/// How a file is opened: as [`std::fs::OpenOptions`] says it.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) append: bool,
    pub(super) truncate: bool,
    pub(super) create: bool,
    pub(super) create_new: bool,
    pub(super) mode: u32,
    pub(super) ahead: u64,
    pub(super) placement: Option<Placement>,
    pub(super) given: Option<Given>,
    pub(super) expected_len: Option<u64>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// Nothing is allowed yet; a file that is made gets the mode 0644.
    pub fn new() -> OpenOptions {
        OpenOptions {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o644,
            ahead: AHEAD,
            placement: None,
            given: None,
            expected_len: None,
        }
    }

    /// It can be read.
    pub fn read(&mut self, read: bool) -> &mut OpenOptions {
        self.read = read;
        self
    }

    /// It can be written.
    pub fn write(&mut self, write: bool) -> &mut OpenOptions {
        self.write = write;
        self
    }

    /// It can be written behind its end alone.
    pub fn append(&mut self, append: bool) -> &mut OpenOptions {
        self.append = append;
        self
    }

    /// It is made empty.
    pub fn truncate(&mut self, truncate: bool) -> &mut OpenOptions {
        self.truncate = truncate;
        self
    }

    /// It is made if it is not there.
    pub fn create(&mut self, create: bool) -> &mut OpenOptions {
        self.create = create;
        self
    }

    /// It is made, and must not be there; no link is followed there.
    pub fn create_new(&mut self, create_new: bool) -> &mut OpenOptions {
        self.create_new = create_new;
        self
    }

    /// The mode of a file that is made: bits of permission, as they are, for there is no umask.
    pub fn mode(&mut self, mode: u32) -> &mut OpenOptions {
        self.mode = mode;
        self
    }

    /// So many bytes of what is read ahead are held at most: 64 MiB if nobody says.
    pub fn ahead(&mut self, bytes: u64) -> &mut OpenOptions {
        self.ahead = bytes;
        self
    }

    /// How a file that is made lies on the servers, for all its life: as the volume has it if nobody says.
    pub fn placement(&mut self, placement: Placement) -> &mut OpenOptions {
        self.placement = Some(placement);
        self
    }

    /// A file that is made lies as this list says, for all its life: its first stripe on the server of the
    /// first run, and so on; behind the last run the list begins again. The server of the first stripe
    /// gathers its small writes. It goes before [`OpenOptions::placement`].
    ///
    /// The volume must have been made with the placement `given`. When a program makes the first file of a
    /// list all servers must be there. A volume keeps 4,096 different lists of 4,194,304 bytes in all (a run
    /// has 10), for all its life: so give files the same ones.
    ///
    /// ```
    /// use haul_volume::api::{Given, OpenOptions};
    ///
    /// // Blocks 0 to 9 on server 3, one on server 0, and again.
    /// let list = Given::new([(3, 10), (0, 1)])?;
    /// let mut options = OpenOptions::new();
    /// options.write(true).create_new(true).given(list);
    /// # Ok::<(), haul_volume::api::BadList>(())
    /// ```
    pub fn given(&mut self, list: Given) -> &mut OpenOptions {
        self.given = Some(list);
        self
    }

    /// So many bytes a file that is made will have: [`Placement::Partitioned`] needs to know it. It may have
    /// more or fewer all the same.
    pub fn expected_len(&mut self, len: u64) -> &mut OpenOptions {
        self.expected_len = Some(len);
        self
    }

    /// What fits together, and what not: as the standard library has it.
    pub(super) fn check(&self) -> Result<(), Why> {
        let writes = self.write || self.append;
        let why = match () {
            () if !self.read && !writes => "it is opened to nothing: to read, write or append",
            () if (self.create || self.create_new || self.truncate) && !writes => {
                "it is opened to read alone, and cannot be made or emptied"
            }
            () if self.truncate && self.append && !self.create_new => "it cannot be emptied to append to it",
            () if self.mode > haul_core::volume::catalog::MODE_MAX => "a mode has bits of permission alone",
            () => return Ok(()),
        };
        Err(Why::refused(Errno::INVAL, why))
    }
}
