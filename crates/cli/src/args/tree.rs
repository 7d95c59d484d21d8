//! How the tree of a source is walked, and what becomes of symbolic links.

use clap::{ArgAction, Args as ClapArgs};

#[derive(ClapArgs, Debug)]
pub struct Tree {
    /// Leave symbolic links out
    ///
    /// They are counted, and the first are named. For sources of which some links cannot be copied: a server
    /// of Globus tells only what they lead to in the end. Default: links are copied as links.
    #[arg(long)]
    pub no_links: bool,

    /// Follow all symbolic links of the source, to files and to directories
    ///
    /// What they lead to is copied in their place, wherever it lies. One that leads nowhere, or back to a
    /// directory that it lies in, fails by name (exit code 3). Default: links are copied as links.
    #[arg(short = 'L', long, overrides_with = "copy_links", conflicts_with_all = ["no_links", "safe_links"])]
    pub copy_links: bool,

    /// Follow symbolic links of the source that lead to directories, and no others
    #[arg(short = 'k', long, overrides_with = "copy_dirlinks")]
    pub copy_dirlinks: bool,

    /// Follow symbolic links of the source that lead out of what is copied, and no others
    ///
    /// Those are meant that --safe-links leaves out.
    #[arg(long, conflicts_with = "safe_links")]
    pub copy_unsafe_links: bool,

    /// Leave symbolic links out that are absolute or lead out of what is copied
    ///
    /// By their text, as rsync tells it: ../x is within below a directory that is copied, and a/../../x is
    /// not. They are counted, and the first are named.
    #[arg(long)]
    pub safe_links: bool,

    /// Take a symbolic link that stands at the destination for the directory that it leads to
    ///
    /// Where a directory comes. A link that came with this copy is never followed, nor one that leads through
    /// such a one. Default: nothing is written through a link, which fails by name.
    #[arg(short = 'K', long, overrides_with = "keep_dirlinks")]
    pub keep_dirlinks: bool,

    /// Stay on the file system of each source: what is mounted in it is made as an empty directory
    ///
    /// Given twice, not even that. They are counted, and the first are named. As the system tells file
    /// systems apart: a subvolume of btrfs is another one. Default: what is mounted is copied, too.
    #[arg(short = 'x', long, action = ArgAction::Count)]
    pub one_file_system: u8,
}
