//! The same server, told to write into what stands there (`ESTO`, or `REST` with `STOR`): what becomes of the
//! rest of that.

use std::io::Write as _;

use super::{DIALLED_WITHIN, Forgets, Session, accept};

/// What it makes of a place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Into {
    Well,
    /// It cuts off what stands behind.
    Cuts,
    /// The same, but of no file that is called as haul calls what is not whole.
    CutsFinal,
    /// It puts what comes behind all that stands there.
    Appends,
    /// It keeps what comes, and nothing else.
    Replaces,
    /// It puts zeros in place of what comes, but into no file that is called as haul calls what is not whole.
    Zeros,
    /// It counts places in files modulo a mebibyte.
    Wraps,
}

impl Into {
    /// What a file has in the end.
    pub(super) fn put(self, stood: &[u8], at: usize, came: Vec<u8>, path: &[u8]) -> Vec<u8> {
        let is_final = !path.windows(6).any(|part| part == b".haul~");
        let at = if self == Into::Wraps { at % (1 << 20) } else { at };
        let start: Vec<u8> = stood.iter().copied().chain(std::iter::repeat(0)).take(at).collect();
        let end = stood.get(at + came.len()..).unwrap_or_default();
        match self {
            Into::Cuts => [start, came].concat(),
            Into::CutsFinal if is_final => [start, came].concat(),
            Into::Appends => [stood, &came].concat(),
            Into::Replaces => came,
            Into::Zeros if is_final => [&start, &vec![0; came.len()][..], end].concat(),
            Into::Well | Into::CutsFinal | Into::Zeros | Into::Wraps => [&start, &came, end].concat(),
        }
    }
}

impl Session {
    /// `ESTO A OFFSET PATH`.
    pub(super) fn esto(&mut self, argument: &[u8]) -> bool {
        let words = String::from_utf8_lossy(argument).into_owned();
        let mut words = words.splitn(3, ' ');
        assert_eq!(words.next(), Some("A"), "no other kind is asked for");
        let at = words.next().expect("an offset").parse().expect("a number");
        let path = words.next().expect("a path").as_bytes().to_vec();
        self.into_at = Some(at);
        self.take(self.script.key(&path), &path)
    }

    /// `RETR`, from where `REST` said.
    pub(super) fn give(&mut self, path: &[u8]) -> bool {
        let at = std::mem::take(&mut self.rest);
        let content = self.script.shelf().files.get(path).map(|held| held.content.clone());
        let Some(content) = content else { return self.say("550 no such file") };
        let Some(listener) = self.passive.take() else { return self.say("425 where to?") };
        if !self.say("150 here it is") {
            return false;
        }
        let Some(mut data) = accept(&listener, Some(DIALLED_WITHIN), &self.over) else {
            return self.say("425 nobody came");
        };
        let _ = data.write_all(content.get(at..).unwrap_or_default());
        drop(data);
        self.script.forget(Forgets::WhenRead, path);
        self.say("226 that is all")
    }
}
