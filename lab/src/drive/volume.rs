//! A volume as a place for files, through the Rust API of haul-volume.
//!
//! Names are entries of its root. Writes and reads go on while others are under way, as many as the options
//! allow: the API returns at once, and an application that has more to write does not wait for one to begin
//! the next.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use haul_core::entry::{Meta, Name};
use haul_core::volume::FileNo;
use haul_core::volume::catalog::{EntryNo, Place, ROOT};
use haul_volume::access::Access;
use haul_volume::catalog::client::Client as Catalog;
use haul_volume::client::{self, Read, Waiting};
use serde_json::{Value, json};

use super::place::{Client, File, Options, See, Threshold};

/// So long one request may take.
const PATIENCE: Duration = Duration::from_secs(60);
const MODE: u32 = 0o644;

pub struct Volume {
    catalog: Catalog,
    client: client::Client,
    servers: u64,
    stripe: u64,
    depth: usize,
}

struct Open<'a> {
    of: &'a Volume,
    id: EntryNo,
    file: FileNo,
    /// Writes that are under way.
    writes: VecDeque<Waiting<()>>,
}

fn at(name: &str) -> anyhow::Result<Place> {
    Ok(Place { parent: ROOT, name: Name::new(name.as_bytes())? })
}

impl Volume {
    /// # Errors
    /// No such volume is known in this directory, or its catalog is not there.
    pub fn connect(state: &Path, name: &str, options: &Options) -> anyhow::Result<Volume> {
        let access = Access::read(state, name)?;
        let keys = access.keys()?;
        let servers = access.addresses()?;
        let catalog = Catalog::connect(keys.clone(), access.catalog.address()?, PATIENCE)?;
        let count = servers.len() as u64;
        let config = client::Config {
            keys,
            number: catalog.number(),
            servers,
            stripe_size: access.stripe.into(),
            write_threshold: match options.threshold {
                Threshold::Pinned(bytes) => Some(bytes),
                Threshold::Adaptive => None,
            },
            patience: PATIENCE,
        };
        let client = client::Client::start_for(config, &catalog).context("start the volume's client")?;
        Ok(Volume { catalog, client, servers: count, stripe: access.stripe.into(), depth: options.depth })
    }
}

impl Client for Volume {
    fn create(&self, name: &str) -> anyhow::Result<Box<dyn File + '_>> {
        let meta = Meta { mode: MODE, ..Meta::default() };
        let (entry, _) = self.catalog.create(at(name)?, meta, true, true)?;
        let file = entry.file().context("the catalog made something else than a file")?;
        Ok(Box::new(Open { of: self, id: entry.id, file, writes: VecDeque::new() }))
    }

    fn open(&self, name: &str) -> anyhow::Result<Box<dyn File + '_>> {
        let entry = self.catalog.lookup(at(name)?)?;
        let file = entry.file().with_context(|| format!("{name} is no file"))?;
        self.catalog.open(entry.id)?;
        Ok(Box::new(Open { of: self, id: entry.id, file, writes: VecDeque::new() }))
    }

    fn exists(&self, name: &str) -> anyhow::Result<bool> {
        match self.catalog.lookup(at(name)?) {
            Ok(_) => Ok(true),
            Err(why) if why.errno == libc::ENOENT => Ok(false),
            Err(why) => Err(why.into()),
        }
    }

    fn rename(&self, from: &str, to: &str) -> anyhow::Result<()> {
        Ok(self.catalog.rename(at(from)?, at(to)?, false)?)
    }

    fn unlink(&self, name: &str) -> anyhow::Result<()> {
        Ok(self.catalog.unlink(at(name)?)?)
    }

    fn stripe(&self) -> Option<u64> {
        Some(self.stripe)
    }

    fn about(&self) -> Value {
        match self.client.threshold() {
            Ok((threshold, counts)) => json!({
                "threshold": threshold,
                "writes_begun": counts.begun,
                "writes_gathered": counts.gathered,
                "writes_explored": counts.explored,
            }),
            Err(_) => Value::Null,
        }
    }
}

impl Open<'_> {
    /// Waits until at most so many writes are under way.
    fn wait_for(&mut self, left: usize) -> anyhow::Result<()> {
        while self.writes.len() > left {
            let first = self.writes.pop_front().expect("there are some");
            first.wait().context("write")?;
        }
        Ok(())
    }
}

impl File for Open<'_> {
    fn write(&mut self, offset: u64, bytes: Vec<u8>) -> anyhow::Result<()> {
        self.wait_for(self.of.depth - 1)?;
        self.writes.push_back(self.of.client.write(self.file, offset, bytes));
        Ok(())
    }

    fn append(&mut self, bytes: Vec<u8>) -> anyhow::Result<()> {
        self.wait_for(0)?;
        self.of.client.append(self.file, bytes).wait().context("append")?;
        Ok(())
    }

    fn sync(&mut self) -> anyhow::Result<()> {
        self.wait_for(0)?;
        self.of.client.sync(self.file).wait().context("sync")
    }

    fn read(&mut self, ranges: &[(u64, u64)], see: &mut See<'_>) -> anyhow::Result<()> {
        self.wait_for(0)?;
        let mut under_way: VecDeque<(u64, Waiting<Read>)> = VecDeque::new();
        let mut next = ranges.iter();
        loop {
            while under_way.len() < self.of.depth
                && let Some((offset, len)) = next.next()
            {
                under_way.push_back((*offset, self.of.client.read(self.file, *offset, *len)));
            }
            let Some((offset, first)) = under_way.pop_front() else { return Ok(()) };
            see(offset, &first.wait().context("read")?.bytes)?;
        }
    }

    fn ready(&mut self) -> anyhow::Result<()> {
        // Its gatherer answers each of them, and each storage server one.
        let ranges: Vec<_> = (0..self.of.servers).map(|server| (server * self.of.stripe, 1)).collect();
        self.read(&ranges, &mut |_, _| Ok(()))
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        // Who wanted to know what became of its writes has synced.
        let _ = self.of.catalog.close(self.id);
    }
}
