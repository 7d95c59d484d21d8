//! MooseFS: a master, and a chunk server on each device.
//!
//! In: devices with a file system. Out: a master that knows all chunk servers. Every path is set, so that
//! nothing but the package's empty metadata file is read from fixed places. A file is cut into chunks of 64
//! MiB, each on as many servers as its goal says. Blocks of zeros are not stored.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

use super::kind::{ADDRESS, make, said, write};
use super::state::PfsState;

pub const PROGRAMS: &[&str] = &["mfsmaster", "mfschunkserver", "mfsmount", "mfsfileinfo", "mfssetgoal"];
/// The metadata of an empty file system, which the package brings.
const EMPTY: &str = "/var/lib/mfs/metadata.mfs.empty";

/// How files lie on chunk servers.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Options {
    /// Copies of each chunk, on so many servers
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=9))]
    goal: u32,
}

impl Options {
    pub fn check(&self, servers: u32) -> anyhow::Result<()> {
        ensure!(self.goal <= servers, "{} copies need as many chunk servers", self.goal);
        Ok(())
    }
}

pub fn server(at: u32, device: &Path, work: &Path) -> (String, PathBuf, [String; 2]) {
    let settings = work.join(format!("chunk{at}.cfg"));
    let mark = ["mfschunkserver".into(), settings.display().to_string()];
    (format!("chunk{at}"), device.join("chunks"), mark)
}

pub fn start(state: &PfsState) -> anyhow::Result<()> {
    let work = state.work();
    let master = work.join("master");
    make(&master)?;
    fs::copy(EMPTY, master.join("metadata.mfs")).with_context(|| format!("copy {EMPTY}"))?;
    write(&work.join("exports.cfg"), "* / rw,alldirs,admin,maproot=0:0\n")?;
    write(&work.join("topology.cfg"), "")?;
    let (w, settings) = (work.display(), work.join("master.cfg"));
    write(
        &settings,
        &format!(
            "WORKING_USER = root\nWORKING_GROUP = root\nDATA_PATH = {w}/master\n\
             EXPORTS_FILENAME = {w}/exports.cfg\nTOPOLOGY_FILENAME = {w}/topology.cfg\n\
             MATOML_LISTEN_HOST = {ADDRESS}\nMATOCS_LISTEN_HOST = {ADDRESS}\nMATOCL_LISTEN_HOST = {ADDRESS}\n\
             SYSLOG_IDENT = mfsmaster\n"
        ),
    )?;
    said("mfsmaster", &["-c", &settings.display().to_string(), "start"])?;
    for server in &state.servers {
        let own = work.join(&server.name);
        make(&own)?;
        make(&server.path)?;
        let disks = work.join(format!("{}.disks", server.name));
        write(&disks, &format!("{}\n", server.path.display()))?;
        let [_, settings] = &server.mark;
        write(
            Path::new(settings),
            &format!(
                "WORKING_USER = root\nWORKING_GROUP = root\nDATA_PATH = {}\nHDD_CONF_FILENAME = {}\n\
                 MASTER_HOST = {ADDRESS}\nCSSERV_LISTEN_HOST = {address}\nBIND_HOST = {address}\n\
                 HDD_LEAVE_SPACE_DEFAULT = 64MiB\n",
                own.display(),
                disks.display(),
                address = server.address
            ),
        )?;
        said("mfschunkserver", &["-c", settings, "start"])?;
    }
    Ok(())
}

pub fn client(state: &PfsState) -> Vec<String> {
    let mount = state.mount.display().to_string();
    ["mfsmount", "-f", "-H", ADDRESS, &mount, "-o", "mfsallowoomkiller"].map(str::to_owned).to_vec()
}

/// New files get the number of copies that was asked for.
pub fn mounted(state: &PfsState, options: &Options) -> anyhow::Result<()> {
    // The tool asks the master itself.
    let (network, mount) =
        (format!("--net=/run/netns/{}", state.namespace()), state.mount.display().to_string());
    said("nsenter", &[&network, "--", "mfssetgoal", "-r", &options.goal.to_string(), &mount]).map(drop)
}
