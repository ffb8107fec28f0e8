//! The rings of the admin queue and of the translation queue.

/// The state of the injection point in front of the next command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Gate {
    /// The command has not passed it.
    #[default]
    Open,
    /// The command has passed the point, and may be executed.
    Passed,
    /// The command has passed the point, and must wait.
    Closed,
}

/// A pair of rings in contiguous guest memory: commands in, completions out.
#[derive(Debug, Default)]
pub(crate) struct CommandRings {
    sq: u64,
    cq: u64,
    log_depth: u32,
    consumer: u32,
    /// Commands before this index have been announced by a doorbell.
    producer: u32,
    /// The state of the injection point for the next command.
    pub gate: Gate,
}

impl CommandRings {
    pub(crate) fn new(sq: u64, cq: u64, log_depth: u32) -> Self {
        Self {
            sq,
            cq,
            log_depth,
            consumer: 0,
            producer: 0,
            gate: Gate::Open,
        }
    }

    /// Records a producer index. Returns false if it is out of range.
    pub(crate) fn announce(&mut self, producer: u32) -> bool {
        // An index that was announced before is a late doorbell.
        if producer.wrapping_sub(self.producer) as i32 <= 0 {
            return true;
        }
        let fits = producer.wrapping_sub(self.consumer) <= 1 << self.log_depth;
        if fits {
            self.producer = producer;
        }
        fits
    }

    /// Commands announced, commands executed, and commands that fit.
    pub(crate) fn indices(&self) -> (u32, u32, u64) {
        (self.producer, self.consumer, 1 << self.log_depth)
    }

    /// Number of announced commands that have not been executed.
    pub(crate) fn waiting(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer)
    }

    /// True while there are commands that have not been executed and need not wait.
    pub(crate) fn has_work(&self) -> bool {
        self.consumer != self.producer && self.gate != Gate::Closed
    }

    /// Address of the next command of `size` bytes.
    pub(crate) fn command(&self, size: usize) -> u64 {
        entry(self.sq, self.slot(), size)
    }

    /// Address of the next completion of `size` bytes, and its phase.
    pub(crate) fn completion(&self, size: usize) -> (u64, u8) {
        let phase = !(self.consumer >> self.log_depth) & 1;
        (entry(self.cq, self.slot(), size), phase as u8)
    }

    /// Goes to the next command.
    pub(crate) fn advance(&mut self) {
        self.consumer = self.consumer.wrapping_add(1);
        self.gate = Gate::Open;
    }

    fn slot(&self) -> u32 {
        self.consumer & !(u32::MAX << self.log_depth)
    }
}

/// Address of an entry of `size` bytes. The device is not enabled with a ring that wraps.
fn entry(base: u64, slot: u32, size: usize) -> u64 {
    base.wrapping_add(u64::from(slot).wrapping_mul(size as u64))
}
