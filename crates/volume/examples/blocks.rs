//! Reads a file of a volume by its blocks, from all servers at once, into a file of this host: `cargo run
//! --release -p haul-volume --example blocks DIR VOLUME PATH OUT`.
//!
//! DIR has the accesses to volumes: `~/.local/state/haul`, if XDG_STATE_HOME does not say another one. Blocks
//! come in any order, and each goes to its place.

use std::error::Error;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use haul_volume::access::Access;
use haul_volume::api::{OpenOptions, Volume};

/// Blocks that are asked for in one call.
const AT_ONCE: u64 = 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [dir, name, path, out] = &words[..] else { return Err("blocks DIR VOLUME PATH OUT".into()) };
    let volume = Volume::open(&Access::read(dir.as_ref(), name)?)?;
    let (bytes, servers) = copy_out(&volume, path, &File::create(out)?)?;
    println!("{bytes} bytes; blocks of each server: {servers:?}");
    Ok(())
}

/// Copies a file block by block; says how many bytes it has, and how many of its blocks each server has.
pub fn copy_out(volume: &Volume, path: &str, out: &File) -> Result<(u64, Vec<u64>), Box<dyn Error>> {
    let file = volume.open_file(path, OpenOptions::new().read(true))?;
    let blocks = file.blocks()?;
    let mut servers = vec![0; volume.servers().len()];
    blocks.iter().for_each(|block| servers[usize::from(block.server)] += 1);
    let mut failed: Option<io::Error> = None;
    for first in (0..blocks.count()).step_by(AT_ONCE as usize) {
        let numbers: Vec<u64> = (first..blocks.count().min(first + AT_ONCE)).collect();
        file.read_blocks(&numbers, |number, bytes| {
            let written = out.write_all_at(bytes, number * blocks.size());
            failed = failed.take().or(written.err());
        })?;
        if let Some(error) = failed.take() {
            return Err(error.into());
        }
    }
    out.set_len(blocks.file_len())?;
    file.close()?;
    Ok((blocks.file_len(), servers))
}
