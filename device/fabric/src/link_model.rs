//! One direction of a link, modelled: rate, delay, a queue with ECN marks, and random impairments.
//!
//! A frame waits for earlier ones, is sent at the rate of the link, and arrives after the delay. Impairments have a seed, so the same
//! frames at the same times have the same fate. The caller passes the time, in nanoseconds.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use faultline_wire::PrioritySet;
use faultline_wire::ip::mark_congestion;
use faultline_wire::priority::{self, PRIORITIES};

use crate::classes::Classes;

/// Properties of one direction of a link. The default is a link that changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkModel {
    /// Rate in Mbit/s; 0: not limited.
    pub rate_mbps: u32,
    /// Time from the last bit sent to the last bit received, in nanoseconds.
    pub delay_ns: u64,
    /// Maximum number of waiting octets, for each priority if priorities have queues; 0: [`MAX_OCTETS`] or [`MAX_PRIORITY_OCTETS`]. A
    /// frame that does not fit is lost.
    pub queue_bytes: u32,
    /// Number of waiting octets from which ECN-capable frames are marked (RFC 3168); 0: never.
    pub ecn_bytes: u32,
    /// Number of waiting octets from which the senders are paused (IEEE 802.3 annex 31B), until fewer than half as many wait; 0: never.
    pub pause_bytes: u32,
    /// Priorities that are paused singly, by their own waiting octets (IEEE 802.1Qbb), instead of all traffic. If the set is not empty,
    /// each priority has a queue with the limits and thresholds of this model, and priorities share the rate.
    pub pfc: PrioritySet,
    /// Probability with which a frame is lost, in millionths.
    pub loss: u32,
    /// Probability with which it arrives twice, in millionths.
    pub duplicate: u32,
    /// Probability with which one to four frames that follow overtake it, in millionths.
    pub reorder: u32,
    /// Probability with which one of its bits is flipped, in millionths.
    pub corrupt: u32,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl LinkModel {
    /// A link that changes nothing.
    pub const PLAIN: Self = Self {
        rate_mbps: 0,
        delay_ns: 0,
        queue_bytes: 0,
        ecn_bytes: 0,
        pause_bytes: 0,
        pfc: PrioritySet::NONE,
        loss: 0,
        duplicate: 0,
        reorder: 0,
        corrupt: 0,
        seed: 0,
    };
}

impl Default for LinkModel {
    fn default() -> Self {
        Self::PLAIN
    }
}

/// Maximum number of octets on a link, counting 128 more for each frame, so that no sender makes its memory grow without bound.
pub const MAX_OCTETS: usize = 16 << 20;
/// Memory of a frame in addition to its octets.
const FRAME_OVERHEAD: usize = 128;
/// Maximum number of octets in the queue of a priority. If all queues are full, the same number of octets can be under way, so no priority
/// uses room of another.
pub const MAX_PRIORITY_OCTETS: usize = MAX_OCTETS / (2 * PRIORITIES);
/// Maximum number of frames that wait to be overtaken. Each passing frame examines all of them.
const MAX_OVERTAKEN: usize = 64;
/// A frame that waits to be overtaken continues after this time if no others follow.
const OVERTAKING_NS: u64 = 1_000_000;
/// Buffers that are kept for further frames.
const SPARE: usize = 256;

/// Effects of a link model, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkModelCounts {
    /// Frames that were lost at random.
    pub lost: u64,
    /// Frames that were lost because the queue was full.
    pub queue_full: u64,
    /// Frames that were sent twice.
    pub duplicated: u64,
    /// Frames that others have overtaken.
    pub reordered: u64,
    /// Frames with a flipped bit.
    pub corrupted: u64,
    /// Frames that were marked by ECN.
    pub marked: u64,
    /// Pauses of the senders that have begun, of all priorities together.
    pub pauses: u64,
    /// Pauses of single priorities.
    pub by_priority: [PauseCounts; PRIORITIES],
}

impl LinkModelCounts {
    /// The numbers of frames with each effect, with the names of the effects.
    pub fn effects(&self) -> [(&'static str, u64); Effects::EACH.len()] {
        // Without `..`, so that no counter is forgotten.
        let Self {
            lost,
            queue_full,
            duplicated,
            reordered,
            corrupted,
            marked,
            pauses: _,
            by_priority: _,
        } = *self;
        [
            ("lost", lost),
            ("queue_full", queue_full),
            ("duplicated", duplicated),
            ("reordered", reordered),
            ("corrupted", corrupted),
            ("marked", marked),
        ]
    }
}

/// Pauses of a priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PauseCounts {
    /// Pauses that have begun.
    pub pauses: u64,
    /// Time for which it was paused, in nanoseconds, up to the last call of [`ModelledLink::update_pause`].
    pub paused_ns: u64,
}

/// Set of effects on a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Effects(u8);

impl Effects {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// It is lost at random.
    pub const LOST: Self = Self(1 << 0);
    /// It is lost because the queue is full.
    pub const QUEUE_FULL: Self = Self(1 << 1);
    /// It is sent twice.
    pub const DUPLICATED: Self = Self(1 << 2);
    /// Others overtake it.
    pub const REORDERED: Self = Self(1 << 3);
    /// Some of its bits are changed.
    pub const CORRUPTED: Self = Self(1 << 4);
    /// It is marked by ECN.
    pub const MARKED: Self = Self(1 << 5);
    /// Each of them.
    pub const EACH: [Self; 6] = [
        Self::LOST,
        Self::QUEUE_FULL,
        Self::DUPLICATED,
        Self::REORDERED,
        Self::CORRUPTED,
        Self::MARKED,
    ];

    /// True if all of `other` are in this set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// As a number, for a record.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// The inverse of [`Effects::bits`]. Unknown bits are ignored.
    pub fn from_bits(bits: u8) -> Self {
        let known = Self::EACH
            .into_iter()
            .fold(Self::NONE, |all, one| all | one);
        Self(bits & known.0)
    }

    /// This set without `other`.
    fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl std::ops::BitOr for Effects {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl std::ops::BitOrAssign for Effects {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// A frame under way, by the time of its arrival, then in the order in which the frames were sent.
type UnderWay<T> = Reverse<(u64, u64, Vec<u8>, T, Effects)>;

#[derive(Debug)]
struct Overtaken<T> {
    /// Number of frames that will still overtake it.
    by: u32,
    /// Latest time at which it continues.
    until: u64,
    frame: Vec<u8>,
    mark: T,
}

/// A frame to be sent.
#[derive(Debug)]
struct Queued<T> {
    frame: Vec<u8>,
    mark: T,
    effects: Effects,
}

/// One direction of a link. Each frame may have a mark of type `T`, which stays with it.
#[derive(Debug)]
pub struct ModelledLink<T = ()> {
    model: LinkModel,
    random: fastrand::Rng,
    under_way: BinaryHeap<UnderWay<T>>,
    overtaken: Vec<Overtaken<T>>,
    spare: Vec<Vec<u8>>,
    /// Time at which the last bit of all frames has been sent.
    busy_until: u64,
    /// With priority-based flow control: frames that wait to be sent.
    classes: Option<Box<Classes<Queued<T>>>>,
    /// Paused priorities.
    paused: PrioritySet,
    /// Time of the last [`ModelledLink::update_pause`].
    paused_at: u64,
    sent: u64,
    /// Memory of all held frames, in octets.
    held: usize,
    counts: LinkModelCounts,
}

impl<T: Copy + Ord> ModelledLink<T> {
    /// Creates a link without frames.
    pub fn new(model: LinkModel) -> Self {
        Self {
            model,
            random: fastrand::Rng::with_seed(model.seed),
            under_way: BinaryHeap::new(),
            overtaken: Vec::new(),
            spare: Vec::new(),
            busy_until: 0,
            classes: (!model.pfc.is_empty()).then(|| Box::new(Classes::new())),
            paused: PrioritySet::NONE,
            paused_at: 0,
            sent: 0,
            held: 0,
            counts: LinkModelCounts::default(),
        }
    }

    /// Sends a frame. Returns the effects that are known now; [`ModelledLink::receive`] returns the later effects on reordered frames.
    pub fn send(&mut self, now: u64, frame: &[u8], mark: T) -> Effects {
        let LinkModel {
            loss,
            duplicate,
            reorder,
            ..
        } = self.model;
        self.release(now);
        let effects = if self.is_hit(loss) {
            count(&mut self.counts.lost);
            Effects::LOST
        } else if self.is_hit(reorder) && self.overtaken.len() < MAX_OVERTAKEN {
            count(&mut self.counts.reordered);
            let by = self.random.u32(1..=4);
            let until = now.saturating_add(OVERTAKING_NS);
            let Some(frame) = self.hold(frame) else {
                return Effects::QUEUE_FULL;
            };
            self.overtaken.push(Overtaken {
                by,
                until,
                frame,
                mark,
            });
            return Effects::REORDERED;
        } else if self.is_hit(duplicate) {
            self.send_twice(now, frame, mark)
        } else {
            self.queue(now, frame, mark, Effects::NONE)
        };
        self.overtake(now);
        effects
    }

    /// Sends two copies of a frame, each with its own effects. Returns the effects on both, as of one frame: it is lost
    /// if both copies are.
    fn send_twice(&mut self, now: u64, frame: &[u8], mark: T) -> Effects {
        count(&mut self.counts.duplicated);
        let first = self.queue(now, frame, mark, Effects::DUPLICATED);
        let second = self.queue(now, frame, mark, Effects::DUPLICATED);
        let effects = Effects::DUPLICATED | first | second;
        let is_lost = |copy: Effects| copy.contains(Effects::QUEUE_FULL);
        match is_lost(first) && is_lost(second) {
            true => effects,
            false => effects.without(Effects::QUEUE_FULL),
        }
    }

    /// Takes the next frame that has arrived into `frame`. Returns its mark and the effects on it; `None` if there is no frame. A
    /// reordered frame that found the queue full is returned too, with this effect: it is lost.
    pub fn receive(&mut self, now: u64, frame: &mut Vec<u8>) -> Option<(T, Effects)> {
        self.release(now);
        match self.under_way.peek() {
            Some(Reverse((at, ..))) if *at <= now => {}
            Some(_) | None => return None,
        }
        let Reverse((_, _, arrived, mark, effects)) = self.under_way.pop()?;
        self.held = self.held.saturating_sub(taken_by(&arrived));
        frame.clear();
        frame.extend_from_slice(&arrived);
        self.put_aside(arrived);
        Some((mark, effects))
    }

    /// Time at which the next frame arrives, continues, or is sent from a queue of priorities.
    pub fn next_deadline(&self) -> Option<u64> {
        let arrival = self.under_way.peek().map(|Reverse((at, ..))| *at);
        let overtaken = self.overtaken.iter().map(|waiting| waiting.until);
        let classes = self.classes.as_ref();
        let sent = classes.filter(|classes| !classes.is_empty());
        let sent = sent.map(|_| self.busy_until);
        arrival.into_iter().chain(overtaken).chain(sent).min()
    }

    /// Determines the paused priorities from the waiting octets: none, all, or with priority-based flow control some.
    pub fn update_pause(&mut self, now: u64) {
        if self.model.pause_bytes == 0 {
            return;
        }
        self.release(now);
        let paused = match &self.classes {
            None => {
                let waiting = self.octets_in(self.busy_until.saturating_sub(now));
                match self.is_paused_by(waiting, !self.paused.is_empty()) {
                    true => PrioritySet::ALL,
                    false => PrioritySet::NONE,
                }
            }
            Some(classes) => {
                let priorities = self.model.pfc.iter();
                let is_paused = |priority: &u8| {
                    let waiting = classes.octets(*priority);
                    self.is_paused_by(waiting, self.paused.contains(*priority))
                };
                let paused = priorities.filter(is_paused);
                paused.fold(PrioritySet::NONE, PrioritySet::with)
            }
        };
        self.count_pause(now, paused);
        (self.paused, self.paused_at) = (paused, now);
    }

    /// The paused priorities after the last call of [`ModelledLink::update_pause`].
    pub fn paused(&self) -> PrioritySet {
        self.paused
    }

    /// Priorities of priority-based flow control.
    pub fn pfc(&self) -> PrioritySet {
        self.model.pfc
    }

    /// Returns true if this number of waiting octets begins a pause, or continues one. An empty queue ends each pause.
    fn is_paused_by(&self, waiting: u64, is_paused: bool) -> bool {
        let threshold = u64::from(self.model.pause_bytes);
        match is_paused {
            true => waiting > 0 && waiting >= threshold / 2,
            false => waiting >= threshold,
        }
    }

    /// Counts the paused time since the last call, and new pauses.
    fn count_pause(&mut self, now: u64, paused: PrioritySet) {
        if self.paused.is_empty() && paused.is_empty() {
            return;
        }
        if self.classes.is_none() {
            if self.paused.is_empty() {
                count(&mut self.counts.pauses);
            }
            return;
        }
        let time = now.saturating_sub(self.paused_at);
        for priority in self.paused.iter() {
            if let Some(counts) = self.counts.by_priority.get_mut(usize::from(priority)) {
                counts.paused_ns = counts.paused_ns.saturating_add(time);
            }
        }
        for priority in paused.without(self.paused).iter() {
            count(&mut self.counts.pauses);
            if let Some(counts) = self.counts.by_priority.get_mut(usize::from(priority)) {
                count(&mut counts.pauses);
            }
        }
    }

    /// Counts of the effects of this link.
    pub fn counts(&self) -> LinkModelCounts {
        self.counts
    }

    /// Memory of all frames that wait or are under way, in octets; at most [`MAX_OCTETS`].
    pub fn octets(&self) -> usize {
        self.held
    }

    /// Changes the rate, in Mbit/s; 0: not limited. Arrival times of frames that were sent before do not change.
    pub fn set_rate(&mut self, mbps: u32) {
        self.model.rate_mbps = mbps;
    }

    fn is_hit(&mut self, probability: u32) -> bool {
        probability > 0 && self.random.u32(..1_000_000) < probability
    }

    /// Copies a frame, if there is room for it.
    fn hold(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let held = self.held.saturating_add(taken_by(frame));
        if held > MAX_OCTETS {
            count(&mut self.counts.queue_full);
            return None;
        }
        self.held = held;
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.extend_from_slice(frame);
        Some(copy)
    }

    fn put_aside(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < SPARE {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    /// Queues a frame with the earlier effects `before`. Returns the effects of the queue.
    fn queue(&mut self, now: u64, frame: &[u8], mark: T, before: Effects) -> Effects {
        let Some(mut frame) = self.hold(frame) else {
            return Effects::QUEUE_FULL;
        };
        let priority = self.priority_of(&frame);
        let effects = self.enqueue(now, priority, &mut frame);
        if effects.contains(Effects::QUEUE_FULL) {
            self.held = self.held.saturating_sub(taken_by(&frame));
            self.put_aside(frame);
        } else {
            let queued = Queued {
                frame,
                mark,
                effects: before | effects,
            };
            self.transmit(now, priority, queued);
        }
        effects
    }

    /// Queues a frame after others have overtaken it.
    fn queue_overtaken(&mut self, now: u64, mut frame: Vec<u8>, mark: T) {
        let priority = self.priority_of(&frame);
        let effects = Effects::REORDERED | self.enqueue(now, priority, &mut frame);
        let queued = Queued {
            frame,
            mark,
            effects,
        };
        match effects.contains(Effects::QUEUE_FULL) {
            true => self.arrive_at(now, queued),
            false => self.transmit(now, priority, queued),
        }
    }

    fn arrive_at(&mut self, at: u64, queued: Queued<T>) {
        let Queued {
            frame,
            mark,
            effects,
        } = queued;
        self.sent = self.sent.wrapping_add(1);
        let under_way = (at, self.sent, frame, mark, effects);
        self.under_way.push(Reverse(under_way));
    }

    /// The priority of a frame, if there are queues for several.
    fn priority_of(&self, frame: &[u8]) -> u8 {
        match self.classes {
            None => 0,
            Some(_) => priority::of_frame(frame),
        }
    }

    /// Decides whether the queue has room for a frame, and the effects on it.
    fn enqueue(&mut self, now: u64, priority: u8, frame: &mut [u8]) -> Effects {
        let mut effects = Effects::NONE;
        let waiting = match &self.classes {
            None => self.octets_in(self.busy_until.saturating_sub(now)),
            Some(classes) => classes.octets(priority),
        };
        let most = match self.classes {
            None => MAX_OCTETS,
            Some(_) => MAX_PRIORITY_OCTETS,
        };
        let limit = match self.model.queue_bytes {
            0 => most as u64,
            bytes => u64::from(bytes).min(most as u64),
        };
        if waiting > 0 && waiting.saturating_add(frame.len() as u64) > limit {
            count(&mut self.counts.queue_full);
            return Effects::QUEUE_FULL;
        }
        let threshold = u64::from(self.model.ecn_bytes);
        if threshold > 0 && waiting >= threshold && mark_congestion(frame) {
            count(&mut self.counts.marked);
            effects |= Effects::MARKED;
        }
        if self.is_hit(self.model.corrupt) && !frame.is_empty() {
            let at = self.random.usize(..frame.len());
            let bit = self.random.u32(..8);
            if let Some(octet) = frame.get_mut(at) {
                *octet ^= 1 << bit;
                count(&mut self.counts.corrupted);
                effects |= Effects::CORRUPTED;
            }
        }
        effects
    }

    /// Sends a frame after earlier ones, or puts it into the queue of its priority. [`ModelledLink::release`] was called for `now`.
    fn transmit(&mut self, now: u64, priority: u8, queued: Queued<T>) {
        let Some(classes) = &mut self.classes else {
            return self.transmit_from(now, queued);
        };
        classes.push(priority, queued.frame.len(), queued);
        // If nothing is being sent, nothing else waits.
        if self.busy_until <= now
            && let Some(queued) = classes.pop()
        {
            self.transmit_from(now, queued);
        }
    }

    /// Sends a frame at `now`, or when earlier ones have been sent.
    fn transmit_from(&mut self, now: u64, queued: Queued<T>) {
        let begins = self.busy_until.max(now);
        let time = self.time_of(queued.frame.len());
        self.busy_until = begins.saturating_add(time);
        let at = self.busy_until.saturating_add(self.model.delay_ns);
        self.arrive_at(at, queued);
    }

    /// Nanoseconds for this number of octets.
    fn time_of(&self, octets: usize) -> u64 {
        let bits = (octets as u64).saturating_mul(8);
        let time = bits
            .saturating_mul(1000)
            .checked_div(u64::from(self.model.rate_mbps));
        time.unwrap_or(0)
    }

    /// Octets in this number of nanoseconds.
    fn octets_in(&self, time: u64) -> u64 {
        time.saturating_mul(u64::from(self.model.rate_mbps)) / 8000
    }

    /// A frame has passed those that wait to be overtaken.
    fn overtake(&mut self, now: u64) {
        for waiting in &mut self.overtaken {
            waiting.by = waiting.by.saturating_sub(1);
        }
        self.release(now);
    }

    /// Sends frames from the queues of priorities until `now`, and continues reordered frames that enough others have overtaken, or whose
    /// time is over.
    fn release(&mut self, now: u64) {
        // Frames in a queue wait for the end of the previous frame.
        while self.busy_until <= now
            && let Some(queued) = self.classes.as_mut().and_then(|classes| classes.pop())
        {
            self.transmit_from(self.busy_until, queued);
        }
        let is_due = |waiting: &Overtaken<T>| waiting.by == 0 || waiting.until <= now;
        while let Some(at) = self.overtaken.iter().position(is_due) {
            let waiting = self.overtaken.remove(at);
            self.queue_overtaken(now, waiting.frame, waiting.mark);
        }
    }
}

fn count(counter: &mut u64) {
    *counter = counter.wrapping_add(1);
}

/// Memory of a held frame, in octets.
fn taken_by(frame: &[u8]) -> usize {
    frame.len().saturating_add(FRAME_OVERHEAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(n: u32) -> Vec<u8> {
        let mut frame = vec![0; 1000];
        frame[..4].copy_from_slice(&n.to_be_bytes());
        frame
    }

    /// Numbers of the frames that arrive, with their times.
    fn arrivals(line: &mut ModelledLink) -> Vec<(u64, u32)> {
        let mut frame = Vec::new();
        let mut arrived = Vec::new();
        while let Some(at) = line.next_deadline() {
            while line.receive(at, &mut frame).is_some() {
                let number = u32::from_be_bytes(frame[..4].try_into().unwrap());
                arrived.push((at, number));
            }
        }
        assert_eq!(line.held, 0);
        arrived
    }

    fn numbers(line: &mut ModelledLink) -> Vec<u32> {
        arrivals(line)
            .into_iter()
            .map(|(_, number)| number)
            .collect()
    }

    #[test]
    fn a_plain_line_changes_nothing() {
        let mut line = ModelledLink::new(LinkModel::default());
        for n in 0..100 {
            line.send(u64::from(n), &frame(n), ());
        }
        assert_eq!(numbers(&mut line), (0..100).collect::<Vec<_>>());
        assert_eq!(line.counts(), LinkModelCounts::default());
    }

    #[test]
    fn frames_take_their_time_and_wait_for_each_other() {
        let mut line = ModelledLink::new(LinkModel {
            rate_mbps: 1000,
            delay_ns: 5000,
            ..LinkModel::default()
        });
        // 1000 octets at 1 Gbit/s: 8 us each.
        for n in 0..3 {
            line.send(100, &frame(n), ());
        }
        let expected = [(13_100, 0), (21_100, 1), (29_100, 2)];
        assert_eq!(arrivals(&mut line), expected);
        line.send(1_000_000, &frame(3), ());
        assert_eq!(arrivals(&mut line), [(1_013_000, 3)]);
    }

    #[test]
    fn a_full_queue_loses_frames_and_a_long_one_marks_them() {
        let mut line = ModelledLink::new(LinkModel {
            rate_mbps: 1000,
            queue_bytes: 5000,
            ecn_bytes: 2000,
            ..LinkModel::default()
        });
        // IPv4 with ECT(0): 0x02.
        let mut capable = frame(0);
        capable[12..14].copy_from_slice(&[0x08, 0x00]);
        capable[14] = 0x45;
        capable[15] = 0x02;
        for _ in 0..10 {
            line.send(0, &capable, ());
        }
        let mut marks = 0;
        let mut arrived = Vec::new();
        while line.receive(u64::MAX, &mut arrived).is_some() {
            marks += u32::from(arrived[15] & 3 == 3);
        }
        let counts = line.counts();
        assert_eq!((counts.queue_full, counts.marked, marks), (5, 3, 3));
    }

    #[test]
    fn impairments_have_their_probability_and_repeat_with_their_seed() {
        let model = LinkModel {
            loss: 100_000,
            duplicate: 50_000,
            reorder: 20_000,
            seed: 9,
            ..LinkModel::default()
        };
        let run = |seed| {
            let mut line = ModelledLink::new(LinkModel { seed, ..model });
            for n in 0..10_000 {
                line.send(u64::from(n) * 100, &frame(n), ());
            }
            (numbers(&mut line), line.counts())
        };
        let (arrived, counts) = run(9);
        assert!((900..1100).contains(&counts.lost), "{counts:?}");
        assert!((380..520).contains(&counts.duplicated), "{counts:?}");
        assert!((130..230).contains(&counts.reordered), "{counts:?}");
        let expected = 10_000 + counts.duplicated - counts.lost;
        assert_eq!(arrived.len() as u64, expected);
        let late = arrived.windows(2).filter(|pair| pair[1] < pair[0]).count() as u64;
        assert!(late > counts.reordered / 2 && late <= counts.reordered);
        assert_eq!(run(9), (arrived.clone(), counts));
        assert_ne!(run(10).0, arrived);
    }

    #[test]
    fn a_flipped_bit_is_one_bit() {
        let mut line = ModelledLink::new(LinkModel {
            corrupt: 1_000_000,
            ..LinkModel::default()
        });
        let sent = frame(5);
        for _ in 0..100 {
            line.send(0, &sent, ());
            let mut arrived = Vec::new();
            assert!(line.receive(0, &mut arrived).is_some());
            let bits: u32 = sent
                .iter()
                .zip(&arrived)
                .map(|(a, b)| (a ^ b).count_ones())
                .sum();
            assert_eq!((bits, arrived.len()), (1, sent.len()));
        }
    }

    #[test]
    fn a_line_is_bounded() {
        let mut line = ModelledLink::new(LinkModel {
            delay_ns: u64::MAX,
            reorder: 500_000,
            ..LinkModel::default()
        });
        let long = vec![0; 60_000];
        for _ in 0..1000 {
            line.send(0, &long, ());
        }
        assert!(line.held <= MAX_OCTETS);
        assert!(line.overtaken.len() <= MAX_OVERTAKEN);
        assert!(line.counts().queue_full > 500);
        // Short frames take memory, too.
        let mut line = ModelledLink::new(LinkModel {
            delay_ns: u64::MAX,
            ..LinkModel::default()
        });
        let most = MAX_OCTETS / FRAME_OVERHEAD;
        for _ in 0..2 * most {
            line.send(0, &[0; 14], ());
        }
        assert!(line.under_way.len() < most);
        assert!(line.counts().queue_full > most as u64);
    }

    /// Returns true if all senders are paused.
    fn pauses(line: &mut ModelledLink, now: u64) -> bool {
        line.update_pause(now);
        line.paused() == PrioritySet::ALL
    }

    #[test]
    fn senders_pause_until_half_of_the_threshold_has_been_sent() {
        // A frame of 1000 octets takes 8 us.
        let mut line: ModelledLink = ModelledLink::new(LinkModel {
            rate_mbps: 1000,
            pause_bytes: 4000,
            ..LinkModel::default()
        });
        assert!(!pauses(&mut line, 0));
        for n in 0..3 {
            line.send(0, &frame(n), ());
        }
        assert!(!pauses(&mut line, 0));
        line.send(0, &frame(3), ());
        assert!(pauses(&mut line, 0));
        assert!(pauses(&mut line, 16_000));
        assert!(!pauses(&mut line, 16_008));
        // Not again before the threshold.
        line.send(16_008, &frame(4), ());
        assert!(!pauses(&mut line, 16_008));
        assert_eq!((line.counts().pauses, line.counts().queue_full), (1, 0));
    }

    #[test]
    fn the_smallest_threshold_does_not_pause_for_ever() {
        for pfc in [PrioritySet::NONE, PrioritySet::NONE.with(0)] {
            let mut line: ModelledLink = ModelledLink::new(LinkModel {
                rate_mbps: 1000,
                pause_bytes: 1,
                pfc,
                ..LinkModel::default()
            });
            for n in 0..3 {
                line.send(0, &frame(n), ());
            }
            line.update_pause(0);
            assert!(!line.paused().is_empty());
            line.update_pause(24_000);
            assert!(line.paused().is_empty(), "{pfc:?}");
        }
    }

    /// A frame of 1000 octets of a priority: an IPv4 packet with its class selector.
    fn frame_of(priority: u8, n: u32) -> Vec<u8> {
        let mut frame = frame(n);
        frame[12..16].copy_from_slice(&[0x08, 0x00, 0x45, priority << 5]);
        frame
    }

    /// A link of 1 Gb/s, on which priority 3 is paused, and a frame takes 8 us.
    fn with_pfc() -> ModelledLink {
        ModelledLink::new(LinkModel {
            rate_mbps: 1000,
            queue_bytes: 10_000,
            pause_bytes: 4000,
            pfc: PrioritySet::NONE.with(3),
            ..LinkModel::default()
        })
    }

    #[test]
    fn a_priority_is_paused_by_its_own_waiting_octets() {
        let mut line = with_pfc();
        for n in 0..20 {
            line.send(0, &frame_of(5, n), ());
        }
        // One frame is being sent, and ten wait. The others found the queue full.
        line.update_pause(0);
        assert_eq!(
            (line.paused(), line.counts().queue_full),
            (PrioritySet::NONE, 9)
        );
        for n in 0..4 {
            line.send(0, &frame_of(3, 100 + n), ());
        }
        line.update_pause(0);
        let three = PrioritySet::NONE.with(3);
        assert_eq!((line.paused(), line.pfc()), (three, three));
        // Further frames of a sender that has not seen the pause find room.
        for n in 4..10 {
            let effects = line.send(1000, &frame_of(3, 100 + n), ());
            assert_eq!(effects, Effects::NONE);
        }
        assert_eq!(line.counts().queue_full, 9);
        // The priorities take turns: the ninth frame of priority 3 begins after 16 frames.
        line.update_pause(8000 * 16 - 1);
        assert_eq!(line.paused(), three);
        line.update_pause(8000 * 16);
        assert_eq!(line.paused(), PrioritySet::NONE);
        let counts = line.counts();
        let expected = PauseCounts {
            pauses: 1,
            paused_ns: 8000 * 16,
        };
        assert_eq!((counts.pauses, counts.by_priority[3]), (1, expected));
        assert_eq!(counts.by_priority[5], PauseCounts::default());
        let arrived = numbers(&mut line);
        let of_three: Vec<_> = arrived.iter().filter(|n| **n >= 100).collect();
        assert_eq!(of_three.len(), 10);
        assert!(of_three.is_sorted());
        assert_eq!(arrived.len(), 21);
    }

    #[test]
    fn each_copy_of_a_frame_has_its_own_effects() {
        let mut link = ModelledLink::new(LinkModel {
            duplicate: 1_000_000,
            corrupt: 300_000,
            ..LinkModel::PLAIN
        });
        let sent = frame_of(0, 5);
        let mut arrived = Vec::new();
        let mut intact = 0;
        for _ in 0..200 {
            link.send(0, &sent, ());
            while let Some(((), effects)) = link.receive(0, &mut arrived) {
                assert!(effects.contains(Effects::DUPLICATED));
                assert_eq!(effects.contains(Effects::CORRUPTED), arrived != sent);
                intact += u32::from(arrived == sent);
            }
        }
        assert!((100..300).contains(&intact), "{intact}");
    }

    #[test]
    fn a_frame_is_lost_if_no_copy_of_it_has_room() {
        let sent = frame_of(0, 5);
        let mut link = ModelledLink::new(LinkModel {
            rate_mbps: 1,
            duplicate: 1_000_000,
            // One copy is being sent, one waits.
            queue_bytes: u32::try_from(sent.len()).unwrap(),
            ..LinkModel::PLAIN
        });
        let is_lost = |effects: Effects| effects.contains(Effects::QUEUE_FULL);
        let sends: Vec<_> = (0..3).map(|_| is_lost(link.send(0, &sent, ()))).collect();
        let copies = link.counts().queue_full;
        assert_eq!(sends, [false, true, true], "{copies} copies had no room");
    }

    #[test]
    fn one_priority_on_a_link_with_several_queues_is_served_as_on_a_plain_one() {
        let mut several = with_pfc();
        let mut plain: ModelledLink = ModelledLink::new(LinkModel {
            pfc: PrioritySet::NONE,
            ..several.model
        });
        for line in [&mut several, &mut plain] {
            for n in 0..6 {
                line.send(u64::from(n) * 3000, &frame_of(3, n), ());
            }
            line.send(1_000_000, &frame_of(3, 6), ());
        }
        let arrived = arrivals(&mut several);
        assert_eq!(arrived[0].0, 8000);
        assert_eq!(arrived[5].0, 48_000);
        assert_eq!(arrived[6].0, 1_008_000);
        let plain: Vec<_> = arrivals(&mut plain).iter().map(|(_, n)| *n).collect();
        assert_eq!(plain, [0, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn an_unpaused_priority_takes_no_room_from_others() {
        let mut line = ModelledLink::new(LinkModel {
            queue_bytes: 0,
            ..with_pfc().model
        });
        let mut long = frame_of(5, 0);
        long.resize(60_000, 0);
        while !line.send(0, &long, ()).contains(Effects::QUEUE_FULL) {}
        // One frame is being sent.
        let most = MAX_PRIORITY_OCTETS / long.len() + 1;
        assert!(line.held <= most * taken_by(&long));
        assert_eq!(line.send(0, &frame_of(3, 1), ()), Effects::NONE);
    }

    #[test]
    fn queues_of_priorities_are_bounded() {
        let mut line = ModelledLink::new(LinkModel {
            rate_mbps: 1,
            duplicate: 100_000,
            pfc: PrioritySet::ALL,
            ..LinkModel::default()
        });
        for n in 0..3000u32 {
            let mut long = frame_of((n % 8) as u8, n);
            long.resize(60_000, 0);
            line.send(0, &long, ());
        }
        let each = taken_by(&[0; 60_000]);
        let held = line.held / each;
        assert!(held <= MAX_OCTETS / 2 / 60_000 + 1);
        assert!(line.counts().queue_full > 2000);
        let mut frame = Vec::new();
        let mut arrived = 0;
        while let Some(at) = line.next_deadline() {
            while line.receive(at, &mut frame).is_some() {
                arrived += 1;
            }
        }
        assert_eq!((line.held, arrived), (0, held));
    }
}
