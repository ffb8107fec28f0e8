//! Doorbell pages carry nothing from one tenant to the next. A client maps all of them, allocated or not.

use std::mem::offset_of;

use faultline_abi::admin::{ALLOC_UCTX, AdminCmd, DEALLOC_UCTX};
use faultline_abi::doorbell::DoorbellPage;
use faultline_config::PollMode;
use faultline_harness::testbed::{Fabric, Node, connect_nodes};
use faultline_harness::traffic::exchange_anew;
use faultline_harness::{Nic, NicOptions, QpType, Reset, Rng, SendWr};

const PAGE: usize = 4096;

fn options() -> NicOptions {
    NicOptions {
        ram: 4 << 20,
        ..NicOptions::default()
    }
}

fn fill_all(nic: &Nic) {
    let area = nic.doorbell_area();
    area.fill(0, area.len(), 0xa5).unwrap();
}

/// Numbers of the pages that are not zero.
fn dirty(nic: &Nic) -> Vec<usize> {
    let area = nic.doorbell_area();
    let mut bytes = vec![0; area.len()];
    area.read(0, &mut bytes).unwrap();
    let pages = bytes.chunks(PAGE).enumerate();
    let dirty = pages.filter(|(_, page)| page.iter().any(|byte| *byte != 0));
    dirty.map(|(number, _)| number).collect()
}

/// Every way to reset, with contexts and without, clears the pages before its reply; so does the end of a client
/// before the next one is served. Mappings of the area stay valid.
#[test]
fn every_page_is_zero_after_a_reset_and_for_the_next_client() {
    let fabric = Fabric::start(PollMode::Adaptive, &["a", "b"]).unwrap();
    let mut other = fabric.node("b").unwrap();
    let mut rng = Rng::new(1);
    let ways = Reset::ALL.map(Some).into_iter().chain([None]);
    for how in ways.clone().chain(ways) {
        let node = fabric.node_with("a", &options()).unwrap();
        let nic = node.nic.clone();
        drop(node);
        match how {
            Some(how) => {
                fill_all(&nic);
                nic.reset(how).unwrap();
                assert_eq!(dirty(&nic), [0usize; 0], "after {how:?}");
                // The device is not enabled now.
                fill_all(&nic);
                nic.reset(how).unwrap();
                let left = dirty(&nic);
                match how {
                    // Clearing a bit that is clear is no reset.
                    Reset::Disable => assert_eq!(left.len(), nic.doorbell_area().len() / PAGE),
                    _ => assert_eq!(left, [0usize; 0], "after {how:?}"),
                }
            }
            None => {
                fill_all(&nic);
                nic.hang_up();
                let next = fabric.node_with("a", &options()).unwrap();
                assert_eq!(
                    dirty(&nic),
                    [0, next.context.page() as usize],
                    "what the next client uses"
                );
                drop(next);
            }
        }
        drop(nic);
        let mut next = fabric.node_with("a", &options()).unwrap();
        exchange_anew(&mut next, &mut other, &mut rng);
    }
}

/// A free page is zero when ALLOC_UCTX has completed, not some time later.
#[test]
fn a_page_is_zeroed_before_its_context_exists() {
    let fabric = Fabric::start(PollMode::Adaptive, &["a"]).unwrap();
    let nic = fabric.open("a").unwrap();
    let area = nic.doorbell_area();
    area.fill(PAGE as u64, area.len() - PAGE, 0xa5).unwrap();
    let mut contexts = Vec::new();
    for _ in 0..64 {
        let context = nic.context().unwrap();
        let mut page = vec![0; PAGE];
        area.read(context.page() as u64 * PAGE as u64, &mut page)
            .unwrap();
        let alive = offset_of!(DoorbellPage, alive);
        assert_eq!(page[alive..alive + 4], [1, 0, 0, 0]);
        // The engine may have gone to sleep meanwhile, and has set the flag.
        let asleep = offset_of!(DoorbellPage, asleep);
        page[asleep..asleep + 4].fill(0);
        let rest = [&page[..alive], &page[alive + 4..]].concat();
        assert_eq!(rest.iter().position(|byte| *byte != 0), None);
        // The next context must not get the same page.
        contexts.push(context);
    }
}

/// One doorbell destroys a context and creates another one: their page belongs to the new one from its completion on,
/// and none of its doorbells is lost.
#[test]
fn a_page_that_changes_hands_at_once_is_not_zeroed_later() {
    let fabric = Fabric::start(PollMode::Adaptive, &["a"]).unwrap();
    let mut node = fabric.node("a").unwrap();
    let nic = node.nic.clone();
    let command = |opcode: u16, handle: u32| {
        let mut cmd = AdminCmd::default();
        cmd.hdr.opcode.set(opcode);
        cmd.hdr.handle.set(handle);
        cmd
    };
    // The device takes a page again as late as it can: at once if there is no other.
    let mut page = 0;
    while let Ok((next, _)) = nic.admin(ALLOC_UCTX, 0, &[0u8; 0]) {
        page = next;
    }
    let base = u64::from(page) * PAGE as u64;
    let alive = base + offset_of!(DoorbellPage, alive) as u64;
    let mut rng = Rng::new(1);
    for _ in 0..100 {
        nic.doorbell_area().store_u64(base + 1024, 1).unwrap();
        let batch = vec![command(DEALLOC_UCTX, page), command(ALLOC_UCTX, 0)];
        nic.admin_batch(batch).unwrap();
        // Later than anything that followed from the batch.
        exchange_anew_alone(&mut node, &mut rng);
        assert_eq!(nic.doorbell_area().load_u32(alive), Ok(1));
        assert_eq!(nic.doorbell_area().load_u64(base + 1024), Ok(0));
    }
}

/// Work on other pages, done when this returns.
fn exchange_anew_alone(node: &mut Node, rng: &mut Rng) {
    let (mut qp, _other) = connect_nodes(node, node, QpType::Rc).unwrap();
    let byte = [rng.below(256) as u8];
    let write = SendWr::write_inline(&byte, node.mr.remote(0)).signaled();
    qp.post_send(&write).unwrap();
    node.good_completion();
    assert_eq!(node.buf.to_vec(0, 1), byte);
}
