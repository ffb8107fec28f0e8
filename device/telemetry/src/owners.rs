//! Owners of queue pairs over time: a number is used again when its queue pair is destroyed.

use std::collections::HashMap;

use faultline_abi::admin::{CREATE_QP, CREATE_RSS_QP, CREATE_WQ};
use faultline_nic::{CommandQueue, Diagnostic, Instant};

use crate::analysis::QueuePair;
use crate::event::{Record, TraceEvent};
use crate::trace::{QueuePairOwner, Trace};

/// The owners that a trace names.
#[derive(Debug, Default)]
pub(crate) struct Owners<'a> {
    owners: HashMap<QueuePair, Vec<&'a QueuePairOwner>>,
    /// Times at which a queue pair was created, in their order.
    created: HashMap<QueuePair, Vec<Instant>>,
    /// Times at which a NIC was reset.
    resets: HashMap<u16, Vec<Instant>>,
}

fn count_until(times: Option<&Vec<Instant>>, at: Instant) -> usize {
    times.map_or(0, |times| times.partition_point(|time| *time <= at))
}

impl<'a> Owners<'a> {
    pub(crate) fn new(trace: &'a Trace) -> Self {
        let mut owners = Self::default();
        for owner in &trace.header.queue_pairs {
            let pair = (owner.nic, owner.qpn);
            owners.owners.entry(pair).or_default().push(owner);
        }
        for record in &trace.records {
            owners.add(record);
        }
        let created = owners.created.values_mut();
        created
            .chain(owners.resets.values_mut())
            .for_each(|times| times.sort());
        owners
    }

    fn add(&mut self, record: &Record) {
        match record.event {
            TraceEvent::Nic(Diagnostic::Command {
                queue: CommandQueue::Admin,
                opcode: CREATE_QP | CREATE_WQ | CREATE_RSS_QP,
                status: 0,
                object,
            }) => {
                let pair = (record.nic, object);
                self.created.entry(pair).or_default().push(record.at);
            }
            TraceEvent::Nic(Diagnostic::Reset) => {
                self.resets.entry(record.nic).or_default().push(record.at);
            }
            _ => {}
        }
    }

    /// How many queue pairs had this number until a time, as far as the trace shows.
    pub(crate) fn generation(&self, pair: QueuePair, at: Instant) -> usize {
        let created = count_until(self.created.get(&pair), at);
        created.saturating_add(count_until(self.resets.get(&pair.0), at))
    }

    /// The owner of a queue pair at a time.
    pub(crate) fn of(&self, pair: QueuePair, at: Instant) -> Option<&'a QueuePairOwner> {
        let generation = self.generation(pair, at);
        let mut owners = self.owners.get(&pair)?.iter().copied();
        owners.find(|owner| self.generation(pair, owner.at) == generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TraceHeader;

    #[test]
    fn a_number_that_is_used_again_has_another_owner() {
        let owner = |process: &str, at| QueuePairOwner {
            nic: 0,
            qpn: 17,
            process: process.to_owned(),
            pid: 1,
            at: Instant(at),
        };
        let command = |at, object| {
            let command = Diagnostic::Command {
                queue: CommandQueue::Admin,
                opcode: CREATE_QP,
                status: 0,
                object,
            };
            crate::samples::nic(at, 0, command)
        };
        let mut header = TraceHeader::new(vec!["a".to_owned()]);
        header.queue_pairs = vec![owner("second", 250), owner("third", 350)];
        let reset = crate::samples::nic(400, 0, Diagnostic::Reset);
        let records = vec![command(200, 17), command(210, 18), command(300, 17), reset];
        let trace = Trace { header, records };
        let owners = Owners::new(&trace);
        let name = |at| owners.of((0, 17), Instant(at)).map(|owner| &*owner.process);
        assert_eq!(name(100), None, "the one before");
        assert_eq!(name(200), Some("second"));
        assert_eq!(name(299), Some("second"));
        assert_eq!(name(300), Some("third"));
        assert_eq!(name(400), None);
        assert_eq!(owners.of((1, 17), Instant(250)), None);
    }
}
