//! Logins that a user keeps in `~/.netrc`.
//!
//! In: the text of that file, a host, perhaps a user. Out: user and password.
//! Source: ftp(1) of BSD; a word may stand in double quotes, with `\` before a quote, as curl has it.
//! Left out: `account`; where the file is, and who may read it.

/// The first login for `host`, of `user` if one is named; that of `default` if there is none.
pub fn find(text: &str, host: &str, user: Option<&str>) -> Option<(String, String)> {
    let mut words = Words(text);
    // Whether the entry that is read is of the host; what it says so far.
    let (mut fits, mut login, mut password): (bool, Option<String>, Option<String>) = (false, None, None);
    loop {
        let word = words.next();
        if matches!(word.as_deref(), None | Some("machine" | "default")) {
            let named = login.take();
            let is_user = |login: &str| user.is_none_or(|user| user == login);
            if let (true, Some(login)) = (fits, named.filter(|login| is_user(login))) {
                return Some((login, password.take().unwrap_or_default()));
            }
            password = None;
        }
        match word?.as_str() {
            "machine" => fits = words.next()?.eq_ignore_ascii_case(host),
            "default" => fits = true,
            "login" => login = words.next(),
            "password" => password = words.next(),
            "account" => drop(words.next()),
            "macdef" => words.skip_paragraph(),
            comment if comment.starts_with('#') => words.skip_line(),
            _ => {}
        }
    }
}

struct Words<'a>(&'a str);

impl Words<'_> {
    fn skip_line(&mut self) {
        self.0 = self.0.find('\n').map_or("", |end| &self.0[end..]);
    }

    /// A macro ends with an empty line.
    fn skip_paragraph(&mut self) {
        self.0 = self.0.find("\n\n").map_or("", |end| &self.0[end..]);
    }
}

impl Iterator for Words<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let text = self.0.trim_start();
        let Some(quoted) = text.strip_prefix('"') else {
            let end = text.find(char::is_whitespace).unwrap_or(text.len());
            self.0 = &text[end..];
            return (end > 0).then(|| text[..end].to_owned());
        };
        let (mut word, mut escaped) = (String::new(), false);
        for (at, c) in quoted.char_indices() {
            match c {
                '\\' if !escaped => {
                    escaped = true;
                    continue;
                }
                '"' if !escaped => {
                    self.0 = &quoted[at + 1..];
                    return Some(word);
                }
                c => word.push(c),
            }
            escaped = false;
        }
        // The quote is never closed.
        self.0 = "";
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the login that other clients would take.
    #[test]
    fn logins_are_found() {
        let text = "# mine\nmachine a.org login x password y\nmacdef init\nmachine b.org login no\n\n\
                    machine B.org\n  login alice\n  password \"a \\\"b\\\" c\"\n\
                    machine b.org login bob password #secret\ndefault login anonymous password me@\n";
        let found = |host, user| find(text, host, user);
        let is = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        assert_eq!(found("a.org", None), is("x", "y"));
        assert_eq!(found("b.org", None), is("alice", "a \"b\" c"));
        assert_eq!(found("b.org", Some("bob")), is("bob", "#secret"));
        assert_eq!(found("b.org", Some("eve")), None);
        assert_eq!(found("c.org", None), is("anonymous", "me@"));
        for text in
            ["", "machine", "machine a.org", "machine a.org login", "machine a.org login \"x", "login x"]
        {
            assert_eq!(find(text, "a.org", None), None, "{text}");
        }
    }
}
