//! Options as they are typed, where the library names them by its fields.
//!
//! In: a text of the library, for people: it does not know what a command line looks like, and puts the name
//! of an option between backquotes (`` `no_push` ``, `` `resume=trust` ``). Out: the same with what is typed
//! here (`--no-push`). Other words between backquotes stay as they are.

/// The library's names, and what is typed.
const TYPED: [(&str, &str); 47] = [
    ("acls", "-A"),
    ("archive", "-a"),
    ("changed", "--changed"),
    ("chmod", "--chmod"),
    ("copy_dirlinks", "-k"),
    ("copy_links", "-L"),
    ("copy_unsafe_links", "--copy-unsafe-links"),
    ("data_channel", "--data-channel"),
    ("devices", "--devices"),
    ("dial", "--dial"),
    ("digest", "--digest"),
    ("force", "--force"),
    ("groupmap", "--groupmap"),
    ("hard_links", "-H"),
    ("in_place", "--in-place"),
    ("keep_dirlinks", "-K"),
    ("layout", "--layout"),
    ("manifest", "--manifest"),
    ("memory", "--memory"),
    ("network_ok", "--yes"),
    ("no_clobber", "--no-clobber"),
    ("no_links", "--no-links"),
    ("no_push", "--no-push"),
    ("numeric_ids", "--numeric-ids"),
    ("one_file_system", "-x"),
    ("only", "--retry-from"),
    ("patience", "--patience"),
    ("ports", "--port"),
    ("protect", "--protect"),
    ("range", "--range"),
    ("rate", "--rate"),
    ("recursive", "-r"),
    ("remote_haul", "--remote-haul"),
    ("resume", "--resume"),
    ("retries", "--retries"),
    ("retry_command", "--retry-command"),
    ("retry_for", "--retry-for"),
    ("safe_links", "--safe-links"),
    ("specials", "--specials"),
    ("spill_size", "--spill-size"),
    ("state_dir", "--state"),
    ("streams", "--streams"),
    ("to", "--to"),
    ("update", "--update"),
    ("usermap", "--usermap"),
    ("via", "--via"),
    ("xattrs", "-X"),
];

/// The text with the options as they are typed.
pub fn typed(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('`') {
        out.push_str(before);
        rest = after;
        match after.split_once('`').and_then(|(word, behind)| Some((option(word)?, behind))) {
            Some((option, behind)) => {
                out.push_str(&option);
                rest = behind;
            }
            None => out.push('`'),
        }
    }
    out + rest
}

/// What is typed for a word between backquotes, if it is an option.
fn option(word: &str) -> Option<String> {
    let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
    let (_, typed) = TYPED.iter().find(|(known, _)| *known == name)?;
    Some(value.map_or_else(|| (*typed).to_owned(), |value| format!("{typed}={value}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Args;
    use clap::CommandFactory;

    /// Goal: names of options become what is typed, and nothing else is touched.
    #[test]
    fn names_become_what_is_typed() {
        for (library, want) in [
            ("leave `in_place` and `to` out", "leave --in-place and --to out"),
            ("`resume=trust` leaves parts", "--resume=trust leaves parts"),
            ("a directory (use `recursive`)", "a directory (use -r)"),
            ("remove it (`haul clean`), `x` or `force` it", "remove it (`haul clean`), `x` or --force it"),
            ("one ` alone, `force", "one ` alone, `force"),
            ("`` `to`", "`` --to"),
            ("", ""),
        ] {
            assert_eq!(typed(library), want);
        }
    }

    /// Goal: what a hint says can be typed.
    #[test]
    fn what_is_typed_exists() {
        let args = Args::command();
        let all = args.get_subcommands().flat_map(|command| {
            std::iter::once(command)
                .chain(command.get_subcommands())
                .flat_map(|command| command.get_arguments())
        });
        let known: Vec<String> = all
            .flat_map(|arg| {
                let long = arg.get_long().map(|long| format!("--{long}"));
                long.into_iter().chain(arg.get_short().map(|short| format!("-{short}"))).collect::<Vec<_>>()
            })
            .collect();
        for (name, typed) in TYPED {
            assert!(known.iter().any(|known| known == typed), "{name}: {typed}");
        }
    }
}
