//! iWARP: the answers to READs show memory as it was when they were sent first, also if TCP sends them again.

use std::cell::RefCell;
use std::rc::Rc;

use faultline_abi::admin::Counter;
use faultline_abi::cqe;
use faultline_abi::qp::{QPS_ERR, QPS_RTS};
use faultline_abi::wqe as wr;
use faultline_fabric::link_model::LinkModel;
use faultline_simulation::driver::ALL_ACCESS;
use faultline_simulation::{Pager, Send};
use faultline_simulator::{HostPager, World};
use faultline_wire::{Ethernet, Ip, Seq, Tcp};

use crate::common::{counter, pattern, state};
use crate::iwarp::{Link, completed, connect, has_data, iwarp, post, seal, world};
use crate::iwarp_addresses::spend_memory;

const MS: u64 = 1_000_000;
const PAGE: u64 = 4096;
const VA: u64 = 0x5000_0000_0000;
/// Octets of a READ: one FPDU.
const LEN: u32 = 1000;
/// Frames that are shorter carry no answer to a READ.
const ANSWER: usize = 500;

/// Octets that differ from those of [`pattern`] everywhere.
fn changed(len: u32) -> Vec<u8> {
    pattern(len).iter().map(|octet| !octet).collect()
}

/// Host 0 READs `len` octets at `remote` (address, key) to `offset` of its region.
fn read(world: &mut World, link: &mut Link, offset: u64, len: u32, remote: (u64, u32)) {
    let send = Send {
        opcode: wr::WR_READ,
        sges: &[(link.mr[0].va + offset, len, link.mr[0].key)],
        remote_addr: remote.0,
        rkey: remote.1,
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut link.qp[0], &send);
}

/// Loses the first frame of host 1 with data of an answer. Returns the frames with such data that host 1 sends.
fn lose_first_answer(world: &World) -> Rc<RefCell<Vec<Vec<u8>>>> {
    let sent = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&sent);
    world.change(1, move |frame| {
        if frame.len() < ANSWER {
            return Some(frame);
        }
        seen.borrow_mut().push(frame.clone());
        (seen.borrow().len() > 1).then_some(frame)
    });
    sent
}

/// The READs of a queue pair are executed in order (RFC 5040 section 5.5), so the first one does not show a later state than the second one.
#[test]
fn an_answer_that_is_lost_does_not_show_a_later_state_than_the_next_one() {
    let mut world = world(91);
    let mut link = connect(&mut world, false);
    let (mr, len) = (link.mr[1], LEN as usize);
    let old = pattern(LEN);
    for offset in [0, 8192] {
        world.hosts[1].driver.write_mr(&mr, offset, &old);
    }
    let sent = lose_first_answer(&world);
    for offset in [0, 8192] {
        read(&mut world, &mut link, offset, LEN, (mr.va + offset, mr.key));
    }
    world.run_for(MS);
    assert_eq!(sent.borrow().len(), 2, "both answers have been sent");
    assert_eq!(completed(&mut world, 0, &mut link), []);
    for offset in [0, 8192] {
        world.hosts[1].driver.write_mr(&mr, offset, &changed(LEN));
    }
    world.run();
    let done = completed(&mut world, 0, &mut link);
    assert_eq!(done, [(cqe::RDMA_READ, cqe::SUCCESS, LEN); 2]);
    for offset in [0, 8192] {
        let found = world.hosts[0].driver.read_mr(&link.mr[0], offset, len);
        assert!(found == old, "at {offset}: not what the memory had");
    }
}

/// The peer has what it has read, or will have it: that the region is gone now harms neither the READ nor the connection.
#[test]
fn an_answer_that_is_lost_arrives_although_its_region_is_gone() {
    let mut world = world(92);
    let mut link = connect(&mut world, false);
    let mut pager = HostPager::new(&mut world, 1, 64, 6);
    let region = pager.register(&mut world, VA, 1 << 20);
    let key = pager.regions[region].key;
    let data = pattern(LEN);
    pager.map_page(&mut world, region, VA / PAGE, true);
    pager.write(&world, region, 0, &data);
    let sent = lose_first_answer(&world);
    read(&mut world, &mut link, 0, LEN, (VA, key));
    world.run_for(MS);
    assert_eq!(sent.borrow().len(), 1);
    pager.evict_all(&mut world, region);
    pager.deregister(&mut world, region);
    world.run();
    let done = completed(&mut world, 0, &mut link);
    assert_eq!(done, [(cqe::RDMA_READ, cqe::SUCCESS, LEN)]);
    let found = world.hosts[0].driver.read_mr(&link.mr[0], 0, data.len());
    assert!(found == data);
    assert_eq!(sent.borrow().len(), 2);
    for host in 0..2 {
        assert_eq!(state(&mut world, host, &link.qp[host]), QPS_RTS);
    }
}

/// The peer learns which READ was refused, although the answer before it is lost, and its memory is gone, too.
#[test]
fn a_refused_read_behind_a_lost_answer_has_its_status() {
    let mut world = world(96);
    let mut link = connect(&mut world, false);
    let pd = world.hosts[1].pd;
    let driver = &mut world.hosts[1].driver;
    let mr = driver.reg_mr(pd, VA, 2 * PAGE, ALL_ACCESS).unwrap();
    lose_first_answer(&world);
    read(&mut world, &mut link, 0, LEN, (VA, mr.key));
    world.run_for(MS);
    Pager::deregister(&mut world.hosts[1].driver, mr.key).unwrap();
    read(&mut world, &mut link, PAGE, LEN, (VA + PAGE, mr.key));
    world.run();
    let done = completed(&mut world, 0, &mut link);
    let statuses: Vec<u8> = done.iter().map(|(_, status, _)| *status).collect();
    assert_eq!(statuses, [cqe::SUCCESS, cqe::REM_ACCESS_ERR]);
}

/// Removes the second half of the data of a segment.
fn halve(mut frame: Vec<u8>) -> Vec<u8> {
    let (_, at_ip) = Ethernet::parse(&frame).unwrap();
    let (mut ip, ip_len) = Ip::parse(&frame[at_ip..]).unwrap();
    let at_tcp = at_ip + ip_len;
    let header = usize::from(frame[at_tcp + 12] >> 4) * 4;
    let len = header + (ip.payload_len() - header) / 2;
    ip.set_payload_len(len).unwrap();
    frame.truncate(at_tcp + len);
    ip.emit(&mut frame[at_ip..]).unwrap();
    seal(&mut frame, &ip, at_tcp);
    frame
}

/// The CRC of an FPDU fits all of its octets, although they are read in two transmissions.
#[test]
fn the_rest_of_an_answer_fits_the_part_that_has_arrived() {
    let mut world = world(93);
    let mut link = connect(&mut world, false);
    let (mr, old) = (link.mr[1], pattern(LEN));
    world.hosts[1].driver.write_mr(&mr, 0, &old);
    let mut is_first = true;
    world.change(1, move |frame| {
        let is_answer = frame.len() >= ANSWER;
        let is_cut = is_answer && std::mem::take(&mut is_first);
        Some(if is_cut { halve(frame) } else { frame })
    });
    read(&mut world, &mut link, 0, LEN, (mr.va, mr.key));
    world.run_for(MS);
    world.hosts[1].driver.write_mr(&mr, 0, &changed(LEN));
    world.run();
    let done = completed(&mut world, 0, &mut link);
    assert_eq!(done, [(cqe::RDMA_READ, cqe::SUCCESS, LEN)]);
    let found = world.hosts[0].driver.read_mr(&link.mr[0], 0, old.len());
    assert!(found == old);
}

/// Copies of answers are the guest's memory. Without memory one FPDU leaves after the other, not two as the initial window allows, and all
/// arrive.
#[test]
fn without_memory_an_answer_leaves_one_fpdu_at_a_time() {
    for (is_spent, at_once) in [(false, 2), (true, 1)] {
        let mut world = World::with_config(2, 94, |config| {
            iwarp(config);
            config.table_bytes = 4 << 20;
        });
        let mut link = connect(&mut world, false);
        let (mr, data) = (link.mr[1], pattern(100_000));
        world.hosts[1].driver.write_mr(&mr, 0, &data);
        if is_spent {
            spend_memory(&mut world, 1);
        }
        // Acknowledgments are lost.
        let mut requests = 1..=1;
        world.change(0, move |frame| requests.next().map(|_| frame));
        read(&mut world, &mut link, 0, 100_000, (mr.va, mr.key));
        world.start_capture();
        world.run_for(MS);
        let sent = world.take_capture();
        let answers = sent.iter().filter(|(_, frame)| frame.len() >= ANSWER);
        assert_eq!(answers.count(), at_once, "spent: {is_spent}");
        world.change(0, Some);
        world.run();
        let done = completed(&mut world, 0, &mut link);
        assert_eq!(done, [(cqe::RDMA_READ, cqe::SUCCESS, 100_000)]);
        let found = world.hosts[0].driver.read_mr(&link.mr[0], 0, data.len());
        assert!(found == data);
    }
}

#[test]
fn the_copies_of_answers_end_with_the_connection() {
    let mut world = world(95);
    let mut link = connect(&mut world, false);
    let mr = link.mr[1];
    let before = counter(&mut world, 1, Counter::table_bytes);
    // Acknowledgments are lost.
    let mut requests = 1..=1;
    world.change(0, move |frame| requests.next().map(|_| frame));
    read(&mut world, &mut link, 0, LEN, (mr.va, mr.key));
    world.run_for(MS);
    let held = counter(&mut world, 1, Counter::table_bytes) - before;
    assert!(held >= LEN.into(), "{held}");
    let qpn = link.qp[1].qpn;
    world.hosts[1].driver.set_state(qpn, QPS_ERR).unwrap();
    let left = counter(&mut world, 1, Counter::table_bytes) - before;
    assert!(left + u64::from(LEN) <= held, "{left} of {held}");
}

/// Each word of a region is the number of the last change, and READs follow each other on a bad wire: what they return never decreases.
#[test]
fn reads_on_a_bad_wire_show_memory_in_order() {
    const READS: u64 = 80;
    const WORDS: u64 = 1500;
    let mut world = world(97);
    let mut link = connect(&mut world, false);
    world.impair(LinkModel {
        loss: 100_000,
        duplicate: 10_000,
        reorder: 30_000,
        ..LinkModel::PLAIN
    });
    let (mr, len) = (link.mr[1], u32::try_from(WORDS * 8).unwrap());
    for n in 0..READS {
        let at = n * u64::from(len);
        read(&mut world, &mut link, at, len, (mr.va, mr.key));
    }
    let (mut done, mut change) = (0, 0u64);
    while done < READS {
        change += 1;
        let octets = change.to_le_bytes().repeat(WORDS as usize);
        world.hosts[1].driver.write_mr(&mr, 0, &octets);
        assert!(world.step(u64::MAX), "{done} READs are complete");
        let found = completed(&mut world, 0, &mut link);
        assert!(found.iter().all(|(_, status, _)| *status == cqe::SUCCESS));
        done += found.len() as u64;
    }
    let all = usize::try_from(READS * WORDS * 8).unwrap();
    let octets = world.hosts[0].driver.read_mr(&link.mr[0], 0, all);
    let (words, _) = octets.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    assert!(
        words.is_sorted(),
        "a READ shows an earlier state than the one before it"
    );
    assert!(counter(&mut world, 1, Counter::retransmitted_packets) > 0);
}

/// The acknowledgment of a frame with another number, and with these selectively acknowledged octets.
fn acknowledging(frame: &[u8], ack: Seq, blocks: &[(u32, u32)]) -> Vec<u8> {
    let (_, at_ip) = Ethernet::parse(frame).unwrap();
    let (mut ip, ip_len) = Ip::parse(&frame[at_ip..]).unwrap();
    let at_tcp = at_ip + ip_len;
    let (mut tcp, _) = Tcp::parse(&frame[at_tcp..]).unwrap();
    tcp.ack = ack;
    tcp.options.sack = Default::default();
    for (left, right) in blocks {
        assert!(tcp.options.sack.push(ack.add(*left), ack.add(*right)));
    }
    ip.set_payload_len(tcp.header_len()).unwrap();
    let mut frame = frame[..at_tcp].to_vec();
    ip.emit(&mut frame[at_ip..]).unwrap();
    frame.resize(at_tcp + tcp.header_len(), 0);
    tcp.emit(&mut frame[at_tcp..]).unwrap();
    seal(&mut frame, &ip, at_tcp);
    frame
}

/// A peer that acknowledges a part of each FPDU selectively makes the others leave in pieces, from copies. Without memory there is one.
#[test]
fn a_peer_that_takes_fpdus_apart_does_not_cause_more_copies_than_there_is_memory() {
    /// Octets of an FPDU.
    const FPDU: u32 = 1448;
    let mut world = World::with_config(2, 98, |config| {
        iwarp(config);
        config.table_bytes = 4 << 20;
    });
    for host in &mut world.hosts {
        host.driver.set_netdev(host.mac, 1500, 0).unwrap();
    }
    let mut link = connect(&mut world, false);
    // The congestion window grows.
    post(&mut world, &mut link, wr::WR_WRITE, 1 << 20, |_| {});
    world.run();
    assert_eq!(completed(&mut world, 0, &mut link).len(), 1);
    spend_memory(&mut world, 0);
    let last = Rc::new(RefCell::new(Vec::new()));
    let answered = Rc::clone(&last);
    world.change(1, move |frame| {
        *answered.borrow_mut() = frame;
        None
    });
    world.start_capture();
    let len = 60 * 1428;
    post(&mut world, &mut link, wr::WR_WRITE, len, |_| {});
    world.run_for(MS);
    let before = counter(&mut world, 0, Counter::table_bytes);
    let frames = world.take_capture();
    let sent: Vec<_> = frames
        .iter()
        .filter(|(host, frame)| *host == 0 && has_data(frame))
        .collect();
    let seq = Tcp::parse(&sent[0].1[34..]).unwrap().0.seq;
    assert!(sent.len() > 30, "{} segments in flight", sent.len());
    let holes = (0..12).map(|n| (n * FPDU + 700, (n + 1) * FPDU + 300));
    let rest = (12 * FPDU + 700, sent.len() as u32 * FPDU);
    let blocks: Vec<_> = holes.chain([rest]).collect();
    world.change(1, |_| None);
    for some in blocks.chunks(3) {
        let frame = acknowledging(&last.borrow(), seq, some);
        world.inject(1, frame);
    }
    world.run_for(MS);
    let held = counter(&mut world, 0, Counter::table_bytes) - before;
    assert!((1448..3 * 1448).contains(&held), "{held}");
    world.change(1, Some);
    world.run();
    let done = completed(&mut world, 0, &mut link);
    assert_eq!(done, [(cqe::RDMA_WRITE, cqe::SUCCESS, len)]);
}
