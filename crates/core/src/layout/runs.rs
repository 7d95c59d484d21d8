//! Which objects of a file lie on which target, as few ranges with a stride as say it.
//!
//! In: the file's layout at the source, and, if it is known, at the sink. Out: [`Run`]s for the schedule's
//! queues. An object lies where its first byte lies, and goes where its first byte goes.
//! Invariants: each object of the file is in one run; a part is at most [`RUNS_PART_MAX`] runs and as many
//! steps of work, whatever the layout: what does not fit comes with the next part.

use super::{Component, Layout};
use crate::ids::{FileId, SinkTarget, TargetId};
use crate::schedule::Run;

/// Most runs of one part: more than one turn through the longest list of stripes.
pub const RUNS_PART_MAX: usize = 4096;
const _: () = assert!(RUNS_PART_MAX > super::STRIPES_MAX);

/// A file that is to be cut into runs.
#[derive(Clone, Copy, Debug)]
pub struct Cut<'a> {
    pub file: FileId,
    /// Bytes of the file.
    pub size: u64,
    /// Bytes; not zero.
    pub object_size: u64,
    pub source: &'a Layout<TargetId>,
    /// `None`: not known, [`SinkTarget::ANY`].
    pub sink: Option<&'a Layout<SinkTarget>>,
}

/// Objects side by side of one target and sink target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    target: TargetId,
    sink_target: SinkTarget,
    first: u64,
    count: u64,
}

impl Cut<'_> {
    /// Objects of the file.
    pub fn objects(&self) -> u64 {
        self.size.div_ceil(self.object_size)
    }

    /// Runs of the objects from number `from` on, and the number of the first one that they leave out:
    /// [`Cut::objects`], or where the next part begins. Groups of one target that lie side by side make one
    /// run; where stripes come again and again, each makes one run with a stride.
    pub fn part(&self, from: u64) -> (Vec<(TargetId, Run)>, u64) {
        let all = self.objects();
        let (mut runs, mut at, mut steps) = (Vec::new(), from.min(all), 0);
        while at < all && steps < RUNS_PART_MAX {
            let (region_end, period) = self.region(at);
            let period_end = at.saturating_add(period).min(region_end);
            let mut groups: Vec<Group> = Vec::new();
            let mut next = at;
            while next < period_end && steps < RUNS_PART_MAX {
                let group = self.group(next, period_end);
                match groups.last_mut() {
                    Some(last) if (last.target, last.sink_target) == (group.target, group.sink_target) => {
                        last.count += group.count;
                    }
                    _ => groups.push(group),
                }
                next += group.count;
                steps += 1;
            }
            let again = next == period_end && period_end < region_end;
            match &mut groups[..] {
                // All of it lies on one target.
                [group] if again => {
                    group.count = region_end - at;
                    self.push(&mut runs, group);
                }
                groups if again => {
                    let (turns, rest) = ((region_end - at) / period, (region_end - at) % period);
                    runs.extend(groups.iter().map(|group| {
                        let more = rest.saturating_sub(group.first - at).min(group.count);
                        let run = Run { count: turns * group.count + more, step: period, ..self.run(group) };
                        (group.target, run)
                    }));
                }
                groups => groups.iter().for_each(|group| self.push(&mut runs, group)),
            }
            at = if again { region_end } else { next };
        }
        (runs, at)
    }

    fn run(&self, group: &Group) -> Run {
        Run::objects(self.file, group.sink_target, group.first, group.count)
    }

    /// A group that does not come again.
    fn push(&self, runs: &mut Vec<(TargetId, Run)>, group: &Group) {
        let run = self.run(group);
        match runs.last_mut() {
            Some((target, last))
                if (*target, last.sink, last.step) == (group.target, run.sink, 0)
                    && last.first + last.count == run.first =>
            {
                last.count += run.count;
                last.group = last.count;
            }
            _ => runs.push((group.target, run)),
        }
    }

    /// Where the components that hold an object's first byte end, as the number of the first object behind;
    /// and after how many objects they begin anew.
    fn region(&self, object: u64) -> (u64, u64) {
        let offset = object * self.object_size;
        let all = self.objects();
        let end = |end: u64| if end == u64::MAX { all } else { end.div_ceil(self.object_size).min(all) };
        let (component, source_end) = self.source.component_at(offset);
        let (source_end, period) = (end(source_end), period(component, self.object_size));
        let Some(sink) = self.sink else { return (source_end, period) };
        let (component, sink_end) = sink.component_at(offset);
        let both = lcm(period, self::period(component, self.object_size));
        (source_end.min(end(sink_end)), both)
    }

    /// The objects from `object` to `end` that lie on the same stripes as that.
    fn group(&self, object: u64, end: u64) -> Group {
        let offset = object * self.object_size;
        let place = self.source.at(offset);
        let (mut len, mut sink_target) = (place.len, SinkTarget::ANY);
        if let Some(sink) = self.sink {
            let place = sink.at(offset);
            (len, sink_target) = (len.min(place.len), *place.target);
        }
        let behind = offset.saturating_add(len).div_ceil(self.object_size).min(end);
        Group { target: *place.target, sink_target, first: object, count: behind.max(object + 1) - object }
    }
}

/// After how many objects a component's stripes lie as before.
fn period<T>(component: &Component<T>, object_size: u64) -> u64 {
    if component.targets.len() == 1 {
        return 1;
    }
    let turn = u128::from(component.stripe_size) * component.targets.len() as u128;
    u64::try_from(turn / gcd(turn, object_size.into())).unwrap_or(u64::MAX)
}

fn lcm(a: u64, b: u64) -> u64 {
    u64::try_from(u128::from(a) / gcd(a.into(), b.into()) * u128::from(b)).unwrap_or(u64::MAX)
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    fn any_layout<T>(rng: &mut Rng, unit: u64, of: impl Fn(u16) -> T) -> Layout<T> {
        let mut start = 0;
        let mut components = Vec::new();
        for _ in 0..rng.usize(1..4) {
            let count = rng.usize(1..6);
            let targets = (0..count).map(|_| of(rng.u16(0..4))).collect();
            let stripe_size = unit * [1, 2, 3, 4, 8][rng.usize(0..5)];
            components.push(Component { start, stripe_size, targets });
            start += rng.u64(1..60) * if rng.bool() { unit } else { 1 };
        }
        Layout::new(components).unwrap()
    }

    /// All objects of a file in the order of its parts; each part within its bounds.
    fn placed(cut: Cut<'_>) -> Vec<(u64, TargetId, SinkTarget)> {
        let (mut at, mut placed) = (0, Vec::new());
        while at < cut.objects() {
            let (runs, next) = cut.part(at);
            assert!(next > at && runs.len() <= RUNS_PART_MAX);
            for (target, run) in runs {
                assert!(run.count > 0 && run.file == cut.file);
                placed.extend((0..run.count).map(|k| (run.object(k), target, run.sink)));
            }
            at = next;
        }
        placed.sort_unstable();
        placed
    }

    /// Goal: runs have every object once, on the target of its first byte, and for the sink target of its
    /// first byte.
    /// Method: seeded small layouts of both ends, whose stripes are multiples of objects, parts of them, or
    /// neither, against `Layout::at`.
    #[test]
    fn runs_are_the_layout() {
        let mut rng = Rng::with_seed(6);
        for round in 0..4000 {
            let unit = rng.u64(1..5);
            let source = any_layout(&mut rng, unit, TargetId);
            let sink = rng.bool().then(|| any_layout(&mut rng, unit, SinkTarget));
            let (size, object_size) = (rng.u64(0..400), 1 << rng.u32(0..5));
            let cut = Cut { file: FileId(3), size, object_size, source: &source, sink: sink.as_ref() };
            let model = (0..size.div_ceil(object_size)).map(|object| {
                let offset = object * object_size;
                let sink_target = sink.as_ref().map_or(SinkTarget::ANY, |sink| *sink.at(offset).target);
                (object, *source.at(offset).target, sink_target)
            });
            assert_eq!(placed(cut), model.collect::<Vec<_>>(), "{round}: {cut:?}");
        }
    }

    fn striped(stripe_size: u64, targets: std::ops::Range<u16>) -> Layout<TargetId> {
        Layout::new(vec![Component { start: 0, stripe_size, targets: targets.map(TargetId).collect() }])
            .unwrap()
    }

    fn cut(size: u64, source: &Layout<TargetId>) -> Cut<'_> {
        Cut { file: FileId(1), size, object_size: 1 << 20, source, sink: None }
    }

    /// Goal: what is regular is few runs however long the file: one for each stripe, one for a file on one
    /// target.
    #[test]
    fn long_files_are_few_runs() {
        let flat = Layout::flat(TargetId(7));
        let whole = u64::MAX.div_ceil(1 << 20);
        let all = Run::objects(FileId(1), SinkTarget::ANY, 0, whole);
        assert_eq!(cut(u64::MAX, &flat).part(0), (vec![(TargetId(7), all)], whole));
        assert_eq!(cut(0, &flat).part(0), (vec![], 0));
        for stripe_size in [1 << 20, 4 << 20, 1 << 18] {
            let layout = striped(stripe_size, 0..2000);
            let (runs, next) = cut(u64::MAX, &layout).part(0);
            assert!(runs.len() <= 2000 && next == whole, "{}", runs.len());
            assert_eq!(runs.iter().map(|(_, run)| run.count).sum::<u64>(), whole);
        }
        // From the middle of a stripe on, as after what the sink has already.
        let (runs, _) = cut(1 << 40, &striped(4 << 20, 0..4)).part(2);
        assert_eq!(runs.len(), 5);
    }

    /// Goal: layouts whose stripes never come again together take their work by parts.
    /// Method: numbers of stripes of both ends without a common divisor, and stripes of odd lengths.
    #[test]
    fn odd_layouts_come_by_parts() {
        let sink = striped(3 << 20, 0..1999).map(|target| SinkTarget(target.0));
        let odd = Layout::new(vec![Component {
            start: 0,
            stripe_size: (1 << 40) + 1,
            targets: vec![TargetId(1), TargetId(2)],
        }]);
        for source in [striped(1 << 20, 0..2000), odd.unwrap()] {
            let of = Cut { sink: Some(&sink), ..cut(u64::MAX, &source) };
            let (mut at, mut sum) = (0, 0);
            for _ in 0..20 {
                let (runs, next) = of.part(at);
                assert!(runs.len() <= RUNS_PART_MAX && next > at);
                sum += runs.iter().map(|(_, run)| run.count).sum::<u64>();
                at = next;
            }
            assert_eq!(sum, at);
        }
    }
}
