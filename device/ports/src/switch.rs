//! A learning switch (IEEE 802.1D, clause 7): addresses are learned from the frames that a port sends.

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
}

/// Which port has which address.
#[derive(Debug, Default)]
pub struct Switch {
    /// Addresses that belong to a port for good, such as a NIC's own.
    fixed: HashMap<MacAddr, PortId>,
    learned: HashMap<MacAddr, PortId>,
    per_port: HashMap<PortId, usize>,
    /// The last frame of each port and where it went: most frames of a port are like the one before.
    recent: Vec<Option<Recent>>,
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

    /// Learns from a frame that came in on `port`, and says where it goes.
    pub fn forward(&mut self, port: PortId, src: MacAddr, dst: MacAddr) -> Route {
        if let Some(Some(recent)) = self.recent.get(port)
            && recent.src == src
            && recent.dst == dst
        {
            return recent.route;
        }
        self.learn(port, src);
        let route = self.route(dst);
        if self.recent.len() <= port {
            self.recent.resize(port + 1, None);
        }
        if let Some(recent) = self.recent.get_mut(port) {
            *recent = Some(Recent { src, dst, route });
        }
        route
    }

    /// `port` has exactly this address for good; what it had by this call before is forgotten. An address that
    /// another port has for good stays there: nobody takes over a neighbour's traffic so.
    pub fn set_own_address(&mut self, port: PortId, address: MacAddr) {
        self.recent.clear();
        self.fixed.retain(|_, owner| *owner != port);
        self.fixed.entry(address).or_insert(port);
    }

    /// A frame from `src` came in on `port`.
    pub fn learn(&mut self, port: PortId, src: MacAddr) {
        if src.is_multicast() || self.fixed.contains_key(&src) {
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
        let port = self.fixed.get(&dst).or_else(|| self.learned.get(&dst));
        port.map_or(Route::Flood, |port| Route::To(*port))
    }

    /// What a port has taught is forgotten.
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
        switch.set_own_address(0, mac(1));
        assert_eq!(switch.forward(0, mac(1), mac(2)), Route::Flood);
        assert_eq!(switch.forward(1, mac(2), mac(1)), Route::To(0));
        assert_eq!(switch.forward(0, mac(1), mac(2)), Route::To(1));
        assert_eq!(switch.forward(2, mac(2), mac(1)), Route::To(0));
        assert_eq!(
            switch.forward(0, mac(1), mac(2)),
            Route::To(2),
            "it has moved"
        );
        switch.set_own_address(0, mac(7));
        assert_eq!(switch.forward(2, mac(2), mac(1)), Route::Flood);
        switch.forget(2);
        assert_eq!(switch.forward(0, mac(7), mac(2)), Route::Flood);
    }

    #[test]
    fn nobody_takes_a_fixed_address() {
        let mut switch = Switch::new();
        switch.set_own_address(0, mac(1));
        switch.learn(5, mac(1));
        assert_eq!(switch.route(mac(1)), Route::To(0));
        switch.set_own_address(7, mac(1));
        assert_eq!(switch.route(mac(1)), Route::To(0));
        switch.set_own_address(0, mac(2));
        assert_eq!(switch.route(mac(1)), Route::Flood);
        assert_eq!(switch.route(mac(2)), Route::To(0));
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
