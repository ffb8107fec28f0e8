//! Links that pause their senders, all or single priorities: nothing is lost, no time is lost, and each pause ends.

use std::time::Duration;

use faultline_abi::admin::Counter;
use faultline_abi::qp::{QPT_RC, QPT_UC};
use faultline_fabric::link_model::{LinkModel, LinkModelCounts};
use faultline_scenario::read::read;
use faultline_scenario::trigger::Direction;
use faultline_simulation::process::{NicShape, PortShape, ProcessShape, Processes};
use faultline_wire::PrioritySet;

use crate::common::{
    Connect, End, Expect, HEADERS, MTU, RETH, connected, exchange, nics, octets_of, pattern,
    process, wired,
};

/// Octets of a WRITE, and WRITEs of a test.
const LEN: u64 = 32 << 10;
const WRITES: u64 = 8;
/// Nanoseconds of an octet on a link of 100 Mb/s.
const OCTET: u64 = 80;
/// The priority that the link pauses.
const PAUSED: u8 = 3;

/// A link of 100 Mb/s that pauses priority 3, and has room for frames that are under way then.
const LINK: LinkModel = LinkModel {
    rate_mbps: 100,
    delay_ns: 0,
    queue_bytes: 400_000,
    ecn_bytes: 0,
    pause_bytes: 40_000,
    pfc: PrioritySet::from_bits(1 << PAUSED),
    loss: 0,
    duplicate: 0,
    reorder: 0,
    corrupt: 0,
    seed: 0,
};

/// The path of packets of a priority. Packets that only wait are never repeated.
fn of_priority(priority: u8) -> impl Fn(Connect) -> Connect {
    move |path| Connect {
        traffic_class: priority << 5,
        timeout: 0,
        ..path
    }
}

fn link_to(link: LinkModel, engine: usize) -> NicShape {
    NicShape {
        engine,
        links: [None, Some(link)],
        ..NicShape::default()
    }
}

/// Two NICs on this number of engines; the link to the second one is slow.
fn two(engines: usize, link: LinkModel) -> Processes {
    process(&ProcessShape {
        engines,
        nics: vec![NicShape::default(), link_to(link, engines - 1)],
        seed: 9,
        ..ProcessShape::default()
    })
}

fn counts(world: &Processes, (process, nic): (usize, usize)) -> LinkModelCounts {
    world.all[process].link_counts(nic, Direction::Rx).unwrap()
}

/// Writes all at once, and returns the time that it takes.
fn write_all(world: &mut Processes, from: &mut End, to: &End) -> u64 {
    let data = pattern(3, LEN as usize);
    from.fill(world, 0, &data);
    let start = world.now();
    for _ in 0..WRITES {
        from.write(world, &to.mr, LEN);
    }
    from.await_good(world, WRITES as usize);
    assert!(to.read(world, 0, data.len()) == data);
    world.now() - start
}

/// The link is busy from the first frame to the last, so the time is that of all octets.
const FULL_RATE: u64 = WRITES * (LEN + LEN / MTU * HEADERS + RETH) * OCTET;

#[test]
fn a_paused_priority_loses_neither_frames_nor_time() {
    assert_eq!(FULL_RATE, WRITES * octets_of(LEN) * OCTET);
    // Each burst of the sender causes a pause. The length of a burst from another engine depends on the link between
    // the engines.
    for (engines, crossing, pauses) in [(1, 0, 7), (2, 1, 3)] {
        let mut world = two(engines, LINK);
        let at = [(0, 0), (0, 1)];
        let [mut from, to] = connected(&mut world, at, QPT_RC, (7, LEN), of_priority(PAUSED));
        let took = write_all(&mut world, &mut from, &to);
        assert_eq!(took, FULL_RATE + crossing, "{engines} engines");
        assert_eq!(world.counter(at[0], Counter::retransmitted_packets), 0);
        assert_eq!(world.counter(at[1], Counter::out_of_sequence), 0);
        let counts = counts(&world, at[1]);
        assert_eq!(counts.queue_full, 0);
        let of_priority = counts.by_priority[usize::from(PAUSED)];
        let all: u64 = counts.by_priority.iter().map(|it| it.pauses).sum();
        assert_eq!([counts.pauses, all, of_priority.pauses], [pauses; 3]);
        // It is paused from the first burst to the rest of the last one.
        assert!(of_priority.paused_ns > FULL_RATE / 2 && of_priority.paused_ns < FULL_RATE);
        world.expect_legal();
    }
}

/// Other priorities have their own queue, which has room.
#[test]
fn another_priority_does_not_wait_for_the_paused_one() {
    for engines in [1, 2] {
        let mut world = two(engines, LINK);
        let at = [(0, 0), (0, 1)];
        let [mut from, to] = connected(&mut world, at, QPT_RC, (7, LEN), of_priority(PAUSED));
        let [mut other, other_to] = connected(&mut world, at, QPT_RC, (7, 64), of_priority(5));
        for _ in 0..WRITES {
            from.write(&mut world, &to.mr, LEN);
        }
        world.run_for(OCTET * 1000);
        assert!(from.poll(&mut world).is_empty());
        let start = world.now();
        other.write(&mut world, &other_to.mr, 64);
        other.await_good(&mut world, 1);
        let took = world.now() - start;
        // Behind the frame that is being sent, which is the first one.
        let rest = MTU + HEADERS + RETH - 1000;
        let own = 64 + HEADERS + RETH;
        let crossing = engines as u64 - 1;
        assert_eq!(took, (rest + own) * OCTET + crossing, "{engines} engines");
        from.await_good(&mut world, WRITES as usize);
        assert_eq!(counts(&world, at[1]).queue_full, 0);
    }
}

/// Frames of another process wait in the rings of the ports. `engines` of the receiving process: the port is on the first one, the NIC on
/// the last one.
#[test]
fn a_priority_of_a_sender_in_another_process_loses_neither_frames_nor_time() {
    let port = PortShape {
        hold: Duration::from_secs(60),
        room: 64 << 10,
        ..PortShape::default()
    };
    for engines in [1, 2] {
        let near = ProcessShape {
            engines: 1,
            nics: nics(1, |_| 0),
            ports: vec![port.clone()],
            ..ProcessShape::default()
        };
        let far = ProcessShape {
            engines,
            nics: vec![link_to(LINK, engines - 1)],
            seed: 4,
            ..near.clone()
        };
        let mut world = wired(&near, &far);
        world.wires[0].room = 8;
        let at = [(0, 0), (1, 0)];
        let [mut from, to] = connected(&mut world, at, QPT_RC, (7, LEN), of_priority(PAUSED));
        // The switches learn the addresses behind the ports.
        exchange(&mut world, &mut from, &to, 1);
        let before = counts(&world, at[1]);
        let took = write_all(&mut world, &mut from, &to);
        let after = counts(&world, at[1]);
        // A frame is a nanosecond later on another engine, and so is its acknowledgement.
        let crossings = 2 * (engines as u64 - 1);
        assert_eq!(took, FULL_RATE + crossings, "{engines} engines");
        assert_eq!(after.queue_full, 0);
        assert_eq!(after.pauses - before.pauses, 10);
        // Pauses of the far link hold the senders of the near port.
        let counts = world.all[0].port_counts(0).unwrap();
        assert_eq!((counts.holds, counts.overrun), (16, 0));
        assert_eq!(world.counter(at[0], Counter::retransmitted_packets), 0);
        world.expect_legal();
    }
}

/// Events while the link of the receiver pauses the priority.
#[derive(Clone, Copy, Debug)]
enum Event {
    Nothing,
    ReceiverLinkFlaps,
    SenderLinkGoesDown,
    ReceiverIsReset,
    ReceiverLosesBusMastering,
    /// All NICs move to the first engine, with their links.
    ScenarioRuns,
}

const EVENTS: [Event; 6] = [
    Event::Nothing,
    Event::ReceiverLinkFlaps,
    Event::SenderLinkGoesDown,
    Event::ReceiverIsReset,
    Event::ReceiverLosesBusMastering,
    Event::ScenarioRuns,
];

/// Executes the event for NICs 0 and 1.
fn carry_out(world: &mut Processes, event: Event) {
    let set_link = |world: &Processes, nic, up| {
        world.all[0].with_port(nic, |port| port.link_changed |= port.nic.change_link(up))
    };
    match event {
        Event::Nothing => {}
        Event::ReceiverLinkFlaps => {
            set_link(world, 1, false);
            world.settle();
            set_link(world, 1, true);
        }
        Event::SenderLinkGoesDown => drop(set_link(world, 0, false)),
        Event::ReceiverIsReset => world.all[0].reset_nic(1),
        Event::ReceiverLosesBusMastering => {
            world.all[0].with_port(1, |port| port.bus_master = false);
        }
        Event::ScenarioRuns => {
            let rules = "[[rule]]\non = { dir = 'rx', opcode = 'REQUEST' }\ndo = { count = {} }\n";
            let names = ["nic0", "nic1", "nic2", "nic3"].map(str::to_owned);
            let plan = read("rules.toml", rules).unwrap().plan(&names, &[]);
            let before = world.all[0].start_scenario(plan.unwrap());
            world.all[0].stop_scenario(before).unwrap();
            world.all[0].move_nics(&[1, 3], 1);
        }
    }
}

/// Whatever happens to the receiver while its link pauses the priority, the pause ends, and other frames of the
/// priority continue.
#[test]
fn a_pause_ends_when_the_link_has_room_in_every_case() {
    let mut times = Vec::new();
    for event in EVENTS {
        let mut shapes = nics(4, |nic| nic % 2);
        shapes[1].links[1] = Some(LINK);
        let mut world = process(&ProcessShape {
            engines: 2,
            nics: shapes,
            seed: 2,
            ..ProcessShape::default()
        });
        let [mut from, to] = connected(
            &mut world,
            [(0, 0), (0, 1)],
            QPT_RC,
            (7, LEN),
            of_priority(PAUSED),
        );
        let at = [(0, 2), (0, 3)];
        // It completes when it is sent: no acknowledgement waits for the next pause.
        let [mut other, other_to] = connected(&mut world, at, QPT_UC, (7, 64), of_priority(PAUSED));
        for _ in 0..WRITES {
            from.write(&mut world, &to.mr, LEN);
        }
        world.run_while(|world| counts(world, (0, 1)).pauses == 0);
        carry_out(&mut world, event);
        // NICs that are not involved wait, too: the destination of a frame is not known before it is built.
        other.write(&mut world, &other_to.mr, 64);
        other.await_good(&mut world, 1);
        times.push((event, world.now()));
    }
    for (event, time) in &times {
        let (_, expected) = times[0];
        assert_eq!(*time, expected, "{event:?}");
        assert!(*time > 0);
    }
}

/// PAUSE instead of PFC: two NICs write to a third over a link of 1 Gb/s.
fn into_a_narrow_link(engines: usize, pause_bytes: u32) -> (LinkModelCounts, u64) {
    let mut shapes = nics(3, |nic| nic % engines);
    shapes[2].links[1] = Some(LinkModel {
        rate_mbps: 1000,
        queue_bytes: 128 << 10,
        pause_bytes,
        ..LinkModel::default()
    });
    let mut world = process(&ProcessShape {
        engines,
        nics: shapes,
        seed: 9,
        ..ProcessShape::default()
    });
    let change = |path| Connect {
        timeout: 10,
        ..path
    };
    let mut pairs =
        [0, 1].map(|nic| connected(&mut world, [(0, nic), (0, 2)], QPT_RC, (7, LEN), change));
    let start = world.now();
    for [from, to] in &mut pairs {
        for _ in 0..WRITES {
            from.write(&mut world, &to.mr, LEN);
        }
    }
    let mut ended = 0;
    for [from, _] in &mut pairs {
        from.await_good(&mut world, WRITES as usize);
        ended = world.now() - start;
    }
    world.expect_legal();
    (counts(&world, (0, 2)), ended)
}

#[test]
fn a_link_pauses_senders_of_all_engines_before_it_is_full() {
    let full_rate = 2 * WRITES * octets_of(LEN) * 8;
    // With three engines, the receiver's engine is that of no sender.
    for (engines, crossing) in [(1, 0), (2, 0), (3, 1)] {
        let (counts, took) = into_a_narrow_link(engines, 32 << 10);
        assert_eq!(took, full_rate + crossing, "{engines} engines");
        assert_eq!((counts.pauses, counts.queue_full), (17, 0));
    }
    let (counts, took) = into_a_narrow_link(2, 0);
    assert_eq!((counts.pauses, counts.queue_full), (0, 399));
    assert!(took > full_rate);
}
