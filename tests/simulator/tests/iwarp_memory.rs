//! iWARP: memory keys of all kinds, shared receive queues, and memory on demand.

use faultline_abi::admin::{MKEY_FAST_REG, MKEY_WINDOW_2};
use faultline_abi::event::{self, Eqe};
use faultline_abi::qp::{
    ACCESS_LOCAL_WRITE, ACCESS_MW_BIND, ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ,
    ACCESS_REMOTE_WRITE, FAULT_POLICY_DROP, FAULT_POLICY_RNR, FAULT_POLICY_STALL,
    FAULT_POLICY_TERMINATE, QPS_ERR, QPT_RC,
};
use faultline_abi::wqe::{self as wr, BindMwWqe, RegMrWqe, SqWqe};
use faultline_abi::{U32, U64, cqe, iwarp};
use faultline_simulation::driver::ALL_ACCESS;
use faultline_simulation::{Bus, Cq, Send};
use faultline_simulator::pager::run;
use faultline_simulator::{HostPager, World};
use faultline_wire::rdmap::TerminateCode as T;
use zerocopy::IntoBytes;

use crate::common::{create_key, pattern, state};
use crate::iwarp::{
    Link, completed, connect, connect_qps, events, post, post_recv, qp_in_init, world,
};

const PAGE: u64 = 4096;
const RIGHTS: u32 = ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ | ACCESS_REMOTE_ATOMIC;
/// First address of fast registrations.
const VA: u64 = 0x1_2345_6000;
/// Length of a message that has several FPDUs.
const LEN: u32 = 9000;

/// Code with which the connection has ended, which host 1 has refused.
fn code(world: &mut World, link: &Link) -> T {
    let qpn = link.qp[0].qpn;
    let (info, _) = world.hosts[0].driver.query_connection(qpn).unwrap();
    assert_eq!(info.close_reason, iwarp::TERMINATED_BY_PEER);
    T {
        layer: info.terminate_type >> 4,
        error_type: info.terminate_type & 0xf,
        code: info.terminate_code,
    }
}

/// Posts an entry to the queue pair of a host, which completes with success.
#[track_caller]
fn local(world: &mut World, link: &mut Link, host: usize, entry: &[u8]) {
    let driver = &mut world.hosts[host].driver;
    driver.post_raw_send(&mut link.qp[host], entry);
    world.run();
    let done = completed(world, host, link);
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].1, cqe::SUCCESS, "{done:?}");
}

fn invalidate(key: u32) -> SqWqe {
    SqWqe {
        opcode: wr::WR_LOCAL_INV,
        rkey: U32::new(key),
        ..SqWqe::default()
    }
}

/// A fast registration of 4 pages of a host; returns the key.
fn register(world: &mut World, link: &mut Link, host: usize) -> u32 {
    let key = create_key(&mut world.hosts[host], MKEY_FAST_REG, 4) | 5;
    let driver = &mut world.hosts[host].driver;
    let frames = driver.alloc(4 * PAGE).unwrap();
    let list = driver.alloc(PAGE).unwrap();
    for n in 0..4 {
        let page = frames + (3 - n) * PAGE;
        driver.bus.write(list + n * 8, &page.to_le_bytes());
    }
    let entry = RegMrWqe {
        opcode: wr::WR_REG_MR,
        access: U32::new(ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ),
        key: U32::new(key),
        iova: U64::new(VA),
        length: U64::new(4 * PAGE),
        list: U64::new(list),
        num_pages: U32::new(4),
        page_shift: U32::new(12),
        ..RegMrWqe::default()
    };
    local(world, link, host, entry.as_bytes());
    key
}

/// Host 0 writes to a key of host 1 and reads the data back.
#[track_caller]
fn write_and_read(world: &mut World, link: &mut Link, va: u64, rkey: u32) {
    let data = pattern(LEN);
    world.hosts[0].driver.write_mr(&link.mr[0], 0, &data);
    let target = |send: &mut Send<'_>| (send.remote_addr, send.rkey) = (va, rkey);
    post(world, link, wr::WR_WRITE, LEN, target);
    world.run();
    let wrote = completed(world, 0, link);
    assert_eq!(wrote, [(cqe::RDMA_WRITE, cqe::SUCCESS, LEN)]);
    world.hosts[0]
        .driver
        .write_mr(&link.mr[0], 0, &vec![0; LEN as usize]);
    post(world, link, wr::WR_READ, LEN, target);
    world.run();
    let read = completed(world, 0, link);
    assert_eq!(read, [(cqe::RDMA_READ, cqe::SUCCESS, LEN)]);
    assert!(world.hosts[0].driver.read_mr(&link.mr[0], 0, data.len()) == data);
}

/// A WRITE of host 0 to this key of host 1 ends the connection; returns the code.
fn refused(world: &mut World, link: &mut Link, va: u64, rkey: u32) -> T {
    post(world, link, wr::WR_WRITE, 8, |send| {
        (send.remote_addr, send.rkey) = (va, rkey);
    });
    world.run();
    code(world, link)
}

#[test]
fn a_fast_registration_serves_a_peer_until_it_is_invalidated() {
    let mut world = world(71);
    let mut link = connect(&mut world, false);
    let key = register(&mut world, &mut link, 1);
    write_and_read(&mut world, &mut link, VA + 17, key);
    local(&mut world, &mut link, 1, invalidate(key).as_bytes());
    let found = refused(&mut world, &mut link, VA, key);
    assert_eq!(found, T::DDP_TAGGED_INVALID_STAG);
}

#[test]
fn a_send_invalidates_a_registration_and_says_so() {
    let mut world = world(72);
    let mut link = connect(&mut world, false);
    let key = register(&mut world, &mut link, 1);
    post_recv(&mut world, &mut link, LEN);
    let data = pattern(LEN);
    world.hosts[0].driver.write_mr(&link.mr[0], 0, &data);
    post(&mut world, &mut link, wr::WR_SEND_INV, LEN, |send| {
        send.imm = key.to_le_bytes();
    });
    world.run();
    let found = world.completions(1, &mut link.cq[1]);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].status, found[0].imm.get()), (cqe::SUCCESS, key));
    assert_eq!(found[0].flags & cqe::CQE_INVALIDATE, cqe::CQE_INVALIDATE);
    assert!(world.hosts[1].driver.read_mr(&link.mr[1], 0, data.len()) == data);
    let found = refused(&mut world, &mut link, VA, key);
    assert_eq!(found, T::DDP_TAGGED_INVALID_STAG);
}

#[test]
fn a_read_invalidates_the_registration_of_its_buffer() {
    let mut world = world(73);
    let mut link = connect(&mut world, false);
    let key = register(&mut world, &mut link, 0);
    world.hosts[1]
        .driver
        .write_mr(&link.mr[1], 0, &pattern(LEN));
    let remote = link.mr[1];
    let mut read = Send {
        opcode: wr::WR_READ_INV,
        imm: key.to_le_bytes(),
        sges: &[(VA, LEN, key)],
        remote_addr: remote.va,
        rkey: remote.key,
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut link.qp[0], &read);
    world.run();
    let done = completed(&mut world, 0, &mut link);
    assert_eq!(done, [(cqe::RDMA_READ, cqe::SUCCESS, LEN)]);
    // The key has no memory any more.
    read.opcode = wr::WR_WRITE;
    world.hosts[0].driver.post_send(&mut link.qp[0], &read);
    world.run();
    let done = completed(&mut world, 0, &mut link);
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].1, cqe::LOC_PROT_ERR);
}

#[test]
fn a_window_serves_the_connection_on_which_it_was_bound() {
    let mut world = world(74);
    let mut link = connect(&mut world, false);
    let rkey = create_key(&mut world.hosts[1], MKEY_WINDOW_2, 0) | 9;
    let pd = world.hosts[1].pd;
    let access = ALL_ACCESS | ACCESS_MW_BIND;
    let driver = &mut world.hosts[1].driver;
    let region = driver.reg_mr(pd, 0x9000_0123, 64 << 10, access).unwrap();
    let bind = BindMwWqe {
        opcode: wr::WR_BIND_MW,
        rkey: U32::new(rkey),
        lkey: U32::new(region.key),
        addr: U64::new(region.va + 1000),
        length: U64::new(LEN.into()),
        access: U32::new(ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ),
        ..BindMwWqe::default()
    };
    local(&mut world, &mut link, 1, bind.as_bytes());
    write_and_read(&mut world, &mut link, region.va + 1000, rkey);
    let data = world.hosts[1].driver.read_mr(&region, 1000, LEN as usize);
    assert!(data == pattern(LEN));
    // Not an octet before it, and nothing after its invalidation.
    let found = refused(&mut world, &mut link, region.va + 999, rkey);
    assert_eq!(found, T::DDP_TAGGED_BOUNDS);
    for host in 0..2 {
        events(&mut world, host);
    }
    let mut link = connect(&mut world, false);
    let found = refused(&mut world, &mut link, region.va + 1000, rkey);
    assert!(
        [T::DDP_TAGGED_NOT_ASSOCIATED, T::DDP_TAGGED_INVALID_STAG].contains(&found),
        "another connection: {found:?}"
    );
}

/// RFC 5041 section 7.1 for tagged messages, RFC 5040 section 4.8 for requests.
#[test]
fn each_refused_key_has_the_code_of_its_layer() {
    const NONE: u32 = 0x7777_7700;
    /// What is wrong with a key.
    #[derive(Clone, Copy, Debug)]
    enum Wrong {
        Zero,
        Key,
        Domain,
        Bounds,
        Right,
    }
    let table = [
        (
            Wrong::Zero,
            T::DDP_TAGGED_INVALID_STAG,
            T::RDMAP_INVALID_STAG,
        ),
        (
            Wrong::Key,
            T::DDP_TAGGED_INVALID_STAG,
            T::RDMAP_INVALID_STAG,
        ),
        (
            Wrong::Domain,
            T::DDP_TAGGED_NOT_ASSOCIATED,
            T::RDMAP_NOT_ASSOCIATED,
        ),
        (Wrong::Bounds, T::DDP_TAGGED_BOUNDS, T::RDMAP_BOUNDS),
        (Wrong::Right, T::RDMAP_ACCESS, T::RDMAP_ACCESS),
    ];
    for (wrong, tagged, of_request) in table {
        for opcode in [wr::WR_WRITE, wr::WR_READ, wr::WR_FETCH_ADD] {
            let mut world = world(75);
            let mut link = connect(&mut world, false);
            let host = &mut world.hosts[1];
            let (pd, access) = match wrong {
                Wrong::Domain => (host.driver.alloc_pd().unwrap(), ALL_ACCESS),
                Wrong::Right => (host.pd, ACCESS_LOCAL_WRITE),
                _ => (host.pd, ALL_ACCESS),
            };
            let mr = host.driver.reg_mr(pd, 0x9000_0000, PAGE, access).unwrap();
            let (va, rkey) = match wrong {
                Wrong::Zero => (0, 0),
                Wrong::Key => (mr.va, NONE),
                Wrong::Bounds => (mr.va + PAGE, mr.key),
                Wrong::Domain | Wrong::Right => (mr.va, mr.key),
            };
            post(&mut world, &mut link, opcode, 8, |send| {
                (send.remote_addr, send.rkey) = (va, rkey);
            });
            world.run();
            let expected = if opcode == wr::WR_WRITE {
                tagged
            } else {
                of_request
            };
            let found = code(&mut world, &link);
            assert_eq!(found, expected, "{wrong:?}, opcode {opcode}");
            let done = completed(&mut world, 0, &mut link);
            assert_eq!(done.len(), 1);
            // A WRITE may be complete when the peer refuses it.
            if opcode != wr::WR_WRITE {
                assert_eq!(done[0].1, cqe::REM_ACCESS_ERR, "{wrong:?} {opcode}");
            }
        }
    }
}

#[test]
fn an_atomic_at_an_address_that_is_not_aligned_is_refused() {
    let mut world = world(76);
    let mut link = connect(&mut world, false);
    let at = link.mr[1].va | 4;
    post(&mut world, &mut link, wr::WR_FETCH_ADD, 8, |send| {
        send.remote_addr = at;
    });
    world.run();
    assert_eq!(code(&mut world, &link), T::RDMAP_UNSPECIFIED);
}

/// A queue pair of host 1 with a shared receive queue, and 2^`log_depth` work requests.
fn shared(world: &mut World, log_depth: u8, limit: u32) -> (Link, faultline_simulation::Srq) {
    let pd = world.hosts[1].pd;
    let driver = &mut world.hosts[1].driver;
    let srq = driver.create_srq(pd, 0, 4, 2, limit).unwrap();
    let cq: Cq = world.hosts[1].cq(12).unwrap();
    let mut config = world.hosts[1].qp_config(QPT_RC, &cq);
    (config.srqn, config.log_depth) = (Some(srq.srqn), log_depth);
    let qp = world.hosts[1].driver.create_qp(&config).unwrap();
    world.hosts[1].driver.to_init(qp.qpn, RIGHTS).unwrap();
    let first = qp_in_init(world, 0);
    (connect_qps(world, false, [first, (cq, qp)]), srq)
}

#[test]
fn a_shared_receive_queue_serves_messages_and_reports_its_limit() {
    let mut world = world(77);
    let (mut link, mut srq) = shared(&mut world, 6, 3);
    let to = link.mr[1];
    for n in 0..4 {
        let at = to.va + u64::from(n) * 10_000;
        let sges = [(at, LEN, to.key)];
        world.hosts[1]
            .driver
            .post_srq_recv(&mut srq, 100 + n, &sges);
    }
    for n in 0..4u32 {
        let data: Vec<u8> = pattern(LEN).iter().map(|octet| octet ^ n as u8).collect();
        world.hosts[0].driver.write_mr(&link.mr[0], 0, &data);
        post(&mut world, &mut link, wr::WR_SEND, LEN, |_| {});
        world.run();
        let found = world.completions(1, &mut link.cq[1]);
        assert_eq!(found.len(), 1);
        let facts = (found[0].wqe.get(), found[0].byte_len.get());
        assert_eq!(facts, (100 + n, LEN));
        let at = u64::from(n) * 10_000;
        assert!(world.hosts[1].driver.read_mr(&to, at, data.len()) == data);
        let events = world.hosts[1].driver.async_events();
        let limit = (event::SRQ_LIMIT, srq.srqn);
        assert_eq!(events.contains(&limit), n == 1, "after {n}: {events:?}");
    }
    // The fifth message finds none.
    post(&mut world, &mut link, wr::WR_SEND, 8, |_| {});
    world.run();
    assert_eq!(code(&mut world, &link), T::DDP_UNTAGGED_NO_BUFFER);
}

/// Software may free the work requests of the shared queue after the event, so no completion follows it.
#[test]
fn the_event_of_the_last_receive_follows_the_last_completion() {
    const SENDS: usize = 2000;
    let mut world = world(78);
    world.pace(1_000);
    let (mut link, mut srq) = shared(&mut world, 11, 0);
    let to = link.mr[1];
    let sges = [(to.va, 100_000, to.key)];
    world.hosts[1].driver.post_srq_recv(&mut srq, 7, &sges);
    // A message has begun, and its work request is taken.
    post(&mut world, &mut link, wr::WR_SEND, 100_000, |_| {});
    world.run_for(15_000);
    let qpn = link.qp[1].qpn;
    for _ in 0..SENDS {
        let send = Send {
            opcode: wr::WR_WRITE,
            ..Send::default()
        };
        world.hosts[1].driver.write_send(&mut link.qp[1], &send);
    }
    world.hosts[1].driver.ring_sends(&link.qp[1]);
    world.hosts[1].driver.set_state(qpn, QPS_ERR).unwrap();
    let mut seen = 0;
    let is_last = |found: &Eqe| found.kind == event::LAST_WQE_REACHED;
    loop {
        let events = world.hosts[1].driver.whole_events();
        seen += completed(&mut world, 1, &mut link).len();
        if events.iter().any(is_last) {
            break;
        }
        let until = world.now() + 1_000_000;
        assert!(world.step(until), "no event");
    }
    world.run();
    let later = completed(&mut world, 1, &mut link);
    assert_eq!((seen, later.len()), (SENDS + 1, 0));
}

/// A region of the whole address space, as implicit on-demand paging has it, and one of some pages.
#[test]
fn memory_on_demand_works_under_each_policy() {
    let policies = [
        FAULT_POLICY_RNR,
        FAULT_POLICY_DROP,
        FAULT_POLICY_STALL,
        FAULT_POLICY_TERMINATE,
    ];
    for (base, len) in [(0, 1 << 46), (0x5000_0000_0000, 1 << 20)] {
        for policy in policies {
            for opcode in [wr::WR_SEND, wr::WR_WRITE, wr::WR_READ, wr::WR_FETCH_ADD] {
                on_demand((base, len), policy, opcode);
            }
        }
    }
}

fn on_demand((base, len): (u64, u64), policy: u8, opcode: u8) {
    let case = format!("base {base:#x}, policy {policy}, opcode {opcode}");
    let mut world = world(79);
    let mut link = connect(&mut world, false);
    let qpn = link.qp[1].qpn;
    let driver = &mut world.hosts[1].driver;
    driver.set_fault_policy(qpn, policy).unwrap();
    let mut pager = HostPager::new(&mut world, 1, 64, 6);
    let region = pager.register(&mut world, base, len);
    let key = pager.regions[region].key;
    // An aligned address, across a page.
    let offset = 0x7_0f00;
    let va = base + offset;
    let (from, count) = (link.mr[0], if opcode == wr::WR_FETCH_ADD { 8 } else { LEN });
    let data = pattern(count);
    let is_read = matches!(opcode, wr::WR_READ | wr::WR_FETCH_ADD);
    if is_read {
        pager.write(&world, region, offset, &data);
    } else {
        world.hosts[0].driver.write_mr(&from, 0, &data);
    }
    let sges = [(va, count, key)];
    world.hosts[1].driver.post_recv(&mut link.qp[1], 0, &sges);
    post(&mut world, &mut link, opcode, count, |send| {
        (send.remote_addr, send.rkey) = (va, key);
    });
    run(&mut world, &mut [&mut pager]);
    let done = completed(&mut world, 0, &mut link);
    assert_eq!(done.len(), 1, "{case}");
    if policy == FAULT_POLICY_TERMINATE {
        assert!(!is_read || done[0].1 != cqe::SUCCESS, "{case}");
        assert_eq!(code(&mut world, &link), T::RDMAP_CATASTROPHIC_STREAM);
        assert_eq!(state(&mut world, 1, &link.qp[1]), QPS_ERR);
        return;
    }
    assert_eq!(done[0].1, cqe::SUCCESS, "{case}");
    assert!(!pager.records.is_empty(), "{case}: no fault");
    let arrived = if is_read {
        world.hosts[0].driver.read_mr(&from, 0, data.len())
    } else {
        pager.read(&world, region, offset, data.len())
    };
    assert!(arrived == data, "{case}");
    pager.check_free(&world);
}
