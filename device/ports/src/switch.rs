//! A learning switch (IEEE 802.1D, clause 7): addresses are learned from the frames that a port sends.
//!
//! Addresses of two kinds are not learned but belong to a port: its permanent ones, which are configured and stay its own
//! whatever its guest does, and the one that its NIC uses at present. No other port receives what is sent to them, and frames
//! that have them as their source are dropped if they come from another port: a guest can neither take its neighbour's
//! traffic nor speak in its name. A port without source check may send such frames, but does not receive the answers.

use std::collections::HashMap;

use faultline_wire::MacAddr;

/// Number of a port.
pub type PortId = usize;

/// Addresses that one port may have in the table. A port that sends from more of them (by design, such as a
/// bridge, or to fill the table) has its later ones flooded, and takes nothing from other ports.
const MAX_ADDRESSES_PER_PORT: usize = 1024;

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// To one port; it may be the one that sent.
    To(PortId),
    /// To all ports but the one that sent.
    Flood,
    /// Nowhere: its source address belongs to another port.
    Forged,
}

/// Which port has which address.
#[derive(Debug, Default)]
pub struct Switch {
    /// Permanent addresses.
    permanent: HashMap<MacAddr, PortId>,
    /// Present addresses, if no other port has them.
    present: HashMap<MacAddr, PortId>,
    /// What each port says of itself, by port.
    ports: Vec<Own>,
    learned: HashMap<MacAddr, PortId>,
    per_port: HashMap<PortId, usize>,
    /// The last frame of each port and where it went: most frames of a port are like the one before.
    recent: Vec<Option<Recent>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Own {
    /// The present address that it was told last.
    told: Option<MacAddr>,
    /// That address is its own; else another port has it.
    granted: bool,
    /// It may send from addresses of other ports.
    unchecked: bool,
}

#[derive(Clone, Copy, Debug)]
struct Recent {
    src: MacAddr,
    dst: MacAddr,
    route: Route,
}

impl Switch {
    /// A switch that has learned nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Learns from a frame that came in on `port`, and returns its route.
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
            self.recent.resize(port + 1, None);
        }
        if let Some(recent) = self.recent.get_mut(port) {
            *recent = Some(Recent { src, dst, route });
        }
        route
    }

    /// `port` has this address for good, unless another port has it so already.
    pub fn add_permanent_address(&mut self, port: PortId, address: MacAddr) {
        self.recent.clear();
        self.permanent.entry(address).or_insert(port);
    }

    /// Frames from `port` are not checked for addresses of other ports.
    pub fn allow_any_source(&mut self, port: PortId) {
        self.recent.clear();
        self.own(port).unchecked = true;
    }

    /// `port` uses this address from now on, and no longer the one that it was given by this call before. An address of
    /// another port stays there until that port gives it up. May be called often.
    pub fn set_present_address(&mut self, port: PortId, address: MacAddr) {
        let own = self.own(port);
        let is_new = own.told != Some(address);
        if !is_new && own.granted {
            return;
        }
        own.told = Some(address);
        if is_new {
            self.recent.clear();
            self.present.retain(|_, owner| *owner != port);
        }
        if self.owner(address).is_none() {
            self.recent.clear();
            self.present.insert(address, port);
        }
        let granted = self.owner(address) == Some(port);
        self.own(port).granted = granted;
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "the table has just been extended to the port"
    )]
    fn own(&mut self, port: PortId) -> &mut Own {
        if self.ports.len() <= port {
            self.ports.resize(port + 1, Own::default());
        }
        &mut self.ports[port]
    }

    fn owner(&self, address: MacAddr) -> Option<PortId> {
        let owner = self.permanent.get(&address);
        owner.or_else(|| self.present.get(&address)).copied()
    }

    fn may_send(&self, port: PortId, src: MacAddr) -> bool {
        self.owner(src).is_none_or(|owner| owner == port)
            || self.ports.get(port).is_some_and(|own| own.unchecked)
    }

    /// A frame from `src` came in on `port`.
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
        *count += 1;
        self.recent.clear();
        self.learned.insert(src, port);
        if let Some(count) = known.and_then(|old| self.per_port.get_mut(&old)) {
            *count -= 1;
        }
    }

    /// Where a frame to `dst` goes.
    pub fn route(&self, dst: MacAddr) -> Route {
        if dst.is_multicast() {
            return Route::Flood;
        }
        let port = self.owner(dst).or_else(|| self.learned.get(&dst).copied());
        port.map_or(Route::Flood, Route::To)
    }

    /// Forgets what was learned from a port.
    pub fn forget(&mut self, port: PortId) {
        self.recent.clear();
        self.learned.retain(|_, owner| *owner != port);
        self.per_port.remove(&port);
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
    fn what_is_remembered_never_outlives_what_it_follows_from() {
        let mut switch = Switch::new();
        switch.set_present_address(0, mac(1));
        assert_eq!(switch.forward(0, mac(1), mac(2)), Route::Flood);
        assert_eq!(switch.forward(1, mac(2), mac(1)), Route::To(0));
        assert_eq!(switch.forward(0, mac(1), mac(2)), Route::To(1));
        assert_eq!(switch.forward(2, mac(2), mac(1)), Route::To(0));
        assert_eq!(
            switch.forward(0, mac(1), mac(2)),
            Route::To(2),
            "it has moved"
        );
        switch.set_present_address(0, mac(7));
        assert_eq!(switch.forward(2, mac(2), mac(1)), Route::Flood);
        switch.forget(2);
        assert_eq!(switch.forward(0, mac(7), mac(2)), Route::Flood);
        // A source becomes another port's own, and is no longer so.
        assert_eq!(switch.forward(2, mac(2), mac(7)), Route::To(0));
        switch.set_present_address(5, mac(2));
        assert_eq!(switch.forward(2, mac(2), mac(7)), Route::Forged);
        assert_eq!(switch.forward(0, mac(7), mac(2)), Route::To(5));
        switch.set_present_address(5, mac(8));
        assert_eq!(switch.forward(2, mac(2), mac(7)), Route::To(0));
    }

    /// A port that uses another address keeps its permanent one: no other port gets it by claiming it, or by sending from it.
    #[test]
    fn a_permanent_address_is_never_lost() {
        let mut switch = Switch::new();
        for port in [0, 1] {
            switch.add_permanent_address(port, mac(port as u32));
            switch.set_present_address(port, mac(port as u32));
        }
        switch.set_present_address(0, mac(10));
        for _ in 0..3 {
            switch.set_present_address(1, mac(0));
            assert_eq!(switch.forward(1, mac(0), mac(5)), Route::Forged);
            assert_eq!(switch.route(mac(0)), Route::To(0));
            assert_eq!(switch.route(mac(10)), Route::To(0));
        }
        // Both addresses are good sources of their port.
        assert_eq!(switch.forward(0, mac(10), mac(1)), Route::To(1));
        assert_eq!(switch.forward(0, mac(0), mac(1)), Route::To(1));
        switch.add_permanent_address(2, mac(0));
        assert_eq!(switch.route(mac(0)), Route::To(0));
        switch.set_present_address(0, mac(0));
        assert_eq!(switch.route(mac(10)), Route::Flood);
    }

    #[test]
    fn a_present_address_belongs_to_the_first_until_it_gives_it_up() {
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

    #[test]
    fn a_port_without_source_check_sends_from_any_address_and_takes_none() {
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
