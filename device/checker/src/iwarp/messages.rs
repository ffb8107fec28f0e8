//! DDP segments of one direction, and the RDMAP messages that they make.

use faultline_wire::ddp::{DDP_VERSION, Ddp, DdpTarget};
use faultline_wire::rdmap::{
    AtomicRequest, AtomicResponse, IMMEDIATE_LEN, RDMAP_VERSION, RdmapControl, RdmapOpcode,
    ReadRequest, Terminate, TerminateCode,
};

use crate::packet::Report;
use crate::rule::Rule;

/// Reserved bits of the control octets of DDP (RFC 5041 section 4.1) and RDMAP (RFC 5040 section 4.1).
const RESERVED: [u8; 2] = [0x3c, 0x30];
/// Queues (RFC 5040 section 4.3, RFC 7306 section 5.1).
const QUEUES: usize = 4;

/// A message that concerns the other direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    ReadRequest(ReadRequest),
    /// The number of the request.
    AtomicRequest(u32),
    ReadResponse {
        stag: u32,
        offset: u64,
        len: u32,
        last: bool,
    },
    AtomicResponse(u32),
}

/// A message that has begun.
#[derive(Clone, Copy, Debug)]
struct Open {
    opcode: u8,
    /// STag of a tagged message, or the STag to invalidate.
    stag: u32,
    /// Offset of the next segment.
    next: u64,
}

/// The messages of one direction.
#[derive(Debug)]
pub(crate) struct Messages {
    /// The next message of each queue.
    msns: [u32; QUEUES],
    /// The untagged message of each queue that has begun.
    untagged: [Option<Open>; QUEUES],
    tagged: Option<Open>,
    /// A Terminate message was sent.
    is_terminated: bool,
    /// FPDUs that were sent.
    pub fpdus: u64,
}

impl Default for Messages {
    fn default() -> Self {
        Self {
            msns: [1; QUEUES],
            untagged: [None; QUEUES],
            tagged: None,
            is_terminated: false,
            fpdus: 0,
        }
    }
}

impl Messages {
    /// Judges a ULPDU of `len` octets with the headers `octets`. `may_be_empty`: the first one may have no octets.
    pub(crate) fn judge(
        &mut self,
        octets: &[u8],
        len: u16,
        may_be_empty: bool,
        report: &mut dyn FnMut(Report),
    ) -> Option<Event> {
        self.fpdus = self.fpdus.saturating_add(1);
        if may_be_empty && len == 0 && self.fpdus == 1 {
            return None;
        }
        if self.is_terminated {
            let what = "an FPDU follows a Terminate message".to_owned();
            report((Rule::RdmapAfterTerminate, what));
            return None;
        }
        let Ok((ddp, at)) = Ddp::parse(octets) else {
            report((Rule::DdpHeader, format!("a ULPDU has {len} octets")));
            return None;
        };
        let payload_len = u32::from(len).saturating_sub(u32::try_from(at).unwrap_or(0));
        let opcode = control(octets, &ddp, report)?;
        match ddp.target {
            DdpTarget::Tagged { stag, offset } => {
                self.judge_tagged(opcode, &ddp, (stag, offset), payload_len, report);
                (opcode == RdmapOpcode::ReadResponse).then_some(Event::ReadResponse {
                    stag,
                    offset,
                    len: payload_len,
                    last: ddp.last,
                })
            }
            DdpTarget::Untagged { .. } => {
                self.judge_untagged(opcode, &ddp, payload_len, report);
                let payload = octets.get(at..).unwrap_or_default();
                self.judge_content(opcode, &ddp, (payload, payload_len), report)
            }
        }
    }

    fn judge_tagged(
        &mut self,
        opcode: RdmapOpcode,
        ddp: &Ddp,
        (stag, offset): (u32, u64),
        len: u32,
        report: &mut dyn FnMut(Report),
    ) {
        let code = opcode as u8;
        if let Some(open) = self.tagged.take()
            && (open.opcode, open.stag, open.next) != (code, stag, offset)
        {
            let Open { stag, next, .. } = open;
            let what = format!(
                "{opcode:?} at {offset:#x} follows a segment that is not the last one, and continues at {next:#x} of STag {stag:#x}"
            );
            report((Rule::DdpOffset, what));
        }
        let end = offset.checked_add(len.into());
        if end.is_none() {
            let what = format!("the tagged offset {offset:#x} wraps in {len} octets");
            report((Rule::DdpOffset, what));
        }
        self.tagged = end.filter(|_| !ddp.last).map(|next| Open {
            opcode: code,
            stag,
            next,
        });
    }

    fn judge_untagged(
        &mut self,
        opcode: RdmapOpcode,
        ddp: &Ddp,
        len: u32,
        report: &mut dyn FnMut(Report),
    ) {
        let DdpTarget::Untagged {
            upper,
            queue,
            msn,
            offset,
        } = ddp.target
        else {
            return;
        };
        let place = usize::try_from(queue).unwrap_or(QUEUES);
        let (Some(expected), Some(open)) = (self.msns.get_mut(place), self.untagged.get_mut(place))
        else {
            return;
        };
        if msn != *expected {
            let what = format!("the MSN of queue {queue} is {msn}, expected is {expected}");
            report((Rule::DdpMsn, what));
        }
        let begun = open.take();
        let next = begun.map_or(0, |open| open.next);
        if u64::from(offset) != next {
            let what = format!("the message offset is {offset}, expected is {next}");
            report((Rule::DdpOffset, what));
        }
        if let Some(begun) = begun
            && (begun.opcode, begun.stag) != (opcode as u8, upper)
        {
            let what = format!("{opcode:?} continues a message of another kind");
            report((Rule::DdpOffset, what));
        }
        if offset.checked_add(len).is_none() {
            let what = format!("the message offset {offset} wraps in {len} octets");
            report((Rule::DdpOffset, what));
        }
        *expected = msn;
        match ddp.last {
            true => *expected = expected.wrapping_add(1),
            false => {
                *open = Some(Open {
                    opcode: opcode as u8,
                    stag: upper,
                    next: u64::from(offset).saturating_add(len.into()),
                });
            }
        }
    }

    /// Judges messages of a fixed length, and Terminate. Each of them is one segment.
    fn judge_content(
        &mut self,
        opcode: RdmapOpcode,
        ddp: &Ddp,
        (payload, len): (&[u8], u32),
        report: &mut dyn FnMut(Report),
    ) -> Option<Event> {
        use RdmapOpcode as O;
        let fixed = match opcode {
            O::ReadRequest => ReadRequest::LEN,
            O::AtomicRequest => AtomicRequest::LEN,
            O::AtomicResponse => AtomicResponse::LEN,
            O::Immediate | O::ImmediateSolicited => IMMEDIATE_LEN,
            O::Terminate => {
                self.is_terminated = true;
                judge_terminate(ddp, payload, len, report);
                return None;
            }
            _ => return None,
        };
        if usize::try_from(len) != Ok(fixed) || !ddp.last {
            let last = if ddp.last { "" } else { " and continues" };
            let what = format!("{opcode:?} has {len} octets{last}, not {fixed}");
            report((Rule::RdmapLength, what));
            return None;
        }
        match opcode {
            O::ReadRequest => {
                let (request, _) = ReadRequest::parse(payload).ok()?;
                if request.ends().is_err() {
                    let what = "the offsets of a READ wrap".to_owned();
                    report((Rule::RdmapLength, what));
                }
                Some(Event::ReadRequest(request))
            }
            O::AtomicRequest => {
                let (request, _) = AtomicRequest::parse(payload).ok()?;
                Some(Event::AtomicRequest(request.id))
            }
            O::AtomicResponse => {
                let (response, _) = AtomicResponse::parse(payload).ok()?;
                Some(Event::AtomicResponse(response.id))
            }
            _ => None,
        }
    }
}

/// Judges the control octets. Returns the message type, if it and the kind of segment fit each other.
fn control(octets: &[u8], ddp: &Ddp, report: &mut dyn FnMut(Report)) -> Option<RdmapOpcode> {
    let mut wrong = |rule, what: String| report((rule, what));
    let first = octets.first().copied().unwrap_or_default();
    if first & RESERVED[0] != 0 || ddp.version != DDP_VERSION {
        wrong(
            Rule::DdpHeader,
            format!("the control octet of DDP is {first:#04x}"),
        );
    }
    let control = RdmapControl::from_u8(ddp.upper_control);
    if ddp.upper_control & RESERVED[1] != 0 || control.version != RDMAP_VERSION {
        let octet = ddp.upper_control;
        wrong(
            Rule::RdmapHeader,
            format!("the control octet of RDMAP is {octet:#04x}"),
        );
    }
    let Some(opcode) = RdmapOpcode::from_u8(control.opcode) else {
        let code = control.opcode;
        wrong(
            Rule::RdmapHeader,
            format!("the message type {code} is reserved"),
        );
        return None;
    };
    let queue = match ddp.target {
        DdpTarget::Tagged { .. } => None,
        DdpTarget::Untagged { queue, .. } => Some(queue),
    };
    if queue != opcode.queue() {
        let buffer = |queue: Option<u32>| match queue {
            None => "a tagged buffer".to_owned(),
            Some(queue) => format!("queue {queue}"),
        };
        let (used, right) = (buffer(queue), buffer(opcode.queue()));
        wrong(
            Rule::RdmapHeader,
            format!("{opcode:?} goes to {used}, not to {right}"),
        );
        return None;
    }
    if let DdpTarget::Untagged { upper, .. } = ddp.target
        && upper != 0
        && !opcode.invalidates()
    {
        wrong(
            Rule::RdmapHeader,
            format!("{opcode:?} has the STag {upper:#x} to invalidate"),
        );
    }
    Some(opcode)
}

fn judge_terminate(ddp: &Ddp, payload: &[u8], len: u32, report: &mut dyn FnMut(Report)) {
    let mut wrong = |what: String| report((Rule::RdmapTerminate, what));
    if !ddp.last {
        wrong("the message continues".to_owned());
    }
    let Ok((terminate, read)) = Terminate::parse(payload) else {
        wrong(format!("{len} octets are shorter than its headers"));
        return;
    };
    let code = terminate.code;
    if !TerminateCode::ALL.iter().any(|(_, known)| *known == code) {
        let TerminateCode {
            layer,
            error_type,
            code,
        } = code;
        wrong(format!(
            "layer {layer}, error type {error_type} and code {code:#04x} have no meaning"
        ));
    }
    if usize::try_from(len).is_ok_and(|len| len != read) {
        wrong(format!("it has {len} octets, and its headers {read}"));
    }
}

/// Octets of the headers of a ULPDU that begins with these octets.
pub(crate) fn header_len(octets: &[u8]) -> usize {
    use RdmapOpcode as O;
    let Ok((ddp, at)) = Ddp::parse(octets) else {
        return Ddp::UNTAGGED_LEN;
    };
    let opcode = RdmapOpcode::from_u8(RdmapControl::from_u8(ddp.upper_control).opcode);
    let of_message = match opcode.filter(|_| at == Ddp::UNTAGGED_LEN) {
        Some(O::ReadRequest) => ReadRequest::LEN,
        Some(O::AtomicRequest | O::Terminate) => AtomicRequest::LEN,
        Some(O::AtomicResponse) => AtomicResponse::LEN,
        _ => 0,
    };
    at.saturating_add(of_message)
}
