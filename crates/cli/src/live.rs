//! Lines that stand on a terminal and are drawn anew in place.
//!
//! In: lines without control characters, none wider than the terminal, fewer than it is high. Out: what has
//! to be written. The cursor stands behind the last of them. Left out: windows that were made narrower
//! meanwhile, whose wrapped lines stay.

use std::fmt::Write;

/// The lines that stand there now.
#[derive(Debug, Default)]
pub struct Block {
    lines: usize,
}

impl Block {
    /// Puts these lines, at least one, in the place of those that stand there.
    pub fn draw(&mut self, lines: &[String]) -> String {
        let mut out = self.to_start();
        for (at, line) in lines.iter().enumerate() {
            out += if at == 0 { "" } else { "\n" };
            out += line;
            out += "\x1b[K";
        }
        if self.lines > lines.len() {
            out += "\x1b[J";
        }
        self.lines = lines.len();
        out
    }

    /// Takes them away.
    pub fn erase(&mut self) -> String {
        let out = match self.lines {
            0 => String::new(),
            1 => self.to_start() + "\x1b[K",
            _ => self.to_start() + "\x1b[J",
        };
        self.lines = 0;
        out
    }

    /// To where the first of them begins.
    fn to_start(&self) -> String {
        let mut out = String::from("\r");
        if self.lines > 1 {
            let _ = write!(out, "\x1b[{}A", self.lines - 1);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A terminal that knows these few sequences.
    #[derive(Default)]
    struct Terminal {
        rows: Vec<String>,
        at: (usize, usize),
    }

    impl Terminal {
        fn write(&mut self, text: &str) {
            let mut rest = text;
            while let Some(c) = rest.chars().next() {
                rest = &rest[c.len_utf8()..];
                self.rows.resize(self.rows.len().max(self.at.0 + 1), String::new());
                match c {
                    '\r' => self.at.1 = 0,
                    // As a terminal in its usual mode does.
                    '\n' => self.at = (self.at.0 + 1, 0),
                    '\x1b' => {
                        let end = rest.find(|c: char| c.is_ascii_alphabetic()).unwrap();
                        let number = rest[1..end].parse().unwrap_or(1);
                        match &rest[end..=end] {
                            "A" => self.at.0 -= number,
                            "K" => self.rows[self.at.0].truncate(self.at.1),
                            "J" => {
                                self.rows.truncate(self.at.0 + 1);
                                self.rows[self.at.0].truncate(self.at.1);
                            }
                            other => panic!("{other}"),
                        }
                        rest = &rest[end + 1..];
                    }
                    c => {
                        let row = &mut self.rows[self.at.0];
                        row.truncate(self.at.1.max(row.len().min(self.at.1)));
                        row.insert(self.at.1, c);
                        self.at.1 += 1;
                    }
                }
            }
        }
        fn shows(&self) -> Vec<&str> {
            let mut rows: Vec<&str> = self.rows.iter().map(String::as_str).collect();
            while rows.last().is_some_and(|row| row.is_empty()) {
                rows.pop();
            }
            rows
        }
    }

    /// Goal: what stands there is always the last that was drawn, below what was said, and nothing of it is
    /// left when it is taken away.
    /// Method: blocks of all heights up to four after each other, on a model of a terminal.
    #[test]
    fn only_the_last_block_stands() {
        for before in 0..5 {
            for after in 1..5 {
                let (mut block, mut terminal) = (Block::default(), Terminal::default());
                terminal.write("said\n");
                let lines =
                    |n: usize, word: &str| (0..n).map(|at| format!("{word} {at}")).collect::<Vec<_>>();
                if before > 0 {
                    terminal.write(&block.draw(&lines(before, "a longer line")));
                }
                terminal.write(&block.draw(&lines(after, "new")));
                let want: Vec<String> = [vec!["said".to_owned()], lines(after, "new")].concat();
                assert_eq!(terminal.shows(), want, "{before} then {after}");
                terminal.write(&block.erase());
                terminal.write("more\n");
                assert_eq!(terminal.shows(), ["said", "more"]);
                assert_eq!(block.erase(), "");
            }
        }
    }
}
