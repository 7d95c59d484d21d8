use super::*;

fn spec(host: &str) -> RemoteSpec {
    RemoteSpec {
        host: host.into(),
        user: None,
        ssh: vec!["ssh".into(), "-p".into(), "22".into()],
        remote_haul: None,
        push: None,
        via: Vec::new(),
        dial: Default::default(),
        ports: None,
        interactive: false,
        patience: None,
        stop: Stop::never(),
        streams: Some(1),
        storage_rate: None,
        ssh_channels: None,
        sockets: Vec::new(),
    }
}

/// Goal: no host or user can become an option, a second word or a terminal sequence.
#[test]
fn hosts_are_hosts() {
    for host in ["", "-oProxyCommand=x", "a b", "a\nb", "a\x1b[2J", "u@-oX", "-l@h", "@h", "u@", "[]", "[-o]"]
    {
        assert_eq!(destination(&spec(host)).unwrap_err().kind, BootstrapKind::Usage, "{host:?}");
    }
    for (host, to) in
        [("h", "h"), ("u@h", "u@h"), ("[::1]", "::1"), ("u@[fe80::1]", "u@fe80::1"), ("u@d@h", "u@d@h")]
    {
        assert_eq!(destination(&spec(host)).unwrap(), to);
    }
    let named = RemoteSpec { user: Some("-l".into()), ..spec("h") };
    assert!(destination(&named).is_err());
}

/// Goal: where nobody can answer ssh is told not to ask, but for a program that answers; and the host is
/// behind `--` with the constant command.
#[test]
fn command_line_is_closed() {
    let shares = ["-oX=1".into()];
    let words = command_line(&spec("h"), &shares, "REMOTE").unwrap();
    let words: Vec<_> = words.iter().map(|w| w.to_str().unwrap()).collect();
    assert_eq!(words[4..], ["ssh", "-p", "22", "-oX=1", "-oBatchMode=yes", "-T", "--", "h", "REMOTE"]);
    let answered =
        RemoteSpec { ssh: ["/usr/bin/sshpass", "-e", "ssh"].map(String::from).into(), ..spec("h") };
    let words = command_line(&answered, &[], "REMOTE").unwrap();
    assert!(words.iter().all(|word| word != "-oBatchMode=yes"), "{words:?}");
    let asks = RemoteSpec { interactive: true, ssh: vec![], ..spec("h") };
    let words = command_line(&asks, &[], "REMOTE").unwrap();
    assert_eq!(words[4..], ["ssh", "-T", "--", "h", "REMOTE"]);
}
