use super::*;

/// A list that is searched from end to end.
#[derive(Default)]
struct Model {
    depth: u32,
    depths: u32,
    stuck_max: u32,
    /// Id, target, start or last renewal, deadline, stuck, first start.
    all: Vec<(u64, u64, u64, u64, bool, u64)>,
}

impl Model {
    fn count(&self, stuck: bool, target: Option<u64>) -> u32 {
        let those = self.all.iter().filter(|held| held.4 == stuck && target.is_none_or(|t| t == held.1));
        those.count() as u32
    }

    fn may_start(&self, target: u64) -> bool {
        let stuck = self.count(true, None);
        let rests = self.count(true, Some(target)) > 0 && stuck >= self.stuck_max;
        self.count(false, Some(target)) < self.depth
            && self.count(false, None) < self.depths * self.depth
            && self.all.len() < (self.depths * self.depth + self.stuck_max) as usize
            && !rests
    }
}

/// Goal: the slots agree with their words in everything that can be asked, at every step.
/// Method: seeded starts, renewals, ends and ticks at four targets, with depths that change, against a list;
/// the bounds of the head comment are asserted beside it.
#[test]
fn slots_agree_with_a_list() {
    let mut seen = [0; 4];
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let depth = rng.u32(1..5);
        let depths = if rng.bool() { 2 } else { TARGET_DEPTHS };
        let mut model = Model { depth, depths, stuck_max: rng.u32(0..6), all: Vec::new() };
        let mut slots = Slots::new(depth, depths, model.stuck_max);
        let mut now = 0;
        let mut lowered = false;
        for id in 0..400 {
            match rng.u32(0..20) {
                0..10 => {
                    let target = rng.u64(0..12);
                    assert_eq!(slots.may_start(target), model.may_start(target), "seed {seed} step {id}");
                    if slots.may_start(target) {
                        let deadline = rng.u64(1..50);
                        slots.start(id, target, Time(now), Duration::from_nanos(deadline));
                        model.all.push((id, target, now, now + deadline, false, now));
                    } else {
                        seen[0] += 1;
                    }
                }
                10..15 if !model.all.is_empty() => {
                    let held = model.all.swap_remove(rng.usize(0..model.all.len()));
                    let ended = slots.end(held.0, Time(now)).unwrap();
                    let service = Duration::from_nanos(now - held.5);
                    assert_eq!(ended, Ended { target: held.1, service, was_stuck: held.4 });
                    assert_eq!(slots.end(held.0, Time(now)), None);
                }
                15..17 if !model.all.is_empty() => {
                    let mut held = model.all.swap_remove(rng.usize(0..model.all.len()));
                    let deadline = rng.u64(1..50);
                    slots.renew(held.0, Time(now), Duration::from_nanos(deadline));
                    let revived = held.4 && model.may_start(held.1);
                    seen[3] += usize::from(revived);
                    held = (held.0, held.1, now, now + deadline, held.4 && !revived, held.5);
                    model.all.push(held);
                }
                15..19 => {
                    now += rng.u64(0..20);
                    let late = slots.tick(Time(now));
                    let before = model.count(true, None);
                    model.all.iter_mut().for_each(|held| held.4 |= held.3 <= now);
                    assert_eq!(late as u32, model.count(true, None) - before);
                    seen[1] += late;
                }
                _ if seed % 4 == 0 => {
                    model.depth = rng.u32(1..5);
                    slots.set_depth(model.depth);
                    lowered = true;
                }
                _ => {}
            }
            assert_eq!(slots.running(), model.count(false, None));
            assert_eq!(slots.in_flight(), model.all.len());
            for target in 0..12 {
                assert_eq!(slots.running_at(target), model.count(false, Some(target)));
                assert!(lowered || slots.running_at(target) <= depth);
            }
            assert!(lowered || slots.running() <= depths * depth);
            assert!(lowered || slots.in_flight() as u32 <= depths * depth + model.stuck_max);
            let first = model.all.iter().filter(|held| !held.4).map(|held| Time(held.3)).min();
            assert_eq!(slots.next_deadline(), first);
            let mut stuck: Vec<_> = model.all.iter().filter(|held| held.4).collect();
            stuck.sort_by_key(|held| (held.2, held.0));
            let stuck: Vec<_> = stuck
                .iter()
                .map(|held| Stuck { id: held.0, target: held.1, started: Time(held.2) })
                .collect();
            assert_eq!(slots.stuck().collect::<Vec<_>>(), stuck);
            seen[2] = seen[2].max(stuck.len());
        }
    }
    assert!(seen[0] > 1000 && seen[1] > 1000 && seen[2] > 4 && seen[3] > 100, "{seen:?}");
}

/// Goal: a target that hangs takes nothing from another, and rests when too many are stuck.
/// Method: a target of which nothing ever ends, beside one where all goes well.
#[test]
fn a_hung_target_rests_and_the_other_goes_on() {
    let mut slots = Slots::new(4, 2, 10);
    let (mut hung, mut id) = (0, 0);
    for step in 0..100 {
        let now = Time(step * 1000);
        slots.tick(now);
        while slots.may_start(1) {
            slots.start(id, 1, now, Duration::from_nanos(500));
            id += 1;
            hung += 1;
        }
        for _ in 0..4 {
            assert!(slots.may_start(2), "step {step}");
            slots.start(id, 2, now, Duration::from_nanos(500));
            id += 1;
        }
        for ended in id - 4..id {
            slots.end(ended, now);
        }
    }
    // Three times four got stuck: at eight it went on, at twelve it rested.
    assert_eq!((hung, slots.stuck().count()), (12, 12));
    let first = slots.stuck().next().unwrap().id;
    let ended = slots.end(first, Time(1_000_000)).unwrap();
    assert!(ended.was_stuck && !slots.may_start(1));
}

/// Goal: each target has its depth, as far as all together go.
#[test]
fn targets_have_their_depths_within_the_whole() {
    let mut slots = Slots::new(3, TARGET_DEPTHS, 0);
    let mut started = [0; TARGET_DEPTHS as usize + 2];
    for id in 0..100 {
        let target = id % started.len() as u64;
        if slots.may_start(target) {
            slots.start(id, target, Time(0), Duration::from_secs(1));
            started[target as usize] += 1;
        }
    }
    assert_eq!(slots.running(), TARGET_DEPTHS * 3);
    assert!(!slots.may_start(99));
    assert!(started.iter().all(|count| *count <= 3), "{started:?}");
}
