use proptest::prelude::*;

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
    // A port sends with the tag of a VLAN that it does not belong to, or without a tag.
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
fn the_tag_is_that_of_the_egress_port() {
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
    // The switch does not learn in a VLAN from a port that is not a member.
    assert_eq!(route(0, 70, 50, 20), Route::NoMember);
    assert_eq!(route(2, 51, 70, 20), Route::Flood);
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
    let send =
        |switch: &mut Switch, port, src, dst| switch.forward(port, (mac(src), mac(dst)), || None);
    let none = Route::Flood;
    assert_eq!(send(&mut switch, 0, 1, 2), none);
    assert_eq!(send(&mut switch, 1, 2, 1), Route::To(0));
    switch.age();
    // The first continues to send, the second does not.
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
    switch.learn((3, true), NO_VLAN, mac(1));
    assert_eq!(switch.route(NO_VLAN, mac(1)), Route::To(3));
    assert!(!switch.learn((4, true), NO_VLAN, mac(1)));
    assert_eq!(switch.route(NO_VLAN, mac(1)), Route::To(3));
    for port in [3, 4] {
        switch.allow_any_source(port);
    }
    assert!(switch.learn((4, true), NO_VLAN, mac(1)));
    assert_eq!(switch.route(NO_VLAN, mac(1)), Route::To(4));
    assert_eq!(switch.route(NO_VLAN, MacAddr::BROADCAST), Route::Flood);
    switch.forget(4);
    assert_eq!(switch.route(NO_VLAN, mac(1)), Route::Flood);
}

#[test]
fn a_table_change_invalidates_the_recent_route() {
    let mut switch = Switch::new();
    switch.set_present_address(0, mac(1));
    for port in [1, 2] {
        switch.allow_any_source(port);
    }
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
    // Port 5 sets a free address as its present address, and releases it.
    switch.set_present_address(5, mac(3));
    assert_eq!(switch.forward(3, (mac(3), mac(7)), unread), Route::Forged);
    assert_eq!(switch.forward(0, (mac(7), mac(3)), unread), Route::To(5));
    switch.set_present_address(5, mac(8));
    assert_eq!(switch.forward(3, (mac(3), mac(7)), unread), Route::To(0));
}

/// A guest tries to receive the traffic of a gateway.
#[test]
fn a_learned_address_stays_where_it_is_until_it_is_silent() {
    const GATEWAY: u32 = 9;
    let mut switch = Switch::new();
    let mut other = switch.sibling();
    switch.set_present_address(0, mac(0));
    // Behind an external port.
    switch.allow_any_source(5);
    let is_at = |switch: &mut Switch, port| {
        let found = switch.forward(0, (mac(0), mac(GATEWAY)), unread);
        assert_eq!(found, Route::To(port));
    };
    switch.forward(5, (mac(GATEWAY), mac(0)), unread);
    is_at(&mut switch, 5);
    for switch in [&mut switch, &mut other] {
        // By its source address, and as its own address. Also if the port is of another engine.
        let forged = switch.forward(1, (mac(GATEWAY), mac(7)), unread);
        assert_eq!(forged, Route::Forged);
        switch.set_present_address(1, mac(GATEWAY));
        assert_eq!(switch.owner(NO_VLAN, mac(GATEWAY)), None);
    }
    is_at(&mut switch, 5);
    // The gateway moves to another external port.
    switch.allow_any_source(6);
    switch.forward(6, (mac(GATEWAY), mac(0)), unread);
    is_at(&mut switch, 6);
    for _ in 0..2 {
        switch.set_present_address(1, mac(GATEWAY));
        assert_eq!(switch.owner(NO_VLAN, mac(GATEWAY)), None);
        switch.age();
    }
    switch.set_present_address(1, mac(GATEWAY));
    is_at(&mut switch, 1);
}

/// A frame returns through an external port, or a host behind the port forges the address.
#[test]
fn an_external_port_takes_no_address_that_was_learned_at_a_nic() {
    let mut switch = Switch::new();
    let mut other = switch.sibling();
    switch.allow_any_source(5);
    other.refresh();
    switch.forward(1, (mac(9), mac(8)), unread);
    // It is passed, and the address is learned neither here nor at the sibling.
    assert_eq!(switch.forward(5, (mac(9), mac(8)), unread), Route::Flood);
    other.forward_of_sibling(5, (mac(9), mac(8)), unread);
    assert_eq!(switch.route(NO_VLAN, mac(9)), Route::To(1));
    assert_eq!(other.route(NO_VLAN, mac(9)), Route::Flood);
    assert_eq!(switch.forward(1, (mac(9), mac(7)), unread), Route::Flood);
}

/// Two external ports; the gateway changes to the other one after a guest of another engine has learned its address.
#[test]
fn an_address_that_has_moved_is_forgotten_by_all_switches() {
    let mut first = Switch::new();
    let mut second = first.sibling();
    for port in [5, 6] {
        first.allow_any_source(port);
    }
    second.refresh();
    // Port 6 is one of the second switch here.
    second.forward(6, (mac(9), mac(8)), unread);
    assert_eq!(second.forward(1, (mac(1), mac(9)), unread), Route::To(6));
    first.forward(5, (mac(9), mac(8)), unread);
    second.refresh();
    assert_eq!(second.forward(1, (mac(1), mac(9)), unread), Route::Flood);
    // The address returns to its old port only by frames that enter there.
    second.forward(6, (mac(9), mac(8)), unread);
    first.refresh();
    assert_eq!(second.forward(1, (mac(1), mac(9)), unread), Route::To(6));
    assert_eq!(first.forward(2, (mac(2), mac(9)), unread), Route::Flood);
}

/// A port moves to a switch that has learned its address from forwarded frames.
#[test]
fn an_address_is_claimed_where_its_frames_come_in() {
    let mut old = Switch::new();
    let mut new = old.sibling();
    old.forward(1, (mac(9), mac(8)), unread);
    new.forward_of_sibling(1, (mac(9), mac(8)), unread);
    old.forget(1);
    new.forward(1, (mac(9), mac(7)), unread);
    for switch in [&mut old, &mut new] {
        let forged = switch.forward(2, (mac(9), mac(8)), unread);
        assert_eq!(forged, Route::Forged);
    }
}

#[test]
fn an_address_that_was_learned_is_free_when_its_port_leaves() {
    let mut switch = Switch::new();
    switch.forward(1, (mac(9), mac(8)), unread);
    assert_eq!(switch.forward(2, (mac(9), mac(8)), unread), Route::Forged);
    switch.forget(1);
    assert_eq!(switch.forward(2, (mac(9), mac(8)), unread), Route::Flood);
    assert_eq!(switch.forward(3, (mac(8), mac(9)), unread), Route::To(2));
}

/// A port with the maximum number of addresses does not take those of others.
#[test]
fn a_port_without_room_takes_no_address() {
    let mut switch = Switch::new();
    switch.forward(2, (mac(50_000), mac(0)), unread);
    for n in 0..2000 {
        switch.forward(1, (mac(n), mac(50_000)), unread);
    }
    assert_eq!(
        switch.forward(1, (mac(50_000), mac(0)), unread),
        Route::Forged
    );
    // Other ports can learn the address.
    assert_eq!(switch.forward(2, (mac(1999), mac(0)), unread), Route::To(1));
    assert_eq!(switch.route(NO_VLAN, mac(1999)), Route::To(2));
}

/// An action of a guest of one tenant on the switch.
#[derive(Clone, Debug)]
enum Step {
    Frame(PortId, u32, u32, Option<u16>),
    Address(PortId, u32),
    Forget(PortId),
}

/// Ports 0 and 1 are of one tenant, 2 and 3 of another; 4 is an external port with both VLANs.
fn tenants() -> Switch {
    let mut switch = Switch::new();
    for port in 0..4 {
        let number = u32::try_from(port).unwrap();
        switch.add_permanent_address(port, mac(number));
        switch.set_present_address(port, mac(number));
        let vlan = if port < 2 { 10 } else { 20 };
        switch.set_vlans(port, VlanMembership::new(Some(vlan), None));
    }
    let both = [10, 20].into_iter().collect();
    switch.set_vlans(4, VlanMembership::new(None, Some(both)));
    switch.allow_any_source(4);
    switch
}

/// Executes a step. Returns the route of a frame.
fn carry_out(switch: &mut Switch, step: &Step) -> Option<Route> {
    match *step {
        Step::Frame(port, src, dst, vid) => {
            let tag = vid.and_then(tagged);
            Some(switch.forward(port, (mac(src), mac(dst)), || tag))
        }
        Step::Address(port, address) => {
            switch.set_present_address(port, mac(address));
            None
        }
        Step::Forget(port) => {
            switch.forget(port);
            None
        }
    }
}

fn step_of(ports: std::ops::Range<PortId>) -> impl Strategy<Value = Step> {
    // Addresses of both tenants, and some that are free at first.
    let address = 0..8u32;
    let vid = prop::option::of(prop::sample::select(vec![0, 10, 20, 30]));
    prop_oneof![
        6 => (ports.clone(), address.clone(), address.clone(), vid)
            .prop_map(|(port, src, dst, vid)| Step::Frame(port, src, dst, vid)),
        2 => (ports.clone(), address).prop_map(|(port, to)| Step::Address(port, to)),
        1 => ports.prop_map(Step::Forget),
    ]
}

/// A step of the external port is a frame of the VLAN of one tenant.
fn from_outside(vid: u16) -> impl Strategy<Value = Step> {
    (0..8u32, 0..8u32).prop_map(move |(src, dst)| Step::Frame(4, src, dst, Some(vid)))
}

proptest! {
    #[test]
    fn no_step_of_a_tenant_changes_the_way_of_a_frame_of_another(
        steps in prop::collection::vec(
            prop_oneof![
                3 => step_of(0..2).prop_map(|step| (true, step)),
                1 => from_outside(10).prop_map(|step| (true, step)),
                3 => step_of(2..4).prop_map(|step| (false, step)),
                1 => from_outside(20).prop_map(|step| (false, step)),
            ],
            1..60,
        ),
    ) {
        let (mut alone, mut together) = (tenants(), tenants());
        for (is_first, step) in &steps {
            let seen = carry_out(&mut together, step);
            if *is_first {
                prop_assert_eq!(carry_out(&mut alone, step), seen, "{:?}", step);
            }
        }
    }
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
    switch.learn((5, true), NO_VLAN, mac(1));
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
    // Both request an address, and neither is refreshed.
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
    first.learn((0, true), NO_VLAN, mac(20));
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
        switch.learn((1, true), NO_VLAN, mac(n));
    }
    assert_eq!(switch.learned.len(), MAX_ADDRESSES_PER_PORT);
    switch.learn((2, true), NO_VLAN, mac(20_000));
    assert_eq!(switch.route(NO_VLAN, mac(20_000)), Route::To(2));
}

#[test]
fn group_addresses_are_not_learned() {
    let mut switch = Switch::new();
    switch.learn((1, true), NO_VLAN, MacAddr::BROADCAST);
    assert_eq!(switch.route(NO_VLAN, MacAddr::BROADCAST), Route::Flood);
    assert!(switch.learned.is_empty());
}
