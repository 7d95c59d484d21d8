//! Modes and owners that the destination gets instead of the source's own.
//!
//! In: words as rsync has them. Out: what the library takes. What fits together is checked in
//! `command::copy` and by the library.

use clap::{ArgAction, Args as ClapArgs};
use haul::options::{Chmod, OwnerMap};

#[derive(ClapArgs, Debug)]
pub struct Given {
    /// Change modes on the way, as rsync does: D755,F644 or Dg+s,ug+rwX,o-w
    ///
    /// Parts between commas, or given several times, are done one after another: D is of directories alone, F
    /// of all else that has a mode; then an octal mode, or u, g, o and a (none: all, but for the umask), +, -
    /// or =, and r, w, x, X, s and t. X is x for directories and for what somebody may execute. Destination
    /// and source are compared by what comes of it. setuid and setgid stay only where owner or group is kept.
    /// Not with -A. Default: the modes of the source.
    #[arg(long, value_name = "CHMOD", action = ArgAction::Append, value_parser = chmod)]
    chmod: Vec<Chmod>,

    /// With -a, have all belong to this user and group of the destination's host: USER:GROUP, USER or :GROUP
    ///
    /// By name or by number. As --usermap=*:USER --groupmap=*:GROUP.
    #[arg(long, value_name = "USER:GROUP", value_parser = chown)]
    chown: Option<Chown>,

    /// With -a, have users stand for others: FROM:TO,FROM:TO, and the first that fits counts
    ///
    /// FROM is what the source calls a user: a name, a number, a range of numbers (0-999), a pattern of names
    /// (w*, ?x, [a-c]*), nothing (who has no name there), or * for everybody. TO is a name or a number of the
    /// destination's host; one that nobody has there is an error. Names in lists (-A) are not mapped. Not
    /// with servers. Default: as -a says.
    #[arg(long, value_name = "FROM:TO,...", value_parser = OwnerMap::parse)]
    usermap: Option<OwnerMap>,

    /// With -a, the same of groups
    #[arg(long, value_name = "FROM:TO,...", value_parser = OwnerMap::parse)]
    groupmap: Option<OwnerMap>,
}

/// Whom all is to belong to.
#[derive(Clone, Debug)]
struct Chown {
    user: Option<OwnerMap>,
    group: Option<OwnerMap>,
}

/// Users and groups that stand for others, if some do.
pub type Maps = (Option<OwnerMap>, Option<OwnerMap>);

impl Given {
    /// Modes that are made of those of the source.
    pub fn chmod(&self) -> Option<Chmod> {
        self.chmod.iter().cloned().reduce(Chmod::then)
    }

    /// Users and groups that stand for others. `archive`: owners are kept.
    ///
    /// # Errors
    /// Two of the options say whom users, or groups, belong to; or nothing does.
    pub fn maps(&self, archive: bool) -> Result<Maps, String> {
        let both = |what: &str| format!("--chown is {what}=*:..., for everybody: leave one of them out");
        let (user, group) = self.chown.clone().map_or((None, None), |chown| (chown.user, chown.group));
        let one = |all: Option<OwnerMap>, map: &Option<OwnerMap>, what| match (all, map) {
            (Some(_), Some(_)) => Err(both(what)),
            (all, map) => Ok(all.or_else(|| map.clone())),
        };
        let maps = (one(user, &self.usermap, "--usermap")?, one(group, &self.groupmap, "--groupmap")?);
        if !archive && (maps.0.is_some() || maps.1.is_some()) {
            return Err(
                "--chown, --usermap and --groupmap say whom files belong to, and without -a they belong to whoever writes them: give -a, too"
                    .into(),
            );
        }
        Ok(maps)
    }
}

fn chmod(text: &str) -> Result<Chmod, String> {
    Chmod::parse(text, haul::kernel::umask())
}

fn chown(text: &str) -> Result<Chown, String> {
    let (user, group) = text.split_once(':').unwrap_or((text, ""));
    let all = |name: &str| if name.is_empty() { Ok(None) } else { OwnerMap::all_to(name).map(Some) };
    let chown = Chown { user: all(user)?, group: all(group)? };
    match (&chown.user, &chown.group) {
        (None, None) => Err("it names nobody: write USER:GROUP, USER or :GROUP".into()),
        _ => Ok(chown),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser, Debug)]
    struct Words {
        #[command(flatten)]
        given: Given,
    }

    fn given(line: &str) -> Result<Given, clap::Error> {
        Ok(Words::try_parse_from(["cp"].into_iter().chain(line.split_whitespace()))?.given)
    }

    /// Goal: what is typed as rsync has it comes out as that, and what does not go together is refused.
    #[test]
    fn words_are_rsyncs() {
        let map = |text: &str| Some(OwnerMap::parse(text).expect("a map"));
        for (line, wanted) in [
            ("--chown=a:b", (map("*:a"), map("*:b"))),
            ("--chown a", (map("*:a"), None)),
            ("--chown a:", (map("*:a"), None)),
            ("--chown :7", (None, map("*:7"))),
            ("--usermap=0-9:a,*:b --chown=:c", (map("0-9:a,*:b"), map("*:c"))),
            ("", (None, None)),
        ] {
            assert_eq!(given(line).expect("understood").maps(true), Ok(wanted), "{line}");
        }
        assert!(
            given("--chown a").expect("understood").maps(false).is_err_and(|why| why.contains("give -a"))
        );
        let twice = given("--chown a --usermap 1:2").expect("understood");
        assert!(twice.maps(true).is_err_and(|why| why.contains("--usermap=*:...")));
        for line in ["--chown :", "--chown a:b:c", "--usermap a", "--groupmap a:", "--chmod g=u", "--chmod ,"]
        {
            assert_eq!(given(line).expect_err(line).exit_code(), 2, "{line}");
        }
        let two = given("--chmod=D700,F600 --chmod g+r").expect("understood").chmod().expect("modes");
        assert_eq!((two.apply(0o755, true), two.apply(0o755, false)), (0o740, 0o640));
        assert_eq!(given("").expect("understood").chmod(), None);
    }
}
