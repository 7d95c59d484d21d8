//! Clients of one GridFTP server, anonymous and without any protection, or by certificates and with data
//! encrypted (`PROT P`): haul, Globus's own, curl; the server is that of Globus, or haul's.
//!
//! The server is the same for all of them, so that what differs is the client. It stands at the near host and
//! the client at the far one, which fetches; with `direction=put` it is the other way round. haul has no
//! setting, for it chooses by itself. globus-url-copy: one file over eight data connections (`-p 8 -fast`),
//! many over eight sessions with cached data connections (`-cc 8 -fast`; `-pp` has effect between servers
//! alone). curl: eight files at a time, each over one connection, told by name: it reads no directory, and
//! must be told to say `TYPE I` first (said behind `EPSV`, as curl does, this server sends text for bytes).
//! Sessions by certificates delegate, and their data connections show whose they are (`DCAU A`).
//! lftp is not among them: in the server's listings as text it takes each name with a byte behind it that is
//! none.

use std::any::Any;
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;

use super::gridftp::{FAR, NEAR, server, with_names};
use super::{Job, Peer, Said, ask_version, grid, haul};
use crate::host::{self, Bench, Host};
use crate::process::Server;

/// Files, parts or sessions at a time of the clients that do not choose by themselves.
const AT_A_TIME: &str = "8";

/// Options of `haul cp` that experiments may set.
const HAUL: &[&str] = &["digest", "streams", "durability"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    Haul,
    Globus,
    Curl,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Globus,
    Haul,
}

/// A client of a GridFTP server.
pub struct Ftp {
    client: Client,
    at: At,
    /// By certificates, and nothing goes unencrypted.
    private: bool,
}

const fn ftp(client: Client, at: At, private: bool) -> Ftp {
    Ftp { client, at, private }
}

pub static ALL: [Ftp; 9] = [
    ftp(Client::Haul, At::Globus, false),
    ftp(Client::Globus, At::Globus, false),
    ftp(Client::Curl, At::Globus, false),
    ftp(Client::Haul, At::Haul, false),
    ftp(Client::Globus, At::Haul, false),
    ftp(Client::Haul, At::Globus, true),
    ftp(Client::Globus, At::Globus, true),
    ftp(Client::Haul, At::Haul, true),
    ftp(Client::Globus, At::Haul, true),
];

impl Peer for Ftp {
    fn name(&self) -> &'static str {
        match (self.client, self.at, self.private) {
            (Client::Haul, At::Globus, false) => "ftp-haul",
            (Client::Globus, At::Globus, false) => "ftp-globus",
            (Client::Curl, ..) => "ftp-curl",
            (Client::Haul, At::Haul, false) => "ftp-haul-at-haul",
            (Client::Globus, At::Haul, false) => "ftp-globus-at-haul",
            (Client::Haul, At::Globus, true) => "gsiftp-haul",
            (Client::Globus, At::Globus, true) => "gsiftp-globus",
            (Client::Haul, At::Haul, true) => "gsiftp-haul-at-haul",
            (Client::Globus, At::Haul, true) => "gsiftp-globus-at-haul",
        }
    }

    fn about(&self) -> &'static str {
        match (self.client, self.at, self.private) {
            (Client::Haul, At::Globus, false) => {
                "haul cp -r ftp://, chooses by itself; UNPROTECTED, anonymous; every byte hashed as it comes; what is fetched is on media when it ends, unless durability=none"
            }
            (Client::Globus, At::Globus, false) => {
                "globus-url-copy -fast ftp://, one file: -p 8, many: -cc 8; UNPROTECTED, anonymous; not on media when it ends"
            }
            (Client::Curl, ..) => {
                "curl ftp://, 8 files at a time, one connection each; UNPROTECTED, anonymous; not on media when it ends"
            }
            (Client::Haul, At::Haul, false) => {
                "the same as ftp-haul against haul's own server: what is put is on media when it ends"
            }
            (Client::Globus, At::Haul, false) => {
                "the same as ftp-globus against haul's server: what is put is on media when it ends"
            }
            (Client::Haul, At::Globus, true) => "haul cp -r gsiftp://: DCAU A, PROT P; else as ftp-haul",
            (Client::Globus, At::Globus, true) => {
                "globus-url-copy -fast -dcpriv gsiftp://: DCAU A, PROT P; else as ftp-globus"
            }
            (Client::Haul, At::Haul, true) => "the same as gsiftp-haul against haul's own server",
            (Client::Globus, At::Haul, true) => "the same as gsiftp-globus against haul's server",
        }
    }

    fn packages(&self) -> &'static [&'static str] {
        match self.client {
            Client::Curl => &["curl", "globus-gridftp-server-progs"],
            Client::Globus => &["globus-gass-copy-progs", "globus-gridftp-server-progs"],
            Client::Haul => &["globus-gridftp-server-progs"],
        }
    }

    fn version(&self) -> anyhow::Result<String> {
        let haul =
            || ask_version(&host::haul().to_string_lossy(), &["--version"], "none, build it: make build");
        let client = match self.client {
            Client::Haul => haul(),
            Client::Globus => ask_version("globus-url-copy", &["-version"], "globus-gass-copy-progs"),
            Client::Curl => ask_version("curl", &["--version"], "curl"),
        }?;
        let server = match self.at {
            At::Globus => ask_version("globus-gridftp-server", &["-version"], "globus-gridftp-server-progs"),
            At::Haul => haul(),
        }?;
        Ok(format!("{client}, server {server}"))
    }

    fn start(&self, bench: &Bench) -> anyhow::Result<Box<dyn Any>> {
        if self.private {
            grid::make(bench)?;
        }
        let [far, near] = [(bench.far(), FAR), (bench.near(), NEAR)]
            .map(|(host, name)| self.serve(bench, host, bench.port(&self.port(name))?));
        Ok(Box::new([far?, near?]))
    }

    fn copy(&self, job: &Job<'_>) -> anyhow::Result<Said> {
        let client = if put(job)? { job.bench.near() } else { job.bench.far() };
        let (program, args) = match self.client {
            Client::Haul => (job.bench.haul.display().to_string(), self.haul_arguments(job)?),
            Client::Globus => ("globus-url-copy".to_owned(), self.globus_arguments(job)?),
            Client::Curl => {
                let path = job.bench.scratch.join("curl-config");
                fs::write(&path, self.curl_config(job)?)
                    .with_context(|| format!("write {}", path.display()))?;
                ("curl".to_owned(), ["-q".into(), "-K".into(), path.display().to_string()].to_vec())
            }
        };
        let mut words = with_names(job.bench, client)?;
        words.push(program);
        words.extend(args);
        let mut command = client.command(&words[0]);
        command.env("GLOBUS_HOSTNAME", &client.address).args(&words[1..]);
        if self.private {
            grid::user(job.bench, &mut command);
        }
        let said = job.bench.run(&mut command, job.limit)?;
        match self.client {
            Client::Haul => haul::summary(&said.stdout, false),
            Client::Globus | Client::Curl => Ok(Said { more: Value::Null, ..Said::default() }),
        }
    }
}

impl Ftp {
    /// Each kind of server has ports of its own.
    fn port(&self, name: &str) -> String {
        let at = if self.at == At::Haul { "-of-haul" } else { "" };
        format!("{name}{at}{}", if self.private { "-private" } else { "" })
    }

    fn serve(&self, bench: &Bench, host: &Host, port: u16) -> anyhow::Result<Server> {
        match (self.at, self.private) {
            (At::Globus, false) => server(bench, host, port),
            (At::Globus, true) => {
                let mut words = with_names(bench, host)?;
                let own =
                    ["globus-gridftp-server", "-c", "", "-s", "-allow-root", "-allow-disabled-login", "-p"];
                words.extend(own.map(str::to_owned));
                words.push(port.to_string());
                words.extend(
                    ["-control-interface", &host.address, "-data-interface", &host.address]
                        .map(str::to_owned),
                );
                host.server(&words[0], port, |command| {
                    grid::host(bench, command.env("GLOBUS_HOSTNAME", &host.address).args(&words[1..]));
                })
            }
            (At::Haul, private) => host.server(&bench.haul.display().to_string(), port, |command| {
                let listen = format!("{}:{port}", host.address);
                command.args(["serve", "gridftp", "--root", "/", "--listen", &listen]);
                match private {
                    true => command.args(grid::served(bench)),
                    false => command.args(["--anonymous", "write", "--user", &super::user()]),
                };
            }),
        }
    }

    /// Where a server's path is.
    fn url(&self, host: &Host, port: u16, path: &Path) -> String {
        let scheme = if self.private { "gsiftp" } else { "ftp" };
        format!("{scheme}://{}:{port}{}/", host.address, path.display())
    }

    /// The server's host, port and path, and the client's path.
    fn ends<'a>(&self, job: &'a Job<'_>) -> anyhow::Result<(&'a Host, u16, &'a Path, &'a Path)> {
        let bench = job.bench;
        Ok(match put(job)? {
            true => (bench.far(), bench.port(&self.port(FAR))?, job.to, job.from),
            false => (bench.near(), bench.port(&self.port(NEAR))?, job.from, job.to),
        })
    }

    fn haul_arguments(&self, job: &Job<'_>) -> anyhow::Result<Vec<String>> {
        job.check_settings(&[HAUL, &["direction"]].concat())?;
        let (host, port, path, own) = self.ends(job)?;
        let mut words = ["cp", "--json", "-q", "-r"].map(str::to_owned).to_vec();
        for (name, value) in job.settings.iter().filter(|(name, _)| HAUL.contains(&name.as_str())) {
            words.push(format!("--{name}={value}"));
        }
        words.extend(ordered(job, self.url(host, port, path), format!("{}/", own.display()))?);
        Ok(words)
    }

    fn globus_arguments(&self, job: &Job<'_>) -> anyhow::Result<Vec<String>> {
        job.check_settings(&["direction", "parallel", "concurrency", "checksums"])?;
        let (host, port, path, own) = self.ends(job)?;
        let one = job.workload.files == 1;
        let parallel = job.setting("parallel", if one { AT_A_TIME } else { "1" });
        let mut words = ["-fast", "-r", "-cd", "-p", &parallel].map(str::to_owned).to_vec();
        if !one {
            words.extend(["-pp".to_owned(), "-cc".to_owned(), job.setting("concurrency", AT_A_TIME)]);
        }
        if self.private {
            words.push("-dcpriv".to_owned());
        }
        match job.setting("checksums", "no").as_str() {
            "no" => {}
            "yes" => words.push("-verify-checksum".to_owned()),
            other => anyhow::bail!("the setting checksums is yes or no, not {other}"),
        }
        words.extend(ordered(job, self.url(host, port, path), format!("file://{}/", own.display()))?);
        Ok(words)
    }

    /// A file in which curl is told what to fetch or to put; a program's words would not hold so many.
    fn curl_config(&self, job: &Job<'_>) -> anyhow::Result<String> {
        job.check_settings(&["direction", "parallel"])?;
        let (host, port, path, own) = self.ends(job)?;
        let mut text = format!(
            "parallel\nparallel-max = {}\nparallel-immediate\nfail\nno-progress-meter\ncreate-dirs\nftp-create-dirs\nquote = \"TYPE I\"\n",
            job.setting("parallel", AT_A_TIME)
        );
        let put = put(job)?;
        for index in 0..job.workload.files {
            let name = job.workload.name(index);
            let own = own.join(&name);
            // Two slashes: from the root, and not from where the login leads.
            let url = format!("ftp://{}:{port}/{}/{}", host.address, path.display(), name.display());
            let what = if put { "upload-file" } else { "output" };
            text.push_str(&format!("url = \"{url}\"\n{what} = \"{}\"\n", own.display()));
        }
        Ok(text)
    }
}

/// Whether files go to the server.
fn put(job: &Job<'_>) -> anyhow::Result<bool> {
    match job.setting("direction", "get").as_str() {
        "get" => Ok(false),
        "put" => Ok(true),
        other => anyhow::bail!("the setting direction is get or put, not {other}"),
    }
}

/// From here to there, in the order of the direction.
fn ordered(job: &Job<'_>, server: String, own: String) -> anyhow::Result<[String; 2]> {
    Ok(if put(job)? { [own, server] } else { [server, own] })
}

#[cfg(test)]
mod tests {
    use super::super::tests::Fixture;
    use super::*;
    use std::collections::HashSet;

    /// Goal: all clients fetch from the near host's server unless they are to put, then into the far one's.
    /// Method: command lines of one file and of many, both ways; a direction that there is not.
    #[test]
    fn peer_ftp_arguments() {
        let many = Fixture::new(&[]);
        let words = ALL[0].haul_arguments(&many.job()).unwrap().join(" ");
        assert_eq!(words, "cp --json -q -r ftp://10.77.0.1:2812/from/ /to/");
        let words = ALL[1].globus_arguments(&many.job()).unwrap().join(" ");
        assert_eq!(words, "-fast -r -cd -p 1 -pp -cc 8 ftp://10.77.0.1:2812/from/ file:///to/");
        let text = ALL[2].curl_config(&many.job()).unwrap();
        let first = "url = \"ftp://10.77.0.1:2812//from/d0/f0\"\noutput = \"/to/d0/f0\"\n";
        assert!(text.contains(first) && text.matches("url = ").count() == 3, "{text}");

        let mut one = Fixture::new(&[("direction", "put")]);
        one.workload.files = 1;
        let words = ALL[0].haul_arguments(&one.job()).unwrap().join(" ");
        assert_eq!(words, "cp --json -q -r /from/ ftp://10.77.0.2:2811/to/");
        let words = ALL[1].globus_arguments(&one.job()).unwrap().join(" ");
        assert_eq!(words, "-fast -r -cd -p 8 file:///from/ ftp://10.77.0.2:2811/to/");
        let text = ALL[2].curl_config(&one.job()).unwrap();
        assert!(text.contains("url = \"ftp://10.77.0.2:2811//to/") && text.contains("upload-file"), "{text}");

        let sums = Fixture::new(&[("direction", "put"), ("checksums", "yes")]);
        let words = ALL[1].globus_arguments(&sums.job()).unwrap().join(" ");
        assert_eq!(
            words,
            "-fast -r -cd -p 1 -pp -cc 8 -verify-checksum file:///from/ ftp://10.77.0.2:2811/to/"
        );

        // Each kind of server has ports of its own.
        assert_eq!(ALL.iter().map(|peer| peer.port(FAR)).collect::<HashSet<_>>().len(), 4);
        let url = ALL[7].url(one.bench.far(), 1, Path::new("/to"));
        assert_eq!(url, "gsiftp://10.77.0.2:1/to/");

        let wrong = Fixture::new(&[("direction", "up")]);
        assert!(ALL[0].haul_arguments(&wrong.job()).unwrap_err().to_string().contains("get or put"));
    }
}
