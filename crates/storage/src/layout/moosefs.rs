//! MooseFS: its master says where each chunk of a file lies, through the door that the client holds open for
//! tools.
//!
//! In: an open file. Out: its layout. The root of the mount has a file that nobody can list, `.masterinfo`:
//! where that door is, an address of this host. What is asked changes nothing, not even an access time.
//! Invariants: a connection is made only where a file system that calls itself MooseFS says so in a file that
//! is of root and has the number which no other file of MooseFS has; nothing is waited for longer than
//! [`WAIT`]; answers are bounded.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use haul_core::layout::{
    Layout, LayoutError, MOOSEFS_CHUNK_LEN, MOOSEFS_HEAD_LEN, MooseFsMaster, TargetName, moosefs,
    moosefs_body_len, moosefs_chunk, moosefs_master, moosefs_question, moosefs_register, moosefs_registered,
};
use rustix::fs::{FileType, Mode, OFlags, fstat, open, openat};
use rustix::io::Errno;

use super::{AskError, NewFile, Parallel};
use haul_base::mounts::Mount;

pub(super) const PROVIDER: Parallel = Parallel {
    name: "moosefs",
    magic: None,
    kinds: &["moosefs", "fuse.mfs"],
    // Its client says it there where it can give no kind.
    source: Some("mfs#"),
    keeps_positions: false,
    keeps_versions: false,
    // A file has chunks, and with them places, only when it was written.
    new_file: NewFile::Unplaced,
    ask,
    make: None,
};

/// The number of `.masterinfo`.
const INFO_INODE: u64 = 0x7fff_ffff;
const INFO_LEN: usize = 14;
/// For a connection, and for each answer.
const WAIT: Duration = Duration::from_secs(5);
/// Most chunks of a file whose places are asked for: 256 GiB. What lies behind counts as lying with the last
/// one.
const CHUNKS_MAX: u64 = 4096;

fn ask(file: BorrowedFd<'_>, size: u64) -> Result<Layout, AskError> {
    let inode = u32::try_from(fstat(file)?.st_ino).map_err(|_| Errno::OVERFLOW)?;
    let mut master = Door::open(master_of(file)?)?;
    let chunks = size.div_ceil(MOOSEFS_CHUNK_LEN).clamp(1, CHUNKS_MAX);
    let chunks: Result<Vec<_>, AskError> =
        (0..chunks).map(|chunk| master.chunk(inode, u32::try_from(chunk).expect("a few thousand"))).collect();
    Ok(moosefs(chunks?)?)
}

/// What the client says of its master.
fn master_of(file: BorrowedFd<'_>) -> Result<MooseFsMaster, AskError> {
    let mount = Mount::of(file).ok().flatten().ok_or(Errno::NODEV)?;
    let dir = open(&mount.mount_point, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let info: OwnedFd = openat(&dir, ".masterinfo", flags, Mode::empty())?;
    let (stat, own) = (fstat(info.as_fd())?, fstat(file)?);
    let genuine = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && (stat.st_ino, stat.st_dev) == (INFO_INODE, own.st_dev)
        && (stat.st_uid, stat.st_gid) == (0, 0);
    if !genuine {
        return Err(LayoutError::Form("the client says nothing of its master").into());
    }
    let mut bytes = Vec::with_capacity(INFO_LEN);
    File::from(info).take(INFO_LEN as u64).read_to_end(&mut bytes).map_err(errno)?;
    Ok(moosefs_master(&bytes)?)
}

/// A connection to the master.
struct Door(TcpStream);

impl Door {
    fn open(master: MooseFsMaster) -> Result<Door, AskError> {
        let address = SocketAddr::from((master.address, master.port));
        let stream = TcpStream::connect_timeout(&address, WAIT).map_err(errno)?;
        stream.set_read_timeout(Some(WAIT)).map_err(errno)?;
        stream.set_write_timeout(Some(WAIT)).map_err(errno)?;
        stream.set_nodelay(true).map_err(errno)?;
        let mut door = Door(stream);
        let greeting = door.answer(&moosefs_register(master.client), true)?;
        moosefs_registered(&greeting)?;
        Ok(door)
    }

    fn chunk(&mut self, inode: u32, chunk: u32) -> Result<Option<TargetName>, AskError> {
        let answer = self.answer(&moosefs_question(inode, chunk), false)?;
        Ok(moosefs_chunk(&answer)?)
    }

    fn answer(&mut self, question: &[u8], registers: bool) -> Result<Vec<u8>, AskError> {
        self.0.write_all(question).map_err(errno)?;
        let mut head = [0; MOOSEFS_HEAD_LEN];
        self.0.read_exact(&mut head).map_err(errno)?;
        let mut body = vec![0; moosefs_body_len(&head, registers)? as usize];
        self.0.read_exact(&mut body).map_err(errno)?;
        Ok(body)
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    /// Goal: questions and answers go over a connection as the master speaks; one that closes or says
    /// nonsense is an error, not a wait.
    /// Method: a master of one thread, with answers recorded from a real one.
    #[test]
    fn a_master_is_asked() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let served = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut greeting = [0; 81];
            stream.read_exact(&mut greeting).unwrap();
            stream.write_all(&[0, 0, 1, 0x91, 0, 0, 0, 1, 0]).unwrap();
            for chunk in 0..2_u8 {
                let mut question = [0; 20];
                stream.read_exact(&mut question).unwrap();
                assert_eq!(question[12..], [0, 0, 0, 9, 0, 0, 0, chunk]);
                let head = [0, 0, 1, 0xb9, 0, 0, 0, 23, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 1];
                stream.write_all(&head).unwrap();
                stream.write_all(&[10, 66, 1, 1 + chunk, 0x24, 0xce, 0]).unwrap();
            }
        });
        let master = MooseFsMaster { address: Ipv4Addr::LOCALHOST, port, client: 1 };
        let mut door = Door::open(master).unwrap();
        let named = |found: Result<Option<TargetName>, AskError>| found.unwrap().unwrap().as_str().to_owned();
        assert_eq!(named(door.chunk(9, 0)), "10.66.1.1:9422");
        assert_eq!(named(door.chunk(9, 1)), "10.66.1.2:9422");
        served.join().unwrap();
        assert!(door.chunk(9, 2).is_err(), "it is gone");
        assert!(Door::open(master).is_err());
    }

    /// Goal: a file system that is no MooseFS is not taken for one, whatever files it has.
    #[test]
    fn others_are_not_believed() {
        let file = tempfile::tempfile().unwrap();
        assert!(ask(file.as_fd(), 5).is_err());
    }
}
