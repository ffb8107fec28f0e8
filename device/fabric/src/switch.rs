//! A learning switch (IEEE 802.1Q, clause 8): it learns addresses from the source addresses of received frames.
//!
//! Without VLANs in the configuration it is not VLAN-aware: it neither reads nor changes tags. If a port has VLANs, each frame
//! belongs to a VLAN, the VLANs have separate tables, and a frame reaches only members of its VLAN ([`VlanMembership`]).
//!
//! Two kinds of addresses are assigned to a port instead of learned: permanent addresses, which are configured and which
//! no guest can change, and the present address of its NIC. Frames to an assigned address reach only its port. Frames
//! from another port with this source address are dropped, so a guest can neither receive the traffic of another port nor
//! forge its address. A port without source check may send such frames, but does not receive the replies. The owner of an
//! assigned address owns it in all VLANs.
//!
//! Each engine of a process has a switch of its own, which learns from the frames that it forwards. Assigned addresses are common
//! to all of them: a change is made under a lock, and the other switches take the new table at their next
//! [`Switch::refresh`], which costs one load if there is none.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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
    /// All ports except the sender. Of a VLAN-aware switch, those for which [`Switch::egress`] does not say otherwise.
    Flood,
    /// No port: the source address belongs to another port.
    Forged,
    /// No port: the sender, or the port with the destination address, is no member of the VLAN of the frame.
    NoMember,
}

/// What becomes of the tag of a frame that leaves the switch.
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
    /// The assigned addresses, as they were at `version`.
    assigned: Assigned,
    version: u64,
    /// Those of all switches of the process.
    common: Arc<Common>,
    /// VLANs of each port; empty if the switch is not VLAN-aware.
    vlans: Vec<VlanMembership>,
    /// Where an address is, in a VLAN.
    learned: HashMap<(u16, MacAddr), Learned>,
    per_port: HashMap<PortId, usize>,
    /// VLAN, addresses and route of the last frame of each port: most frames of a port repeat them.
    recent: Vec<Option<Recent>>,
    clash: Option<Clash>,
}

/// The assigned addresses of a process.
#[derive(Debug, Default)]
struct Common {
    assigned: Mutex<Assigned>,
    /// Changes of `assigned`. Written under its lock.
    version: AtomicU64,
}

/// Addresses that are assigned to ports.
#[derive(Clone, Debug, Default)]
struct Assigned {
    /// Owner of each permanent address.
    permanent: HashMap<MacAddr, PortId>,
    /// Owner of each present address; the first port that sets an address owns it.
    present: HashMap<MacAddr, PortId>,
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
    /// It has sent since the last call of [`Switch::age`].
    is_fresh: bool,
}

/// A frame that a port has sent from an address of another port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clash {
    /// The address.
    pub address: MacAddr,
    /// The port whose address it is. It gets the frames to the address.
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
    }

    /// Takes the common table, and changes it. `change` returns true if it has changed something.
    #[cold]
    fn change(&mut self, change: impl FnOnce(&mut Assigned) -> bool) {
        let common = &self.common;
        // A switch whose engine has panicked has left a whole table: each change is made by functions that do not panic.
        let mut assigned = common
            .assigned
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
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
        self.find_route(port, vlan, (src, dst))
    }

    /// Learns from a frame whose VLAN or addresses are not those of the last frame of the port, and returns its route.
    #[inline(never)]
    fn find_route(&mut self, port: PortId, vlan: u16, (src, dst): (MacAddr, MacAddr)) -> Route {
        let route = if !self.may_send(port, src) {
            Route::Forged
        } else if !self.is_member(port, vlan) {
            Route::NoMember
        } else {
            self.learn(port, vlan, src);
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

    /// What becomes of the tag of a frame that `from` has received with `tag` and that leaves at `to`.
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

    /// Sets the present address of `port` and releases its previous one. If another port owns the address, that port keeps
    /// it; a repeated call succeeds after that port releases it. A call without a change is cheap.
    #[inline]
    pub fn set_present_address(&mut self, port: PortId, address: MacAddr) {
        let state = self.assigned.ports.get(port);
        let is_set = |state: &PortState| {
            state.requested == Some(address)
                // A release by another port is a change of the table.
                && (state.granted || self.assigned.owner(address).is_some())
        };
        if !state.is_some_and(is_set) {
            self.change(|assigned| assigned.set_present_address(port, address));
        }
    }

    fn owner(&self, address: MacAddr) -> Option<PortId> {
        self.assigned.owner(address)
    }

    fn may_send(&self, port: PortId, src: MacAddr) -> bool {
        let state = self.assigned.ports.get(port);
        self.owner(src).is_none_or(|owner| owner == port)
            || state.is_some_and(|state| state.unchecked)
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

    /// Learns that `src` is behind `port` in a VLAN.
    fn learn(&mut self, port: PortId, vlan: u16, src: MacAddr) {
        if src.is_multicast() {
            return;
        }
        if let Some(owner) = self.owner(src) {
            if owner != port {
                self.clash = Some(Clash {
                    address: src,
                    owner,
                    sender: port,
                });
            }
            return;
        }
        let known = match self.learned.get_mut(&(vlan, src)) {
            Some(known) if known.port == port => {
                known.is_fresh = true;
                return;
            }
            known => known.map(|known| known.port),
        };
        let count = self.per_port.entry(port).or_default();
        if *count >= MAX_ADDRESSES_PER_PORT {
            return;
        }
        *count = count.saturating_add(1);
        self.recent.clear();
        let is_fresh = true;
        self.learned.insert((vlan, src), Learned { port, is_fresh });
        if let Some(count) = known.and_then(|old| self.per_port.get_mut(&old)) {
            *count = count.saturating_sub(1);
        }
    }

    /// Route of a frame of a VLAN to `dst`.
    fn route(&self, vlan: u16, dst: MacAddr) -> Route {
        if dst.is_multicast() {
            return Route::Flood;
        }
        let learned = || self.learned.get(&(vlan, dst)).map(|learned| learned.port);
        match self.owner(dst).or_else(learned) {
            None => Route::Flood,
            Some(port) if self.is_member(port, vlan) => Route::To(port),
            Some(_) => Route::NoMember,
        }
    }

    /// Removes the learned addresses that have not sent since the last call, which is to be [`AGING`] ago: an address that moves
    /// silently is found again after that time at the latest twice (IEEE 802.1Q, 8.8.3).
    pub fn age(&mut self) {
        // What is routed by it is not learned.
        self.recent.clear();
        let per_port = &mut self.per_port;
        self.learned.retain(|_, learned| {
            let is_kept = std::mem::take(&mut learned.is_fresh);
            if !is_kept && let Some(count) = per_port.get_mut(&learned.port) {
                *count = count.saturating_sub(1);
            }
            is_kept
        });
    }

    /// Removes the learned addresses of a port.
    pub fn forget(&mut self, port: PortId) {
        self.recent.clear();
        self.learned.retain(|_, learned| learned.port != port);
        self.per_port.remove(&port);
    }
}

impl Assigned {
    /// Returns true if something has changed.
    fn set_present_address(&mut self, port: PortId, address: MacAddr) -> bool {
        let state = self.port_state(port);
        let is_new = state.requested != Some(address);
        if !is_new && state.granted {
            return false;
        }
        state.requested = Some(address);
        if is_new {
            self.present.retain(|_, owner| *owner != port);
        }
        let is_free = self.owner(address).is_none();
        if is_free {
            self.present.insert(address, port);
        }
        let granted = self.owner(address) == Some(port);
        self.port_state(port).granted = granted;
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

    fn owner(&self, address: MacAddr) -> Option<PortId> {
        let owner = self.permanent.get(&address);
        owner.or_else(|| self.present.get(&address)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(n: u32) -> MacAddr {
        let [a, b, c, d] = n.to_be_bytes();
        MacAddr([2, 0, a, b, c, d])
    }

    /// A switch without VLANs does not read the tag.
    fn unread() -> Option<VlanTag> {
        panic!("the tag was read");
    }

    fn tagged(vid: u16) -> Option<VlanTag> {
        Some(VlanTag {
            vid,
            ..VlanTag::default()
        })
    }

    /// Ports 0 and 1 in VLANs 10 and 20 without tag, port 2 in both with tags, port 3 as by default.
    fn with_vlans() -> Switch {
        let mut switch = Switch::new();
        for (port, number) in [(0, 0), (1, 1)] {
            switch.add_permanent_address(port, mac(number));
            switch.set_present_address(port, mac(number));
        }
        switch.set_vlans(0, VlanMembership::new(Some(10), None));
        switch.set_vlans(1, VlanMembership::new(Some(20), None));
        let both = [10, 20].into_iter().collect();
        switch.set_vlans(2, VlanMembership::new(None, Some(both)));
        switch.set_vlans(3, VlanMembership::default());
        switch
    }

    #[test]
    fn a_frame_reaches_members_of_its_vlan_only() {
        let mut switch = with_vlans();
        let mut route = |port, src, dst, tag| switch.forward(port, (mac(src), mac(dst)), || tag);
        // Known addresses of another VLAN.
        assert_eq!(route(0, 0, 1, None), Route::NoMember);
        assert_eq!(route(0, 0, 1, None), Route::NoMember, "from the cache");
        assert_eq!(route(2, 9, 1, tagged(10)), Route::NoMember);
        assert_eq!(route(2, 9, 1, tagged(20)), Route::To(1));
        // A port that sends with the tag of a VLAN of which it is no member, or of none.
        assert_eq!(route(0, 0, 1, tagged(20)), Route::NoMember);
        assert_eq!(route(3, 5, 1, tagged(4095)), Route::NoMember);
        // Its own VLAN, by its tag or a priority.
        assert_eq!(route(0, 0, 9, tagged(10)), Route::To(2));
        assert_eq!(route(0, 0, 9, tagged(0)), Route::To(2));
        assert_eq!(route(0, 0, 77, None), Route::Flood);
        let flooded = |switch: &Switch, from, tag| {
            let leaves = |to: &PortId| switch.egress(from, *to, tag) != Egress::NoMember;
            (0..4)
                .filter(|to| *to != from)
                .filter(leaves)
                .collect::<Vec<_>>()
        };
        assert_eq!(flooded(&switch, 0, None), [2, 3]);
        assert_eq!(flooded(&switch, 1, None), [2, 3]);
        assert_eq!(flooded(&switch, 2, tagged(10)), [0, 3]);
        assert_eq!(flooded(&switch, 2, None), [3], "VLAN 1");
        assert_eq!(flooded(&switch, 3, tagged(30)), [0; 0]);
    }

    #[test]
    fn the_tag_is_that_of_the_port_at_which_the_frame_leaves() {
        let switch = with_vlans();
        assert_eq!(switch.egress(0, 2, None), Egress::Tag(tagged(10)));
        assert_eq!(switch.egress(0, 2, tagged(10)), Egress::Keep);
        assert_eq!(switch.egress(2, 1, tagged(20)), Egress::Tag(None));
        assert_eq!(switch.egress(2, 3, tagged(20)), Egress::Keep);
        assert_eq!(switch.egress(2, 3, None), Egress::Keep, "VLAN 1");
        assert_eq!(switch.egress(2, 3, tagged(0)), Egress::Tag(None));
        assert_eq!(switch.egress(0, 1, None), Egress::NoMember);
        let unaware = Switch::new();
        assert_eq!(unaware.egress(0, 1, tagged(7)), Egress::Keep);
    }

    #[test]
    fn an_address_is_learned_in_its_vlan_only() {
        let mut switch = with_vlans();
        let mut route =
            |port, src, dst, vid| switch.forward(port, (mac(src), mac(dst)), || tagged(vid));
        assert_eq!(route(2, 50, 60, 10), Route::Flood);
        assert_eq!(route(3, 50, 60, 20), Route::Flood);
        assert_eq!(route(3, 60, 50, 10), Route::To(2));
        assert_eq!(route(2, 60, 50, 20), Route::To(3));
        assert_eq!(route(2, 50, 60, 10), Route::To(3), "not a cached flood");
        // A port that is no member of a VLAN teaches nothing about it.
        assert_eq!(route(0, 70, 50, 20), Route::NoMember);
        assert_eq!(route(2, 50, 70, 20), Route::Flood);
    }

    #[test]
    fn vlans_do_not_give_a_port_more_table_entries() {
        let mut switch = with_vlans();
        for vid in 1..=4094 {
            switch.forward(3, (mac(1000), mac(0)), || tagged(vid));
        }
        assert_eq!(switch.learned.len(), MAX_ADDRESSES_PER_PORT);
        switch.forget(3);
        assert!(switch.learned.is_empty());
    }

    #[test]
    fn addresses_that_are_silent_are_forgotten() {
        let mut switch = Switch::new();
        let send = |switch: &mut Switch, port, src, dst| {
            switch.forward(port, (mac(src), mac(dst)), || None)
        };
        let none = Route::Flood;
        assert_eq!(send(&mut switch, 0, 1, 2), none);
        assert_eq!(send(&mut switch, 1, 2, 1), Route::To(0));
        switch.age();
        // The first goes on sending, the second does not.
        assert_eq!(send(&mut switch, 0, 1, 2), Route::To(1));
        assert_eq!(send(&mut switch, 0, 1, 2), Route::To(1));
        switch.age();
        assert_eq!(send(&mut switch, 2, 3, 1), Route::To(0));
        assert_eq!(send(&mut switch, 0, 1, 2), none);
        assert_eq!(switch.per_port[&1], 0);
        switch.age();
        switch.age();
        assert!(switch.learned.is_empty());
        assert!(switch.per_port.values().all(|count| *count == 0));
    }

    #[test]
    fn floods_until_it_has_learned() {
        let mut switch = Switch::new();
        assert_eq!(switch.route(NO_VLAN, mac(1)), Route::Flood);
        switch.learn(3, NO_VLAN, mac(1));
        assert_eq!(switch.route(NO_VLAN, mac(1)), Route::To(3));
        switch.learn(4, NO_VLAN, mac(1));
        assert_eq!(switch.route(NO_VLAN, mac(1)), Route::To(4));
        assert_eq!(switch.route(NO_VLAN, MacAddr::BROADCAST), Route::Flood);
        switch.forget(4);
        assert_eq!(switch.route(NO_VLAN, mac(1)), Route::Flood);
    }

    #[test]
    fn a_table_change_invalidates_the_recent_route() {
        let mut switch = Switch::new();
        switch.set_present_address(0, mac(1));
        assert_eq!(switch.forward(0, (mac(1), mac(2)), unread), Route::Flood);
        assert_eq!(switch.forward(1, (mac(2), mac(1)), unread), Route::To(0));
        assert_eq!(switch.forward(0, (mac(1), mac(2)), unread), Route::To(1));
        assert_eq!(switch.forward(2, (mac(2), mac(1)), unread), Route::To(0));
        assert_eq!(
            switch.forward(0, (mac(1), mac(2)), unread),
            Route::To(2),
            "the address moved to port 2"
        );
        switch.set_present_address(0, mac(7));
        assert_eq!(switch.forward(2, (mac(2), mac(1)), unread), Route::Flood);
        switch.forget(2);
        assert_eq!(switch.forward(0, (mac(7), mac(2)), unread), Route::Flood);
        // Port 5 takes the source address as its present address, and releases it.
        assert_eq!(switch.forward(2, (mac(2), mac(7)), unread), Route::To(0));
        switch.set_present_address(5, mac(2));
        assert_eq!(switch.forward(2, (mac(2), mac(7)), unread), Route::Forged);
        assert_eq!(switch.forward(0, (mac(7), mac(2)), unread), Route::To(5));
        switch.set_present_address(5, mac(8));
        assert_eq!(switch.forward(2, (mac(2), mac(7)), unread), Route::To(0));
    }

    /// A port that changes its present address keeps its permanent address: another port cannot take it with
    /// `set_present_address` or by sending from it.
    #[test]
    fn a_permanent_address_is_never_lost() {
        let mut switch = Switch::new();
        for (port, number) in [(0, 0), (1, 1)] {
            switch.add_permanent_address(port, mac(number));
            switch.set_present_address(port, mac(number));
        }
        switch.set_present_address(0, mac(10));
        for _ in 0..3 {
            switch.set_present_address(1, mac(0));
            assert_eq!(switch.forward(1, (mac(0), mac(5)), unread), Route::Forged);
            assert_eq!(switch.route(NO_VLAN, mac(0)), Route::To(0));
            assert_eq!(switch.route(NO_VLAN, mac(10)), Route::To(0));
        }
        // The port may send from both addresses.
        assert_eq!(switch.forward(0, (mac(10), mac(1)), unread), Route::To(1));
        assert_eq!(switch.forward(0, (mac(0), mac(1)), unread), Route::To(1));
        switch.add_permanent_address(2, mac(0));
        assert_eq!(switch.route(NO_VLAN, mac(0)), Route::To(0));
        switch.set_present_address(0, mac(0));
        assert_eq!(switch.route(NO_VLAN, mac(10)), Route::Flood);
    }

    #[test]
    fn the_first_port_owns_a_present_address_until_it_releases_it() {
        let mut switch = Switch::new();
        switch.set_present_address(0, mac(1));
        switch.learn(5, NO_VLAN, mac(1));
        assert_eq!(switch.route(NO_VLAN, mac(1)), Route::To(0));
        switch.set_present_address(7, mac(1));
        assert_eq!(switch.forward(7, (mac(1), mac(3)), unread), Route::Forged);
        assert_eq!(switch.route(NO_VLAN, mac(1)), Route::To(0));
        switch.set_present_address(0, mac(2));
        switch.set_present_address(7, mac(1));
        assert_eq!(switch.route(NO_VLAN, mac(1)), Route::To(7));
        assert_eq!(switch.forward(7, (mac(1), mac(2)), unread), Route::To(0));
        assert_eq!(switch.forward(0, (mac(1), mac(3)), unread), Route::Forged);
    }

    /// Two engines: the owner of an address is the same for both, in whichever order they request it.
    #[test]
    fn siblings_have_the_same_assigned_addresses_and_learn_for_themselves() {
        let mut first = Switch::new();
        first.add_permanent_address(0, mac(0));
        let mut second = first.sibling();
        second.set_present_address(1, mac(7));
        assert_eq!(
            first.route(NO_VLAN, mac(7)),
            Route::Flood,
            "not refreshed yet"
        );
        first.refresh();
        assert_eq!(first.route(NO_VLAN, mac(7)), Route::To(1));
        assert_eq!(first.forward(0, (mac(7), mac(0)), unread), Route::Forged);
        // Both want an address, and neither is refreshed.
        second.set_present_address(1, mac(8));
        first.set_present_address(0, mac(8));
        for switch in [&mut first, &mut second] {
            switch.refresh();
            assert_eq!(switch.forward(1, (mac(8), mac(9)), unread), Route::Flood);
            assert_eq!(switch.route(NO_VLAN, mac(8)), Route::To(1));
        }
        second.set_present_address(1, mac(9));
        first.refresh();
        first.set_present_address(0, mac(8));
        second.refresh();
        assert_eq!(second.route(NO_VLAN, mac(8)), Route::To(0));
        first.learn(0, NO_VLAN, mac(20));
        second.refresh();
        assert_eq!(second.route(NO_VLAN, mac(20)), Route::Flood);
    }

    #[test]
    fn a_port_without_source_check_sends_from_any_address_and_owns_none() {
        let mut switch = Switch::new();
        switch.add_permanent_address(0, mac(1));
        assert_eq!(switch.forward(2, (mac(1), mac(3)), unread), Route::Forged);
        switch.allow_any_source(2);
        assert_eq!(switch.take_clash(), None);
        assert_eq!(switch.forward(2, (mac(1), mac(3)), unread), Route::Flood);
        assert_eq!(switch.route(NO_VLAN, mac(1)), Route::To(0));
        let clash = Clash {
            address: mac(1),
            owner: 0,
            sender: 2,
        };
        assert_eq!(switch.take_clash(), Some(clash));
        switch.forward(0, (mac(1), mac(3)), unread);
        switch.forward(2, (mac(2), mac(3)), unread);
        assert_eq!(switch.take_clash(), None);
    }

    #[test]
    fn one_port_cannot_fill_the_table() {
        let mut switch = Switch::new();
        for n in 0..10_000 {
            switch.learn(1, NO_VLAN, mac(n));
        }
        assert_eq!(switch.learned.len(), MAX_ADDRESSES_PER_PORT);
        switch.learn(2, NO_VLAN, mac(20_000));
        assert_eq!(switch.route(NO_VLAN, mac(20_000)), Route::To(2));
    }

    #[test]
    fn group_addresses_are_not_learned() {
        let mut switch = Switch::new();
        switch.learn(1, NO_VLAN, MacAddr::BROADCAST);
        assert_eq!(switch.route(NO_VLAN, MacAddr::BROADCAST), Route::Flood);
        assert!(switch.learned.is_empty());
    }
}
