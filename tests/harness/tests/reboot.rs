//! A guest that reboots or ends gives back gigabytes of memory. The engine, and with it all other guests, must not wait for
//! that: unmapping takes the kernel some milliseconds for each GiB that was touched.

use std::time::{Duration, Instant};

use faultline_config::PollMode;
use faultline_harness::client::UNMAP_ALL;
use faultline_harness::testbed::{ALL_ACCESS, Fabric, Node, connect_nodes};
use faultline_harness::traffic::Neighbours;
use faultline_harness::{NicOptions, QpType, Remote, SendWr};

use crate::alone;

const RAM: usize = 512 << 20;
const STEP: usize = Node::BUF;

/// Time that the engine's thread has had on a processor.
fn engine_time() -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let text = threads.flatten().find_map(|thread| {
        let comm = std::fs::read_to_string(thread.path().join("comm")).ok()?;
        let text = || std::fs::read_to_string(thread.path().join("schedstat")).ok();
        (comm.trim() == "engine").then(text)?
    });
    let text = text.expect("no such thread");
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// Has the device write to each page of its guest's memory, so that it is mapped in its process.
fn touch(node: &mut Node) {
    let key = node.pd.register_physical(ALL_ACCESS).unwrap();
    let (mut qp, _other) = connect_nodes(node, node, QpType::Rc).unwrap();
    let iova = NicOptions::default().iova;
    // The first pages are the driver's own rings.
    for at in (RAM / 2..RAM)
        .step_by(STEP)
        .chain((2 * STEP..RAM / 2).step_by(STEP))
    {
        let remote = Remote {
            addr: iova + at as u64,
            key: key.key(),
        };
        let sges = [node.mr.sge(0, STEP)];
        qp.post_send(&SendWr::write(&sges, remote).signaled())
            .unwrap();
        let wc = node.good_completion();
        qp.retire(&wc);
    }
}

#[test]
fn the_engine_does_not_wait_for_returned_memory() {
    let _alone = alone();
    let fabric = Fabric::start(PollMode::Never, &["a", "b", "c"]).unwrap();
    let options = NicOptions {
        ram: RAM,
        ..NicOptions::default()
    };
    for how in ["unmap", "unmap all", "disconnect"] {
        let mut node = fabric.node_with("a", &options).unwrap();
        touch(&mut node);
        let nic = node.nic.clone();
        drop(node);
        let (before, start) = (engine_time(), Instant::now());
        match how {
            "unmap" => nic.take_back(nic.ram()).unwrap(),
            "unmap all" => nic
                .with_client(|client| client.dma_unmap(0, 0, UNMAP_ALL))
                .unwrap(),
            _ => {
                nic.hang_up();
                // The next client is served when the last one's memory was freed.
                fabric.open("a").unwrap();
            }
        }
        let (engine, all) = (engine_time() - before, start.elapsed());
        println!("{how}: {engine:?} of the engine, {all:?} in all");
        assert!(engine < Duration::from_millis(4), "{how}: {engine:?}");
    }
    // The same beside traffic, for the eye: the engine is busy then.
    let neighbours = Neighbours::start(&fabric, ["b", "c"]).unwrap();
    let mut node = fabric.node_with("a", &options).unwrap();
    touch(&mut node);
    node.nic.hang_up();
    neighbours.unharmed();
    neighbours.finish();
}
