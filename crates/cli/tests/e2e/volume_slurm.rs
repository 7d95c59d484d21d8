//! A volume whose servers are steps of jobs of Slurm.

use std::process::Output;

use crate::support::compare::{self, assert_same};
use crate::support::slurm::Slurm;
use crate::support::{Room, procs, run, tree};

/// Goal: a volume lives on the nodes of a job, ends with it, and goes on in the next one with all that a copy
/// was acknowledged for.
/// Method: a real Slurm of two nodes. The first job makes the volume and fills it, and ends while its servers
/// run; the second one starts them again, on the same nodes, and brings everything back.
#[test]
fn jobs_of_slurm_have_a_volume() {
    need!("slurm");
    let (slurm, room) = (Slurm::start(), Room::new());
    let mark = format!("slurm-{}", std::process::id());
    let source = room.dir("source");
    tree::plain(&source, 17, 40, 3 << 20);
    let job = |script: &str| -> Output {
        let mut job = slurm.command("salloc");
        job.args(["-N2", "-n2", "sh", "-exc", script]).current_dir(room.at(""));
        job.env("XDG_STATE_HOME", room.at("state")).env("HAUL", run::program()).env(procs::MARK, &mark);
        let ended = job.output().expect("run salloc");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{}: {said}", ended.status);
        ended
    };

    job("servers=$(scontrol show hostnames | sed \"s|.*|&:$PWD/&|\" | paste -sd,)
         $HAUL volume create v --server $servers --launch 'srun -N1 -n1 --overlap -w {host}'
         $HAUL volume health v
         $HAUL cp -r source vol://v/");
    // Slurm ends what a job leaves.
    procs::wait_gone(&mark);
    let health = run::Haul::new(["volume", "health", "v"]).env("XDG_STATE_HOME", room.at("state"));
    let health = health.run().sane().exits(1);
    let told = String::from_utf8_lossy(&health.stdout).into_owned();
    assert_eq!(told.matches("not reached").count(), 3, "{told}");

    let ended = job("$HAUL volume start v
         squeue --steps --noheader --format=%N
         $HAUL cp -r vol://v/source back
         $HAUL volume destroy v --yes");
    // Each on its own node, the catalog on the first.
    let told = String::from_utf8_lossy(&ended.stdout);
    let on = |node: &str| told.lines().filter(|line| line.trim() == node).count();
    assert_eq!((on("127.0.0.1"), on("127.0.0.2")), (2, 1), "{told}");
    assert_same(&source, &room.at("back/source"), compare::ALL);
    procs::wait_gone(&mark);
    for dir in ["127.0.0.1", "127.0.0.2"] {
        assert!(!room.at(dir).exists(), "{dir} is left");
    }
}
