//! Requests of rules to their caller, each for a NIC.

use faultline_abi::doorbell::{self, Doorbell};
use faultline_nic::{Diagnostic, Dma, FaultPolicy, Injection, Instant, Nanos, Nic, Point};

/// Pages that rules count in.
const PAGE: u64 = 4096;

/// The objects that something was about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// Queue pair.
    pub qpn: Option<u32>,
    /// Completion queue, event queue, or another object.
    pub object: Option<u32>,
    /// Memory key.
    pub key: Option<u32>,
}

impl Subject {
    pub(super) fn of_doorbell(bell: &Doorbell) -> Self {
        let is_pair = matches!(bell.kind, doorbell::SQ | doorbell::RQ);
        Self {
            qpn: is_pair.then_some(bell.object),
            object: Some(bell.object),
            key: None,
        }
    }

    pub(super) fn of_diagnostic(diagnostic: &Diagnostic) -> Self {
        use Diagnostic as D;
        let of_pair = |qpn| Self {
            qpn: Some(qpn),
            ..Self::default()
        };
        match *diagnostic {
            D::FaultRaised { qpn, key, .. } | D::KeyRefused { qpn, key, .. } => Self {
                key: Some(key),
                ..of_pair(qpn)
            },
            D::QpState { qpn, .. }
            | D::QpFailed { qpn, .. }
            | D::WorkFailed { qpn, .. }
            | D::FaultJoined { qpn, .. }
            | D::FaultContinued { qpn, .. }
            | D::FaultDone { qpn, .. }
            | D::Stalled { qpn }
            | D::StallTimedOut { qpn }
            | D::RnrNakSent { qpn, .. }
            | D::RnrNakReceived { qpn, .. }
            | D::Retried { qpn, .. }
            | D::SequenceNakSent { qpn, .. }
            | D::RetriesExhausted { qpn, .. }
            | D::RequestRefused { qpn, .. }
            | D::PacketDropped { qpn, .. } => of_pair(qpn),
            D::Overrun { object, .. } | D::DoorbellRefused { object, .. } => Self {
                object: Some(object),
                ..Self::default()
            },
            D::Command { object, .. } => Self {
                object: Some(object),
                ..Self::default()
            },
            D::Injected {
                point, qpn, object, ..
            } => {
                // Numbers of CQs and objects of events begin at 0; no queue pair and no key has the number 0.
                let is_object = matches!(point, Point::Completion | Point::Event);
                Self {
                    qpn: (qpn != 0).then_some(qpn),
                    object: is_object.then_some(object),
                    key: (!is_object && object != 0).then_some(object),
                }
            }
            D::Fatal { .. }
            | D::Reset
            | D::FaultResumed { .. }
            | D::FaultFailed { .. }
            | D::FaultExpired { .. }
            | D::FaultCancelled { .. }
            | D::StallEnded { .. } => Self::default(),
        }
    }
}

/// A request for a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NicRequest {
    /// Adds an entry to the injection table.
    AddInjection(Injection),
    /// Removes it.
    RemoveInjection(u32),
    /// Replaces the queue pairs of the entry with this id. They are in ascending order.
    SetInjectionPairs(u32, Vec<u32>),
    /// Adds a queue pair to an entry, which has these numbers.
    AddInjectionPair(u32, u32),
    /// Removes a queue pair from an entry.
    RemoveInjectionPair(u32, u32),
    /// Seeds the random numbers of the injection table.
    SeedInjections(u64),
    /// The device stops.
    Fatal,
    /// Outstanding faults fail.
    FailFaults,
    /// Fault records are kept, or written again.
    HoldFaults(bool),
    /// The fault queue is treated as full, or no longer.
    FillFaults(bool),
    /// Pages are removed from the page table.
    Evict(Pages),
    /// Faults are raised for pages.
    Prefetch(Pages),
    /// Each look-up takes this time.
    Lookup(Nanos),
    /// A queue pair fails.
    FailQp(u32),
    /// A completion queue overruns.
    OverrunCq(u32),
    /// An event queue overruns.
    OverrunEq(u32),
    /// The fault policy of a queue pair.
    FaultPolicy(u32, FaultPolicy),
    /// The NIC takes no frames for a time.
    PauseIngress(Nanos),
    /// Something that the NIC cannot do.
    Caller(CallerRequest),
}

/// Pages of one on-demand region or of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Memory key; `None`: all on-demand regions.
    pub key: Option<u32>,
    /// First page of 4 KiB from the beginning of the region.
    pub first: u64,
    /// Number of pages; `None`: to the end.
    pub count: Option<u64>,
}

/// A request that only the caller of the rules can execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallerRequest {
    /// The link goes up or down.
    Link(bool),
    /// The entries of the GID table move by one place.
    MoveGids,
    /// The port reports this speed in Mb/s; `None`: as configured.
    Speed(Option<u32>),
    /// The port drops longer packets; `None`: as configured.
    Mtu(Option<u16>),
    /// Function-level reset.
    Reset,
    /// The device is removed.
    Remove,
    /// All NICs stop for this (real) time, and so does their clock.
    Pause(Nanos),
    /// The run ends.
    End,
}

impl NicRequest {
    /// True if the NIC may access the memory of its guest for it.
    pub fn accesses_memory(&self) -> bool {
        match self {
            Self::FailFaults
            | Self::HoldFaults(_)
            | Self::FillFaults(_)
            | Self::Evict(_)
            | Self::Prefetch(_)
            | Self::FailQp(_)
            | Self::OverrunCq(_)
            | Self::OverrunEq(_) => true,
            Self::AddInjection(_)
            | Self::RemoveInjection(_)
            | Self::SetInjectionPairs(..)
            | Self::AddInjectionPair(..)
            | Self::RemoveInjectionPair(..)
            | Self::SeedInjections(_)
            | Self::Fatal
            | Self::Lookup(_)
            | Self::FaultPolicy(..)
            | Self::PauseIngress(_)
            | Self::Caller(_) => false,
        }
    }

    /// Executes the part of a request that a NIC itself can do. Returns the part for the caller, or the
    /// reason why the request fails.
    pub fn carry_out<M: Dma>(
        self,
        nic: &mut Nic,
        now: Instant,
        mem: &M,
    ) -> Result<Option<CallerRequest>, String> {
        match self {
            Self::AddInjection(injection) => {
                nic.add_injection(injection).map_err(|e| e.to_string())?
            }
            Self::RemoveInjection(id) => {
                nic.remove_injection(id);
            }
            Self::SetInjectionPairs(id, pairs) => {
                let count = pairs.len();
                if !nic.set_injection_pairs(id, pairs) {
                    return Err(format!("a rule can't name {count} queue pairs"));
                }
            }
            Self::AddInjectionPair(id, qpn) if !nic.add_injection_pair(id, qpn) => {
                return Err(format!("a rule can't name the queue pair {qpn}"));
            }
            Self::AddInjectionPair(..) => {}
            Self::RemoveInjectionPair(id, qpn) => nic.remove_injection_pair(id, qpn),
            Self::SeedInjections(seed) => nic.seed_injections(seed),
            Self::Fatal => {
                nic.inject_fatal(now);
            }
            Self::FailFaults => {
                nic.fail_faults(now, mem);
            }
            Self::HoldFaults(held) => nic.set_fault_queue_held(now, mem, held),
            Self::FillFaults(full) => nic.set_fault_queue_full(now, mem, full),
            Self::Evict(pages) => {
                pages.for_each_range(nic, |nic, key, va, len| nic.evict(key, va, len).map(drop))?
            }
            Self::Prefetch(pages) => pages.for_each_range(nic, |nic, key, va, len| {
                nic.request_pages(now, mem, key, va, len)
            })?,
            Self::Lookup(takes) => nic.set_lookup(takes),
            Self::FailQp(qpn) => nic
                .fail_queue_pair(now, mem, qpn)
                .map_err(|_| format!("there is no queue pair {qpn}"))?,
            Self::OverrunCq(cqn) => nic
                .overrun_cq(now, mem, cqn)
                .map_err(|_| format!("there is no completion queue {cqn}"))?,
            Self::OverrunEq(eqn) => nic
                .overrun_eq(now, mem, eqn)
                .map_err(|_| format!("there is no event queue {eqn}"))?,
            Self::FaultPolicy(qpn, policy) => nic
                .set_fault_policy(qpn, policy)
                .map_err(|_| format!("there is no queue pair {qpn}"))?,
            Self::PauseIngress(time) => nic.pause_ingress(now, time),
            Self::Caller(request) => return Ok(Some(request)),
        }
        Ok(None)
    }
}

impl Pages {
    fn for_each_range(
        self,
        nic: &mut Nic,
        mut act: impl FnMut(&mut Nic, u32, u64, u64) -> Result<(), faultline_abi::Status>,
    ) -> Result<(), String> {
        let keys = match self.key {
            Some(key) => vec![key],
            None => nic.on_demand_keys().take(MAX_REGIONS).collect(),
        };
        for key in keys {
            let region = nic.region_info(key);
            let Some(region) = region.filter(|region| region.on_demand) else {
                return Err(format!("there is no on-demand region with key {key:#x}"));
            };
            let skipped = self.first.saturating_mul(PAGE);
            let left = region.length.saturating_sub(skipped);
            let len = self
                .count
                .map_or(left, |count| left.min(count.saturating_mul(PAGE)));
            if len > 0 {
                let va = region.iova.saturating_add(skipped);
                act(nic, key, va, len).map_err(|status| format!("key {key:#x}: {status:?}"))?;
            }
        }
        Ok(())
    }
}

/// Most regions that one request concerns.
const MAX_REGIONS: usize = 1024;
