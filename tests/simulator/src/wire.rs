//! What happens to frames on their way.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

use faultline_nic::Origin;
use faultline_simulation::Rng;
use faultline_wire::ip::mark_congestion;

/// Probability in 1000.
pub type Rate = u32;

/// What the wire does to frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct Impairment {
    /// Frames that vanish.
    pub loss: Rate,
    /// Frames that arrive twice.
    pub duplication: Rate,
    /// Frames that are delayed so that others overtake them.
    pub reordering: Rate,
    /// Frames with a flipped bit.
    pub corruption: Rate,
    /// Frames that get the mark of congestion, if their senders react to it (RFC 3168).
    pub marking: Rate,
}

/// Time from one end to the other.
const LATENCY_NS: u64 = 1_000;
/// Longest extra delay of a frame that is reordered.
const JITTER_NS: u64 = 20_000;

/// A frame on its way.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InFlight {
    pub(crate) at: u64,
    order: u64,
    pub(crate) from: usize,
    /// The port with its destination address; `None`: all.
    pub(crate) to: Option<usize>,
    pub(crate) origin: Origin,
    pub(crate) bytes: Vec<u8>,
}

impl Ord for InFlight {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap gives the greatest first: the earliest, and of those the first sent.
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl PartialOrd for InFlight {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// All frames on their way.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) impairment: Impairment,
    pub(crate) rng: Rng,
    /// Time that each frame takes up its sender's line.
    pub(crate) gap: u64,
    /// When the line of each sender is free again.
    free_at: BTreeMap<usize, u64>,
    frames: BinaryHeap<InFlight>,
    sent: u64,
}

impl Wire {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            impairment: Impairment::default(),
            rng: Rng::new(seed),
            gap: 0,
            free_at: BTreeMap::new(),
            frames: BinaryHeap::new(),
            sent: 0,
        }
    }

    pub(crate) fn send(
        &mut self,
        now: u64,
        (from, to): (usize, Option<usize>),
        origin: Origin,
        bytes: Vec<u8>,
    ) {
        let what = self.impairment;
        let free_at = self.free_at.entry(from).or_default();
        let start = now.max(*free_at);
        *free_at = start + self.gap;
        if self.rng.chance(what.loss) {
            return;
        }
        let copies = if self.rng.chance(what.duplication) {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let mut bytes = bytes.clone();
            if what.marking > 0 && self.rng.chance(what.marking) {
                mark_congestion(&mut bytes);
            }
            if self.rng.chance(what.corruption) {
                let bit = self.rng.below(bytes.len() as u64 * 8) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            let jitter = if self.rng.chance(what.reordering) {
                self.rng.below(JITTER_NS)
            } else {
                0
            };
            self.sent += 1;
            self.frames.push(InFlight {
                at: start + LATENCY_NS + jitter,
                order: self.sent,
                from,
                to,
                origin,
                bytes,
            });
        }
    }

    pub(crate) fn next_at(&self) -> Option<u64> {
        self.frames.peek().map(|frame| frame.at)
    }

    pub(crate) fn pop(&mut self, now: u64) -> Option<InFlight> {
        if self.next_at()? > now {
            return None;
        }
        self.frames.pop()
    }
}
