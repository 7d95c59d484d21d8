//! By which command a server is told when a file was changed: there is more than one.

/// How a server is told when a file was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetsTimes {
    /// `MFMT`, as a draft has it; not tried yet, or taken.
    Mfmt,
    /// `SITE UTIME`, as that of Globus and `mod_site_misc` of ProFTPD have it.
    SiteUtime,
    /// `MDTM` with a time before the path, as vsftpd has it.
    Mdtm,
    Never,
}

impl SetsTimes {
    /// What is tried where this is unknown.
    pub(crate) fn next(self) -> SetsTimes {
        match self {
            SetsTimes::Mfmt => SetsTimes::SiteUtime,
            SetsTimes::SiteUtime => SetsTimes::Mdtm,
            SetsTimes::Mdtm | SetsTimes::Never => SetsTimes::Never,
        }
    }
}
