//! A real Slurm of two nodes on this host: munged, slurmctld and a slurmd for each node, ended with the test.
//!
//! The nodes are called `127.0.0.1` and `127.0.0.2`, so that their names are addresses at which servers on
//! them are reached, and nothing has to be told to the resolver.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::sshd::free_port;
use super::{Room, procs, set_mode};

const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// Whether its programs are here. munged serves nobody but root or a user of its own.
pub fn is_here() -> bool {
    let all = ["/usr/sbin/munged", "/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/bin/srun"];
    rustix::process::geteuid().is_root() && all.iter().all(|program| Path::new(program).exists())
}

/// A running Slurm.
pub struct Slurm {
    room: Room,
    daemons: Vec<Child>,
}

impl Slurm {
    /// Starts it, and waits until both nodes take jobs.
    ///
    /// # Panics
    /// It does not start.
    pub fn start() -> Slurm {
        let room = Room::new();
        for dir in ["state", "munge"] {
            room.dir(dir);
        }
        let key: Vec<u8> = (0..=255).collect();
        set_mode(&room.file("munge/key", key), 0o600);
        // Nobody but its owner may write above its socket, and all may go there.
        set_mode(&room.at("munge"), 0o711);
        room.file("slurm.conf", config(&room));
        let place = room.at("");
        let at = |name: &str| place.join(name).display().to_string();
        let mut slurm = Slurm { room, daemons: Vec::new() };
        let munged = [
            "--foreground".into(),
            // Rooms lie where everybody may write.
            "--force".into(),
            format!("--socket={}", at("munge/socket")),
            format!("--key-file={}", at("munge/key")),
            format!("--pid-file={}", at("munge/pid")),
            format!("--seed-file={}", at("munge/seed")),
        ];
        slurm.spawn("munged", &munged);
        let has_socket = procs::wait_until(STARTS_WITHIN, || slurm.room.at("munge/socket").exists());
        assert!(has_socket, "munged does not start: {}", slurm.said("munged"));
        slurm.spawn("slurmctld", &["-D".into(), "-f".into(), at("slurm.conf")]);
        for node in 1..=2 {
            slurm.spawn(
                "slurmd",
                &["-D".into(), "-f".into(), at("slurm.conf"), "-N".into(), format!("127.0.0.{node}")],
            );
        }
        let idle = procs::wait_until(STARTS_WITHIN, || {
            let told = slurm.command("sinfo").args(["-h", "-N", "-o", "%t"]).output().expect("run sinfo");
            String::from_utf8_lossy(&told.stdout) == "idle\nidle\n"
        });
        assert!(idle, "no idle nodes: {}{}", slurm.said("slurmctld"), slurm.said("slurmd"));
        slurm
    }

    /// A program that speaks to this Slurm.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.conf()).stdin(Stdio::null());
        command
    }

    fn conf(&self) -> PathBuf {
        self.room.at("slurm.conf")
    }

    fn spawn(&mut self, program: &str, args: &[String]) {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.room.at(&format!("{program}.log")))
            .expect("make a log");
        let mut command = Command::new(format!("/usr/sbin/{program}"));
        command.args(args).env("SLURM_CONF", self.conf()).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("two of it")).stderr(log);
        self.daemons.push(command.spawn().unwrap_or_else(|error| panic!("start {program}: {error}")));
    }

    fn said(&self, program: &str) -> String {
        fs::read_to_string(self.room.at(&format!("{program}.log"))).unwrap_or_default()
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        // Steps first, which a dead slurmd would leave.
        let _ = self.command("scancel").args(["--user", "root", "--full"]).status();
        let steps = || self.daemons.iter().flat_map(|daemon| procs::descendants(daemon.id()));
        let alone = |steps: usize| steps == self.daemons.len();
        procs::wait_until(Duration::from_secs(20), || alone(steps().count()));
        for pid in steps().collect::<Vec<_>>() {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

fn config(room: &Room) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let node = |number: u32| {
        let name = format!("127.0.0.{number}");
        // More processors than this host may have: steps that share them are not what is tested.
        format!("NodeName={name} NodeHostname={host} NodeAddr={name} Port={} CPUs=64\n", free_port())
    };
    format!(
        "ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\nSlurmdUser=root\n\
         AuthType=auth/munge\nAuthInfo=socket={room}/munge/socket\nCredType=cred/munge\n\
         SlurmctldPort={controller}\nStateSaveLocation={room}/state\nSlurmdSpoolDir={room}/spool-%n\n\
         SlurmctldPidFile={room}/slurmctld.pid\nSlurmdPidFile={room}/slurmd-%n.pid\n\
         ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres\n\
         SchedulerType=sched/builtin\nSlurmdParameters=config_overrides\nReturnToService=2\n\
         MpiDefault=none\nKillWait=2\n{one}{two}\
         PartitionName=all Nodes=127.0.0.[1-2] Default=YES MaxTime=INFINITE State=UP\n",
        room = room.at("").display(),
        controller = free_port(),
        one = node(1),
        two = node(2),
    )
}
