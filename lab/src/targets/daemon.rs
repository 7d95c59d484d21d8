//! The process that serves a model, and the socket through which it is changed.
//!
//! In: a `ModelSpec` in the set's directory; then one JSON line for each connection. Out: the mount; one JSON
//! line back.
//! Invariant: whoever is asked for a change has made it before the answer. Left out: an orderly end. `down`
//! kills the process, for nothing that it holds is to be kept.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::pid::Process;

use super::mount;
use super::script::{Player, Script};
use super::spec::ModelSpec;
use super::state::{self, VolumeState};
use super::volume::{Setting, Volume};

/// Longest request on the control socket, bytes: a script.
const REQUEST_LEN_MAX: u64 = 4 << 20;
const ANSWER_WAIT: Duration = Duration::from_secs(10);
const READY: &str = "ready";

/// What can be asked through the socket.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ask {
    Stats,
    Set {
        target: Option<u32>,
        setting: Setting,
    },
    /// None ends the one that plays.
    Script(Option<Script>),
    /// Targets take no time, until this is asked with false.
    Ease(bool),
}

fn socket(name: &str) -> PathBuf {
    state::dir(name).join("control")
}

/// Starts the process for a model and waits until it is mounted. After an error the set is to be removed.
pub fn start(spec: &ModelSpec, data: Option<PathBuf>) -> anyhow::Result<Value> {
    let dir = state::dir(&spec.name);
    let targets = u32::try_from(spec.targets.len()).expect("checked");
    let mut state = VolumeState {
        name: spec.name.clone(),
        kind: "model".into(),
        mount: spec.mount.clone(),
        targets,
        data: data.clone(),
        ..VolumeState::default()
    };
    state.save()?;
    if let Some(data) = &data {
        fs::create_dir_all(data).with_context(|| format!("create {}", data.display()))?;
    }
    fs::write(dir.join("model.json"), serde_json::to_vec_pretty(spec)?)
        .context("write the model's description")?;
    let log = fs::File::create(dir.join("log")).context("create the model's log")?;
    let mut child = Command::new(std::env::current_exe().context("find this program")?)
        .args(["targets", "serve", &spec.name])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("start the process of the model")?;
    let pid = child.id();
    let ready = Process::of(pid).is_ok_and(|process| {
        state.daemon = Some(process);
        state.save().is_ok() && is_ready(&mut child)
    });
    if !ready {
        let said = fs::read_to_string(dir.join("log")).unwrap_or_default();
        // It is ours and was not waited for, so the number is still its own.
        let _ = child.kill();
        let _ = child.wait();
        bail!("the model did not come up: {}", said.trim());
    }
    Ok(json!({
        "name": spec.name,
        "kind": "model",
        "mount": spec.mount,
        "targets": targets,
        "pid": pid,
        "stripe_count": spec.stripe_count,
        "stripe_size": spec.stripe_size,
        "control": socket(&spec.name),
    }))
}

fn is_ready(child: &mut Child) -> bool {
    let Some(out) = child.stdout.take() else { return false };
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line).is_ok() && line.trim() == READY
}

/// Serves a model until it is unmounted; this is the process that `start` started.
pub fn serve(name: &str) -> anyhow::Result<()> {
    rustix::process::setsid().context("leave the session")?;
    let path = state::dir(name).join("model.json");
    let text = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    let spec: ModelSpec =
        serde_json::from_slice(&text).with_context(|| format!("read {}", path.display()))?;
    let volume = Arc::new(Volume::start(&spec).context("start the targets")?);
    let (script, scripts) = channel();
    if let Some(first) = spec.script.clone() {
        // The receiver is in this function.
        let _ = script.send(Some(Player::new(first, volume.targets())?));
    }
    let of_player = volume.clone();
    std::thread::Builder::new().name("script".into()).spawn(move || play(&of_player, &scripts))?;
    let listener = UnixListener::bind(socket(name)).context("listen on the control socket")?;
    let of_control = volume.clone();
    std::thread::Builder::new().name("control".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = match control(&of_control, &script, &stream) {
                Ok(answer) => json!({ "ok": answer }),
                Err(e) => json!({ "error": format!("{e:#}") }),
            };
            // Who asked may have left.
            let _ = writeln!(&stream, "{answer}");
        }
    })?;
    let session = mount::mount(&spec, volume)
        .with_context(|| format!("mount FUSE on {}; is there /dev/fuse?", spec.mount.display()))?
        .spawn()
        .context("serve FUSE")?;
    println!("{READY}");
    session.join().context("serve FUSE")
}

fn control(volume: &Volume, script: &Sender<Option<Player>>, stream: &UnixStream) -> anyhow::Result<Value> {
    stream.set_read_timeout(Some(ANSWER_WAIT))?;
    let mut line = String::new();
    BufReader::new(stream.take(REQUEST_LEN_MAX)).read_line(&mut line)?;
    match serde_json::from_str(&line).context("a request is one line of JSON")? {
        Ask::Stats => Ok(volume.stats()),
        Ask::Set { target, setting } => {
            volume.set(target, &setting).map_err(anyhow::Error::msg)?;
            Ok(Value::Null)
        }
        Ask::Ease(eased) => {
            volume.ease(eased);
            Ok(Value::Null)
        }
        Ask::Script(new) => {
            let player = new.map(|new| Player::new(new, volume.targets())).transpose()?;
            script.send(player).context("the thread that plays scripts has ended")?;
            Ok(Value::Null)
        }
    }
}

/// Plays scripts as they come; a new one ends the one before. Steps do not drift: each begins when the last
/// one was due to end.
fn play(volume: &Volume, scripts: &Receiver<Option<Player>>) {
    let well = vec![Default::default(); volume.targets() as usize];
    let mut player: Option<Player> = None;
    let mut due = Instant::now();
    loop {
        let next = player.as_mut().and_then(Player::advance);
        let new = match next {
            Some((lasts, all)) => {
                volume.set_all_congestion(&all);
                due += lasts;
                scripts.recv_timeout(due.saturating_duration_since(Instant::now()))
            }
            None => {
                if player.take().is_some() {
                    volume.set_all_congestion(&well);
                }
                scripts.recv().map_err(|_| RecvTimeoutError::Disconnected)
            }
        };
        match new {
            Ok(new) => {
                volume.set_all_congestion(&well);
                player = new;
                due = Instant::now();
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Asks the process of a model.
pub fn ask(name: &str, ask: &Ask) -> anyhow::Result<Value> {
    let path = socket(name);
    let mut stream = UnixStream::connect(&path).with_context(|| {
        format!("the process of targets {name:?} does not answer: connect to {}", path.display())
    })?;
    stream.set_read_timeout(Some(ANSWER_WAIT))?;
    writeln!(stream, "{}", serde_json::to_string(ask)?)?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).context("read the answer")?;
    let answer: Value = serde_json::from_str(&line).context("read the answer")?;
    ensure!(answer.get("error").is_none(), "{}", answer["error"].as_str().unwrap_or("refused"));
    Ok(answer["ok"].clone())
}
