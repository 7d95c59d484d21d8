//! How a far host is reached: what every command that has one takes.

use std::net::IpAddr;
use std::path::PathBuf;

use super::plain;
use clap::Args as ClapArgs;

/// Longest remote shell command, words.
const SSH_WORDS_MAX: usize = 256;

#[derive(ClapArgs, Clone, Debug)]
pub struct Far {
    /// Remote shell and its arguments, as one word: -e 'ssh -p 2222 -i key'
    ///
    /// Default: ssh, with your own configuration, keys and agent. Quotes work as in a shell, nothing is
    /// expanded.
    #[arg(short = 'e', long = "ssh", visible_alias = "rsh", value_name = "CMD", default_value = "ssh",
          hide_default_value = true, value_parser = parse_ssh)]
    pub ssh: SshCommand,

    /// Dial these addresses of the end that listens, each a path of its own
    ///
    /// Where nobody named the end that dials, the addresses of this host are those that it listens on itself,
    /// the others the far host's.
    /// Default: the one that ssh itself reached, for that one is known to be the right host; where other
    /// devices of both hosts reach each other too, these as well. The one that answers first carries control,
    /// IPv6 or IPv4.
    #[arg(long, value_name = "ADDR,...", value_delimiter = ',', value_parser = parse_address)]
    pub via: Vec<IpAddr>,

    /// Port or ports A-B that the end that listens may use
    ///
    /// Default: any free one.
    #[arg(long, value_name = "A-B", value_parser = parse_ports)]
    pub port: Option<Ports>,

    /// Never send the haul program itself to the far host
    ///
    /// Default: a far host without haul in its PATH gets this program into a private cache; one line says so.
    #[arg(long)]
    pub no_push: bool,

    /// Path of haul at the far host
    ///
    /// Default: the one in its PATH, else the pushed one.
    #[arg(long, value_name = "PATH", value_parser = plain::path())]
    pub remote_haul: Option<PathBuf>,
}

/// A remote shell command, split into words; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshCommand(pub Vec<String>);

/// Ports from first to last, both meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports(pub u16, pub u16);

fn parse_address(text: &str) -> Result<IpAddr, String> {
    match text.parse::<IpAddr>() {
        Ok(ip) if !ip.is_unspecified() && !ip.is_multicast() => Ok(ip),
        _ => {
            Err("expected an IP address of the far host as 192.0.2.1 or 2001:db8::1, several with commas"
                .into())
        }
    }
}

fn parse_ports(text: &str) -> Result<Ports, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(Ports(first, last)),
        _ => Err("expected one port, or A-B with A not above B, from 1 to 65535".into()),
    }
}

/// Splits a command into words: single and double quotes and backslashes as in a shell, no expansion.
pub(super) fn parse_ssh(text: &str) -> Result<SshCommand, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => match chars.next() {
                // Inside double quotes a backslash only guards these two, as in a shell.
                Some(next) if quote.is_none() || next == '"' || next == '\\' => {
                    word.get_or_insert_default().push(next)
                }
                Some(next) => word.get_or_insert_default().extend(['\\', next]),
                None => return Err("the command ends in a backslash".into()),
            },
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    match words.first() {
        _ if quote.is_some() => Err("a quote is not closed".into()),
        None => Err("the command is empty".into()),
        Some(program) if program.is_empty() => Err("the program's name is empty".into()),
        _ if words.len() > SSH_WORDS_MAX => Err(format!("more than {SSH_WORDS_MAX} words")),
        _ => Ok(SshCommand(words)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a port or a range, in order and never zero.
    #[test]
    fn ports_are_ranges() {
        assert_eq!(parse_ports("7000"), Ok(Ports(7000, 7000)));
        assert_eq!(parse_ports("7000-7010"), Ok(Ports(7000, 7010)));
        for text in ["", "-", "0", "0-5", "7-6", "1-65536", "a-b", "1-2-3", "5-"] {
            assert!(parse_ports(text).is_err(), "{text}");
        }
    }

    /// Goal: the remote shell is split as a shell would, and nothing is expanded.
    #[test]
    fn ssh_words_are_split_as_in_a_shell() {
        for (text, words) in [
            ("ssh", &["ssh"][..]),
            ("  ssh  -p 2222 ", &["ssh", "-p", "2222"]),
            ("ssh -i 'my key' -o \"A B\"", &["ssh", "-i", "my key", "-o", "A B"]),
            (r#"ssh a\ b "c\"d" 'e\f' "g\h""#, &["ssh", "a b", "c\"d", "e\\f", "g\\h"]),
            ("ssh '' x''y", &["ssh", "", "xy"]),
            ("ssh $HOME *", &["ssh", "$HOME", "*"]),
        ] {
            assert_eq!(parse_ssh(text).unwrap().0, words, "{text}");
        }
        for text in ["", "  ", "ssh 'a", "ssh \"a", "ssh \\", "''"] {
            assert!(parse_ssh(text).is_err(), "{text}");
        }
    }
}
