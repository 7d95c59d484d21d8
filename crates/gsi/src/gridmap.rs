//! The map of a grid: as which users of a host the people of certificates come (`grid-mapfile`).
//!
//! In: the text of a file. Out: the users of a name, the first of them first.
//! Invariants: bounded; a line that is not understood is an error with its number, not a line that is not
//! there. Letters count as they are.
//! Source: `gridmap.c` of Globus: a name, in double quotes or without spaces, then users with commas between
//! them. A backslash takes the next byte as it is, `\xHH` is a byte. What begins with `#` ends with its line.

use crate::name::Dn;

/// Most bytes of a file.
pub const GRIDMAP_LEN_MAX: usize = 16 << 20;
/// Most users of a line.
const USERS_MAX: usize = 256;

/// Who is whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gridmap {
    lines: Vec<(String, Vec<String>)>,
}

impl Gridmap {
    /// Of the text of a file.
    ///
    /// # Errors
    /// A line is not understood.
    pub fn parse(text: &[u8]) -> Result<Gridmap, String> {
        if text.len() > GRIDMAP_LEN_MAX {
            return Err("is longer than any real one".into());
        }
        let text = std::str::from_utf8(text).map_err(|_| "is no text")?;
        let mut lines = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let read = read(line).map_err(|why| format!("line {number} {why}"))?;
            lines.extend(read);
        }
        Ok(Gridmap { lines })
    }

    /// The users as whom somebody may come; the first is who he is where he names none.
    pub fn users<'a>(&'a self, who: &'a Dn) -> impl Iterator<Item = &'a str> {
        let lines = self.lines.iter().filter(|(name, _)| who.is_called(name));
        lines.flat_map(|(_, users)| users.iter().map(String::as_str))
    }

    /// As which user somebody comes: the one that he asks for, if he may, or the first of his.
    pub fn user<'a>(&'a self, who: &'a Dn, asked: Option<&str>) -> Option<&'a str> {
        self.users(who).find(|user| asked.is_none_or(|asked| asked == *user))
    }
}

fn read(line: &str) -> Result<Option<(String, Vec<String>)>, String> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let (is_quoted, mut rest) = match line.strip_prefix('"') {
        Some(rest) => (true, rest.chars().peekable()),
        None => (false, line.chars().peekable()),
    };
    let mut name = String::new();
    loop {
        match rest.next() {
            None if is_quoted => return Err("has a quote that is not closed".into()),
            None => return Err("names no user".into()),
            Some('"') if is_quoted => break,
            Some(c) if !is_quoted && c.is_whitespace() => break,
            Some('\\') => {
                let next = rest.next().ok_or("ends with a backslash")?;
                let digits = rest.clone().take(2).collect::<String>();
                match u8::from_str_radix(&digits, 16) {
                    Ok(byte) if next == 'x' && digits.len() == 2 => {
                        rest.nth(1);
                        // As names are written that have such a byte.
                        match byte {
                            b' '..=b'~' => name.push(char::from(byte)),
                            byte => name.push_str(&format!("\\x{byte:02X}")),
                        }
                    }
                    _ => name.push(next),
                }
            }
            Some(c @ ' '..='~') => name.push(c),
            Some(c) => {
                let mut bytes = [0; 4];
                c.encode_utf8(&mut bytes).bytes().for_each(|byte| name.push_str(&format!("\\x{byte:02X}")));
            }
        }
    }
    let rest: String = rest.collect();
    let users = rest.split('#').next().unwrap_or_default();
    // What comes behind the users is not looked at.
    let mut users = users.trim_start();
    let mut all = Vec::new();
    loop {
        let end = users.find(|c: char| c == ',' || c.is_whitespace()).unwrap_or(users.len());
        let (user, behind) = users.split_at(end);
        if !user.is_empty() {
            all.push(user.to_owned());
        }
        match behind.trim_start().strip_prefix(',') {
            Some(more) if all.len() < USERS_MAX => users = more.trim_start(),
            Some(_) => return Err("names more users than any real one".into()),
            None => break,
        }
    }
    if all.is_empty() { Err("names no user".into()) } else { Ok(Some((name, all))) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::dn;

    /// Goal: names in quotes and without, escapes, several users, comments; who asks for a user must be his.
    #[test]
    fn maps_are_read_as_globus_reads_them() {
        let text = "# a comment\n\n\"/O=Grid/CN=alice\" alice,root  ignored\n/O=Grid/CN=bob bob # his\n\
                    \"/O=Grid/CN=A \\\"B\\\"\" c\n\"/O=Grid/CN=J\\xc3\\xb6rg\" joerg\n\"/O=Grid/CN=Jörn\" joern\n\
                    \"/O=Grid/CN=alice\" third\n\"/O=Grid/Email=a@b\" mail\n";
        let map = Gridmap::parse(text.as_bytes()).expect("a map");
        let user = |name: &[(&str, &str)], asked| map.user(&dn(name), asked).map(str::to_owned);
        let alice = [("O", "Grid"), ("CN", "alice")];
        assert_eq!(user(&alice, None).as_deref(), Some("alice"));
        assert_eq!(user(&alice, Some("root")).as_deref(), Some("root"));
        assert_eq!(user(&alice, Some("third")).as_deref(), Some("third"));
        assert_eq!(user(&alice, Some("bob")), None);
        assert_eq!(user(&[("O", "Grid"), ("CN", "bob")], None).as_deref(), Some("bob"));
        assert_eq!(user(&[("O", "Grid"), ("CN", "A \"B\"")], None).as_deref(), Some("c"));
        assert_eq!(user(&[("O", "Grid"), ("CN", "J\u{f6}rg")], None).as_deref(), Some("joerg"));
        assert_eq!(user(&[("O", "Grid"), ("CN", "J\u{f6}rn")], None).as_deref(), Some("joern"));
        assert_eq!(user(&[("O", "Grid"), ("emailAddress", "a@b")], None).as_deref(), Some("mail"));
        assert_eq!(user(&[("O", "Grid"), ("CN", "Alice")], None), None);
        for (text, why) in [
            ("\"/O=Grid/CN=x y", "line 1 has a quote that is not closed"),
            ("\n/O=Grid/CN=x", "line 2 names no user"),
            ("\"/O=Grid/CN=x\" # nobody", "line 1 names no user"),
        ] {
            assert_eq!(Gridmap::parse(text.as_bytes()).expect_err("no map"), why);
        }
    }

    /// Goal: nobody is mapped by a name whose text another name has too.
    #[test]
    fn a_name_that_only_looks_like_another_is_nobody() {
        let map = Gridmap::parse(b"\"/O=Grid/CN=alice\" alice\n").expect("a map");
        let forged = dn(&[("O", "Grid/CN=alice")]);
        assert_eq!(forged.text(), "/O=Grid/CN=alice");
        assert_eq!(map.user(&forged, None), None);
        assert_eq!(map.user(&dn(&[("O", "Grid"), ("CN", "alice")]), None), Some("alice"));
    }
}
