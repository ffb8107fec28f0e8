//! Device memory over the socket: a process sees writes of peers in its mapping, and peers see those of
//! the process.

use faultline_abi::regs;
use faultline_config::PollMode;
use faultline_harness::client::{MAP_READ, MAP_WRITE, UNMAP_ALL};
use faultline_harness::testbed::{ALL_ACCESS, Fabric, connect_nodes};
use faultline_harness::{DriverError, QpType, Reset, Rng, SendWr, pattern};

/// The first address that is not the guest's.
const DEVICE_MEMORY: u64 = 1 << 63;
const PAGE: u64 = 4096;

#[test]
fn a_peer_and_the_process_see_the_same_bytes() {
    let fabric = Fabric::start(PollMode::Adaptive, &["a", "b"]).unwrap();
    let (mut a, b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
    let dm = b.nic.device_memory(64 << 10).unwrap();
    let mr = b.pd.register_device(&dm, 24, 60_000, ALL_ACCESS).unwrap();
    let (mut qa, _qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    let mut rng = Rng::new(1);
    for round in 0..50u64 {
        let (at, len) = (rng.below(30_000), 1 + rng.below(30_000));
        a.buf.write(0, &pattern(round, len as usize));
        let source = [a.mr.sge(0, len as usize)];
        let write = SendWr::write(&source, mr.remote(at as usize)).signaled();
        qa.post_send(&write).unwrap();
        let wc = a.good_completion();
        qa.retire(&wc);
        assert!(dm.to_vec(24 + at, len as usize) == pattern(round, len as usize));
        dm.write(24 + at, &pattern(round + 99, len as usize));
        let read = SendWr::read(&source, mr.remote(at as usize)).signaled();
        qa.post_send(&read).unwrap();
        let wc = a.good_completion();
        qa.retire(&wc);
        assert!(a.buf.to_vec(0, len as usize) == pattern(round + 99, len as usize));
    }
    // An atomic, on the word that the process has written.
    dm.write(32, &7u64.to_le_bytes());
    let result = [a.mr.sge(0, 8)];
    let add = SendWr::fetch_add(&result, mr.remote(8), 5).signaled();
    qa.post_send(&add).unwrap();
    a.good_completion();
    assert_eq!(a.buf.to_vec(0, 8), 7u64.to_le_bytes());
    assert_eq!(dm.to_vec(32, 8), 12u64.to_le_bytes());
}

/// Maps of the guest's memory do not affect the device's memory.
#[test]
fn the_client_can_neither_cover_nor_remove_it() {
    let fabric = Fabric::start(PollMode::Adaptive, &["a"]).unwrap();
    let mut a = fabric.node("a").unwrap();
    let dm = a.nic.device_memory(PAGE).unwrap();
    let key = a.pd.register_device(&dm, 0, PAGE, ALL_ACCESS).unwrap();
    let ram = a.nic.ram().clone();
    for (iova, len) in [
        (DEVICE_MEMORY, PAGE),
        (DEVICE_MEMORY - PAGE, 2 * PAGE),
        (u64::MAX - PAGE + 1, PAGE),
    ] {
        let fd = Some(ram.file().fd());
        let refused = a
            .nic
            .with_client(|client| client.dma_map(iova, len, 0, MAP_READ | MAP_WRITE, fd));
        assert!(refused.is_err_and(|error| error.refusal().is_some()));
    }
    // Unmaps both halves of the address space, as QEMU does when an IOMMU is switched.
    for half in [DEVICE_MEMORY, 0] {
        a.nic
            .with_client(|client| client.dma_unmap(half, DEVICE_MEMORY, 0))
            .unwrap();
        a.nic
            .with_client(|client| client.dma_unmap(0, 0, UNMAP_ALL))
            .unwrap();
    }
    a.nic.lend(&ram).unwrap();
    let (mut qp, _other) = connect_nodes(&a, &a, QpType::Rc).unwrap();
    a.buf.write(0, &pattern(1, 1000));
    let source = [a.mr.sge(0, 1000)];
    let write = SendWr::write(&source, key.remote(0)).signaled();
    qp.post_send(&write).unwrap();
    a.good_completion();
    assert!(dm.to_vec(0, 1000) == pattern(1, 1000));
}

/// Another driver, perhaps of another virtual machine, finds zeros.
#[test]
fn nothing_is_left_after_a_reset_or_for_the_next_client() {
    let fabric = Fabric::start(PollMode::Adaptive, &["a"]).unwrap();
    for how in [Some(Reset::Function), Some(Reset::Device), None] {
        let a = fabric.node("a").unwrap();
        let dm = a.nic.device_memory(3 * PAGE).unwrap();
        assert_eq!(dm.to_vec(0, 3 * PAGE as usize), vec![0; 3 * PAGE as usize]);
        dm.write(0, &[0xa5; 3 * PAGE as usize]);
        match how {
            Some(how) => {
                a.nic.reset(how).unwrap();
                assert_eq!(dm.to_vec(0, 3 * PAGE as usize), vec![0; 3 * PAGE as usize]);
            }
            None => drop(a),
        }
    }
    let again = fabric.open("a").unwrap();
    let dm = again.device_memory(3 * PAGE).unwrap();
    assert_eq!(dm.to_vec(0, 3 * PAGE as usize), vec![0; 3 * PAGE as usize]);
}

/// A write that is trapped because the client has not mapped the memory is no doorbell.
#[test]
fn trapped_accesses_to_it_are_counted_and_ignored() {
    let fabric = Fabric::start(PollMode::Adaptive, &["a"]).unwrap();
    let a = fabric.node("a").unwrap();
    let dm = a.nic.device_memory(PAGE).unwrap();
    let errors = |a: &faultline_harness::testbed::Node| {
        a.nic.counters().unwrap()[faultline_abi::admin::Counter::register_errors]
    };
    let before = errors(&a);
    a.nic
        .with_client(|client| client.write(regs::BAR_DOORBELL, dm.offset(), &[1; 8]))
        .unwrap();
    assert_eq!(errors(&a), before + 1);
    assert_eq!(dm.to_vec(0, 8), [0; 8]);
    let size = a
        .nic
        .with_client(|client| client.region_info(regs::BAR_DOORBELL))
        .unwrap()
        .size;
    assert!(size.is_power_of_two());
    let all = a.nic.caps().device_memory.get();
    let refused = a.nic.device_memory(all);
    assert!(
        matches!(refused, Err(DriverError::Admin { .. })),
        "one page is taken"
    );
}
