//! Recorded sessions, damaged at random and played to a real driver.

use std::fs;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use haul_core::transfer::SessionEnd;
use haul_core::wire::Message;

use super::evil::Evil;
use super::{
    Bench, PATIENCE, bytes, contents, finish, link_pairs, sink_request, source_request, start_sink,
    start_source,
};
use haul_transport::Link;

/// Sessions per direction.
const SEEDS: u64 = 250;

/// Keeps a copy of what is written.
struct Tee {
    inner: Box<dyn Write + Send>,
    copy: Arc<Mutex<Vec<u8>>>,
}

impl Write for Tee {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(data)?;
        self.copy.lock().unwrap().extend(&data[..n]);
        Ok(n)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn tee(links: Vec<Link>) -> (Vec<Link>, Vec<Arc<Mutex<Vec<u8>>>>) {
    let mut copies = Vec::new();
    let links = links.into_iter().map(|link| {
        let copy = Arc::new(Mutex::new(Vec::new()));
        copies.push(copy.clone());
        Link { writer: Box::new(Tee { inner: link.writer, copy }), ..link }
    });
    (links.collect(), copies)
}

/// Cuts a recorded stream into its frames.
fn frames(copy: &Mutex<Vec<u8>>) -> Vec<Vec<u8>> {
    let all = copy.lock().unwrap();
    let mut rest = &all[..];
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let len = 24 + u32::from_le_bytes(rest[..4].try_into().unwrap()) as usize;
        frames.push(rest[..len].to_vec());
        rest = &rest[len..];
    }
    frames
}

fn plant(bench: &Bench) {
    fs::create_dir_all(bench.src().join("d/e")).unwrap();
    for (i, len) in [0, 10, 3000, 200_000].into_iter().enumerate() {
        fs::write(bench.src().join(format!("d/f{i}")), bytes(i as u64, len)).unwrap();
    }
    fs::write(bench.src().join("big"), bytes(9, 700_000)).unwrap();
    let sparse = fs::File::create(bench.src().join("sparse")).unwrap();
    sparse.set_len(900_001).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, &bytes(8, 70_000), 300_000).unwrap();
    std::os::unix::fs::symlink("d/f1", bench.src().join("l")).unwrap();
}

/// What both ends wrote in a session that went well: control and one data stream of the source, control of
/// the sink.
fn record() -> (Vec<Vec<u8>>, Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let bench = Bench::new();
    plant(&bench);
    let (near, far) = link_pairs(1).into_iter().unzip();
    let ((near, said), (far, answered)) = (tee(near), tee(far));
    let mut request = source_request(&[contents(&bench.src())]);
    request.options.object_size = Some(64 * 1024);
    let source = start_source(near, request);
    let sink = start_sink(far, sink_request(&bench.dst()));
    assert_eq!(finish("record", source).end, SessionEnd::Complete);
    assert_eq!(finish("record", sink).end, SessionEnd::Complete);
    bench.same();
    (frames(&said[0]), frames(&said[1]), frames(&answered[0]))
}

/// Damages a list of frames; `renumber` makes the sequence right again, so that the damage reaches the
/// machine.
fn damage(rng: &mut fastrand::Rng, frames: &mut Vec<Vec<u8>>, from: usize) {
    for _ in 0..rng.usize(1..4) {
        if frames.len() <= from {
            return;
        }
        let at = rng.usize(from..frames.len());
        match rng.u8(0..8) {
            0 => drop(frames.remove(at)),
            1 => frames.insert(at, frames[at].clone()),
            2 => {
                let other = rng.usize(from..frames.len());
                frames.swap(at, other);
            }
            3 => {
                let keep = rng.usize(0..frames[at].len());
                frames[at].truncate(keep);
                frames.truncate(at + 1);
            }
            // A byte anywhere, the fixed parts and the first fields more often.
            4..7 => {
                let len = frames[at].len();
                let byte = if rng.bool() { rng.usize(0..len.min(80)) } else { rng.usize(0..len) };
                frames[at][byte] = if rng.bool() { rng.u8(..) } else { frames[at][byte] ^ 1 << rng.u8(0..8) };
            }
            // A whole field of ones.
            _ => {
                let byte = rng.usize(24.min(frames[at].len() - 1)..frames[at].len());
                let end = (byte + 8).min(frames[at].len());
                frames[at][byte..end].fill(0xff);
            }
        }
    }
    if rng.u8(0..8) != 0 {
        for (frame, seq) in frames.iter_mut().zip(1u64..) {
            if frame.len() >= 24 {
                frame[16..24].copy_from_slice(&seq.to_le_bytes());
            }
        }
    }
}

/// Goal: no damage to what a source says makes the sink panic, hang, leak, reach outside, or publish a wrong
/// byte of content that was not itself damaged into a valid announcement.
/// Method: a recorded session, mutated by seed, played to a real sink, which is left alone afterwards.
#[test]
fn damaged_words_of_a_source_do_no_harm() {
    let (whole, data, _) = record();
    for seed in 0..SEEDS {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut control, mut data) = (whole.clone(), data.clone());
        match rng.u8(0..4) {
            0 => damage(&mut rng, &mut data, 0),
            1 => damage(&mut rng, &mut control, 0),
            2 => damage(&mut rng, &mut control, 2),
            _ => {
                damage(&mut rng, &mut control, 2);
                damage(&mut rng, &mut data, 0);
            }
        }
        let bench = Bench::new();
        plant(&bench);
        let (near, far) = link_pairs(1).into_iter().unzip();
        let sink = start_sink(near, sink_request(&bench.dst()));
        let mut evil = Evil::new(far);
        let setup = control.len().min(2);
        control[..setup].iter().for_each(|frame| evil.write(frame));
        // Data that comes during the set-up is dropped, so the first grant is waited for. A set-up that was
        // damaged may never get so far.
        let wait = if control[..setup] == whole[..2] { PATIENCE } else { Duration::from_millis(50) };
        let granted = loop {
            match evil.heard.recv_timeout(wait) {
                Ok(Message::Grant { .. }) => break true,
                Ok(_) => {}
                Err(_) => break false,
            }
        };
        let cut = rng.usize(0..=control.len() - setup);
        control[setup..][..cut].iter().for_each(|frame| evil.write(frame));
        // Nobody reads a data stream before the set-up is over.
        data.iter().filter(|_| granted).for_each(|frame| evil.write_data(0, frame));
        control[setup..][cut..].iter().for_each(|frame| evil.write(frame));
        drop(evil);
        let case = format!("seed {seed}");
        finish(&case, sink);
        bench.check(&case);
    }
}

/// Goal: no damage to what a sink says makes the source panic, hang, leak or change its files.
/// Method: as above, the other way round.
#[test]
fn damaged_words_of_a_sink_do_no_harm() {
    let (_, _, answers) = record();
    let bench = Bench::new();
    plant(&bench);
    let before = super::snapshot(&bench.src());
    for seed in 0..SEEDS {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut answers = answers.clone();
        let from = if rng.bool() { 2 } else { 0 };
        damage(&mut rng, &mut answers, from);
        let (near, far) = link_pairs(1).into_iter().unzip();
        let mut request = source_request(&[contents(&bench.src())]);
        request.options.object_size = Some(64 * 1024);
        let source = start_source(near, request);
        let mut evil = Evil::new(far);
        for frame in &answers {
            evil.write(frame);
            if rng.u8(0..4) == 0 {
                let _ = evil.heard.recv_timeout(Duration::from_millis(1));
            }
        }
        drop(evil);
        let case = format!("seed {seed}");
        finish(&case, source);
        bench.check(&case);
    }
    assert_eq!(super::snapshot(&bench.src()), before);
}
