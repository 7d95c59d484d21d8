//! What of files is kept beside their bytes, as `rsync` and `cp` have it.
//!
//! In: words. Out: what the library takes. What haul always keeps can be asked for, in bundles such as
//! `-rlptgoD` too, and changes nothing.

use std::collections::BTreeSet;

use clap::{Args as ClapArgs, ValueEnum};
use haul::options::Options;

#[derive(ClapArgs, Debug)]
pub struct Kept {
    /// Keep access control lists (POSIX ACLs), also those for what is made in a directory
    ///
    /// Users and groups in them by number, as -a keeps owners. Lists that stand at the destination and not at
    /// the source go, as with rsync. What cannot be set is an error of its file, which is copied all the
    /// same (exit code 3). Not at servers and in volumes, which have none. Default: files get what the
    /// destination gives.
    #[arg(short = 'A', long, overrides_with = "acls")]
    acls: bool,

    /// Keep extended attributes: user.*, and as root trusted.* and the rights of programs (capabilities)
    ///
    /// Never layouts and labels of file systems and security modules (lustre.*, trusted.lov, security.selinux
    /// and the like). Attributes that stand at the destination and not at the source go, as with rsync. What
    /// cannot be set is an error of its file, which is copied all the same (exit code 3). Not at servers and
    /// in volumes, which have none. Default: none.
    #[arg(short = 'X', long, overrides_with = "xattrs")]
    xattrs: bool,

    /// Keep hard links: names of one file are names of one file at the destination, and its data moves once
    ///
    /// Names that are copied by this command, from any of its sources; also of symbolic links, devices, FIFOs
    /// and sockets. Files that are one at the destination and several at the source are not made several, as
    /// with rsync. What cannot be a name there becomes a file of its own, and is an error of that (exit code
    /// 3). Not at servers and in volumes, where each name becomes a file. Default: each name becomes a file,
    /// and they are counted.
    #[arg(short = 'H', long, overrides_with = "hard_links")]
    hard_links: bool,

    /// With -a, keep owner and group by number, whatever they are called
    ///
    /// Default: between two hosts by name, where the destination's host knows the name, else by number; root
    /// by number. Users and groups in ACLs are kept by number.
    #[arg(long, overrides_with = "numeric_ids")]
    numeric_ids: bool,

    /// With -g, keep owner and group where that is allowed, as -a does, and nothing else that -a keeps
    ///
    /// Default: files belong to whoever writes them.
    #[arg(short, long, overrides_with = "owner")]
    owner: bool,

    /// See -o, with which it goes
    #[arg(short, long, overrides_with = "group")]
    group: bool,

    /// Keep these of mode, timestamps, links, ownership, xattr, acl, and all, as cp has them
    ///
    /// mode and timestamps are always kept, and links are hard links, as -H keeps them; ownership is -og,
    /// xattr -X, acl -A. Without a list: mode,ownership,timestamps.
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',', num_args = 0..=1, require_equals = true,
          default_missing_value = "mode,ownership,timestamps", hide_possible_values = true)]
    preserve: Vec<Preserve>,

    /// Like --devices --specials: devices, FIFOs and sockets as such (with -a where that is possible)
    ///
    /// None is opened at either end. Root alone can make devices. What cannot be made is an error of its
    /// entry (exit code 3); with -a alone it is left out, and counted.
    #[arg(short = 'D', overrides_with = "special_files")]
    special_files: bool,

    /// Make block and character devices as they are at the source, and copy nothing of what they give
    #[arg(long, overrides_with_all = ["devices", "no_devices"])]
    devices: bool,

    /// Leave devices out, also with -a
    #[arg(long, overrides_with_all = ["no_devices", "devices"])]
    no_devices: bool,

    /// Make FIFOs and sockets as they are at the source
    #[arg(long, overrides_with_all = ["specials", "no_specials"])]
    specials: bool,

    /// Leave FIFOs and sockets out, also with -a
    #[arg(long, overrides_with_all = ["no_specials", "specials"])]
    no_specials: bool,

    /// What is always kept; rsync's words for it
    #[arg(short, long, overrides_with = "perms", hide = true)]
    perms: bool,

    /// What is always kept
    #[arg(short, long, overrides_with = "times", hide = true)]
    times: bool,

    /// What is always kept
    #[arg(short, long, overrides_with = "links", conflicts_with = "no_links", hide = true)]
    links: bool,

    /// What is always done: a copy goes on where it was, and shows its progress
    #[arg(short = 'P', overrides_with = "partial_progress", hide = true)]
    partial_progress: bool,
}

/// cp's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Preserve {
    Mode,
    Timestamps,
    Links,
    Ownership,
    Xattr,
    #[value(alias = "acls")]
    Acl,
    All,
}

impl Kept {
    /// # Errors
    /// One of owner and group alone is to be kept.
    pub fn check(&self) -> Result<(), String> {
        match self.owner == self.group {
            true => Ok(()),
            false => Err("haul keeps owner and group together, or neither: write -og. Whom files belong to at the destination can \
                          be said by --chown"
                .into()),
        }
    }

    /// The options of the library, with what was asked for here.
    pub fn put(&self, options: Options) -> Options {
        let preserve: BTreeSet<Preserve> = self.preserve.iter().copied().collect();
        let has = |what| preserve.contains(&what) || preserve.contains(&Preserve::All);
        Options {
            xattrs: self.xattrs || has(Preserve::Xattr),
            acls: self.acls || has(Preserve::Acl),
            hard_links: self.hard_links || has(Preserve::Links),
            owners: self.owner || has(Preserve::Ownership),
            numeric_ids: self.numeric_ids,
            devices: (self.devices || self.special_files) && !self.no_devices,
            specials: (self.specials || self.special_files) && !self.no_specials,
            no_devices: self.no_devices,
            no_specials: self.no_specials,
            ..options
        }
    }

    /// Owners are kept without `-a`.
    pub fn owners(&self) -> bool {
        self.owner || self.preserve.iter().any(|what| matches!(what, Preserve::Ownership | Preserve::All))
    }
}
