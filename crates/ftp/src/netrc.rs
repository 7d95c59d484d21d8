//! Logins that a user keeps in `~/.netrc`.
//!
//! In: the text of that file, a host, perhaps a user. Out: user and password.
//! Source: ftp(1) of BSD; a word may stand in double quotes, with `\` before a quote, as curl has it.
//! Left out: `account`; where the file is, and who may read it.

/// The first login for `host`, of `user` if one is named; that of `default` if there is none. A password
/// without a login is that of the user who is named.
///
/// # Errors
/// The text has something for this host that nobody can use, or a quote that is not closed, behind which
/// nothing can be told apart; in words without the password.
pub fn find(text: &str, host: &str, user: Option<&str>) -> Result<Option<(String, String)>, String> {
    let mut words = Words(text);
    // Whether the entry that is read is of the host; what it says so far.
    let (mut fits, mut login, mut password): (bool, Option<String>, Option<String>) = (false, None, None);
    // The password of this host that is anybody's.
    let mut anybodys: Option<String> = None;
    loop {
        let word = words.read()?;
        if matches!(word.as_deref(), None | Some("machine" | "default")) {
            let (named, secret) = (login.take(), password.take());
            match (fits, named, secret, user) {
                (true, Some(named), secret, _) if user.is_none_or(|user| user == named) => {
                    return in_unicode(host, (named, secret.unwrap_or_default()));
                }
                (true, None, Some(secret), Some(_)) => drop(anybodys.get_or_insert(secret)),
                (true, None, Some(_), None) => {
                    return Err(format!("there is a password for {host}, and no login: name the user"));
                }
                _ => {}
            }
            if let (None | Some("default"), Some(_), Some(user)) = (word.as_deref(), &anybodys, user) {
                return in_unicode(host, (user.to_owned(), anybodys.unwrap_or_default()));
            }
        }
        let Some(word) = word else { return Ok(None) };
        match word.as_str() {
            "machine" => fits = words.read()?.is_some_and(|name| name.eq_ignore_ascii_case(host)),
            "default" => fits = true,
            "login" => login = words.read()?,
            "password" => password = words.read()?,
            "account" => drop(words.read()?),
            "macdef" => words.skip_paragraph(),
            comment if comment.starts_with('#') => words.skip_line(),
            _ => {}
        }
    }
}

/// Bytes that are no UTF-8 came in the place of others: with those no server would take the login.
fn in_unicode(host: &str, login: (String, String)) -> Result<Option<(String, String)>, String> {
    match [&login.0, &login.1].iter().any(|word| word.contains(char::REPLACEMENT_CHARACTER)) {
        true => Err(format!("the login for {host} is not UTF-8")),
        false => Ok(Some(login)),
    }
}

struct Words<'a>(&'a str);

impl Words<'_> {
    fn skip_line(&mut self) {
        self.0 = self.0.find('\n').map_or("", |end| &self.0[end..]);
    }

    /// A macro ends with an empty line.
    fn skip_paragraph(&mut self) {
        let mut skipped = 0;
        for line in self.0.split_inclusive('\n') {
            skipped += line.len();
            // Of the line that names the macro this is what stands behind its name.
            if skipped > line.len() && line.trim_end_matches(['\r', '\n']).is_empty() {
                break;
            }
        }
        self.0 = &self.0[skipped..];
    }

    /// The next word; `None` behind the last.
    fn read(&mut self) -> Result<Option<String>, String> {
        let text = self.0.trim_start();
        let Some(quoted) = text.strip_prefix('"') else {
            let end = text.find(char::is_whitespace).unwrap_or(text.len());
            self.0 = &text[end..];
            return Ok((end > 0).then(|| text[..end].to_owned()));
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
                    return Ok(Some(word));
                }
                c => word.push(c),
            }
            escaped = false;
        }
        Err("a quote is never closed".into())
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
        let found = |host, user| find(text, host, user).expect("a list of logins");
        let is = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        assert_eq!(found("a.org", None), is("x", "y"));
        assert_eq!(found("b.org", None), is("alice", "a \"b\" c"));
        assert_eq!(found("b.org", Some("bob")), is("bob", "#secret"));
        assert_eq!(found("b.org", Some("eve")), None);
        assert_eq!(found("c.org", None), is("anonymous", "me@"));
        for text in ["", "machine", "machine a.org", "machine a.org login", "login x"] {
            assert_eq!(find(text, "a.org", None), Ok(None), "{text}");
        }
    }

    /// Goal: a macro hides nothing but itself, however its lines end.
    #[test]
    fn macros_end_where_they_end() {
        for end in ["\n", "\r\n"] {
            for body in ["init\nput x\n", "init\n", "init\nmachine a.org login no password no\n"] {
                let text = format!("macdef {body}\nmachine a.org login x password y\n").replace('\n', end);
                let is = Some(("x".to_owned(), "y".to_owned()));
                assert_eq!(find(&text, "a.org", None), Ok(is), "{text:?}");
            }
        }
    }

    /// Goal: a password without a login is that of the user who is named, and nobody's where none is; a login
    /// of that user's own comes first.
    #[test]
    fn a_password_alone_is_of_who_is_named() {
        let of = |text: &str, user| find(text, "a.org", user).map(|login| login.map(|(user, _)| user));
        let is = |user: &str, password: &str| Ok(Some((user.to_owned(), password.to_owned())));
        let alone = "machine a.org password x\nmachine b.org login c password d\n";
        assert_eq!(find(alone, "a.org", Some("alice")), is("alice", "x"));
        assert!(of(alone, None).is_err_and(|why| why.contains("a.org") && !why.contains('x')));
        let both = format!("{alone}machine a.org login alice password y\ndefault login bob password z\n");
        assert_eq!(find(&both, "a.org", Some("alice")), is("alice", "y"));
        assert_eq!(find(&both, "a.org", Some("bob")), is("bob", "x"));
        assert_eq!(find(&both, "c.org", Some("bob")), is("bob", "z"));
    }

    /// Goal: what cannot be used is no other login.
    #[test]
    fn what_cannot_be_used_is_an_error() {
        for text in [
            "machine a.org login x password \"y\n",
            "machine b.org login \"x\nmachine a.org login x password y\n",
            "machine a.org login \u{fffd} password y\n",
            "machine a.org login x password \u{fffd}\n",
        ] {
            assert!(find(text, "a.org", None).is_err(), "{text}");
        }
        let text = "# \u{fffd}\nmachine b.org login \u{fffd}\nmachine a.org login x password y\n# \"";
        assert!(find(text, "a.org", None).is_ok_and(|login| login.is_some()));
    }
}
