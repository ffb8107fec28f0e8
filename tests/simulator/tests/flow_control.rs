//! Priority-based flow control: a congested link pauses the senders of one priority, and no others.

use faultline_abi::admin::DESTROY_QP;
use faultline_abi::cqe;
use faultline_abi::qp::{QPS_ERR, QPT_RAW, QPT_RC, QPT_UC, QPT_UD};
use faultline_abi::wqe as wr;
use faultline_fabric::link_model::{LinkModel, LinkModelCounts};
use faultline_nic::Dcqcn;
use faultline_simulation::Send;
use faultline_simulator::{Pair, World, expect_cqe};
use faultline_wire::{Opcode, PrioritySet};

const MICROSECOND: u64 = 1000;
/// A message of the flow that fills the link.
const LEN: u32 = 64 << 10;
/// A link of 1 Gb/s: a packet of 1 KiB takes 9 us.
const LINK: LinkModel = LinkModel {
    rate_mbps: 1000,
    delay_ns: 500,
    queue_bytes: 100_000,
    pause_bytes: 40_000,
    ..LinkModel::PLAIN
};
/// The priority of the lossless flow, and its traffic class: class selector 3.
const LOSSLESS: u8 = 3;
const CLASS: u8 = LOSSLESS << 5;

fn pfc() -> PrioritySet {
    PrioritySet::NONE.with(LOSSLESS)
}

/// Octet of a message at a place.
fn octet(at: u32) -> u8 {
    ((at * 7) >> 3) as u8
}

fn fill(world: &mut World, pair: &Pair) {
    let data: Vec<u8> = (0..LEN).map(octet).collect();
    world.hosts[0].driver.write_mr(&pair.mr[0], 0, &data);
}

#[track_caller]
fn expect_data(world: &mut World, pair: &Pair) {
    let seen = world.hosts[1].driver.read_mr(&pair.mr[1], 0, LEN as usize);
    assert!((0..LEN).map(octet).eq(seen));
}

/// The results of two flows through one link.
struct Outcome {
    counts: LinkModelCounts,
    /// Mean time of a short message of the other flow.
    short_ns: u64,
    /// Packets of the flow that fills the link, and those of them that were sent again.
    packets: usize,
    repeated: usize,
}

/// A flow of priority 3 fills the link with 64 messages of 64 KiB. A flow of priority 0 sends a short message in each 200 us.
fn two_flows(model: LinkModel) -> Outcome {
    let mut world = World::new(2, 1);
    world.model_link(0, model);
    let mut long = world.connect(QPT_RC, LEN.into(), |path| {
        path.traffic_class = CLASS;
        path.timeout = 16;
    });
    let mut short = world.connect(QPT_RC, 4096, |path| path.timeout = 16);
    fill(&mut world, &long);
    world.start_trace();
    for _ in 0..64 {
        world.post_write(&mut long, LEN);
    }
    const SHORT: u64 = 50;
    let mut time = 0;
    for _ in 0..SHORT {
        let before = world.now();
        world.post_write(&mut short, 256);
        let done = loop {
            let done = world.completions(0, &mut short.cq[0]);
            if !done.is_empty() {
                break done;
            }
            assert!(world.step(u64::MAX), "it never completes");
        };
        assert_eq!((done.len(), done[0].status), (1, cqe::SUCCESS));
        time += world.now() - before;
        world.advance_to(before + 200 * MICROSECOND);
    }
    assert!(
        world.completions(0, &mut long.cq[0]).len() < 64,
        "the link was idle"
    );
    world.run();
    expect_data(&mut world, &long);
    let peer = long.qp[1].qpn;
    let trace = world.take_trace();
    let mut psns: Vec<u32> = trace
        .iter()
        .filter(|(from, header)| *from == 0 && header.bth.dest_qp == peer)
        .map(|(_, header)| header.bth.psn.get())
        .collect();
    let packets = psns.len();
    psns.sort_unstable();
    psns.dedup();
    Outcome {
        counts: world.link_counts(0),
        short_ns: time / SHORT,
        packets,
        repeated: packets - psns.len(),
    }
}

/// With flow control by priority the long flow loses nothing, and the short messages do not notice it. A pause of all priorities
/// loses nothing either, but everything waits.
#[test]
fn a_paused_priority_loses_nothing_and_slows_no_other_down() {
    let single = two_flows(LinkModel { pfc: pfc(), ..LINK });
    let all = two_flows(LINK);
    for outcome in [&single, &all] {
        assert_eq!(outcome.counts.queue_full, 0);
        assert_eq!((outcome.packets, outcome.repeated), (64 * 64, 0));
        assert!(outcome.counts.pauses > 20, "{:?}", outcome.counts);
    }
    println!(
        "short messages: {} ns, {} ns",
        single.short_ns, all.short_ns
    );
    // The packet that is being sent, a packet of the other priority before its own share, and the way.
    assert!(single.short_ns < 40 * MICROSECOND, "{}", single.short_ns);
    assert!(all.short_ns > 150 * MICROSECOND, "{}", all.short_ns);
    let three = single.counts.by_priority[usize::from(LOSSLESS)];
    assert_eq!(three.pauses, single.counts.pauses);
    assert!(three.paused_ns > 1000 * MICROSECOND, "{three:?}");
    let others = single.counts.by_priority.iter();
    assert_eq!(others.filter(|counts| counts.pauses > 0).count(), 1);
}

/// A flow whose priority is not paused loses frames when its queue is full, and only that one.
#[test]
fn only_the_unpaused_priority_loses_frames() {
    let mut world = World::new(2, 1);
    world.model_link(0, LinkModel { pfc: pfc(), ..LINK });
    let connect = |world: &mut World, class: u8| {
        world.connect(QPT_RC, LEN.into(), |path| {
            path.traffic_class = class;
            path.timeout = 14;
        })
    };
    let mut lossless = connect(&mut world, CLASS);
    let mut lossy = connect(&mut world, 0);
    world.start_trace();
    for pair in [&mut lossless, &mut lossy] {
        fill(&mut world, pair);
        for _ in 0..8 {
            world.post_write(pair, LEN);
        }
    }
    world.run();
    assert!(world.link_counts(0).queue_full > 0);
    let trace = world.take_trace();
    let packets = |peer: u32| {
        let from_0 = trace.iter().filter(|(from, _)| *from == 0);
        from_0
            .filter(|(_, header)| header.bth.dest_qp == peer)
            .count()
    };
    assert_eq!(packets(lossless.qp[1].qpn), 8 * 64);
    assert!(packets(lossy.qp[1].qpn) > 8 * 64);
    for pair in [&mut lossless, &mut lossy] {
        let done = world.completions(0, &mut pair.cq[0]);
        assert_eq!(done.len(), 8);
        assert!(done.iter().all(|cqe| cqe.status == cqe::SUCCESS));
        expect_data(&mut world, pair);
    }
}

/// Number of queue pairs of host 0 that wait for a priority.
fn waiting(world: &World) -> usize {
    let depths = world.with_nic(0, |nic| nic.queue_depths());
    let depth = depths
        .iter()
        .find(|(queue, _)| *queue == "paused_queue_pairs");
    depth.unwrap().1
}

fn pause(world: &World, paused: PrioritySet) {
    world.pause(0, paused);
}

/// A pause holds replies, too: the READ of the other host waits, and the queue pair of another priority answers.
#[test]
fn answers_wait_for_their_priority() {
    let mut world = World::new(2, 1);
    let read = |world: &mut World, class: u8| {
        let mut pair = world.connect(QPT_RC, LEN.into(), |path| path.traffic_class = class);
        let [to, from] = [pair.mr[0], pair.mr[1]];
        let send = Send {
            opcode: wr::WR_READ,
            sges: &[(from.va, LEN, from.key)],
            remote_addr: to.va,
            rkey: to.key,
            ..Send::default()
        };
        world.hosts[1].driver.post_send(&mut pair.qp[1], &send);
        pair
    };
    pause(&world, pfc());
    let mut held = read(&mut world, CLASS);
    let mut free = read(&mut world, 0);
    world.run_for(1000 * MICROSECOND);
    expect_cqe(&mut world, 1, &mut free.cq[1], cqe::SUCCESS);
    assert_eq!(world.completions(1, &mut held.cq[1]), []);
    assert_eq!(waiting(&world), 1);
    pause(&world, PrioritySet::NONE);
    world.run_for(1000 * MICROSECOND);
    expect_cqe(&mut world, 1, &mut held.cq[1], cqe::SUCCESS);
    assert_eq!(waiting(&world), 0);
}

/// A local operation of a queue pair whose priority is paused is executed.
#[test]
fn requests_without_packets_do_not_wait() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_UC, LEN.into(), |path| path.traffic_class = CLASS);
    pause(&world, pfc());
    let invalidate = Send {
        opcode: wr::WR_LOCAL_INV,
        rkey: 0xffff_ff00,
        ..Send::default()
    };
    world.hosts[0]
        .driver
        .post_send(&mut pair.qp[0], &invalidate);
    world.run_for(MICROSECOND);
    // There is no such key: the operation was carried out, and failed.
    let found = world.completions(0, &mut pair.cq[0]);
    assert_eq!(found.len(), 1);
    assert_ne!(found[0].status, cqe::SUCCESS);
    assert_eq!(waiting(&world), 0);
}

/// Datagrams have the priority of their address handle, and a queue is in order.
#[test]
fn a_datagram_waits_for_the_priority_of_its_address_handle() {
    const QKEY: u32 = 0x1111_2222;
    let mut world = World::new(2, 1);
    let mut cq = [0, 1].map(|host| world.hosts[host].cq(8).unwrap());
    let mut qp = [0, 1].map(|host| world.hosts[host].qp(QPT_UD, &cq[host]).unwrap());
    for host in [0, 1] {
        let driver = &mut world.hosts[host].driver;
        driver.activate(qp[host].qpn, QPT_UD, QKEY).unwrap();
    }
    let buffer = world.hosts[1].mr(4096).unwrap();
    let pd = world.hosts[0].pd;
    let ah = [0, CLASS].map(|class| {
        let mut path = world.path(1, 0);
        path.traffic_class = class;
        world.hosts[0].driver.create_ah(pd, path.av()).unwrap()
    });
    pause(&world, pfc());
    for (tag, ah) in [ah[0], ah[1], ah[0]].into_iter().enumerate() {
        let sge = (buffer.va, 1024, buffer.key);
        let driver = &mut world.hosts[1].driver;
        driver.post_recv(&mut qp[1], tag as u32, &[sge]);
        let send = Send {
            opcode: wr::WR_SEND,
            inline: Some(&[7; 40]),
            ah,
            remote_qpn: qp[1].qpn,
            qkey: QKEY,
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut qp[0], &send);
    }
    world.run_for(100 * MICROSECOND);
    assert_eq!(world.completions(1, &mut cq[1]).len(), 1);
    assert_eq!(world.completions(0, &mut cq[0]).len(), 1);
    assert_eq!(waiting(&world), 1);
    pause(&world, PrioritySet::NONE);
    world.run_for(100 * MICROSECOND);
    assert_eq!(world.completions(1, &mut cq[1]).len(), 2);
    assert_eq!(world.completions(0, &mut cq[0]).len(), 2);
}

/// Raw frames, as those of the netdev, have the priority of their VLAN tag or of their DSCP.
#[test]
fn a_raw_frame_waits_for_the_priority_of_its_tag() {
    let mut world = World::new(2, 1);
    let mut cq = world.hosts[0].cq(8).unwrap();
    let mut qp = world.hosts[0].qp(QPT_RAW, &cq).unwrap();
    let (from, to) = (world.hosts[0].mac, world.hosts[1].mac);
    let driver = &mut world.hosts[0].driver;
    driver.activate(qp.qpn, QPT_RAW, 0).unwrap();
    pause(&world, pfc());
    world.start_capture();
    let tagged = |pcp: u8| {
        let mut frame = [0; 60];
        frame[..6].copy_from_slice(&to.0);
        frame[6..12].copy_from_slice(&from.0);
        frame[12..16].copy_from_slice(&[0x81, 0, pcp << 5, 5]);
        frame
    };
    for pcp in [2, LOSSLESS, 2] {
        let send = Send {
            opcode: wr::WR_RAW,
            inline: Some(&tagged(pcp)),
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut qp, &send);
    }
    world.run_for(100 * MICROSECOND);
    assert_eq!((world.take_capture().len(), waiting(&world)), (1, 1));
    pause(&world, PrioritySet::NONE);
    world.run_for(100 * MICROSECOND);
    let sent: Vec<Vec<u8>> = world.take_capture().into_iter().map(|(_, f)| f).collect();
    assert_eq!(sent, [tagged(LOSSLESS), tagged(2)]);
    assert_eq!(world.completions(0, &mut cq).len(), 3);
}

/// The congestion notification of a paused flow has a priority of its own, and is not held up by the data. It waits for its own.
#[test]
fn a_congestion_notification_waits_for_its_own_priority_only() {
    for (paused, is_sent) in [(pfc(), true), (PrioritySet::NONE.with(6), false)] {
        let mut world = World::with_config(2, 1, |config| {
            config.congestion = Some(Dcqcn::default());
        });
        let mut pair = world.connect(QPT_RC, LEN.into(), |path| path.traffic_class = CLASS);
        // Host 1 sends marked packets to host 0, which owes a notification.
        world.mark(1000);
        pause(&world, paused);
        world.start_trace();
        let [to, from] = pair.mr;
        let send = Send {
            opcode: wr::WR_WRITE,
            sges: &[(from.va, 256, from.key)],
            remote_addr: to.va,
            rkey: to.key,
            ..Send::default()
        };
        world.hosts[1].driver.post_send(&mut pair.qp[1], &send);
        world.run_for(100 * MICROSECOND);
        let sent = |world: &World, opcode: Opcode| {
            let trace = world.take_trace();
            let mut from_0 = trace.iter().filter(|(from, _)| *from == 0);
            from_0.any(|(_, header)| header.bth.opcode == opcode)
        };
        assert_eq!(sent(&world, Opcode::Cnp), is_sent);
        let done = world.completions(1, &mut pair.cq[1]).len();
        assert_eq!(
            done,
            usize::from(!is_sent),
            "the acknowledgement has priority 3"
        );
        assert_eq!(waiting(&world), 1);
        pause(&world, PrioritySet::NONE);
        world.run_for(100 * MICROSECOND);
        assert_eq!(sent(&world, Opcode::Cnp), !is_sent);
        assert_eq!(waiting(&world), 0);
    }
}

/// The time-out of a request that cannot be repeated, because its priority is paused since, uses up no retry.
#[test]
fn a_pause_uses_up_no_retries() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, LEN.into(), |path| {
        path.traffic_class = CLASS;
        path.timeout = 4;
        path.retry_cnt = 2;
    });
    world.lose(|_, _| true);
    world.post_write(&mut pair, 256);
    pause(&world, pfc());
    // 65 us is the time-out.
    world.run_for(10_000 * MICROSECOND);
    assert_eq!(world.completions(0, &mut pair.cq[0]), []);
    world.lose_nothing();
    pause(&world, PrioritySet::NONE);
    world.run();
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
}

/// Queue pairs that are reset, fail or are destroyed while they wait leave no state behind, and another one continues.
#[test]
fn queue_pairs_that_end_in_a_pause_leave_nothing() {
    let mut world = World::new(2, 1);
    pause(&world, pfc());
    let connect = |world: &mut World| {
        let mut pair = world.connect(QPT_RC, LEN.into(), |path| path.traffic_class = CLASS);
        world.post_write(&mut pair, LEN);
        pair
    };
    for _ in 0..8 {
        let pair = connect(&mut world);
        assert_eq!(waiting(&world), 1);
        let driver = &mut world.hosts[0].driver;
        driver.command(DESTROY_QP, pair.qp[0].qpn, &()).unwrap();
        assert_eq!(waiting(&world), 0);
    }
    let failed = connect(&mut world);
    let driver = &mut world.hosts[0].driver;
    driver.set_state(failed.qp[0].qpn, QPS_ERR).unwrap();
    let mut last = connect(&mut world);
    assert_eq!(waiting(&world), 2);
    pause(&world, PrioritySet::NONE);
    world.run();
    expect_cqe(&mut world, 0, &mut last.cq[0], cqe::SUCCESS);
    assert_eq!(waiting(&world), 0);
}

/// After a reset of the NIC nothing waits, and the state of the link decides again.
#[test]
fn a_reset_ends_all_waits() {
    let mut world = World::new(2, 1);
    world.model_link(0, LinkModel { pfc: pfc(), ..LINK });
    let mut pair = world.connect(QPT_RC, LEN.into(), |path| path.traffic_class = CLASS);
    for _ in 0..4 {
        world.post_write(&mut pair, LEN);
    }
    assert_eq!(waiting(&world), 1);
    world.operate(0, |nic, now, _| nic.reset(now));
    assert_eq!(waiting(&world), 0);
    // The sent frames leave the link, and the pause ends by itself.
    world.run();
    assert_eq!(world.link(0, |link| link.paused()), PrioritySet::NONE);
    assert_eq!(world.link(0, |link| link.next_deadline()), None);
}

/// A held connection sends nothing and loses no retry, while another one of its NIC continues, until it is released.
#[test]
fn a_connection_is_held_alone() {
    for kind in [QPT_RC, QPT_UC] {
        let mut world = World::new(2, 1);
        // It stops the sender when it has taken some packets.
        world.model_link(0, LINK);
        let mut held = world.connect(kind, LEN.into(), |path| path.timeout = 8);
        let mut other = world.connect(QPT_RC, 4096, |_| ());
        fill(&mut world, &held);
        world.start_trace();
        const MESSAGES: usize = 4;
        for _ in 0..MESSAGES {
            world.post_write(&mut held, LEN);
        }
        let packets = MESSAGES * (LEN >> 10) as usize;
        world.run_for(20 * MICROSECOND);
        let qpn = held.qp[0].qpn;
        assert_eq!(world.with_nic(0, |nic| nic.hold_sender()), Some(qpn));
        let sent = |world: &World| {
            let trace = world.take_trace();
            world.start_trace();
            trace.iter().filter(|(host, _)| *host == 0).count()
        };
        let before = sent(&world);
        assert!(before > 0 && before < packets, "{before}");
        // Many times its time-out of a millisecond.
        world.run_for(300_000 * MICROSECOND);
        assert_eq!(sent(&world), 0);
        let before_release = world.completions(0, &mut held.cq[0]).len();
        assert!(before_release < MESSAGES);
        world.post_write(&mut other, 256);
        world.run_for(100 * MICROSECOND);
        expect_cqe(&mut world, 0, &mut other.cq[0], cqe::SUCCESS);
        sent(&world);
        world.with_nic(0, |nic| nic.release(qpn));
        world.run();
        let done = world.completions(0, &mut held.cq[0]);
        assert!(done.iter().all(|cqe| cqe.status == cqe::SUCCESS));
        assert_eq!(before_release + done.len(), MESSAGES);
        expect_data(&mut world, &held);
        assert_eq!(before + sent(&world), packets);
    }
}

/// A held connection flushes its requests if it fails, and one that goes to RESET is not held any more.
#[test]
fn a_held_connection_can_end() {
    let mut world = World::new(2, 1);
    world.model_link(0, LINK);
    let mut pair = world.connect(QPT_RC, LEN.into(), |_| ());
    world.post_write(&mut pair, LEN);
    world.run_for(20 * MICROSECOND);
    let qpn = world.with_nic(0, |nic| nic.hold_sender()).unwrap();
    let driver = &mut world.hosts[0].driver;
    driver.set_state(qpn, QPS_ERR).unwrap();
    world.run_for(MICROSECOND);
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::WR_FLUSH_ERR);
    world.with_nic(0, |nic| nic.release(qpn));
    world.with_nic(0, |nic| nic.release(qpn + 1000));
    world.run();
}

/// A link on which the acknowledgement of 64 packets takes longer than the timeout loses nothing, but carries duplicates as slowly as
/// everything else. A requester that sent its whole window again at each timeout would not see the next acknowledgement before its
/// last retry.
#[test]
fn a_slow_peer_is_not_kept_busy_with_duplicates() {
    let mut world = World::new(2, 1);
    let slow = LinkModel {
        rate_mbps: 5,
        queue_bytes: 1 << 30,
        pause_bytes: 0,
        ..LINK
    };
    world.model_link(0, slow);
    // 67 ms, in which 39 packets pass.
    let mut pair = world.connect(QPT_RC, LEN.into(), |path| path.timeout = 14);
    fill(&mut world, &pair);
    world.start_trace();
    const MESSAGES: usize = 64;
    for _ in 0..MESSAGES {
        world.post_write(&mut pair, LEN);
    }
    world.run();
    let done = world.completions(0, &mut pair.cq[0]);
    assert_eq!(done.len(), MESSAGES);
    assert!(done.iter().all(|cqe| cqe.status == cqe::SUCCESS));
    expect_data(&mut world, &pair);
    assert_eq!(world.link_counts(0).queue_full, 0);
    let trace = world.take_trace();
    let packets = trace.iter().filter(|(from, _)| *from == 0).count();
    let needed = MESSAGES * LEN as usize / 1024;
    assert!(packets > needed, "there was no timeout");
    assert!(packets < 2 * needed, "{packets} packets, {needed} needed");
}

/// A full window moves by acknowledgements of many packets, whatever the length of messages is.
#[test]
fn a_full_window_asks_for_few_acknowledgements() {
    let mut world = World::new(2, 1);
    // A window takes 0.9 ms, the way there and back more than one.
    let long = LinkModel {
        rate_mbps: 10_000,
        delay_ns: 500 * MICROSECOND,
        queue_bytes: 1 << 30,
        pause_bytes: 0,
        ..LINK
    };
    for host in [0, 1] {
        world.model_link(host, long);
    }
    const MESSAGES: u32 = 1024;
    const PACKETS: u32 = 65;
    let mut pair = world.connect(QPT_RC, (PACKETS << 10).into(), |path| path.timeout = 18);
    world.start_trace();
    let (mut posted, mut done) = (0, 0);
    while done < MESSAGES {
        while posted < MESSAGES.min(done + 64) {
            world.post_write(&mut pair, PACKETS << 10);
            posted += 1;
        }
        assert!(world.step(u64::MAX), "it never completes");
        done += world.completions(0, &mut pair.cq[0]).len() as u32;
    }
    let trace = world.take_trace();
    let requests = trace.iter().filter(|(from, _)| *from == 0);
    let asking = requests.filter(|(_, header)| header.bth.ack_req).count();
    // The ends of messages, and one of 64 packets.
    let few = (MESSAGES + MESSAGES * PACKETS / 64) as usize;
    assert!(asking <= few, "{asking} of {few}");
}
