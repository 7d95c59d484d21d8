//! Shell text for guests: what each begins with, and what single tasks add.
//!
//! In: words. Out: a script for the guest's `/bin/sh`, which is this machine's.
//! Control line (descriptor 3, `/dev/ttyS2`), one word each: `taps` when network devices are open, answered
//! by `go`; `ready`; `exit CODE`; `failed WHY`.

use std::path::Path;

/// The guest's own places; this machine's files there cannot be seen in it.
pub const COVERED: [&str; 6] = ["/run", "/tmp", "/var/tmp", "/mnt", "/media", "/dev/shm"];

/// What every guest's script begins with. `scratch` is where `script` lies, also in the guest.
///
/// A module that the kernel wants by itself is found as well, below the package's own directory.
pub fn prelude(scratch: &Path) -> String {
    let scratch = quote(&scratch.display().to_string());
    let covered = COVERED.join(" ");
    format!(
        r#"#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LANG=C.UTF-8
exec 3<>/dev/ttyS2
stty raw -echo <&3
fail() {{ echo "failed $*" | tr '\n\t' '  ' >&3; echo >&3; exec sleep infinity; }}
try() {{ said=$("$@" 2>&1 3<&-) || fail "$*: $said"; }}
try mount -t proc proc /proc
try mount -t sysfs sys /sys
mkdir -p /dev/shm /dev/pts
mount -t devpts devpts /dev/pts
ln -sfn /proc/self/fd /dev/fd
for place in {covered}; do
    [ -d $place ] && try mount -t tmpfs -o mode=1777 tmpfs $place
done
chmod 755 /run
mkdir -p /run/lock /run/modules/lib {scratch}
try mount -t hostfs -o {scratch} none {scratch}
try ln -s /usr/lib/uml/modules /run/modules/lib/modules
printf '#!/bin/sh\nexec modprobe -d /run/modules "$@"\n' >/run/modprobe
chmod 755 /run/modprobe
"#
    )
}

/// From here on the kernel may load modules by itself. A function of its own: IPv6, once there, speaks at
/// once on every device, and a device whose other end is not up yet does not get over that.
pub const AUTOLOAD: &str = "echo /run/modprobe >/proc/sys/kernel/modprobe\ntry ip link set lo up\n";

/// Loads a module.
pub fn module(name: &str) -> String {
    format!("try /run/modprobe {}\n", quote(name))
}

/// Runs a command in `dir`, with its output and errors on lines of their own, and says how it ended.
pub fn command(words: &[String], dir: &Path) -> String {
    let dir = quote(&dir.display().to_string());
    let words: Vec<_> = words.iter().map(|word| quote(word)).collect();
    format!(
        "stty -F /dev/ttyS0 raw -echo\nstty -F /dev/ttyS1 raw -echo\ncd {dir} 2>/dev/null || cd /\n\
         (exec {} </dev/null >/dev/ttyS0 2>/dev/ttyS1 3<&-)\ncode=$?\n\
         # Changing a line waits until what was written to it has gone out.\n\
         stty -F /dev/ttyS0 -echo\nstty -F /dev/ttyS1 -echo\n\
         echo \"exit $code\" >&3\nexec sleep infinity\n",
        words.join(" ")
    )
}

/// A word that the shell takes as it stands.
pub fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no word of a command means anything to the shell on the way.
    /// Method: words full of it, through a real shell.
    #[test]
    fn kernel_words_reach_the_command() {
        let words = ["a b", "it's", "$HOME", "`id`", "", "*", "\\", "line\nbreak"];
        let text = words.map(quote).join(" ");
        let output = std::process::Command::new("sh")
            .arg("-c")
            .arg(format!("printf '%s|' {text}"))
            .output()
            .expect("run sh");
        assert_eq!(String::from_utf8(output.stdout).expect("text"), words.map(|w| format!("{w}|")).concat());
    }
}
