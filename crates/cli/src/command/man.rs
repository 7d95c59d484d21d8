//! `haul man [DIR]`: manual pages made from the same texts as `--help`.

use std::io::{self, Write};
use std::path::Path;

use clap::CommandFactory;

use super::{FAILED, complain};

pub fn run(dir: Option<&Path>) -> i32 {
    let command = crate::args::Args::command();
    match dir {
        None => match print(command) {
            Ok(()) => 0,
            Err(error) => complain(&format!("cannot write to stdout: {error}"), FAILED),
        },
        Some(dir) => match std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(command, dir))
        {
            Ok(()) => 0,
            Err(error) => complain(&format!("cannot write pages into {}: {error}", dir.display()), FAILED),
        },
    }
}

fn print(command: clap::Command) -> io::Result<()> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    io::stdout().write_all(&page)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each command that people may use has a page, the hidden one has none; the directory need not be there.
    #[test]
    fn pages_are_written() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("share/man/man1");
        // One that is not there yet is made, and one that is there is used.
        assert_eq!((run(Some(&dir)), run(Some(&dir))), (0, 0));
        for page in ["haul.1", "haul-cp.1", "haul-clean.1"] {
            assert!(dir.join(page).exists(), "{page}");
        }
        assert!(!dir.join("haul-agent.1").exists());
        let page = std::fs::read_to_string(dir.join("haul-cp.1")).unwrap();
        assert!(page.contains("manifest"));
    }
}
