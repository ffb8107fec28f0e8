//! A learning switch (IEEE 802.1D, clause 7): it learns addresses from the source addresses of received frames.
//!
//! Two kinds of addresses are assigned to a port instead of learned: permanent addresses, which are configured and which
//! no guest can change, and the present address of its NIC. Frames to an assigned address reach only its port. Frames
//! from another port with this source address are dropped, so a guest can neither receive the traffic of another port nor
//! forge its address. A port without source check may send such frames, but does not receive the replies.
//!
//! Each engine of a process has a switch of its own, which learns from the frames that it forwards. Assigned addresses are common
//! to all of them: a change is made under a lock, and the other switches take the new table at their next
//! [`Switch::refresh`], which costs one load if there is none.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use faultline_wire::MacAddr;

/// Number of a port.
pub type PortId = usize;

/// Most learned addresses per port. Frames to further addresses behind the port (a bridge, or an attempt to fill the
/// table) are flooded; the entries of other ports are not affected.
const MAX_ADDRESSES_PER_PORT: usize = 1024;

/// Output of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// One port, possibly the sender.
    To(PortId),
    /// All ports except the sender.
    Flood,
    /// No port: the source address belongs to another port.
    Forged,
}

/// MAC address table of the switch.
#[derive(Debug, Default)]
pub struct Switch {
    /// The assigned addresses, as they were at `version`.
    assigned: Assigned,
    version: u64,
    /// Those of all switches of the process.
    common: Arc<Common>,
    learned: HashMap<MacAddr, PortId>,
    per_port: HashMap<PortId, usize>,
    /// Addresses and route of the last frame of each port: most frames of a port repeat them.
    recent: Vec<Option<Recent>>,
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

#[derive(Clone, Copy, Debug)]
struct Recent {
    src: MacAddr,
    dst: MacAddr,
    route: Route,
}

impl Switch {
    /// Creates a switch with an empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a switch for another engine of the process: it has the same assigned addresses, and has learned nothing.
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

    /// Learns from a frame received on `port` and returns its route.
    pub fn forward(&mut self, port: PortId, src: MacAddr, dst: MacAddr) -> Route {
        if let Some(Some(recent)) = self.recent.get(port)
            && recent.src == src
            && recent.dst == dst
        {
            return recent.route;
        }
        let route = if self.may_send(port, src) {
            self.learn(port, src);
            self.route(dst)
        } else {
            Route::Forged
        };
        if self.recent.len() <= port {
            self.recent.resize(port.saturating_add(1), None);
        }
        if let Some(recent) = self.recent.get_mut(port) {
            *recent = Some(Recent { src, dst, route });
        }
        route
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

    /// Learns that `src` is behind `port`.
    pub fn learn(&mut self, port: PortId, src: MacAddr) {
        if src.is_multicast() || self.owner(src).is_some() {
            return;
        }
        let known = self.learned.get(&src).copied();
        if known == Some(port) {
            return;
        }
        let count = self.per_port.entry(port).or_default();
        if *count >= MAX_ADDRESSES_PER_PORT {
            return;
        }
        *count = count.saturating_add(1);
        self.recent.clear();
        self.learned.insert(src, port);
        if let Some(count) = known.and_then(|old| self.per_port.get_mut(&old)) {
            *count = count.saturating_sub(1);
        }
    }

    /// Route of a frame to `dst`.
    pub fn route(&self, dst: MacAddr) -> Route {
        if dst.is_multicast() {
            return Route::Flood;
        }
        let port = self.owner(dst).or_else(|| self.learned.get(&dst).copied());
        port.map_or(Route::Flood, Route::To)
    }

    /// Removes the learned addresses of a port.
    pub fn forget(&mut self, port: PortId) {
        self.recent.clear();
        self.learned.retain(|_, owner| *owner != port);
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

    #[test]
    fn floods_until_it_has_learned() {
        let mut switch = Switch::new();
        assert_eq!(switch.route(mac(1)), Route::Flood);
        switch.learn(3, mac(1));
        assert_eq!(switch.route(mac(1)), Route::To(3));
        switch.learn(4, mac(1));
        assert_eq!(switch.route(mac(1)), Route::To(4));
        assert_eq!(switch.route(MacAddr::BROADCAST), Route::Flood);
        switch.forget(4);
        assert_eq!(switch.route(mac(1)), Route::Flood);
    }

    #[test]
    fn a_table_change_invalidates_the_recent_route() {
        let mut switch = Switch::new();
        switch.set_present_address(0, mac(1));
        assert_eq!(switch.forward(0, mac(1), mac(2)), Route::Flood);
        assert_eq!(switch.forward(1, mac(2), mac(1)), Route::To(0));
        assert_eq!(switch.forward(0, mac(1), mac(2)), Route::To(1));
        assert_eq!(switch.forward(2, mac(2), mac(1)), Route::To(0));
        assert_eq!(
            switch.forward(0, mac(1), mac(2)),
            Route::To(2),
            "the address moved to port 2"
        );
        switch.set_present_address(0, mac(7));
        assert_eq!(switch.forward(2, mac(2), mac(1)), Route::Flood);
        switch.forget(2);
        assert_eq!(switch.forward(0, mac(7), mac(2)), Route::Flood);
        // Port 5 takes the source address as its present address, and releases it.
        assert_eq!(switch.forward(2, mac(2), mac(7)), Route::To(0));
        switch.set_present_address(5, mac(2));
        assert_eq!(switch.forward(2, mac(2), mac(7)), Route::Forged);
        assert_eq!(switch.forward(0, mac(7), mac(2)), Route::To(5));
        switch.set_present_address(5, mac(8));
        assert_eq!(switch.forward(2, mac(2), mac(7)), Route::To(0));
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
            assert_eq!(switch.forward(1, mac(0), mac(5)), Route::Forged);
            assert_eq!(switch.route(mac(0)), Route::To(0));
            assert_eq!(switch.route(mac(10)), Route::To(0));
        }
        // The port may send from both addresses.
        assert_eq!(switch.forward(0, mac(10), mac(1)), Route::To(1));
        assert_eq!(switch.forward(0, mac(0), mac(1)), Route::To(1));
        switch.add_permanent_address(2, mac(0));
        assert_eq!(switch.route(mac(0)), Route::To(0));
        switch.set_present_address(0, mac(0));
        assert_eq!(switch.route(mac(10)), Route::Flood);
    }

    #[test]
    fn the_first_port_owns_a_present_address_until_it_releases_it() {
        let mut switch = Switch::new();
        switch.set_present_address(0, mac(1));
        switch.learn(5, mac(1));
        assert_eq!(switch.route(mac(1)), Route::To(0));
        switch.set_present_address(7, mac(1));
        assert_eq!(switch.forward(7, mac(1), mac(3)), Route::Forged);
        assert_eq!(switch.route(mac(1)), Route::To(0));
        switch.set_present_address(0, mac(2));
        switch.set_present_address(7, mac(1));
        assert_eq!(switch.route(mac(1)), Route::To(7));
        assert_eq!(switch.forward(7, mac(1), mac(2)), Route::To(0));
        assert_eq!(switch.forward(0, mac(1), mac(3)), Route::Forged);
    }

    /// Two engines: the owner of an address is the same for both, whoever asks first.
    #[test]
    fn siblings_have_the_same_assigned_addresses_and_learn_for_themselves() {
        let mut first = Switch::new();
        first.add_permanent_address(0, mac(0));
        let mut second = first.sibling();
        second.set_present_address(1, mac(7));
        assert_eq!(first.route(mac(7)), Route::Flood, "not refreshed yet");
        first.refresh();
        assert_eq!(first.route(mac(7)), Route::To(1));
        assert_eq!(first.forward(0, mac(7), mac(0)), Route::Forged);
        // Both want an address, and neither is refreshed.
        second.set_present_address(1, mac(8));
        first.set_present_address(0, mac(8));
        for switch in [&mut first, &mut second] {
            switch.refresh();
            assert_eq!(switch.forward(1, mac(8), mac(9)), Route::Flood);
            assert_eq!(switch.route(mac(8)), Route::To(1));
        }
        second.set_present_address(1, mac(9));
        first.refresh();
        first.set_present_address(0, mac(8));
        second.refresh();
        assert_eq!(second.route(mac(8)), Route::To(0));
        first.learn(0, mac(20));
        second.refresh();
        assert_eq!(second.route(mac(20)), Route::Flood);
    }

    #[test]
    fn a_port_without_source_check_sends_from_any_address_and_owns_none() {
        let mut switch = Switch::new();
        switch.add_permanent_address(0, mac(1));
        assert_eq!(switch.forward(2, mac(1), mac(3)), Route::Forged);
        switch.allow_any_source(2);
        assert_eq!(switch.forward(2, mac(1), mac(3)), Route::Flood);
        assert_eq!(switch.route(mac(1)), Route::To(0));
    }

    #[test]
    fn one_port_cannot_fill_the_table() {
        let mut switch = Switch::new();
        for n in 0..10_000 {
            switch.learn(1, mac(n));
        }
        assert_eq!(switch.learned.len(), MAX_ADDRESSES_PER_PORT);
        switch.learn(2, mac(20_000));
        assert_eq!(switch.route(mac(20_000)), Route::To(2));
    }

    #[test]
    fn group_addresses_are_not_learned() {
        let mut switch = Switch::new();
        switch.learn(1, MacAddr::BROADCAST);
        assert_eq!(switch.route(MacAddr::BROADCAST), Route::Flood);
        assert!(switch.learned.is_empty());
    }
}
