//! Certificates for the lab's GridFTP peers: an authority, the hosts, a user, and who he is there.
//!
//! Made by `openssl` in the scratch directory; good for the lab's addresses alone.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::host::Bench;

fn dir(bench: &Bench) -> PathBuf {
    bench.scratch.join("grid")
}

/// Makes them, unless they are there.
///
/// # Errors
/// `openssl` fails, or files cannot be written.
pub(super) fn make(bench: &Bench) -> anyhow::Result<()> {
    let dir = dir(bench);
    if dir.join("gridmap").exists() {
        return Ok(());
    }
    // Whoever has not logged in is served by nobody's process, which must come to the authorities, by way of
    // directories of the lab's own that nobody can list.
    let is_ours =
        |path: &&Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("haul-lab-"));
    for above in bench.scratch.ancestors().filter(is_ours) {
        let mode =
            fs::metadata(above).with_context(|| format!("look at {}", above.display()))?.permissions().mode();
        fs::set_permissions(above, fs::Permissions::from_mode(mode | 0o011))
            .with_context(|| format!("open {}", above.display()))?;
    }
    let authorities = dir.join("authorities");
    fs::create_dir_all(&authorities).with_context(|| format!("make {}", authorities.display()))?;
    let put = |name: &str, text: &str| {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    };
    let run = |script: &str| -> anyhow::Result<String> {
        let output = Command::new("sh").args(["-ec", script]).current_dir(&dir).output().context("run sh")?;
        if !output.status.success() {
            bail!("{script}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let usage = "basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature,keyEncipherment\n";
    let [near, far] = [&bench.near().address, &bench.far().address];
    put("host.cnf", &format!("{usage}subjectAltName=IP:{near},IP:{far}\n"))?;
    put("user.cnf", usage)?;
    put("proxy.cnf", &format!("{usage}proxyCertInfo=critical,language:id-ppl-inheritAll\n"))?;
    run(
        "openssl genrsa -out ca.key && openssl req -x509 -new -key ca.key -days 30 -subj '/CN=Authority' -out ca.pem \
         -addext keyUsage=critical,keyCertSign,cRLSign",
    )?;
    for (name, subject, by) in [
        ("host", "/O=Grid/CN=lab".to_owned(), "ca"),
        ("user", "/O=Grid/CN=user".to_owned(), "ca"),
        ("proxy", "/O=Grid/CN=user/CN=12345".to_owned(), "user"),
    ] {
        run(&format!(
            "openssl genrsa -out {name}.key && chmod 600 {name}.key && openssl req -new -key {name}.key -subj '{subject}' | \
             openssl x509 -req -CA {by}.pem -CAkey {by}.key -set_serial 12345 -days 20 -extfile {name}.cnf -out {name}.pem"
        ))?;
    }
    run("cat proxy.pem proxy.key user.pem >me && chmod 600 me")?;
    let hash = run("openssl x509 -in ca.pem -noout -hash")?;
    run(&format!("cp ca.pem authorities/{hash}.0"))?;
    put(
        &format!("authorities/{hash}.signing_policy"),
        "access_id_CA X509 '/CN=Authority'\npos_rights globus CA:sign\ncond_subjects globus '\"/O=Grid/*\"'\n",
    )?;
    put("gridmap", &format!("\"/O=Grid/CN=user\" {}\n", super::user()))
}

/// A server of Globus comes as the host.
pub(super) fn host(bench: &Bench, command: &mut Command) {
    let at = |name| dir(bench).join(name);
    command.env("X509_CERT_DIR", at("authorities")).env("GRIDMAP", at("gridmap"));
    command.env("X509_USER_CERT", at("host.pem")).env("X509_USER_KEY", at("host.key"));
}

/// The same of haul's server.
pub(super) fn served(bench: &Bench) -> Vec<String> {
    let at = |name| dir(bench).join(name).display().to_string();
    let words =
        ["--gsi", "--host-cert", &at("host.pem"), "--host-key", &at("host.key"), "--allow-root", "--gridmap"];
    let mut words = words.map(str::to_owned).to_vec();
    words.extend([at("gridmap"), "--authorities".to_owned(), at("authorities")]);
    words
}

/// A client comes as the user.
pub(super) fn user(bench: &Bench, command: &mut Command) {
    command
        .env("X509_CERT_DIR", dir(bench).join("authorities"))
        .env("X509_USER_PROXY", dir(bench).join("me"));
}
