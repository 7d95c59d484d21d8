//! How a server reads the byte 0xff in what it is told: twice for once, as Telnet has it, or as it is.
//!
//! In: a greeting that counts, or what the server says of itself. Out: how the byte is sent.
//! Invariant: it is asked only when such a byte comes, and only where no answer is due, for else nobody could
//! tell which answer is whose.

use haul_gridftp::command::Command;
use haul_gridftp::line::Iac;
use haul_gridftp::reply::Class;

use super::Control;
use crate::Error;

/// What servers that read commands as Telnet has them say in their answer to `HELP`.
const TELNET_HELP: &[u8] = b"(* =>'s unimplemented)";
/// Why a name is not said to a server.
const UNHELPED: &str = "its name holds the byte 0xff, and the server does not say (HELP) how it reads that";
const BUSY: &str =
    "its name holds the byte 0xff, and how the server reads that cannot be asked while others are under way";

/// How the server reads the byte 0xff.
#[derive(Clone, Copy)]
pub(super) enum Reads {
    Known(Iac),
    /// It was not asked yet; so where it gives no help, if that is known.
    Unasked(Option<Iac>),
    /// It does not say.
    Untold,
}

impl Control {
    /// How the byte 0xff is sent from now on, by a greeting that counts. ProFTPD reads commands as Telnet has
    /// them, and so do others that do not say so there: whoever does not name ProFTPD is asked when the byte
    /// comes, and where it knows no help, the byte goes as it is.
    pub(crate) fn set_reads_by(&mut self, greeting: &[u8]) {
        let is_telnet = greeting.windows(7).any(|word| word.eq_ignore_ascii_case(b"proftpd"));
        self.reads = match is_telnet {
            true => Reads::Known(Iac::Doubled),
            false if haul_mutant::removed("ftp-hidden-servers-are-asked") => Reads::Known(Iac::Plain),
            false => Reads::Unasked(Some(Iac::Plain)),
        };
    }

    /// The same, by what the server says of itself here. ProFTPD, and the servers whose answer to `HELP` it
    /// has, read commands as Telnet has them.
    ///
    /// # Errors
    /// It does not say, or cannot be asked while other answers are due.
    pub(super) fn find_iac(&mut self) -> Result<Iac, Error> {
        let unhelped = match self.reads {
            Reads::Known(iac) => return Ok(iac),
            Reads::Untold => return Err(Error::Unsayable(UNHELPED)),
            Reads::Unasked(_) if self.due > 0 && !haul_mutant::removed("ftp-help-waits-for-answers") => {
                return Err(Error::Unsayable(BUSY));
            }
            Reads::Unasked(unhelped) => unhelped,
        };
        let help = self.ask(&Command::Bare("HELP"))?;
        if help.code() == 421 {
            return Err(self.refused(&Command::Bare("HELP"), &help));
        }
        if help.class() != Class::Completed {
            // Who knows the command and does not answer it may be any server.
            let is_unknown =
                matches!(help.code(), 500 | 502) || haul_mutant::removed("ftp-refused-help-is-none");
            let unhelped = unhelped.filter(|_| is_unknown);
            self.reads = unhelped.map_or(Reads::Untold, Reads::Known);
            return unhelped.ok_or(Error::Unsayable(UNHELPED));
        }
        let said = help.lines().join(&b' ');
        let is_telnet = said.windows(TELNET_HELP.len()).any(|words| words == TELNET_HELP);
        let iac = if is_telnet { Iac::Doubled } else { Iac::Plain };
        self.reads = Reads::Known(iac);
        Ok(iac)
    }

    /// Why this cannot be said to the server, though others can; it may be asked about that.
    ///
    /// # Errors
    /// The session is over.
    pub(crate) fn unsayable(&mut self, command: &Command<'_>) -> Result<Option<Error>, Error> {
        let mut line = Vec::new();
        // What is no command at all is found out where it is sent.
        if command.encode(Iac::Plain, &mut line).is_err() || !line.contains(&0xff) {
            return Ok(None);
        }
        match self.find_iac() {
            Ok(_) => Ok(None),
            Err(error @ Error::Unsayable(_)) if !haul_mutant::removed("ftp-unsayable-names-fail-alone") => {
                Ok(Some(error))
            }
            Err(error) => Err(error),
        }
    }
}
