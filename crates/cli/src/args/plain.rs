//! Words that name a file or a directory, where a place of a scheme will not do.
//!
//! In: a word, and the parser that it is for. Out: what that makes of it, unless it begins as a scheme does.
//! Invariant: what is said of a word has no password of it; clap's own words would show all of it.

use std::ffi::OsStr;

use clap::builder::{OsStringValueParser, PathBufValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command, Error};
use haul::endpoint::path_alone;
use haul_volume::access::without_scheme;

/// What is said to who would clean at a server.
const PARTS_AT_SERVERS: &str = "\n  At a server nothing tells whose an unfinished file is (.NAME.haul~...): docs/ftp-destination.md, \"What a kill leaves\", \
                                says how to find and remove them";

/// A parser behind the check.
#[derive(Clone)]
pub struct Plain<P> {
    parser: P,
    /// A place in a volume will do as well.
    volumes: bool,
}

/// Takes a path.
pub fn path() -> Plain<PathBufValueParser> {
    Plain { parser: PathBufValueParser::new(), volumes: false }
}

/// Takes a path, or `vol://NAME/PATH`.
pub fn path_or_volume() -> Plain<PathBufValueParser> {
    Plain { volumes: true, ..path() }
}

/// Takes a path as the bytes that were typed, of which there may be none.
pub fn word() -> Plain<OsStringValueParser> {
    Plain { parser: OsStringValueParser::new(), volumes: false }
}

impl<P: TypedValueParser> TypedValueParser for Plain<P> {
    type Value = P::Value;

    fn parse_ref(&self, cmd: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<P::Value, Error> {
        let taker = match arg.and_then(Arg::get_long) {
            Some(long) => format!("--{long}"),
            None => cmd.get_bin_name().unwrap_or(cmd.get_name()).to_owned(),
        };
        let is_volume = value.to_str().is_some_and(|text| without_scheme(text) != text);
        if !(self.volumes && is_volume) {
            let parts = if cmd.get_name() == "clean" && !is_volume { PARTS_AT_SERVERS } else { "" };
            path_alone(&taker, value)
                .map_err(|why| Error::raw(ErrorKind::ValueValidation, format!("{why}{parts}\n")))?;
        }
        self.parser.parse_ref(cmd, arg, value)
    }
}

#[cfg(test)]
mod tests {
    use crate::command::Args;
    use clap::{CommandFactory, Parser};

    /// Goal: each word that is a path of a file system is refused where it is a server's, by the name of what
    /// takes it, and without the password.
    /// Method: every argument of every command that is a path, in a command that is otherwise whole.
    #[test]
    fn servers_are_no_paths() {
        const WORD: &str = "ftp://alice:geheim@h:21/x";
        for (line, taker) in [
            ("layout @", "haul layout"),
            ("clean @", "haul clean"),
            ("clean --state @ d", "--state"),
            ("cp --state @ a b", "--state"),
            ("cp --manifest @ a b", "--manifest"),
            ("cp --failures @ a b", "--failures"),
            ("cp --spill @ a b", "--spill"),
            ("cp --remote-haul @ a b", "--remote-haul"),
            ("probe storage @", "haul probe storage"),
            ("probe storage --save-as @ d", "--save-as"),
            ("probe storage --csv @ d", "--csv"),
            ("probe storage --html @ d", "--html"),
            ("probe pair @ b", "haul probe pair"),
            ("probe pair a @", "haul probe pair"),
            ("probe show @", "haul probe show"),
            ("probe show --html @", "--html"),
            ("man @", "haul man"),
            ("volume create v --hosts n --root @", "--root"),
            ("volume create v --server /a --remote-haul @", "--remote-haul"),
            ("serve gridftp --root @", "--root"),
            ("serve volume --root @", "--root"),
            ("serve catalog --dir @", "--dir"),
        ] {
            let words = |word: &str| {
                let words = line.split(' ').map(|part| if part == "@" { word } else { part });
                ["haul"].into_iter().chain(words).map(str::to_owned).collect::<Vec<_>>()
            };
            let error = Args::try_parse_from(words(WORD)).expect_err(line);
            let text = error.to_string();
            assert_eq!(error.exit_code(), 2, "{line}");
            assert!(text.contains(&format!("'ftp://alice@h:21/x': {taker} takes a path")), "{line}: {text}");
            assert!(!text.contains("geheim"), "{line}: {text}");
            assert_eq!(text.contains("What a kill leaves"), line.starts_with("clean "), "{line}: {text}");
            assert!(Args::try_parse_from(words("./ftp://alice:geheim@h:21/x")).is_ok(), "{line}");
        }
    }

    /// Goal: no argument that is a path goes without the check.
    /// Method: clap's own parser of paths, which is there where nobody names another, has another name.
    #[test]
    fn all_paths_are_checked() {
        let (mut all, mut paths) = (vec![Args::command()], 0);
        while let Some(command) = all.pop() {
            for arg in command.get_arguments() {
                let parser = format!("{:?}", arg.get_value_parser());
                assert_ne!(parser, format!("{:?}", clap::builder::ValueParser::path_buf()), "{arg}");
                paths += usize::from(parser.contains("PathBuf"));
            }
            all.extend(command.get_subcommands().cloned());
        }
        assert!(paths > 10, "{paths}");
    }
}
