//! The expected content of the memory of a connection.

use super::flow::Connection;
use super::places::{SLOTS, counter_after, octet};
use super::plan::{MESSAGE, PART, PART_OCTETS, Request};
use super::processes::PlanProcesses;
use super::report::Failure;
use crate::driver::Driver;
use crate::process::ProcessBus;

/// Whether an octet of a sink was written: no, perhaps, or yes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Written {
    Not,
    Perhaps,
    Certainly,
}

/// The memory of both sides has its expected content.
pub(super) fn judge(
    connection: &Connection<'_>,
    processes: &mut PlanProcesses,
) -> Result<(), Failure> {
    let sides = [&connection.requester, &connection.responder];
    for (side, which) in sides.into_iter().zip([0u64, 1]) {
        let Some(host) = processes.host(side.host).filter(|_| !side.is_gone) else {
            continue;
        };
        let driver = &host.driver;
        let content = side.region.content(driver);
        let (source, rest) = content.split_at_checked(PART_OCTETS).unwrap_or_default();
        let (own_sink, rest) = rest.split_at_checked(PART_OCTETS).unwrap_or_default();
        let wrong = |what, offset| Err(Failure::Data(connection.index, what, offset));
        let flow = (connection.index, connection.generation);
        let wanted = (0..PART).map(|at| octet(flow, which, at));
        if let Some(offset) = source
            .iter()
            .zip(wanted)
            .position(|(is, wanted)| *is != wanted)
        {
            return wrong("a source", offset);
        }
        let name = match which {
            0 => "a sink of READs",
            _ => "a sink of WRITEs",
        };
        let other = 1u64.saturating_sub(which);
        let written = written(connection, which);
        for (offset, (is, written)) in own_sink.iter().zip(&written).enumerate() {
            let sent = octet(flow, other, offset as u64);
            let is_right = match written {
                Written::Not => *is == 0,
                Written::Perhaps => *is == 0 || *is == sent,
                Written::Certainly => *is == sent,
            };
            if !is_right {
                return wrong(name, offset);
            }
        }
        let words = |from: usize| {
            let octets = rest.get(from..).unwrap_or(&[]).as_chunks::<8>().0;
            octets.iter().map(|octets| u64::from_le_bytes(*octets))
        };
        let counter = SLOTS.saturating_mul(MESSAGE as usize);
        if which == 0 {
            if rest.iter().take(counter).any(|octet| *octet != 0) {
                return wrong("slots of a requester", 0);
            }
            results(connection, words(counter.saturating_add(64)))?;
        } else {
            let found = words(counter).next().unwrap_or(0);
            let mut counts = connection.successes..=connection.posted;
            let is_wanted = |count| counter_after(connection.requests, count) == found;
            if !counts.any(is_wanted) {
                return wrong("a counter", 0);
            }
            slots(connection, driver, rest)?;
        }
        if !side.region.is_unused_untouched(driver) {
            return Err(Failure::Forbidden(side.host, "a page that is not mapped"));
        }
    }
    Ok(())
}

/// State of each octet of a sink: of READs at the requester (0), of WRITEs at the responder.
fn written(connection: &Connection<'_>, which: u64) -> Vec<Written> {
    let mut written = vec![Written::Not; PART_OCTETS];
    let posted = connection.requests.iter().enumerate();
    for (index, request) in posted.take(connection.posted) {
        let is_done = index < connection.successes && (which == 0 || connection.is_exact());
        let (at, len) = match (*request, which) {
            (Request::Read(at, len), 0) | (Request::Write(at, len), 1) => (at, len),
            _ => continue,
        };
        let part = written.iter_mut().skip(at as usize).take(len as usize);
        part.for_each(|octet| {
            *octet = (*octet).max(match is_done {
                true => Written::Certainly,
                false => Written::Perhaps,
            });
        });
    }
    written
}

/// Each atomic has returned the value of the counter after the atomics before it.
fn results(connection: &Connection<'_>, found: impl Iterator<Item = u64>) -> Result<(), Failure> {
    for (index, found) in found.enumerate() {
        let is_atomic = matches!(
            connection.requests.get(index),
            Some(Request::FetchAdd(_) | Request::CompareSwap(_))
        ) && index < connection.posted;
        let wanted = match is_atomic {
            true => counter_after(connection.requests, index),
            false => 0,
        };
        let is_right = found == wanted || (found == 0 && index >= connection.successes);
        if !is_right {
            return Err(Failure::Data(connection.index, "results of atomics", index));
        }
    }
    Ok(())
}

/// Messages in slots are unchanged, and slots without message are empty, unless a message has begun to
/// arrive there.
fn slots(
    connection: &Connection<'_>,
    driver: &Driver<ProcessBus>,
    octets: &[u8],
) -> Result<(), Failure> {
    let is_whole = connection.is_exact() && connection.ended == connection.successes;
    for (index, octets) in octets.chunks(MESSAGE as usize).take(SLOTS).enumerate() {
        match connection.received.get(index) {
            Some(Some(_)) => connection.judge_message(driver, index)?,
            _ if is_whole && !connection.is_cut() && octets.iter().any(|octet| *octet != 0) => {
                return Err(Failure::Data(connection.index, "an empty slot", index));
            }
            _ => {}
        }
    }
    Ok(())
}
