//! Clients of one GridFTP server of Globus, anonymous, without any protection: haul, Globus's own, curl.
//!
//! The server is the same for all of them, so that what differs is the client. It stands at the near host and
//! the client at the far one, which fetches; with `direction=put` it is the other way round. haul has no
//! setting, for it chooses by itself. globus-url-copy: one file over eight data connections (`-p 8 -fast`),
//! many over eight sessions with cached data connections (`-cc 8 -fast`; `-pp` has effect between servers
//! alone). curl: eight files at a time, each over one connection, told by name: it reads no directory, and
//! must be told to say `TYPE I` first (said behind `EPSV`, as curl does, this server sends text for bytes).
//! lftp is not among them: in the server's listings as text it takes each name with a byte behind it that is
//! none.

use std::any::Any;
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;

use super::gridftp::{FAR, NEAR, server, with_names};
use super::{Job, Peer, Said, ask_version, haul};
use crate::host::{self, Bench, Host};

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

/// A client of an FTP server.
pub struct Ftp(Client);

pub static FTP_HAUL: Ftp = Ftp(Client::Haul);
pub static FTP_GLOBUS: Ftp = Ftp(Client::Globus);
pub static FTP_CURL: Ftp = Ftp(Client::Curl);

impl Peer for Ftp {
    fn name(&self) -> &'static str {
        match self.0 {
            Client::Haul => "ftp-haul",
            Client::Globus => "ftp-globus",
            Client::Curl => "ftp-curl",
        }
    }

    fn about(&self) -> &'static str {
        match self.0 {
            Client::Haul => {
                "haul cp -r ftp://, chooses by itself; UNPROTECTED, anonymous; every byte hashed as it comes; what is fetched is on media when it ends, unless durability=none"
            }
            Client::Globus => {
                "globus-url-copy -fast ftp://, one file: -p 8, many: -cc 8; UNPROTECTED, anonymous; not on media when it ends"
            }
            Client::Curl => {
                "curl ftp://, 8 files at a time, one connection each; UNPROTECTED, anonymous; not on media when it ends"
            }
        }
    }

    fn packages(&self) -> &'static [&'static str] {
        match self.0 {
            Client::Curl => &["curl", "globus-gridftp-server-progs"],
            Client::Globus => &["globus-gass-copy-progs", "globus-gridftp-server-progs"],
            Client::Haul => &["globus-gridftp-server-progs"],
        }
    }

    fn version(&self) -> anyhow::Result<String> {
        let client = match self.0 {
            Client::Haul => {
                ask_version(&host::haul().to_string_lossy(), &["--version"], "none, build it: make build")
            }
            Client::Globus => ask_version("globus-url-copy", &["-version"], "globus-gass-copy-progs"),
            Client::Curl => ask_version("curl", &["--version"], "curl"),
        }?;
        let server = ask_version("globus-gridftp-server", &["-version"], "globus-gridftp-server-progs")?;
        Ok(format!("{client}, server {server}"))
    }

    fn start(&self, bench: &Bench) -> anyhow::Result<Box<dyn Any>> {
        let far = server(bench, bench.far(), bench.port(FAR)?)?;
        let near = server(bench, bench.near(), bench.port(NEAR)?)?;
        Ok(Box::new([far, near]))
    }

    fn copy(&self, job: &Job<'_>) -> anyhow::Result<Said> {
        let client = if put(job)? { job.bench.near() } else { job.bench.far() };
        let (program, args) = match self.0 {
            Client::Haul => (job.bench.haul.display().to_string(), haul_arguments(job)?),
            Client::Globus => ("globus-url-copy".to_owned(), globus_arguments(job)?),
            Client::Curl => {
                let path = job.bench.scratch.join("curl-config");
                fs::write(&path, curl_config(job)?).with_context(|| format!("write {}", path.display()))?;
                ("curl".to_owned(), ["-q".into(), "-K".into(), path.display().to_string()].to_vec())
            }
        };
        let mut words = with_names(job.bench, client)?;
        words.push(program);
        words.extend(args);
        let mut command = client.command(&words[0]);
        command.env("GLOBUS_HOSTNAME", &client.address).args(&words[1..]);
        let said = job.bench.run(&mut command, job.limit)?;
        match self.0 {
            Client::Haul => haul::summary(&said.stdout, false),
            Client::Globus | Client::Curl => Ok(Said { more: Value::Null, ..Said::default() }),
        }
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

/// The server's host, port and path, and the client's path.
fn ends<'a>(job: &'a Job<'_>) -> anyhow::Result<(&'a Host, u16, &'a Path, &'a Path)> {
    let bench = job.bench;
    Ok(match put(job)? {
        true => (bench.far(), bench.port(FAR)?, job.to, job.from),
        false => (bench.near(), bench.port(NEAR)?, job.from, job.to),
    })
}

/// From here to there, in the order of the direction.
fn ordered(job: &Job<'_>, server: String, own: String) -> anyhow::Result<[String; 2]> {
    Ok(if put(job)? { [own, server] } else { [server, own] })
}

fn haul_arguments(job: &Job<'_>) -> anyhow::Result<Vec<String>> {
    job.check_settings(&[HAUL, &["direction"]].concat())?;
    let (host, port, path, own) = ends(job)?;
    let mut words = ["cp", "--json", "-q", "-r"].map(str::to_owned).to_vec();
    for (name, value) in job.settings.iter().filter(|(name, _)| HAUL.contains(&name.as_str())) {
        words.push(format!("--{name}={value}"));
    }
    let server = format!("ftp://{}:{port}{}/", host.address, path.display());
    words.extend(ordered(job, server, format!("{}/", own.display()))?);
    Ok(words)
}

fn globus_arguments(job: &Job<'_>) -> anyhow::Result<Vec<String>> {
    job.check_settings(&["direction", "parallel", "concurrency"])?;
    let (host, port, path, own) = ends(job)?;
    let one = job.workload.files == 1;
    let parallel = job.setting("parallel", if one { AT_A_TIME } else { "1" });
    let mut words = ["-fast", "-r", "-cd", "-p", &parallel].map(str::to_owned).to_vec();
    if !one {
        words.extend(["-cc".to_owned(), job.setting("concurrency", AT_A_TIME)]);
    }
    let server = format!("ftp://{}:{port}{}/", host.address, path.display());
    words.extend(ordered(job, server, format!("file://{}/", own.display()))?);
    Ok(words)
}

/// A file in which curl is told what to fetch or to put; a program's words would not hold so many.
fn curl_config(job: &Job<'_>) -> anyhow::Result<String> {
    job.check_settings(&["direction", "parallel"])?;
    let (host, port, path, own) = ends(job)?;
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

#[cfg(test)]
mod tests {
    use super::super::tests::Fixture;
    use super::*;

    /// Goal: all clients fetch from the near host's server unless they are to put, then into the far one's.
    /// Method: command lines of one file and of many, both ways; a direction that there is not.
    #[test]
    fn peer_ftp_arguments() {
        let many = Fixture::new(&[]);
        let words = haul_arguments(&many.job()).unwrap().join(" ");
        assert_eq!(words, "cp --json -q -r ftp://10.77.0.1:2812/from/ /to/");
        let words = globus_arguments(&many.job()).unwrap().join(" ");
        assert_eq!(words, "-fast -r -cd -p 1 -cc 8 ftp://10.77.0.1:2812/from/ file:///to/");
        let text = curl_config(&many.job()).unwrap();
        let first = "url = \"ftp://10.77.0.1:2812//from/d0/f0\"\noutput = \"/to/d0/f0\"\n";
        assert!(text.contains(first) && text.matches("url = ").count() == 3, "{text}");

        let mut one = Fixture::new(&[("direction", "put")]);
        one.workload.files = 1;
        let words = haul_arguments(&one.job()).unwrap().join(" ");
        assert_eq!(words, "cp --json -q -r /from/ ftp://10.77.0.2:2811/to/");
        let words = globus_arguments(&one.job()).unwrap().join(" ");
        assert_eq!(words, "-fast -r -cd -p 8 file:///from/ ftp://10.77.0.2:2811/to/");
        let text = curl_config(&one.job()).unwrap();
        assert!(text.contains("url = \"ftp://10.77.0.2:2811//to/") && text.contains("upload-file"), "{text}");

        let wrong = Fixture::new(&[("direction", "up")]);
        assert!(haul_arguments(&wrong.job()).unwrap_err().to_string().contains("get or put"));
    }
}
