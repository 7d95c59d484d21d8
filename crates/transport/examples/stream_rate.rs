//! How fast the data streams are with nothing behind them: N streams over TLS on loopback, one process, one
//! buffer sent again and again, received, held against its digest and dropped. To be compared with
//! `iperf3 -P N`.
//!
//! `cargo run --release -p haul-transport --example stream_rate -- [STREAMS] [GIGABYTES] [OBJECT_KIB]
//! [digest|nodigest]`
//!
//! `nodigest` cuts below the frames: links only, plain reads and writes of an object each.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_base::buffer::{Buffer, Pool};
use haul_base::digest;
use haul_base::meter::Meter;
use haul_core::ids::{FileId, Generation, SessionEpoch, SinkTarget, StreamId};
use haul_core::stage::Stage;
use haul_core::wire::{DataEntry, DataHeader, DigestKind};
use haul_transport::Link;
use haul_transport::pace::Pacer;
use haul_transport::stream::{DataReceiver, DataSender, RecvEvent, SendEvent};
use haul_transport::tls::{self, Identity, Pin};

const EPOCH: SessionEpoch = SessionEpoch(1);
const DEADLINE: Duration = Duration::from_secs(10);
/// Frames in flight on each stream.
const WINDOW: u64 = 8;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: u64| args.get(i).map_or(default, |arg| arg.parse().expect("a number"));
    let (streams, bytes, object) =
        (number(0, 1), number(1, 8) * 1_000_000_000, number(2, 4096) as usize * 1024);
    let with_digest = args.get(3).is_none_or(|arg| arg != "nodigest");
    let frames = bytes.div_ceil(streams * object as u64);

    let meter = Arc::new(Meter::default());
    let links: Vec<(Link, Link)> = (0..streams).map(|_| connect()).collect();
    let (cpu, start) = (cpu_seconds(), Instant::now());
    std::thread::scope(|scope| {
        for (i, (near, far)) in links.into_iter().enumerate() {
            let meter = meter.clone();
            scope.spawn(move || match with_digest {
                true => run_frames(near, far, StreamId(i as u16 + 1), object, frames, meter),
                false => run_bytes(near, far, object, frames),
            });
        }
    });
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let gigabytes = (streams * frames * object as u64) as f64 / 1e9;
    println!(
        "{streams} streams, objects of {} KiB, {}: {:.2} GB/s, {:.3} CPU s/GB (both ends)",
        object / 1024,
        if with_digest { "frames with digest" } else { "bytes only" },
        gigabytes / seconds,
        cpu / gigabytes
    );
    for (stage, time) in Stage::ALL.iter().zip(meter.read()) {
        let (busy, starved, blocked) = time.shares();
        if busy > 0.0 {
            println!("  {:15} busy {busy:.2} starved {starved:.2} blocked {blocked:.2}", stage.name());
        }
    }
}

fn connect() -> (Link, Link) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let dialled = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let accepted = listener.accept().expect("a connection").0;
    let (ours, theirs) = (Identity::generate().expect("a key"), Identity::generate().expect("a key"));
    let (our_pin, their_pin) = (Pin(ours.public()), Pin(theirs.public()));
    let far = std::thread::spawn(move || tls::server(accepted, &theirs, &our_pin, DEADLINE).expect("a link"));
    let near = tls::client(dialled, &ours, &their_pin, DEADLINE).expect("a link");
    (near, far.join().expect("a link"))
}

fn run_frames(near: Link, far: Link, stream: StreamId, object: usize, frames: u64, meter: Arc<Meter>) {
    let (sent_post, sent) = std::sync::mpsc::channel();
    let (got_post, got) = std::sync::mpsc::channel();
    let post = Arc::new(move |event: SendEvent| drop(sent_post.send(event)));
    let mut sender = DataSender::spawn(near, stream, EPOCH, meter.clone(), post, Arc::new(Pacer::new(None)))
        .expect("a thread");
    // What arrived is dropped where it is told, so that the pool need not be deep.
    let post = Arc::new(move |event: RecvEvent| match event {
        RecvEvent::Data { good, .. } => assert!(good[0]),
        RecvEvent::Lost { error, .. } => drop(got_post.send(error)),
    });
    let pool = Pool::new(2 * object as u64);
    let _receiver = DataReceiver::spawn(far, stream, EPOCH, pool, meter, post).expect("a thread");
    let pool = Pool::new((WINDOW + 1) * object as u64);
    let data = vec![0xa5; object];
    // All buffers are filled once, and keep what is in them: in a transfer a reader fills them by direct I/O.
    let filled: Vec<Buffer> = (0..=WINDOW)
        .map(|_| {
            let mut buffer = pool.take(object).expect("room in the pool");
            buffer.as_mut_slice().copy_from_slice(&data);
            buffer
        })
        .collect();
    drop(filled);
    let offset = object as u64;
    let cvs = digest::chaining_values(DigestKind::Blake3, offset, &data, false);
    for i in 0..frames {
        if i >= WINDOW {
            assert!(matches!(sent.recv(), Ok(SendEvent::Sent { .. })), "the stream lives");
        }
        let entry = DataEntry {
            id: FileId(1),
            generation: Generation(0),
            offset,
            len: object as u32,
            root: false,
            hole: false,
            tail: false,
            sealed: false,
            pass: 0,
            digest: DigestKind::Blake3,
            cvs: cvs.clone(),
        };
        let buffer = pool.take(object).expect("room in the pool");
        sender.submit(DataHeader { sink_target: SinkTarget::ANY, entries: vec![entry] }, Some(buffer));
    }
    sender.close();
    assert_eq!(got.recv().expect("the end is told"), None);
}

fn run_bytes(near: Link, far: Link, object: usize, frames: u64) {
    let (mut writer, mut reader) = (near.writer, far.reader);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let data = vec![0xa5; object];
            for _ in 0..frames {
                writer.write_all(&data).expect("the stream lives");
            }
            writer.flush().expect("the stream lives");
        });
        scope.spawn(move || {
            let mut data = vec![0; object];
            for _ in 0..frames {
                reader.read_exact(&mut data).expect("the stream lives");
            }
        });
    });
}

/// User and system time of this process so far.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
