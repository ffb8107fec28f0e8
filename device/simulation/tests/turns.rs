//! The work of one pass of an engine for each source of frames is bounded.

use faultline_abi::qp::QPT_RC;
use faultline_abi::wqe::WR_SEND;
use faultline_fabric::link_model::LinkModel;
use faultline_nic::TURN_WORK;
use faultline_simulation::process::{NicShape, PortShape, ProcessShape};

use crate::common::{End, MS, Send, connected, process, wired};

/// The first NIC sends a message to each of `pairs` queue pairs of the last one, all at once. The messages are longer
/// than the receives, so each ends a connection with a thousand receives. Returns the most work of the last NIC in one
/// pass of its engine. Two processes are connected by their ports.
fn connections_that_end(shapes: &[ProcessShape], pairs: usize) -> u64 {
    const RECEIVES: u32 = (1 << 10) - 1;
    let mut world = match shapes {
        [shape] => process(shape),
        [near, far] => wired(near, far),
        _ => panic!("one process, or two"),
    };
    let last = &shapes[shapes.len() - 1];
    let far = (shapes.len() - 1, last.nics.len() - 1);
    let mut ends: Vec<[End; 2]> = (0..pairs)
        .map(|_| connected(&mut world, [(0, 0), far], QPT_RC, (10, 4096), |path| path))
        .collect();
    for [_, to] in &mut ends {
        for tag in 0..RECEIVES {
            to.receive(&mut world, tag, (0, 8));
        }
    }
    for [from, _] in &mut ends {
        let send = Send {
            opcode: WR_SEND,
            sges: &[(from.mr.va, 100, from.mr.key)],
            ..Send::default()
        };
        from.post(&mut world, &send);
    }
    world.run_for(100 * MS);
    for [_, to] in &mut ends {
        to.await_count(&mut world, RECEIVES as usize);
    }
    world.all[far.0].longest_pass(last.nics[far.1].engine)
}

/// The frames come from a modelled link, from another engine or through a port. A link with a delay delivers all of
/// them at one instant, and so does the peer of the port. The work of a pass delays the commands of all other NICs.
#[test]
fn frames_that_cost_much_wait_for_their_turn() {
    let delayed = LinkModel {
        delay_ns: 100_000,
        ..LinkModel::default()
    };
    let nic = |link, engine| NicShape {
        links: [link, None],
        engine,
        ..NicShape::default()
    };
    let shape = |engines| ProcessShape {
        engines,
        nics: vec![nic(Some(delayed), 0), nic(None, engines - 1)],
        seed: 3,
        ..ProcessShape::default()
    };
    let with_port = ProcessShape {
        engines: 1,
        nics: vec![nic(None, 0)],
        ports: vec![PortShape {
            room: 1 << 20,
            ..PortShape::default()
        }],
        seed: 3,
        ..ProcessShape::default()
    };
    for (what, shapes) in [
        ("a modelled link", vec![shape(1)]),
        ("another engine", vec![shape(2)]),
        ("a port", vec![with_port.clone(), with_port]),
    ] {
        let one = connections_that_end(&shapes, 1);
        let pairs = 24;
        assert!(one * pairs > 2 * TURN_WORK, "{what}: {one} is too little");
        let most = connections_that_end(&shapes, usize::try_from(pairs).unwrap());
        // The last one of a turn may begin before the limit is reached, and answers come back in the same pass.
        assert!(most <= TURN_WORK + 2 * one, "{what}: {most}, one is {one}");
        assert!(
            most >= TURN_WORK,
            "{what}: {most}, the limit was not reached"
        );
    }
}
