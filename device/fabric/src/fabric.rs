//! The NICs of an engine, their memory, the switch, and the other stations of frames.

use faultline_abi::doorbell::Doorbell;
use faultline_nic::{Instant, TxFrame};
use faultline_scenario::rules::RuleSets;

use crate::by_port::ByPort;
use crate::external_port::ExternalPort;
use crate::holds::Holds;
use crate::link_models::LinkModels;
use crate::nic_port::NicPort;
use crate::nics::Nics;
use crate::outside::Outside;
use crate::shared_pauses::SharedPauses;
use crate::switch::{PortId, Switch};
use crate::turn_limit::TurnLimit;

/// The fabric of an engine. A process may have several, which [`Outside::cross`] connects.
#[derive(Debug)]
pub struct Fabric<O: Outside> {
    /// Its NICs.
    pub nics: Nics,
    /// Memory, by port. Separate from the NICs, because a delivery borrows one NIC and the memory of two. For a NIC of another fabric,
    /// memory with the payloads of its frames.
    pub memories: ByPort<O::Memory>,
    /// Saved entries of `memories`, for NICs of other fabrics that this fabric has temporarily.
    pub memories_of_others: ByPort<O::Memory>,
    /// The switch.
    pub switch: Switch,
    /// Ports that lead out of the process. Their numbers follow those of the NICs.
    pub externals: Vec<ExternalPort<O::Peer>>,
    /// Links that have a model.
    pub links: LinkModels,
    /// Queue pairs that wait for peers of external ports.
    pub(crate) holds: Holds,
    /// Priorities that link models of other fabrics pause.
    pub(crate) shared_pauses: SharedPauses,
    /// The rules of the running scenario, and live rules.
    pub rules: RuleSets,
    /// Frames that rules have kept are being passed.
    pub(crate) passes_kept: bool,
    /// Buffer for the frame of a sending NIC; `None` while a NIC sends.
    pub(crate) sent: Option<Box<TxFrame>>,
    /// Buffer for a frame as octets.
    pub(crate) octets: Vec<u8>,
    /// Buffer for a frame as octets whose VLAN tag the switch replaces.
    pub(crate) tagged: Vec<u8>,
    /// The sending queue pair of the present frame of another fabric.
    pub(crate) sender_of_other: u32,
    /// Work of NICs that have received frames.
    pub(crate) received_work: u64,
    /// Latest time of a pass that a frame of another fabric has advanced.
    pub(crate) latest: Instant,
}

impl<O: Outside> Fabric<O> {
    /// Creates a fabric without NICs, for a process with `nics` NICs.
    pub fn new(nics: usize, switch: Switch, holds: Holds, shared_pauses: SharedPauses) -> Self {
        Self {
            nics: Nics::new(nics),
            memories: ByPort::new(nics),
            memories_of_others: ByPort::new(nics),
            switch,
            externals: Vec::new(),
            links: LinkModels::default(),
            holds,
            shared_pauses,
            rules: RuleSets::default(),
            passes_kept: false,
            sent: None,
            octets: Vec::new(),
            tagged: Vec::new(),
            sender_of_other: 0,
            received_work: 0,
            latest: Instant(0),
        }
    }

    /// Work of NICs that have received frames, since the start, in the unit of [`Nic::work`](faultline_nic::Nic::work).
    pub fn received_work(&self) -> u64 {
        self.received_work
    }

    /// Begins the turn of a source of frames.
    #[inline]
    pub fn begin_turn(&self) -> TurnLimit {
        TurnLimit::new(self.received_work)
    }

    /// Returns true if the source may send another frame.
    #[inline]
    pub fn may_go_on(&self, turn: &TurnLimit) -> bool {
        turn.has_room(self.received_work)
    }

    /// Returns true if a port belongs to this fabric.
    #[inline]
    pub fn has_port(&self, id: PortId) -> bool {
        match id.checked_sub(self.nics.ports()) {
            None => self.nics.get(id).is_some(),
            Some(external) => external < self.externals.len(),
        }
    }

    /// The external port of this number.
    #[inline]
    pub(crate) fn external_mut(&mut self, id: PortId) -> Option<&mut ExternalPort<O::Peer>> {
        self.externals.get_mut(id.checked_sub(self.nics.ports())?)
    }

    /// Updates the switch with the current address of a NIC.
    pub fn sync_address(&mut self, id: PortId) {
        if let Some(port) = self.nics.get(id) {
            self.switch.set_present_address(id, port.nic.mac());
        }
    }

    /// Passes a doorbell to a NIC. Without bus mastering it has no effect, and the result is false.
    #[inline]
    pub fn doorbell(&mut self, now: Instant, id: PortId, page: u32, bell: Doorbell) -> bool {
        match (self.nics.get_mut(id), self.memories.get(id)) {
            (Some(port), Some(memory)) if port.bus_master => {
                port.nic.doorbell(now, memory, page, bell);
                true
            }
            _ => false,
        }
    }

    /// The next deadline. `out`: the owner.
    #[inline]
    pub fn next_deadline(&self, out: &O) -> Option<Instant> {
        let nics = self.nics.values().filter_map(NicPort::next_deadline);
        let rules = self.rules.next_deadline();
        let links = self.links.next_deadline().filter(|_| !out.is_any_full());
        let holds = self.externals.iter().filter_map(ExternalPort::hold_end);
        nics.chain(rules).chain(links).chain(holds).min()
    }

    /// True if it has neither external ports nor modelled links: frames come from NICs only.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.externals.is_empty() && self.links.is_empty()
    }

    /// True if there is something to do that no deadline announces, other than doorbells and frames of other fabrics.
    #[inline(always)]
    pub fn has_work(&self, out: &O) -> bool {
        self.has_external_frame(out)
            || self.externals.iter().any(ExternalPort::has_room_again)
            || self.holds.has_released()
            || self.shared_pauses.has_news()
    }

    /// Work that all NICs have charged; 0 in a release build.
    pub fn work(&self) -> u64 {
        match cfg!(debug_assertions) {
            true => self.nics.values().map(|port| port.nic.work()).sum(),
            false => 0,
        }
    }

    /// Returns true if a NIC pauses its senders.
    #[inline]
    pub fn senders_are_paused(&self) -> bool {
        self.nics.values().any(NicPort::pauses_senders)
    }

    /// Returns true if a frame waits that the next pass would take.
    #[inline]
    pub(crate) fn has_external_frame(&self, out: &O) -> bool {
        self.externals.iter().any(|port| port.has_frame())
            && !self.senders_are_paused()
            && !out.is_any_full()
    }

    /// The time of this pass, or of the latest frame of another fabric if that is later.
    pub fn time_after_others(&self, now: Instant) -> Instant {
        now.max(self.latest)
    }
}
