//! Flows: rules that select the receivers of frames.

use faultline_abi::Status;
use faultline_abi::steering::*;
use smallvec::SmallVec;

use crate::headers::ParsedHeaders;
use crate::table::Table;
use crate::work;

/// A queue pair that receives a frame, and the tag of the flow that selected it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameTarget {
    pub qpn: u32,
    pub tag: u32,
}

impl FrameTarget {
    /// A queue pair that no flow has selected.
    pub(crate) fn untagged(qpn: u32) -> Self {
        Self { qpn, tag: 0 }
    }
}

/// All receivers of a frame, nearly always one.
pub(crate) type FrameTargets = SmallVec<[FrameTarget; 4]>;

/// Largest number of copies of a frame, the same as of a datagram to a group.
const MAX_TARGETS: usize = 256;

/// Adds a receiver. A queue pair receives a frame once, with the tag of the first of its flows.
fn add(targets: &mut FrameTargets, target: FrameTarget) {
    let known = targets.iter().any(|other| other.qpn == target.qpn);
    if !known && targets.len() < MAX_TARGETS {
        targets.push(target);
    }
}

/// A flow, without its match fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub kind: u8,
    pub flags: u8,
    pub target: FrameTarget,
}

/// A flow of kind NORMAL, in the order in which they are tried.
#[derive(Clone, Copy, Debug)]
struct Rule {
    priority: u16,
    number: u32,
    flow: Flow,
    headers: u32,
    /// Already masked.
    values: [u8; 64],
    mask: [u8; 64],
}

impl Rule {
    fn matches(&self, headers: u32, fields: &[u8; 64]) -> bool {
        let same = || {
            let pairs = fields.iter().zip(&self.mask).zip(&self.values);
            pairs.fold(0, |bits, ((field, mask), value)| {
                bits | (field & mask ^ value)
            }) == 0
        };
        self.headers & !headers == 0 && same()
    }
}

/// The result of matching a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub targets: FrameTargets,
    /// Receivers of lower precedence do not receive the frame.
    pub trapped: bool,
    /// A flow drops the frame.
    pub dropped: bool,
}

/// All flows.
#[derive(Debug)]
pub(crate) struct Steering {
    /// The number is the handle.
    flows: Table<Flow>,
    /// By priority, the oldest first.
    rules: Vec<Rule>,
    /// Flows of the other kinds, the oldest first.
    others: Vec<(u32, Flow)>,
    /// Number of sniffers among them, which is read for each frame.
    sniffers: usize,
}

/// True if the headers do not contradict each other, and the mask selects only fields of these headers.
fn mask_is_sound(headers: u32, mask: &FlowFields) -> bool {
    let has = |bits: u32| headers & bits != 0;
    let ip = has(FLOW_HAS_IPV4 | FLOW_HAS_IPV6);
    let zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    let contradiction = has(FLOW_HAS_IPV4) && has(FLOW_HAS_IPV6)
        || has(FLOW_HAS_TCP) && has(FLOW_HAS_UDP)
        || has(FLOW_HAS_TCP | FLOW_HAS_UDP) && !ip;
    let link =
        zero(&mask.dmac) && zero(&mask.smac) && zero(&mask.ether_type) && zero(&mask.vlan_tci);
    let network = zero(&mask.src_ip)
        && zero(&mask.dst_ip)
        && mask.protocol == 0
        && mask.traffic_class == 0
        && mask.hop_limit == 0;
    let short = zero(&mask.src_ip[..12]) && zero(&mask.dst_ip[..12]) && zero(&mask.flow_label);
    let ports = zero(&mask.src_port) && zero(&mask.dst_port);
    !contradiction
        && (link || has(FLOW_HAS_ETH))
        && (network || ip)
        && (short || has(FLOW_HAS_IPV6))
        && (mask.ip_flags == 0 || has(FLOW_HAS_IPV4))
        && (ports || has(FLOW_HAS_TCP | FLOW_HAS_UDP))
        && zero(&mask.reserved)
}

impl Steering {
    pub(crate) fn new(max_flow: u32) -> Self {
        Self {
            flows: Table::new(max_flow, 1),
            rules: Vec::new(),
            others: Vec::new(),
            sniffers: 0,
        }
    }

    /// True if there are no flows.
    pub(crate) fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// All places of the table of flows from `from` on.
    pub(crate) fn places(&self, from: u32) -> impl Iterator<Item = (u32, Option<(u32, &Flow)>)> {
        self.flows.places(from)
    }

    /// True if a flow receives a copy of every frame.
    pub(crate) fn has_sniffers(&self) -> bool {
        self.sniffers > 0
    }

    /// Adds a flow. `fields` are values and mask of a flow of kind NORMAL.
    pub(crate) fn create(
        &mut self,
        cmd: &CreateFlow,
        fields: Option<(FlowFields, FlowFields)>,
    ) -> Result<u32, Status> {
        const HEADERS: u32 =
            FLOW_HAS_ETH | FLOW_HAS_IPV4 | FLOW_HAS_IPV6 | FLOW_HAS_TCP | FLOW_HAS_UDP;
        let flow = Flow {
            kind: cmd.kind,
            flags: cmd.flags,
            target: FrameTarget {
                qpn: cmd.qpn.get(),
                tag: cmd.tag.get(),
            },
        };
        let headers = cmd.headers.get();
        if cmd.flags & !(FLOW_FLAG_DONT_TRAP | FLOW_FLAG_DROP) != 0 || headers & !HEADERS != 0 {
            return Err(Status::BadParameter);
        }
        let Some((values, mask)) = fields else {
            if cmd.flags != 0 || headers != 0 || cmd.priority.get() != 0 {
                return Err(Status::BadParameter);
            }
            let number = self
                .flows
                .insert_with(|_| flow)
                .ok_or(Status::NoResources)?;
            self.others.push((number, flow));
            self.count_sniffers();
            return Ok(number);
        };
        if !mask_is_sound(headers, &mask) {
            return Err(Status::BadFlowFields);
        }
        let number = self
            .flows
            .insert_with(|_| flow)
            .ok_or(Status::NoResources)?;
        let mut rule = Rule {
            priority: cmd.priority.get(),
            number,
            flow,
            headers,
            values: zerocopy::transmute!(values),
            mask: zerocopy::transmute!(mask),
        };
        for (value, mask) in rule.values.iter_mut().zip(&rule.mask) {
            *value &= mask;
        }
        let at = self
            .rules
            .partition_point(|other| other.priority <= rule.priority);
        self.rules.insert(at, rule);
        Ok(number)
    }

    /// Removes a flow and returns it.
    pub(crate) fn destroy(&mut self, number: u32) -> Option<Flow> {
        let flow = self.flows.remove(number)?;
        self.rules.retain(|rule| rule.number != number);
        self.others.retain(|(other, _)| *other != number);
        self.count_sniffers();
        Some(flow)
    }

    fn count_sniffers(&mut self) {
        let is_sniffer = |(_, flow): &&(u32, Flow)| flow.kind == FLOW_KIND_SNIFFER;
        self.sniffers = self.others.iter().filter(is_sniffer).count();
    }

    /// Matches a frame with these first bytes against the flows that have precedence over the netdev.
    pub(crate) fn take(&self, head: &[u8]) -> Verdict {
        let mut verdict = Verdict::default();
        if self.rules.is_empty() {
            return verdict;
        }
        let Some(parsed) = ParsedHeaders::parse(head) else {
            return verdict;
        };
        let headers = parsed.bits();
        let fields: [u8; 64] = zerocopy::transmute!(parsed.fields(head));
        let mut best = None;
        for rule in &self.rules {
            // All flows of the best priority receive the frame.
            if best.is_some_and(|best| rule.priority > best) {
                break;
            }
            if !rule.matches(headers, &fields) {
                continue;
            }
            if rule.flow.flags & FLOW_FLAG_DONT_TRAP == 0 {
                best = Some(rule.priority);
                verdict.trapped = true;
            }
            match rule.flow.flags & FLOW_FLAG_DROP {
                0 => add(&mut verdict.targets, rule.flow.target),
                _ => verdict.dropped = true,
            }
        }
        verdict
    }

    /// Receivers of the flows of a kind that is not NORMAL.
    pub(crate) fn targets(&self, kind: u8) -> FrameTargets {
        let mut targets = FrameTargets::new();
        for (_, flow) in self.others.iter().filter(|(_, flow)| flow.kind == kind) {
            add(&mut targets, flow.target);
        }
        targets
    }

    /// The cost of matching a frame.
    pub(crate) fn cost(&self) -> u64 {
        let flows = self.rules.len().saturating_add(self.others.len());
        work::LOOK.saturating_mul(flows as u64)
    }

    /// Receivers of frames that no other rule matches.
    pub(crate) fn leftovers(&self, multicast: bool) -> FrameTargets {
        let mut targets = self.targets(FLOW_KIND_ALL_DEFAULT);
        if multicast {
            for target in self.targets(FLOW_KIND_MC_DEFAULT) {
                add(&mut targets, target);
            }
        }
        targets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_stays_within_the_headers() {
        let ports = FlowFields {
            dst_port: [0xff; 2],
            ..FlowFields::default()
        };
        let eth = FLOW_HAS_ETH;
        assert!(!mask_is_sound(eth, &ports));
        assert!(!mask_is_sound(eth | FLOW_HAS_UDP, &ports));
        assert!(mask_is_sound(FLOW_HAS_IPV4 | FLOW_HAS_UDP, &ports));
        assert!(!mask_is_sound(
            FLOW_HAS_IPV4 | FLOW_HAS_UDP | FLOW_HAS_TCP,
            &ports
        ));
        assert!(!mask_is_sound(
            FLOW_HAS_IPV4 | FLOW_HAS_IPV6,
            &FlowFields::default()
        ));
        let mut long = FlowFields::default();
        long.src_ip[0] = 1;
        assert!(!mask_is_sound(FLOW_HAS_IPV4, &long));
        assert!(mask_is_sound(FLOW_HAS_IPV6, &long));
    }
}
