//! A learning switch (IEEE 802.1Q, clause 8): it learns addresses from the source addresses of received frames.
//!
//! Without VLANs in the configuration it is not VLAN-aware: it neither reads nor changes tags. If a port has VLANs, each frame
//! belongs to a VLAN, the VLANs have separate tables, and a frame reaches only members of its VLAN ([`VlanMembership`]).
//!
//! Two kinds of addresses are assigned to a port instead of learned: permanent addresses, which are configured and which
//! no guest can change, and the present address of its NIC. Frames to an assigned address reach only its port. Frames
//! from another port with this source address are dropped, so a guest can neither receive the traffic of another port nor
//! forge its address. A port without source check may send such frames, but does not receive the replies. The owner of an
//! assigned address owns it in the VLANs of which it is a member: ports that have no VLAN in common do not see each other's addresses.
//!
//! A learned address stays at its port until no frame was sent from it for some time: frames from another port with this source address
//! are dropped too, and no port gets it as its present address. So a guest cannot take the address of a gateway either. Between ports
//! without source check, such as external ones, an address may move at once.
//!
//! Each engine of a process has a switch of its own, which learns from the frames that it forwards. Assigned addresses, and the ports at
//! which addresses were learned, are common to all of them. A change of assigned addresses is made under a lock, and the other switches
//! take the new table at their next [`Switch::refresh`], which costs one load if there is none. The ports of learned addresses are looked
//! up only when a switch learns a new address.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use faultline_wire::MacAddr;
use faultline_wire::ethernet::VlanTag;

use crate::vlan::VlanMembership;

/// Number of a port.
pub type PortId = usize;

/// Time between two calls of [`Switch::age`].
pub const AGING: Duration = Duration::from_secs(150);

/// Most learned addresses per port, in all VLANs together. Frames to further addresses behind the port (a bridge, or an attempt
/// to fill the table) are flooded; the entries of other ports are not affected.
const MAX_ADDRESSES_PER_PORT: usize = 1024;

/// Output of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// One port, possibly the sender.
    To(PortId),
    /// All ports except the sender. In a VLAN-aware switch only ports for which [`Switch::egress`] permits the frame.
    Flood,
    /// No port: the source address belongs to another port.
    Forged,
    /// No port: the sender, or the port with the destination address, is no member of the VLAN of the frame.
    NoMember,
}

/// The change of the tag of a frame that leaves the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Egress {
    /// The frame leaves with the tag that it has, or without one.
    Keep,
    /// The frame leaves with this tag instead of its own; `None`: without tag.
    Tag(Option<VlanTag>),
    /// The frame does not leave: the port is no member of its VLAN.
    NoMember,
}

/// VLAN of all frames in a switch that is not VLAN-aware. No frame of a VLAN-aware switch has it.
const NO_VLAN: u16 = 0;

/// MAC address table of the switch.
#[derive(Debug, Default)]
pub struct Switch {
    /// The assigned addresses of this version.
    assigned: Assigned,
    version: u64,
    /// Those of all switches of the process.
    common: Arc<Common>,
    /// VLANs of each port; empty if the switch is not VLAN-aware.
    vlans: Vec<VlanMembership>,
    /// Learned addresses, by VLAN.
    learned: HashMap<(u16, MacAddr), Learned>,
    per_port: HashMap<PortId, usize>,
    /// VLAN, addresses and route of the last frame of each port: most frames of a port repeat them.
    recent: Vec<Option<Recent>>,
    clash: Option<Clash>,
    /// Value of `moved` at the last look.
    seen_moves: u64,
    /// By port: the present address that was refused, and the epoch of the request.
    refused: HashMap<PortId, (MacAddr, u64)>,
}

/// The addresses of a process.
#[derive(Debug, Default)]
struct Common {
    assigned: Mutex<Assigned>,
    /// Changes of `assigned`. Written under its lock.
    version: AtomicU64,
    /// The ports at which an address was learned, each in a VLAN.
    learned: Mutex<Places>,
    /// Number of entries that were removed from `learned`.
    forgotten: AtomicU64,
    /// Number of learned addresses that have moved to another port.
    moved: AtomicU64,
}

/// Addresses that are assigned to ports.
#[derive(Clone, Debug, Default)]
struct Assigned {
    /// Owner of each permanent address.
    permanent: HashMap<MacAddr, PortId>,
    /// Owners of each present address, which have no VLAN in common; the first port that sets an address owns it.
    present: HashMap<MacAddr, Vec<PortId>>,
    ports: Vec<PortState>,
}

#[derive(Clone, Copy, Debug, Default)]
struct PortState {
    /// The present address that the port requested last.
    requested: Option<MacAddr>,
    /// True if the port owns `requested`; false if another port owns it.
    granted: bool,
    /// The port may send from addresses of other ports.
    unchecked: bool,
}

/// A learned address.
#[derive(Clone, Copy, Debug)]
struct Learned {
    port: PortId,
    /// The frame has entered at this fabric.
    is_own: bool,
    /// It has sent since the last call of [`Switch::age`].
    is_fresh: bool,
}

/// A frame that a port has sent from an address of another port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clash {
    /// The address.
    pub address: MacAddr,
    /// The owner of the address. It gets the frames to the address.
    pub owner: PortId,
    /// The port that has sent the frame.
    pub sender: PortId,
}

#[derive(Clone, Copy, Debug)]
struct Recent {
    vlan: u16,
    src: MacAddr,
    dst: MacAddr,
    route: Route,
}

impl Switch {
    /// Creates a switch with an empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a switch for another engine of the process: it has the same assigned addresses, no VLANs, and has
    /// learned nothing.
    pub fn sibling(&self) -> Self {
        Self {
            common: Arc::clone(&self.common),
            assigned: self.assigned.clone(),
            version: self.version,
            ..Self::default()
        }
    }

    /// Takes the assigned addresses that siblings have changed.
    #[inline]
    pub fn refresh(&mut self) {
        // The table is read under the lock.
        if self.common.version.load(Ordering::Relaxed) != self.version {
            self.change(|_| false);
        }
        if self.common.moved.load(Ordering::Relaxed) != self.seen_moves {
            self.drop_moved();
        }
    }

    /// Forgets addresses that have moved to a port of another switch.
    #[cold]
    fn drop_moved(&mut self) {
        let common = &self.common;
        let places = lock(&common.learned);
        self.seen_moves = common.moved.load(Ordering::Relaxed);
        self.recent.clear();
        let per_port = &mut self.per_port;
        self.learned.retain(|(vlan, address), learned| {
            let at = place_of(&places, *vlan, *address);
            let is_kept = !learned.is_own || at == Some(learned.port);
            if !is_kept && let Some(count) = per_port.get_mut(&learned.port) {
                *count = count.saturating_sub(1);
            }
            is_kept
        });
    }

    /// Locks the common table and calls `change`, which returns true after a change.
    #[cold]
    fn change(&mut self, change: impl FnOnce(&mut Assigned) -> bool) {
        let common = &self.common;
        let mut assigned = lock(&common.assigned);
        let version = common.version.load(Ordering::Relaxed);
        let is_changed = change(&mut assigned);
        let now = version.saturating_add(u64::from(is_changed));
        common.version.store(now, Ordering::Relaxed);
        if now != self.version {
            self.assigned = assigned.clone();
            self.version = now;
            self.recent.clear();
        }
    }

    /// Learns from a frame received on `port` and returns its route. `tag` is called if the switch is VLAN-aware.
    #[inline(always)]
    pub fn forward(
        &mut self,
        port: PortId,
        addresses: (MacAddr, MacAddr),
        tag: impl FnOnce() -> Option<VlanTag>,
    ) -> Route {
        self.forward_from((port, true), addresses, tag)
    }

    /// The same for a frame that a sibling has forwarded to this switch, and whose source address it has checked.
    #[inline(always)]
    pub fn forward_of_sibling(
        &mut self,
        port: PortId,
        addresses: (MacAddr, MacAddr),
        tag: impl FnOnce() -> Option<VlanTag>,
    ) -> Route {
        self.forward_from((port, false), addresses, tag)
    }

    #[inline(always)]
    fn forward_from(
        &mut self,
        (port, is_own): (PortId, bool),
        (src, dst): (MacAddr, MacAddr),
        tag: impl FnOnce() -> Option<VlanTag>,
    ) -> Route {
        let vlan = match self.vlans.get(port) {
            None => NO_VLAN,
            Some(membership) => membership.vlan_of(tag()),
        };
        if let Some(Some(recent)) = self.recent.get(port)
            && (recent.src == src) & (recent.dst == dst) & (recent.vlan == vlan)
        {
            return recent.route;
        }
        self.find_route((port, is_own), vlan, (src, dst))
    }

    /// Learns from a frame whose VLAN or addresses are not those of the last frame of the port, and returns its route.
    #[inline(never)]
    fn find_route(
        &mut self,
        (port, is_own): (PortId, bool),
        vlan: u16,
        (src, dst): (MacAddr, MacAddr),
    ) -> Route {
        // The switch learns no addresses in a VLAN from ports that are not members.
        let route = if !self.is_member(port, vlan) {
            Route::NoMember
        } else if !self.may_send(port, vlan, src) || !self.learn((port, is_own), vlan, src) {
            Route::Forged
        } else {
            self.route(vlan, dst)
        };
        if self.recent.len() <= port {
            self.recent.resize(port.saturating_add(1), None);
        }
        if let Some(recent) = self.recent.get_mut(port) {
            *recent = Some(Recent {
                vlan,
                src,
                dst,
                route,
            });
        }
        route
    }

    /// True if a port has VLANs.
    #[inline]
    pub fn is_vlan_aware(&self) -> bool {
        !self.vlans.is_empty()
    }

    /// Makes the switch VLAN-aware, and `port` a member of these VLANs. Ports for which this is not called are members as
    /// [`VlanMembership::default`] says, if their number is lower than that of a port for which it is called.
    pub fn set_vlans(&mut self, port: PortId, membership: VlanMembership) {
        self.recent.clear();
        self.learned.clear();
        self.per_port.clear();
        if self.vlans.len() <= port {
            self.vlans
                .resize_with(port.saturating_add(1), VlanMembership::default);
        }
        if let Some(vlans) = self.vlans.get_mut(port) {
            *vlans = membership;
        }
    }

    /// Returns the change of the tag of a frame that `from` has received with `tag` and that leaves at `to`.
    pub fn egress(&self, from: PortId, to: PortId, tag: Option<VlanTag>) -> Egress {
        if !self.is_vlan_aware() {
            return Egress::Keep;
        }
        let (Some(ingress), Some(egress)) = (self.vlans.get(from), self.vlans.get(to)) else {
            return Egress::NoMember;
        };
        let vlan = ingress.vlan_of(tag);
        if !egress.contains(vlan) {
            return Egress::NoMember;
        }
        match egress.egress_tag(vlan, tag) {
            new if new == tag => Egress::Keep,
            new => Egress::Tag(new),
        }
    }

    /// Assigns a permanent address to `port`, unless it is a permanent address of another port.
    pub fn add_permanent_address(&mut self, port: PortId, address: MacAddr) {
        self.change(|assigned| {
            assigned.permanent.entry(address).or_insert(port);
            true
        });
    }

    /// Allows `port` to send frames from addresses of other ports.
    pub fn allow_any_source(&mut self, port: PortId) {
        self.change(|assigned| {
            assigned.port_state(port).unchecked = true;
            true
        });
    }

    /// Sets the present address of `port` and releases its previous one. If another port of its VLANs owns the address, or it was learned
    /// there, that port keeps it; a repeated call succeeds after that port releases it. A call without a change is cheap.
    #[inline]
    pub fn set_present_address(&mut self, port: PortId, address: MacAddr) {
        let state = self.assigned.ports.get(port);
        let is_set = |state: &PortState| state.requested == Some(address) && state.granted;
        if !state.is_some_and(is_set) {
            self.request_address(port, address);
        }
    }

    /// True if a port has the present address that was set last.
    #[inline]
    pub fn has_present_address(&self, port: PortId) -> bool {
        let state = self.assigned.ports.get(port);
        state.is_some_and(|state| state.granted)
    }

    #[inline(never)]
    fn request_address(&mut self, port: PortId, address: MacAddr) {
        // It may be free after another port has released it, or after a learned address was forgotten.
        let forgotten = self.common.forgotten.load(Ordering::Relaxed);
        let epoch = |switch: &Self| switch.version.wrapping_add(forgotten);
        if self.refused.get(&port) == Some(&(address, epoch(self))) {
            return;
        }
        let is_free = !self.is_learned_elsewhere(port, address);
        let vlans = std::mem::take(&mut self.vlans);
        let overlap = |other: PortId| match (vlans.get(port), vlans.get(other)) {
            (Some(own), Some(other)) => own.overlaps(other),
            _ => vlans.is_empty(),
        };
        self.change(|assigned| assigned.set_present_address(port, address, is_free, overlap));
        self.vlans = vlans;
        let is_granted = |state: &PortState| state.granted;
        match self.assigned.ports.get(port).is_some_and(is_granted) {
            true => self.refused.remove(&port),
            false => self.refused.insert(port, (address, epoch(self))),
        };
    }

    /// True if an address was learned at another port, in a VLAN of this one.
    fn is_learned_elsewhere(&self, port: PortId, address: MacAddr) -> bool {
        let learned = lock(&self.common.learned);
        let mut places = learned.get(&address).into_iter().flatten();
        places.any(|(vlan, at)| *at != port && self.is_member(port, *vlan))
    }

    /// The port to which an address is assigned in a VLAN.
    fn owner(&self, vlan: u16, address: MacAddr) -> Option<PortId> {
        let mut owners = self.assigned.owners(address);
        owners.find(|port| self.is_member(*port, vlan))
    }

    fn is_unchecked(&self, port: PortId) -> bool {
        let state = self.assigned.ports.get(port);
        state.is_some_and(|state| state.unchecked)
    }

    fn may_send(&self, port: PortId, vlan: u16, src: MacAddr) -> bool {
        let owner = self.owner(vlan, src);
        owner.is_none_or(|owner| owner == port) || self.is_unchecked(port)
    }

    fn is_member(&self, port: PortId, vlan: u16) -> bool {
        let membership = self.vlans.get(port);
        !self.is_vlan_aware() || membership.is_some_and(|membership| membership.contains(vlan))
    }

    /// Takes the last clash. There is one for a frame only if the port may send from any address.
    #[inline]
    pub fn take_clash(&mut self) -> Option<Clash> {
        self.clash.take()
    }

    /// Learns that `src` is behind `port` in a VLAN. Returns false if it is behind another port, and may not move.
    fn learn(&mut self, (port, is_own): (PortId, bool), vlan: u16, src: MacAddr) -> bool {
        if src.is_multicast() {
            return true;
        }
        if let Some(owner) = self.owner(vlan, src) {
            if owner != port {
                self.clash = Some(Clash {
                    address: src,
                    owner,
                    sender: port,
                });
            }
            return true;
        }
        let known = match self.learned.get_mut(&(vlan, src)) {
            // An address is claimed by the switch that its frames enter.
            Some(known) if known.port == port && (known.is_own || !is_own) => {
                known.is_fresh = true;
                return true;
            }
            known => known.map(|known| known.port),
        };
        let has_room = self
            .per_port
            .get(&port)
            .is_none_or(|count| *count < MAX_ADDRESSES_PER_PORT);
        match is_own {
            true => match self.claim(port, vlan, src, has_room) {
                Claim::Refused => return false,
                Claim::OfAnother => return true,
                Claim::Own => {}
            },
            // The address may have been learned by another switch.
            false => {
                let at = place_of(&lock(&self.common.learned), vlan, src);
                if at.is_some_and(|at| at != port) {
                    return true;
                }
            }
        }
        if !has_room {
            return true;
        }
        let count = self.per_port.entry(port).or_default();
        *count = count.saturating_add(1);
        self.recent.clear();
        let learned = Learned {
            port,
            is_own,
            is_fresh: true,
        };
        self.learned.insert((vlan, src), learned);
        if let Some(count) = known.and_then(|old| self.per_port.get_mut(&old)) {
            *count = count.saturating_sub(1);
        }
        true
    }

    /// Makes `port` the port of an address for all switches, if there is room for it. An address moves between ports without source check
    /// only, so a returned or forged frame from such a port takes no address from a NIC.
    fn claim(&self, port: PortId, vlan: u16, src: MacAddr, has_room: bool) -> Claim {
        let common = &self.common;
        let mut learned = lock(&common.learned);
        let places = learned.get_mut(&src);
        let found = places.and_then(|places| places.iter_mut().find(|place| place.0 == vlan));
        match found {
            Some(place) if place.1 == port => Claim::Own,
            Some(place) if self.is_unchecked(port) && self.is_unchecked(place.1) => {
                if has_room {
                    place.1 = port;
                    common.moved.fetch_add(1, Ordering::Relaxed);
                }
                Claim::Own
            }
            Some(_) if self.is_unchecked(port) => Claim::OfAnother,
            Some(_) => Claim::Refused,
            None => {
                if has_room {
                    learned.entry(src).or_default().push((vlan, port));
                }
                Claim::Own
            }
        }
    }

    /// Route of a frame of a VLAN to `dst`.
    fn route(&self, vlan: u16, dst: MacAddr) -> Route {
        if dst.is_multicast() {
            return Route::Flood;
        }
        let learned = || self.learned.get(&(vlan, dst)).map(|learned| learned.port);
        match self.owner(vlan, dst).or_else(learned) {
            // A configured address that is not in the VLAN. Guests cannot change this.
            None if self.assigned.permanent.contains_key(&dst) => Route::NoMember,
            None => Route::Flood,
            Some(port) => Route::To(port),
        }
    }

    /// Removes learned addresses without a frame since the last call. Called every [`AGING`], so an address that moves silently is found
    /// again after at most twice that time (IEEE 802.1Q, 8.8.3).
    pub fn age(&mut self) {
        // Cached routes do not refresh learned addresses.
        self.recent.clear();
        let per_port = &mut self.per_port;
        let common = &self.common;
        let mut places = lock(&common.learned);
        self.learned.retain(|key, learned| {
            let is_kept = std::mem::take(&mut learned.is_fresh);
            if !is_kept {
                if let Some(count) = per_port.get_mut(&learned.port) {
                    *count = count.saturating_sub(1);
                }
                common.remove_place(&mut places, *key, learned);
            }
            is_kept
        });
    }

    /// Removes the learned addresses of a port.
    pub fn forget(&mut self, port: PortId) {
        self.recent.clear();
        let common = &self.common;
        let mut places = lock(&common.learned);
        self.learned.retain(|key, learned| {
            let is_kept = learned.port != port;
            if !is_kept {
                common.remove_place(&mut places, *key, learned);
            }
            is_kept
        });
        self.per_port.remove(&port);
    }
}

/// Ignores poisoning: functions under the lock do not panic, so the table is consistent.
fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The result of a claim of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    /// It is at this port.
    Own,
    /// It stays at another port, and the frame is passed.
    OfAnother,
    /// It stays at another port, and the frame is dropped.
    Refused,
}

/// The port at which an address was learned.
fn place_of(places: &Places, vlan: u16, address: MacAddr) -> Option<PortId> {
    let mut of_address = places.get(&address)?.iter();
    of_address
        .find(|place| place.0 == vlan)
        .map(|place| place.1)
}

/// Places of learned addresses.
type Places = HashMap<MacAddr, Vec<(u16, PortId)>>;

impl Common {
    /// Removes the place of an address, so that another port may have the address.
    fn remove_place(
        &self,
        places: &mut Places,
        (vlan, address): (u16, MacAddr),
        learned: &Learned,
    ) {
        if learned.is_own
            && let Some(of_address) = places.get_mut(&address)
        {
            of_address.retain(|place| *place != (vlan, learned.port));
            if of_address.is_empty() {
                places.remove(&address);
            }
            self.forgotten.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Assigned {
    /// Returns true if something has changed. `is_free`: the address was not learned elsewhere. `overlap`: true of a port that has a VLAN in
    /// common with this one.
    fn set_present_address(
        &mut self,
        port: PortId,
        address: MacAddr,
        is_free: bool,
        overlap: impl Fn(PortId) -> bool,
    ) -> bool {
        let state = self.port_state(port);
        let is_new = state.requested != Some(address);
        if !is_new && state.granted {
            return false;
        }
        state.requested = Some(address);
        if is_new {
            self.present.retain(|_, owners| {
                owners.retain(|owner| *owner != port);
                !owners.is_empty()
            });
        }
        let is_owned = self.owners(address).any(|owner| owner == port);
        let is_free = is_free && !self.owners(address).any(overlap);
        if is_free && !is_owned {
            self.present.entry(address).or_default().push(port);
        }
        self.port_state(port).granted = is_free || is_owned;
        is_new || is_free
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "the table has just been extended to the port"
    )]
    fn port_state(&mut self, port: PortId) -> &mut PortState {
        if self.ports.len() <= port {
            self.ports
                .resize(port.saturating_add(1), PortState::default());
        }
        &mut self.ports[port]
    }

    /// Ports to which an address is assigned: the one with the permanent address first.
    fn owners(&self, address: MacAddr) -> impl Iterator<Item = PortId> {
        let permanent = self.permanent.get(&address).copied();
        let present = self.present.get(&address).into_iter().flatten().copied();
        permanent.into_iter().chain(present)
    }
}

#[cfg(test)]
mod tests;
