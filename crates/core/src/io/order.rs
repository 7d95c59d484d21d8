//! Which request may be issued next, and by which thread: the ordering policies as XDD's papers define them.
