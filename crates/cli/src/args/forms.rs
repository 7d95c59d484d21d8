//! The forms of a report that every probe has.

use std::path::PathBuf;

use super::plain;
use clap::Args as ClapArgs;

/// In which forms a probe reports; as text where none is named.
#[derive(ClapArgs, Debug)]
pub struct Forms {
    /// Write events as JSON lines to stdout, the last one is the summary
    ///
    /// The schema is docs/probe.schema.json. Texts for people stay on stderr.
    #[arg(long)]
    pub json: bool,

    /// Write every measurement as CSV to FILE, or to stdout in place of the table for -
    #[arg(long, value_name = "FILE", value_parser = plain::path())]
    pub csv: Option<PathBuf>,

    /// Write the report as one self-contained page
    #[arg(long, value_name = "FILE", value_parser = plain::path())]
    pub html: Option<PathBuf>,
}
