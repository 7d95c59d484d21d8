//! `haul completions SHELL`: a completion script on stdout.

use std::io::Write;

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;

/// In bash: the jobs that run, then what can be done to one. The rest is left to the script that clap made.
const JOBS: &str = r#"
_haul_jobs() {
    local cur="${COMP_WORDS[COMP_CWORD]}" words=""
    if [[ ${COMP_WORDS[1]} != ctl || $cur == -* ]]; then
        _haul "$@"
        return
    fi
    case $COMP_CWORD in
        2) words="list $(haul ctl list 2>/dev/null | awk '$1 ~ /^[0-9]+$/ {print $1; print $2}')" ;;
        3) [[ ${COMP_WORDS[2]} == list ]] || words="show pause resume set" ;;
        4) [[ ${COMP_WORDS[3]} == set ]] && words="rate streams readers writers" ;;
    esac
    COMPREPLY=( $(compgen -W "$words" -- "$cur") )
}
complete -F _haul_jobs -o bashdefault -o default haul
"#;

use super::{FAILED, complain};
use haul::errno;

#[derive(Args, Debug)]
pub struct Script {
    shell: Shell,
}

impl super::Run for Script {
    fn run(&self) -> i32 {
        run(self.shell)
    }
}

fn run(shell: Shell) -> i32 {
    // Into memory first: the generator panics when its writer fails.
    match std::io::stdout().write_all(&script(shell)) {
        Ok(()) => 0,
        Err(error) => complain(&format!("cannot write to stdout: {}", errno::text(error)), FAILED),
    }
}

fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut offered(), "haul", &mut script);
    if shell == Shell::Bash {
        script.extend_from_slice(JOBS.as_bytes());
    }
    script
}

/// The command as it can be typed from left to right: behind `haul ctl` stands a job, which clap's generators
/// would pass over.
fn offered() -> Command {
    let whole = super::Args::command();
    let mut offered = Command::new("haul").about(whole.get_about().cloned().unwrap_or_default());
    offered = offered.version(env!("CARGO_PKG_VERSION")).disable_help_subcommand(true);
    for command in whole.get_subcommands().filter(|command| !command.is_hide_set()) {
        offered = offered.subcommand(match command.get_name() {
            "ctl" => {
                let list = Command::new("list").about("The copies of this user that run on this host");
                let args = command.get_arguments().filter(|arg| !arg.is_positional());
                Command::new("ctl")
                    .about(command.get_about().cloned().unwrap_or_default())
                    .args(args.map(|arg| arg.clone().global(false)))
                    .disable_help_subcommand(true)
                    .subcommand(list)
            }
            _ => command.clone(),
        });
    }
    offered
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command as Process;

    /// Goal: what is offered behind `haul ctl` can be typed there: `list` or a job, and then what can be done
    /// to it; other commands are completed as ever.
    /// Method: the script in a bash whose `haul` lists one job; words at each place.
    #[test]
    fn jobs_come_before_what_is_done_to_them() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("haul.bash");
        std::fs::write(&at, script(Shell::Bash)).unwrap();
        let offered = |line: &str| {
            let ask = format!(
                "haul() {{ echo '4242  data  running, 1 B: to h:/x'; }}; source {}; COMP_WORDS=({line} ''); \
                 COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _haul_jobs haul '' ''; echo \"${{COMPREPLY[@]}}\"",
                at.display()
            );
            let out = match Process::new("bash").args(["--norc", "-c", &ask]).output() {
                Ok(out) => out,
                Err(error) => {
                    eprintln!("skipped: no bash: {error}");
                    return None;
                }
            };
            assert!(out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
            Some(String::from_utf8(out.stdout).unwrap())
        };
        for (line, want) in [
            ("haul ctl", "list 4242 data\n"),
            ("haul ctl 4242", "show pause resume set\n"),
            ("haul ctl data set", "rate streams readers writers\n"),
            ("haul ctl list", "\n"),
        ] {
            let Some(got) = offered(line) else { return };
            assert_eq!(got, want, "{line}");
        }
        assert!(offered("haul").is_some_and(|all| all.contains("cp") && !all.contains("agent")));
        for shell in [Shell::Zsh, Shell::Fish, Shell::Bash] {
            let text = String::from_utf8(script(shell)).unwrap();
            assert!(
                text.contains("no-clobber") && !text.contains("haul__subcmd__ctl__subcmd__pause"),
                "{shell}"
            );
        }
    }
}
