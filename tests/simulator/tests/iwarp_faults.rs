//! iWARP: page faults at both ends, by fault policy.

use faultline_abi::Status;
use faultline_abi::admin::Counter;
use faultline_abi::qp::{
    FAULT_POLICY_DROP, FAULT_POLICY_RNR, FAULT_POLICY_STALL, FAULT_POLICY_TERMINATE, QPS_ERR,
    QPS_RTS,
};
use faultline_abi::{cqe, wqe as wr};
use faultline_fabric::link_model::LinkModel;
use faultline_simulation::Send;
use faultline_simulator::pager::run;
use faultline_simulator::{HostPager, World};

use crate::common::{counter, pattern, state};
use crate::iwarp::{Link, completed, connect, world};

const LEN: u32 = 40_000;
const VA: u64 = 0x5000_0000_0000;

fn set_policy(world: &mut World, host: usize, link: &Link, policy: u8) {
    let driver = &mut world.hosts[host].driver;
    driver.set_fault_policy(link.qp[host].qpn, policy).unwrap();
}

/// Posts a request of `from` with local memory at `local` and that of the peer at `remote` (address, key).
fn post(
    world: &mut World,
    link: &mut Link,
    from: usize,
    opcode: u8,
    local: (u64, u32),
    remote: (u64, u32),
) {
    let send = Send {
        opcode,
        sges: &[(local.0, LEN, local.1)],
        remote_addr: remote.0,
        rkey: remote.1,
        ..Send::default()
    };
    world.hosts[from]
        .driver
        .post_send(&mut link.qp[from], &send);
}

#[test]
fn a_write_to_absent_pages_arrives_under_each_policy_but_terminate() {
    for policy in [FAULT_POLICY_RNR, FAULT_POLICY_DROP, FAULT_POLICY_STALL] {
        let mut world = world(31);
        let mut link = connect(&mut world, false);
        set_policy(&mut world, 1, &link, policy);
        let mut pager = HostPager::new(&mut world, 1, 64, 6);
        let region = pager.register(&mut world, VA, 1 << 20);
        let key = pager.regions[region].key;
        let local = (link.mr[0].va, link.mr[0].key);
        for round in 0..3 {
            let mut data = pattern(LEN);
            data.iter_mut().for_each(|octet| *octet ^= round);
            world.hosts[0].driver.write_mr(&link.mr[0], 0, &data);
            post(
                &mut world,
                &mut link,
                0,
                wr::WR_WRITE,
                local,
                (VA + 77, key),
            );
            run(&mut world, &mut [&mut pager]);
            let done = completed(&mut world, 0, &mut link);
            assert_eq!(done, [(cqe::RDMA_WRITE, cqe::SUCCESS, LEN)], "{policy}");
            assert_eq!(pager.read(&world, region, 77, data.len()), data, "{policy}");
            pager.evict_all(&mut world, region);
        }
        assert!(!pager.records.is_empty());
        let record = &pager.records[0];
        assert_eq!(
            (record.object.get(), record.va.get()),
            (link.qp[1].qpn, VA + 77)
        );
        pager.check_free(&world);
        assert_eq!(state(&mut world, 0, &link.qp[0]), QPS_RTS);
    }
}

#[test]
fn policy_terminate_ends_the_stream() {
    let mut world = world(32);
    let mut link = connect(&mut world, false);
    set_policy(&mut world, 1, &link, FAULT_POLICY_TERMINATE);
    let mut pager = HostPager::new(&mut world, 1, 64, 6);
    let region = pager.register(&mut world, VA, 1 << 20);
    let key = pager.regions[region].key;
    let local = (link.mr[0].va, link.mr[0].key);
    post(&mut world, &mut link, 0, wr::WR_WRITE, local, (VA, key));
    run(&mut world, &mut [&mut pager]);
    for host in 0..2 {
        assert_eq!(state(&mut world, host, &link.qp[host]), QPS_ERR);
    }
    let done = completed(&mut world, 0, &mut link);
    assert_eq!(done.len(), 1);
    assert_ne!(done[0].1, cqe::SUCCESS);
}

#[test]
fn faults_of_local_buffers_and_of_memory_that_is_read_are_waited_for() {
    let mut world = world(33);
    let mut link = connect(&mut world, false);
    let mut pagers = [0, 1].map(|host| HostPager::new(&mut world, host, 64, 6));
    let regions = [0, 1].map(|host| pagers[host].register(&mut world, VA, 1 << 20));
    let keys = [0, 1].map(|host| pagers[host].regions[regions[host]].key);
    let data = pattern(LEN);
    for opcode in [wr::WR_WRITE, wr::WR_READ, wr::WR_SEND, wr::WR_WRITE] {
        let (source, sink) = if opcode == wr::WR_READ {
            (1, 0)
        } else {
            (0, 1)
        };
        let data: Vec<u8> = data.iter().map(|octet| octet ^ opcode).collect();
        pagers[source].write(&world, regions[source], 5, &data);
        for host in 0..2 {
            pagers[host].evict_all(&mut world, regions[host]);
        }
        let sges = [(VA + 9, LEN, keys[1])];
        if opcode == wr::WR_SEND {
            world.hosts[1].driver.post_recv(&mut link.qp[1], 0, &sges);
        }
        let (local, remote) = if opcode == wr::WR_READ {
            (9, 5)
        } else {
            (5, 9)
        };
        let (local, remote) = ((VA + local, keys[0]), (VA + remote, keys[1]));
        post(&mut world, &mut link, 0, opcode, local, remote);
        let [a, b] = &mut pagers;
        run(&mut world, &mut [a, b]);
        let done = completed(&mut world, 0, &mut link);
        assert_eq!(done.len(), 1, "{opcode}");
        assert_eq!(done[0].1, cqe::SUCCESS, "{opcode}");
        assert_eq!(
            pagers[sink].read(&world, regions[sink], 9, data.len()),
            data,
            "{opcode}"
        );
    }
}

/// Pages are taken away all the time while data flows over a bad wire.
#[test]
fn invalidation_while_data_flows_damages_nothing() {
    for policy in [FAULT_POLICY_RNR, FAULT_POLICY_DROP] {
        let mut world = world(34);
        let mut link = connect(&mut world, false);
        set_policy(&mut world, 1, &link, policy);
        world.impair(LinkModel {
            loss: 10_000,
            reorder: 30_000,
            ..LinkModel::PLAIN
        });
        let mut pagers = [0, 1].map(|host| HostPager::new(&mut world, host, 64, 6));
        let regions = [0, 1].map(|host| pagers[host].register(&mut world, VA, 1 << 20));
        let keys = [0, 1].map(|host| pagers[host].regions[regions[host]].key);
        let data = pattern(LEN);
        pagers[0].write(&world, regions[0], 0, &data);
        for n in 0..6u64 {
            let remote = (VA + n * 50_000, keys[1]);
            post(
                &mut world,
                &mut link,
                0,
                wr::WR_WRITE,
                (VA, keys[0]),
                remote,
            );
        }
        let mut done = 0;
        for round in 0..5000u64 {
            let until = world.now() + 2_000_000;
            while world.step(until) {}
            world.advance_to(until);
            for (pager, region) in pagers.iter_mut().zip(regions) {
                pager.collect(&mut world);
                pager.answer_due(&mut world);
                if round % 7 == 0 && round < 200 {
                    pager.evict_all(&mut world, region);
                }
            }
            let found = completed(&mut world, 0, &mut link);
            assert!(found.iter().all(|(_, status, _)| *status == cqe::SUCCESS));
            done += found.len();
        }
        assert_eq!(done, 6, "{policy}");
        for n in 0..6 {
            let found = pagers[1].read(&world, regions[1], n * 50_000, data.len());
            assert_eq!(found, data, "{policy}");
        }
        pagers.iter().for_each(|pager| pager.check_free(&world));
    }
}

const MS: u64 = 1_000_000;
const PAGE: u64 = 4096;

/// Answers the only fault so far: the page will not become present.
#[track_caller]
fn refuse_page(world: &mut World, pager: &mut HostPager) {
    pager.collect(world);
    let [record] = &pager.records[..] else {
        panic!("{:?}", pager.records);
    };
    let token = record.token.get();
    pager.resume(world, token, Status::NoResources).unwrap();
}

/// The FPDU that was refused has arrived since, or it has not.
#[test]
fn an_answer_counts_for_a_refused_fpdu_only_until_it_has_arrived() {
    for arrives in [true, false] {
        let mut world = world(35);
        let mut link = connect(&mut world, false);
        set_policy(&mut world, 1, &link, FAULT_POLICY_DROP);
        let mut pager = HostPager::new(&mut world, 1, 64, 6);
        let region = pager.register(&mut world, VA, 1 << 20);
        let target = (VA, pager.regions[region].key);
        let other = (link.mr[1].va, link.mr[1].key);
        let send = |world: &mut World, link: &mut Link, remote: (u64, u32)| {
            let send = Send {
                opcode: wr::WR_WRITE,
                sges: &[(link.mr[0].va, 100, link.mr[0].key)],
                remote_addr: remote.0,
                rkey: remote.1,
                ..Send::default()
            };
            world.hosts[0].driver.post_send(&mut link.qp[0], &send);
        };
        send(&mut world, &mut link, target);
        world.run_for(MS);
        assert_eq!(counter(&mut world, 1, Counter::page_fault_drops), 1);
        if arrives {
            pager.map_page(&mut world, region, VA / PAGE, true);
            world.run_for(1_000 * MS);
            let done = completed(&mut world, 0, &mut link);
            assert_eq!(done, [(cqe::RDMA_WRITE, cqe::SUCCESS, 100)]);
        }
        refuse_page(&mut world, &mut pager);
        world.run_for(MS);
        let expected = if arrives { QPS_RTS } else { QPS_ERR };
        assert_eq!(state(&mut world, 1, &link.qp[1]), expected);
        if arrives {
            send(&mut world, &mut link, other);
            world.run();
            let done = completed(&mut world, 0, &mut link);
            assert_eq!(done, [(cqe::RDMA_WRITE, cqe::SUCCESS, 100)]);
        }
    }
}

/// The data was sent before, and its acknowledgment comes while the page is asked for again.
#[test]
fn a_page_of_data_that_is_acknowledged_is_not_waited_for() {
    let mut world = world(36);
    let mut link = connect(&mut world, false);
    let mut pager = HostPager::new(&mut world, 0, 64, 6);
    let region = pager.register(&mut world, VA, 1 << 20);
    let key = pager.regions[region].key;
    for page in 0..10 {
        pager.map_page(&mut world, region, VA / PAGE + page, true);
    }
    // No acknowledgment arrives.
    world.change(1, |_| None);
    let remote = (link.mr[1].va, link.mr[1].key);
    let send = Send {
        opcode: wr::WR_WRITE,
        sges: &[(VA, 100, key)],
        remote_addr: remote.0,
        rkey: remote.1,
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut link.qp[0], &send);
    world.run_for(MS);
    pager.evict_all(&mut world, region);
    world.run_for(1_000 * MS);
    assert_eq!(completed(&mut world, 0, &mut link), []);
    // One arrives, with data of the peer.
    world.change(1, Some);
    let local = (link.mr[1].va, link.mr[1].key);
    let remote = (link.mr[0].va, link.mr[0].key);
    post(&mut world, &mut link, 1, wr::WR_WRITE, local, remote);
    world.run_for(MS);
    let done = completed(&mut world, 0, &mut link);
    assert_eq!(done, [(cqe::RDMA_WRITE, cqe::SUCCESS, 100)]);
    refuse_page(&mut world, &mut pager);
    world.run();
    for host in 0..2 {
        assert_eq!(state(&mut world, host, &link.qp[host]), QPS_RTS);
    }
    assert_eq!(completed(&mut world, 1, &mut link).len(), 1);
}

/// Acknowledgments wait in front of the NIC, which has stopped its ingress itself.
#[test]
fn a_stop_of_the_own_ingress_is_no_loss() {
    let mut world = world(37);
    let mut link = connect(&mut world, false);
    set_policy(&mut world, 0, &link, FAULT_POLICY_STALL);
    let mut pager = HostPager::new(&mut world, 0, 64, 6);
    let region = pager.register(&mut world, VA, 1 << 20);
    let key = pager.regions[region].key;
    let [mine, other] = link.mr.map(|mr| (mr.va, mr.key));
    post(&mut world, &mut link, 1, wr::WR_WRITE, other, (VA, key));
    world.run_for(MS);
    pager.collect(&mut world);
    assert!(world.with_nic(0, |nic| nic.is_stalled()));
    post(&mut world, &mut link, 0, wr::WR_WRITE, mine, other);
    // Longer than the first retransmission timeout.
    world.run_for(450 * MS);
    assert!(world.with_nic(0, |nic| nic.is_stalled()));
    run(&mut world, &mut [&mut pager]);
    for host in 0..2 {
        let done = completed(&mut world, host, &mut link);
        assert_eq!(done, [(cqe::RDMA_WRITE, cqe::SUCCESS, LEN)]);
    }
    assert_eq!(counter(&mut world, 0, Counter::retransmitted_packets), 0);
}

/// A page that will not become present ends the connection, also if it is the buffer of a READ that has not begun and of the answer to the one
/// before.
#[test]
fn an_answer_and_a_request_that_miss_one_page_end_together() {
    let mut world = world(38);
    let mut link = connect(&mut world, false);
    let mut pager = HostPager::new(&mut world, 0, 64, 6);
    let region = pager.register(&mut world, VA, 1 << 20);
    let key = pager.regions[region].key;
    pager.map_page(&mut world, region, VA / PAGE, true);
    let remote = link.mr[1];
    let read = Send {
        opcode: wr::WR_READ,
        sges: &[(VA, 100, key)],
        remote_addr: remote.va,
        rkey: remote.key,
        ..Send::default()
    };
    // The answer is lost, and then the page.
    world.change(1, |_| None);
    world.hosts[0].driver.post_send(&mut link.qp[0], &read);
    world.run_for(MS);
    pager.evict_all(&mut world, region);
    world.hosts[0].driver.post_send(&mut link.qp[0], &read);
    world.run_for(MS);
    world.change(1, Some);
    world.run_for(1_000 * MS);
    assert_eq!(completed(&mut world, 0, &mut link), []);
    refuse_page(&mut world, &mut pager);
    world.run();
    let done = completed(&mut world, 0, &mut link);
    assert_eq!(done.len(), 2);
    assert!(done.iter().all(|(_, status, _)| *status != cqe::SUCCESS));
    for host in 0..2 {
        assert_eq!(state(&mut world, host, &link.qp[host]), QPS_ERR);
    }
}
