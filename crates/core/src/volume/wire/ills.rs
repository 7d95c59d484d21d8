//! What visitors hear of disks that do not take something, and of files that a catalog does not know.

use std::time::Duration;

use super::{bad, nanos};
use crate::volume::ServerNo;
use crate::volume::catalog::SERVERS_MAX;
use crate::wire::WireError;
use crate::wire::codec::{Reader, Writer};

/// Most of them that one visitor hears.
pub const ILLS_MAX: usize = 3 * SERVERS_MAX + 3;

/// Something that a disk does not take, or a catalog does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ill {
    pub what: Illness,
    /// What the system says, by its number.
    pub errno: i32,
    /// Since when, before now.
    pub since: Duration,
}

/// What it is that is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Illness {
    /// What was gathered at who is visited, by the server where it lies: so many bytes of so many files wait.
    Waits { server: ServerNo, files: u64, bytes: u64 },
    /// What would be gathered, by the disk of who is visited.
    Log,
    /// What the catalog would write.
    Catalog,
    /// Something of a file that lies there: its disk fails, and is not only full.
    Stripes,
    /// That server has bytes of so many files of which the catalog, which is visited, never heard: it is
    /// older than the server.
    Unknown { server: ServerNo, files: u64 },
    /// Whether that one has such files is not known, for it has not answered since the catalog began.
    Unasked { server: ServerNo },
    /// Who is visited has no connection to that server, or is not heard there.
    Parted { server: ServerNo },
}

pub(super) fn write_ills(w: &mut Writer<'_>, ills: &[Ill]) {
    w.count("ills", ills.len(), ILLS_MAX);
    for Ill { what, errno, since } in ills {
        let (kind, server, files, bytes) = match what {
            Illness::Waits { server, files, bytes } => (0, server.0, *files, *bytes),
            Illness::Log => (1, 0, 0, 0),
            Illness::Catalog => (2, 0, 0, 0),
            Illness::Stripes => (3, 0, 0, 0),
            Illness::Unknown { server, files } => (4, server.0, *files, 0),
            Illness::Unasked { server } => (5, server.0, 0, 0),
            Illness::Parted { server } => (6, server.0, 0, 0),
        };
        w.u8(kind);
        w.i32(*errno);
        w.u64(nanos(*since));
        match kind {
            0 => {
                w.u16(server);
                w.u64(files);
                w.u64(bytes);
            }
            4 => {
                w.u16(server);
                w.u64(files);
            }
            5 | 6 => w.u16(server),
            _ => {}
        }
    }
}

pub(super) fn read_ills(r: &mut Reader<'_>) -> Result<Vec<Ill>, WireError> {
    r.list("ills", ILLS_MAX, 13, |r| {
        let kind = r.u8("what a disk does not take")?;
        let (errno, since) = (r.i32("errno")?, Duration::from_nanos(r.u64("since when")?));
        let what = match kind {
            0 => {
                let server = ServerNo(r.u16("server")?);
                Illness::Waits { server, files: r.u64("files that wait")?, bytes: r.u64("bytes that wait")? }
            }
            1 => Illness::Log,
            2 => Illness::Catalog,
            3 => Illness::Stripes,
            4 => Illness::Unknown { server: ServerNo(r.u16("server")?), files: r.u64("files")? },
            5 => Illness::Unasked { server: ServerNo(r.u16("server")?) },
            6 => Illness::Parted { server: ServerNo(r.u16("server")?) },
            other => return Err(bad("what a disk does not take", other.into())),
        };
        Ok(Ill { what, errno, since })
    })
}
