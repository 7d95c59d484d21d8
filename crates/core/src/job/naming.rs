//! Who may give a file its name, and when.
//!
//! In: passes in which a file was read, looks at its source, whether all of it is there; who has it. Out: the
//! right to publish it.
//! Invariants: one end at a time has the right; it is given of what is whole, and was looked at after the
//! last pass in which anything of it was read, or together with all of the file to an end that sees to both;
//! who had the right and is gone may have used it.
//!
//! Left out: what is whole, which the file knows; how a name is given.

/// See the module. `A` is an end, under its lease.
#[derive(Clone, Debug)]
pub(crate) struct Naming<A> {
    right: Right<A>,
    /// The last pass in which something of it was read.
    pass: u16,
    /// The source was what was announced after this one.
    sealed: Option<u16>,
    /// An end that had the right is gone: the file may have its name already, or get it.
    doubtful: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Right<A> {
    Nobody,
    Has(A),
    /// It used it.
    Gave(A),
}

impl<A: Copy + PartialEq> Naming<A> {
    pub(crate) fn new() -> Naming<A> {
        Naming { right: Right::Nobody, pass: 0, sealed: None, doubtful: false }
    }

    /// Something of it was read in this pass.
    pub(crate) fn handle_read(&mut self, pass: u16) {
        self.pass = self.pass.max(pass);
    }

    /// The source was looked at after this pass.
    pub(crate) fn handle_seal(&mut self, pass: u16) {
        self.sealed = self.sealed.max(Some(pass));
    }

    /// All of it was read once more, and its source is to be looked at after that.
    pub(super) fn begin_seal(&mut self) {
        self.pass = self.pass.saturating_add(1);
    }

    /// The source was looked at after the last pass.
    pub(super) fn seal(&mut self) {
        self.handle_seal(self.pass);
    }

    /// It is what was announced, also after the last read of it.
    pub(crate) fn is_sealed(&self) -> bool {
        let sealed = self.sealed.is_some_and(|pass| pass >= self.pass);
        sealed || haul_mutant::removed("seal-before-the-name")
    }

    /// Gives the right to `at`, if it can be given now. `whole`: every byte is there, and nobody writes any.
    pub(crate) fn give(&mut self, at: A, whole: bool) -> bool {
        let gives = whole && self.is_sealed() && self.right == Right::Nobody;
        if gives {
            self.right = Right::Has(at);
        }
        gives
    }

    /// Gives the right together with all of the file: the end publishes it when it is whole and sealed there.
    pub(super) fn entrust(&mut self, at: A) {
        self.right = Right::Has(at);
    }

    /// Who has the right and did not use it.
    pub(super) fn holder(&self) -> Option<A> {
        match self.right {
            Right::Has(at) => Some(at),
            Right::Nobody | Right::Gave(_) => None,
        }
    }

    /// The name was given. False if it was not the right of `at` to do that.
    pub(crate) fn handle_given(&mut self, at: A) -> bool {
        let had = self.right == Right::Has(at);
        if had {
            self.right = Right::Gave(at);
        }
        had
    }

    pub(crate) fn was_given_by(&self, at: A) -> bool {
        self.right == Right::Gave(at)
    }

    /// Nothing is to be published as things are.
    pub(super) fn revoke(&mut self) {
        self.right = Right::Nobody;
    }

    /// `at` is gone. True if it had the right, or used it and nobody wrote that down.
    pub(crate) fn take_back(&mut self, at: A) -> bool {
        let had = matches!(self.right, Right::Has(by) | Right::Gave(by) if by == at);
        if had {
            self.right = Right::Nobody;
        }
        had
    }

    /// Who had the right may still use it, or did: its temporary is not to be given the name by another end.
    pub(super) fn doubt(&mut self) {
        self.doubtful = true;
    }

    pub(super) fn is_doubtful(&self) -> bool {
        self.doubtful
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a name is one end's to give at a time, only of what is whole and was looked at after its last
    /// read.
    #[test]
    fn one_end_has_the_right() {
        let mut naming = Naming::new();
        assert!(!naming.give(1, true), "nobody looked at the source");
        naming.handle_seal(0);
        naming.handle_read(1);
        assert!(!naming.give(1, true), "it was read after the look");
        naming.handle_seal(1);
        assert!(!naming.give(1, false));
        assert!(naming.give(1, true));
        assert!(!naming.give(2, true) && !naming.give(1, true), "it is given once");
        assert!(!naming.handle_given(2) && naming.handle_given(1) && !naming.handle_given(1));
        assert!(naming.was_given_by(1) && naming.holder().is_none());
        assert!(!naming.take_back(2) && naming.take_back(1));
        assert!(naming.give(2, true), "who had it is gone");
    }
}
