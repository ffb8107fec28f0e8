//! Connections and datagrams to the peer of a port that takes frames slowly, or none.

use std::time::Duration;

use faultline_abi::qp::{QPT_RAW, QPT_RC, QPT_UC};
use faultline_abi::wqe::WR_RAW;
use faultline_fabric::external_port::ExternalCounts;
use faultline_simulation::process::{PortShape, ProcessShape, Processes};
use faultline_wire::packet::parse_trusted;
use faultline_wire::{Gid, MacAddr};

use crate::common::{
    Connect, End, HEADERS, MS, MTU, RETH, Send, US, connected, exchange, nics, packets_of, process,
};

/// Octets of a message, and messages of a test: together twice the room of the port.
const LEN: u64 = 32 << 10;
const MESSAGES: u64 = 64;
const ROOM: usize = 1 << 20;
/// Packets of all messages.
const PACKETS: u64 = MESSAGES * LEN / MTU;

/// When a test begins.
const START: u64 = US;

/// The peer, which is outside of the process.
const PEER: MacAddr = MacAddr([2, 0, 0, 0, 1, 1]);

/// A process whose peer has sent a frame, so that the switch knows its port, and a UC connection to the peer: a lost
/// packet is not repeated.
fn with_peer(engines: usize, hold: Duration) -> (Processes, End) {
    let mut world = process(&ProcessShape {
        engines,
        nics: nics(2, |_| engines - 1),
        ports: vec![PortShape {
            hold,
            room: ROOM,
            ..PortShape::default()
        }],
        seed: 7,
        ..ProcessShape::default()
    });
    let hello = [&[2, 0, 0, 0, 0, 1], &PEER.0[..], &[0x88, 0xb5], &[0; 46]].concat();
    world.all[0].peer(0).unwrap().send(hello);
    // The clocks of all engines are equal again.
    world.run_for(START);
    let from = End::new(&mut world, (0, 0), QPT_UC, (7, LEN));
    let path = Connect::to(Gid::from_ipv4([10, 0, 1, 1]), PEER, 17);
    from.connect(&mut world, &path);
    (world, from)
}

fn post_all(world: &mut Processes, from: &mut End) {
    for _ in 0..MESSAGES {
        from.write_to(world, (0, 0), LEN);
    }
}

fn port(world: &Processes) -> ExternalCounts {
    world.all[0].port_counts(0).unwrap()
}

/// Takes frames at the peer, and returns the PSN of each.
fn take(world: &Processes, most: u64) -> Vec<u32> {
    let peer = world.all[0].peer(0).unwrap();
    let frames = std::iter::from_fn(|| peer.take()).take(most as usize);
    frames
        .map(|frame| parse_trusted(&frame).unwrap().header.bth.psn.get())
        .collect()
}

/// Octets of the packets from `packet` on. The first packet of a message has a RETH.
fn octets(packet: u64) -> u64 {
    let is_first = packet.is_multiple_of(packets_of(LEN));
    MTU + HEADERS + if is_first { RETH } else { 0 }
}

/// Packets that fit into the ring.
fn fitting() -> u64 {
    let mut sum = 0;
    let fits = |packet: &u64| {
        sum += octets(*packet);
        sum <= ROOM as u64
    };
    (0..).take_while(fits).count() as u64
}

/// The peer takes a frame each 50 µs.
#[test]
fn a_slow_peer_loses_nothing_of_any_engine() {
    // A hold lasts until three quarters of the ring are free. Frames under way from another engine fill more of it.
    for (engines, holds) in [(1, 7), (2, 5)] {
        let (mut world, mut from) = with_peer(engines, Duration::from_secs(60));
        post_all(&mut world, &mut from);
        let mut taken = Vec::new();
        for _ in 0..PACKETS {
            world.run_for(50 * US);
            taken.extend(take(&world, 1));
        }
        assert!(taken.iter().copied().eq(0..PACKETS as u32), "{taken:?}");
        assert_eq!(world.now(), START + PACKETS * 50 * US);
        from.await_good(&mut world, MESSAGES as usize);
        let counts = port(&world);
        assert_eq!((counts.overrun, counts.tx_frames), (0, PACKETS));
        assert_eq!(counts.holds, holds);
    }
}

#[test]
fn without_holds_a_slow_peer_loses_all_that_does_not_fit() {
    for engines in [1, 2] {
        let (mut world, mut from) = with_peer(engines, Duration::ZERO);
        post_all(&mut world, &mut from);
        from.await_good(&mut world, MESSAGES as usize);
        assert_eq!(world.now(), START);
        let counts = port(&world);
        assert_eq!(counts.holds, 0);
        assert_eq!(counts.tx_frames, fitting());
        assert_eq!(counts.overrun, PACKETS - fitting());
    }
}

/// A peer that takes no frames costs a connection the hold time, once. The port holds senders again when the peer has
/// taken a quarter of the ring.
#[test]
fn a_peer_that_takes_nothing_holds_its_senders_for_the_hold_time() {
    const HOLD: u64 = 200 * MS;
    for (engines, crossing) in [(1, 0), (2, 1)] {
        let (mut world, mut from) = with_peer(engines, Duration::from_nanos(HOLD));
        post_all(&mut world, &mut from);
        let found = from.await_good(&mut world, MESSAGES as usize);
        let ended = START + HOLD + crossing;
        assert_eq!(found.last().unwrap().timestamp.get(), ended);
        let held = port(&world);
        assert_eq!(held.holds, 1);
        assert_eq!(held.tx_frames, fitting());
        assert_eq!(held.overrun, PACKETS - fitting());

        // One frame less than a quarter: the next packet has room, and its connection does not wait.
        let quarter = (0..)
            .scan(0, |sum, packet| {
                *sum += octets(packet);
                Some(*sum)
            })
            .take_while(|sum| *sum < ROOM as u64 / 4)
            .count() as u64;
        assert_eq!(take(&world, quarter).len() as u64, quarter);
        from.write_to(&mut world, (0, 0), 1);
        from.await_good(&mut world, 1);
        assert_eq!((world.now(), port(&world).holds), (ended, 1));
        // With this one it is a quarter.
        assert_eq!(take(&world, 1).len(), 1);
        let before = port(&world);
        post_all(&mut world, &mut from);
        world.settle();
        assert_eq!(port(&world).holds, 2);
        while take(&world, 1).len() == 1 {
            world.run_for(50 * US);
        }
        from.await_good(&mut world, MESSAGES as usize);
        let after = port(&world);
        assert_eq!(after.overrun, before.overrun);
        assert_eq!(after.tx_frames - before.tx_frames, PACKETS);
    }
}

/// While a connection waits for the peer, others of the same NIC continue. When the peer takes its packets, or
/// disconnects, the connection continues, too.
#[test]
fn others_do_not_wait_for_a_slow_peer() {
    const DATAGRAMS: u64 = 160;
    for (engines, goes_away) in [(1, false), (1, true), (2, false), (2, true)] {
        let (mut world, mut from) = with_peer(engines, Duration::from_secs(60));
        post_all(&mut world, &mut from);
        world.settle();
        assert_eq!(port(&world).holds, 1);
        let before = from.poll(&mut world).len();
        let at = [(0, 0), (0, 1)];
        let [mut own, other] = connected(&mut world, at, QPT_RC, (4, LEN), |path| path);
        exchange(&mut world, &mut own, &other, 3);
        // Datagrams to the same peer are lost if there is no room.
        let counts = port(&world);
        let mut raw = End::new(&mut world, (0, 0), QPT_RAW, (8, LEN));
        raw.activate(&mut world, 0);
        let frame = [&PEER.0[..], &[2, 0, 0, 0, 0, 1], &[0x88, 0xb5], &[0; 4096]].concat();
        raw.fill(&mut world, 0, &frame);
        for _ in 0..DATAGRAMS {
            let send = Send {
                opcode: WR_RAW,
                sges: &[(raw.mr.va, frame.len() as u32, raw.mr.key)],
                ..Send::default()
            };
            raw.post(&mut world, &send);
        }
        raw.await_good(&mut world, DATAGRAMS as usize);
        let after = port(&world);
        let room = ROOM as u64 - (counts.tx_octets);
        let fit = room / frame.len() as u64;
        assert_eq!(after.tx_frames - counts.tx_frames, fit);
        assert_eq!(after.overrun - counts.overrun, DATAGRAMS - fit);
        // All of this has happened at the instant of the hold.
        assert_eq!(world.now(), START);
        assert!(from.poll(&mut world).is_empty());
        let peer = world.all[0].peer(0).unwrap().clone();
        match goes_away {
            true => peer.set_connected(false),
            false => while peer.take().is_some() {},
        }
        world.settle();
        // All waiting packets are sent at this instant, or dropped, unless the ring fills again.
        let mut ended = before;
        for _ in 0..MESSAGES {
            ended += from.poll(&mut world).len();
            while peer.take().is_some() {}
            world.settle();
        }
        assert_eq!((world.now(), ended), (START, MESSAGES as usize));
        let no_peer = port(&world).no_peer;
        assert_eq!(no_peer > 0, goes_away);
    }
}
