//! A port for vhost-user, driven over its socket by a front end with a driver.
#![cfg(test)]
#![expect(
    clippy::cast_possible_truncation,
    reason = "test data is cut to the width of a field"
)]

mod guest;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;

use guest::{
    BUFFER, Driver, EVENT_IDX, Guest, HEADER, INDIRECT, MERGEABLE, NEXT, Port, SIZE, WRITE,
    connected,
};

const PLAIN: [u8; HEADER] = [0; HEADER];

/// A frame of a flow, which is different in each octet from the next.
fn frame(length: usize, tag: u8) -> Vec<u8> {
    (0..length).map(|at| (at ^ at >> 8) as u8 ^ tag).collect()
}

/// An IPv4 UDP frame with source port `source`.
fn udp(source: u16) -> Vec<u8> {
    let builder = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]);
    let builder = builder.ipv4([1, 2, 3, 4], [5, 6, 7, 8], 9).udp(source, 7);
    let mut frame = Vec::new();
    builder.write(&mut frame, &[source as u8; 100]).unwrap();
    frame
}

#[test]
fn frames_pass_in_both_directions_with_and_without_event_indexes() {
    for features in [0, EVENT_IDX] {
        let (mut port, mut guest) = connected(1, features);
        let [receive, send] = &mut guest.rings[..] else {
            panic!()
        };
        // More than the rings have entries, so that both wrap.
        for slot in 0..SIZE {
            receive.offer_buffer(slot);
        }
        for n in 0..100u8 {
            let out = frame(60 + 13 * usize::from(n), n);
            send.send(&PLAIN, &out);
            assert_eq!(port.take(), out);
            assert_eq!(send.used(), (0, 0));
            let back = frame(1514 - usize::from(n), n);
            port.send(&back);
            assert_eq!(receive.receive(), (back, 1));
            receive.offer_buffer(u16::from(n) % SIZE);
        }
        let status = port.engine.status();
        assert!(status.is_connected.load(Ordering::Relaxed));
        for counter in [&status.lost, &status.not_sent, &status.malformed] {
            assert_eq!(counter.load(Ordering::Relaxed), 0);
        }
    }
}

#[test]
fn several_pairs_of_queues_share_the_flows() {
    let (mut port, mut guest) = connected(2, EVENT_IDX);
    for index in [0, 2] {
        for slot in 0..SIZE {
            guest.rings[index].offer_buffer(slot);
        }
    }
    for index in [1, 3] {
        guest.rings[index].send(&PLAIN, &frame(99, index as u8));
        assert_eq!(port.take(), frame(99, index as u8));
    }
    for source in 0..SIZE {
        port.send(&udp(source));
    }
    let mut counts = [0; 2];
    for _ in 0..SIZE {
        let found = loop {
            let found = [0, 2].map(|index| guest.rings[index].try_used());
            if found.iter().any(Option::is_some) {
                break found;
            }
            std::thread::yield_now();
        };
        for (count, used) in counts.iter_mut().zip(found) {
            *count += u32::from(used.is_some());
        }
        if counts.iter().sum::<u32>() == u32::from(SIZE) {
            break;
        }
    }
    assert!(counts.iter().all(|count| *count > 5), "{counts:?}");
    // A queue that the guest has disabled gets nothing.
    let front_end = guest.front_end.as_mut().unwrap();
    vhost::vhost_user::VhostUserFrontend::set_vring_enable(front_end, 2, false).unwrap();
    for slot in 0..counts[0] as u16 {
        guest.rings[0].offer_buffer(slot);
    }
    for source in 0..SIZE {
        port.send(&udp(source));
        assert_eq!(guest.rings[0].receive(), (udp(source), 1));
    }
}

#[test]
fn a_long_frame_takes_several_buffers_if_the_driver_allows_it() {
    let (mut port, mut guest) = connected(1, EVENT_IDX | MERGEABLE);
    let receive = &mut guest.rings[0];
    let long = frame(9014, 1);
    let buffers = (9014 + HEADER).div_ceil(BUFFER) as u16;
    // The frame waits for the last buffer, and does not get lost.
    for slot in 0..buffers - 1 {
        receive.offer_buffer(slot);
    }
    for round in 0..20 {
        port.send(&long);
        receive.offer_buffer((buffers - 1 + round * buffers) % SIZE);
        assert_eq!(receive.receive(), (long.clone(), buffers));
        for slot in 0..buffers - 1 {
            receive.offer_buffer((slot + (round + 1) * buffers) % SIZE);
        }
    }
    // It could never be received: it is lost, and the next one is not.
    for slot in 0..SIZE - (buffers - 1) {
        receive.offer_buffer((slot + 20 * buffers + buffers - 1) % SIZE);
    }
    port.send(&frame(usize::from(SIZE) * BUFFER, 2));
    port.send(&frame(60, 3));
    assert_eq!(receive.receive(), (frame(60, 3), 1));
    port.until_not_sent(1);
}

#[test]
fn without_mergeable_buffers_a_frame_takes_one_chain_or_is_lost() {
    let (mut port, mut guest) = connected(1, 0);
    let receive = &mut guest.rings[0];
    receive.descriptor(0, receive.data(0), HEADER as u32, WRITE | NEXT, 1);
    receive.descriptor(1, receive.data(0) + HEADER as u64, 1000, WRITE, 0);
    receive.offer(0);
    port.send(&frame(1001, 1));
    port.send(&frame(1000, 2));
    assert_eq!(receive.receive(), (frame(1000, 2), 1));
    port.until_not_sent(1);
}

/// A header that asks for a checksum at `start` + 16, and for segments if there is a size.
fn tcp_header(start: u16, size: u16) -> [u8; HEADER] {
    let mut header = PLAIN;
    header[0] = 1;
    header[1] = u8::from(size > 0);
    header[4..6].copy_from_slice(&size.to_le_bytes());
    header[6..8].copy_from_slice(&start.to_le_bytes());
    header[8..10].copy_from_slice(&16u16.to_le_bytes());
    header
}

fn tcp(payload: &[u8]) -> Vec<u8> {
    let builder = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]);
    let builder = builder.ipv4([1, 2, 3, 4], [5, 6, 7, 8], 9);
    let mut frame = Vec::new();
    let builder = builder.tcp(7, 8, u32::MAX - 5000, 1000);
    builder.write(&mut frame, payload).unwrap();
    frame
}

/// 64 KiB in segments of one octet: more than the ring to the engine holds, with a budget for each turn of the thread.
/// No segment is lost, the other direction is not held up, and the thread never sleeps with segments while the engine
/// has room.
#[test]
fn segments_wait_for_the_engine() {
    let (mut port, mut guest) = connected(1, EVENT_IDX);
    let payload = frame(60_000, 5);
    let [receive, send] = &mut guest.rings[..] else {
        panic!()
    };
    for round in 0..8 {
        receive.offer_buffer(round);
        send.send(&tcp_header(34, 1), &tcp(&payload));
        port.send(&frame(60, 9));
        assert_eq!(receive.receive(), (frame(60, 9), 1));
        let mut got = Vec::new();
        while got.len() < payload.len() {
            let frame = port.take();
            let sliced = etherparse::SlicedPacket::from_ethernet(&frame).unwrap();
            let Some(etherparse::TransportSlice::Tcp(tcp)) = sliced.transport else {
                panic!("not TCP")
            };
            let sequence = (u32::MAX - 5000).wrapping_add(got.len() as u32);
            assert_eq!(tcp.sequence_number(), sequence);
            assert_eq!(tcp.payload().len(), 1);
            got.extend_from_slice(tcp.payload());
        }
        assert!(got == payload);
    }
    assert_eq!(port.engine.status().lost.load(Ordering::Relaxed), 0);
}

#[test]
fn a_long_segment_leaves_as_frames_of_the_size_that_the_guest_names() {
    let (mut port, mut guest) = connected(1, EVENT_IDX);
    let payload = frame(64_000, 5);
    guest.rings[1].send(&tcp_header(34, 1448), &tcp(&payload));
    let mut got = Vec::new();
    while got.len() < payload.len() {
        let frame = port.take();
        assert!(frame.len() <= 54 + 1448);
        got.extend_from_slice(&frame[54..]);
    }
    assert!(got == payload);
    assert_eq!(guest.rings[1].used(), (0, 0));
}

/// The guest continues with the same rings after its front end or the port has restarted the connection.
#[test]
fn a_front_end_that_connects_again_continues() {
    let mut port = Port::new();
    let mut guest = Guest::new(1, EVENT_IDX | MERGEABLE);
    for round in 0..50u8 {
        guest.connect(&port.path);
        let [receive, send] = &mut guest.rings[..] else {
            panic!()
        };
        receive.offer_buffer(u16::from(round) % SIZE);
        send.send(&PLAIN, &frame(100, round));
        assert_eq!(port.take(), frame(100, round));
        send.used();
        port.send(&frame(200, round));
        assert_eq!(receive.receive().0, frame(200, round));
        // One buffer stays with the device, and is found again.
        receive.offer_buffer(u16::from(round) % SIZE);
        let connections = port.engine.status().connections.load(Ordering::Relaxed);
        assert_eq!(connections, u64::from(round) + 1);
        guest.disconnect();
        port.until("disconnected", |engine| {
            !engine.status().is_connected.load(Ordering::Relaxed)
        });
        let receive = &mut guest.rings[0];
        receive.publish(receive.available.wrapping_sub(1));
    }
    // Descriptors of connections that have ended are closed: 50 connections had at least 5 each.
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    assert!(open.count() < 150, "descriptors are left open");
}

/// QEMU does this when the guest is stopped and continued, or its driver is loaded again.
#[test]
fn a_ring_continues_after_stop_and_start() {
    let (mut port, mut guest) = connected(1, EVENT_IDX);
    for n in 0..5 {
        guest.rings[1].send(&PLAIN, &frame(100, n));
        assert_eq!(port.take(), frame(100, n));
        let base = guest.stop(1);
        assert_eq!(base, u16::from(n) * 2 + 1);
        // Made available while it was stopped.
        guest.rings[1].send(&PLAIN, &frame(101, n));
        guest.start(1, base);
        assert_eq!(port.take(), frame(101, n));
    }
}

#[test]
fn an_invalid_chain_is_returned_and_counted() {
    let (mut port, mut guest) = connected(1, EVENT_IDX);
    let send = &mut guest.rings[1];
    let place = send.data(4);
    send.write(place, &[0; 100]);
    let table = send.data(8);
    type Malformed<'a> = (&'a str, &'a dyn Fn(&Driver));
    let cases: &[Malformed<'_>] = &[
        ("a loop", &|ring| ring.descriptor(0, place, 1, NEXT, 0)),
        ("a loop of two", &|ring| {
            ring.descriptor(0, place, 1, NEXT, 1);
            ring.descriptor(1, place, 1, NEXT, 0);
        }),
        ("no such descriptor", &|ring| {
            ring.descriptor(0, place, 60, NEXT, SIZE)
        }),
        ("no such memory", &|ring| ring.descriptor(0, 0, 100, 0, 0)),
        ("the end of memory", &|ring| {
            ring.descriptor(0, guest::END - 99, 100, 0, 0)
        }),
        ("the end of addresses", &|ring| {
            ring.descriptor(0, u64::MAX - 9, 100, 0, 0)
        }),
        ("too long", &|ring| ring.descriptor(0, place, 70_000, 0, 0)),
        ("4 GiB", &|ring| ring.descriptor(0, place, u32::MAX, 0, 0)),
        ("for the device to write", &|ring| {
            ring.descriptor(0, place, 100, WRITE, 0)
        }),
        ("no header", &|ring| ring.descriptor(0, place, 11, 0, 0)),
        ("no frame", &|ring| ring.descriptor(0, place, 12, 0, 0)),
        ("no Ethernet header", &|ring| {
            ring.descriptor(0, place, 25, 0, 0)
        }),
        ("nothing", &|ring| ring.descriptor(0, place, 0, 0, 0)),
        ("a table of no descriptors", &|ring| {
            ring.descriptor(0, table, 0, INDIRECT, 0)
        }),
        ("a table of half a descriptor", &|ring| {
            ring.descriptor(0, table, 8, INDIRECT, 0)
        }),
        ("a table in a table", &|ring| {
            ring.write(table, &Driver::descriptor_octets(table, 16, INDIRECT, 0));
            ring.descriptor(0, table, 16, INDIRECT, 0);
        }),
        ("a table of 65535 descriptors that is a loop", &|ring| {
            ring.write(table, &Driver::descriptor_octets(place, 0, NEXT, 0));
            ring.descriptor(0, table, 65_535 * 16, INDIRECT, 0);
        }),
        ("segments of no octets", &|ring| {
            ring.write(place, &[1, 1, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0]);
            ring.write(place + 12, &tcp(&[1; 30]));
            ring.descriptor(0, place, 96, 0, 0);
        }),
        ("a checksum outside", &|ring| {
            ring.write(place, &[1, 0, 0, 0, 0, 0, 34, 0, 0xff, 0xff, 0, 0]);
            ring.descriptor(0, place, 96, 0, 0);
        }),
    ];
    for (count, (what, write)) in cases.iter().enumerate() {
        write(send);
        send.offer(0);
        assert_eq!(send.used(), (0, 0), "{what}");
        port.until_malformed(count as u64 + 1);
        send.send(&PLAIN, &frame(60, count as u8));
        assert_eq!(port.take(), frame(60, count as u8), "after {what}");
        send.used();
    }
}

/// The process of a port serves other guests as well.
#[test]
fn memory_that_the_host_does_not_have_is_a_lost_frame() {
    let (mut port, mut guest) = connected(1, EVENT_IDX);
    let send = &mut guest.rings[1];
    // The last page: nothing else is there.
    let end = guest::END;
    send.descriptor(0, end - 4096, 1000, 0, 0);
    guest.shrink(4096);
    let [receive, send] = &mut guest.rings[..] else {
        panic!()
    };
    send.offer(0);
    assert_eq!(send.used(), (0, 0));
    port.until_malformed(1);
    receive.descriptor(0, end - 4096, 1000, WRITE, 0);
    receive.offer(0);
    port.send(&frame(60, 1));
    receive.used();
    port.until_malformed(2);
    send.send(&PLAIN, &frame(99, 3));
    assert_eq!(port.take(), frame(99, 3));
}

#[test]
fn a_table_of_descriptors_is_read() {
    let (mut port, mut guest) = connected(1, EVENT_IDX);
    let send = &mut guest.rings[1];
    let (table, place) = (send.data(8), send.data(4));
    send.write(place, &[&PLAIN[..], &frame(99, 1)].concat());
    send.write(table, &Driver::descriptor_octets(place, 20, NEXT, 1));
    send.write(table + 16, &Driver::descriptor_octets(place + 20, 91, 0, 0));
    send.descriptor(0, table, 32, INDIRECT, 0);
    send.offer(0);
    assert_eq!(port.take(), frame(99, 1));
}

/// It is ignored, without using the time of the thread, until it is started again; the other rings work.
#[test]
fn an_invalid_ring_is_ignored_until_it_is_started_again() {
    type Break<'a> = (&'a str, usize, &'a dyn Fn(&mut Driver));
    let cases: &[Break<'_>] = &[
        ("an index that jumps", 1, &|ring| {
            ring.publish(ring.available.wrapping_add(SIZE + 1))
        }),
        ("a head that is none", 1, &|ring| ring.offer(SIZE)),
        ("a receive buffer to read", 0, &|ring| {
            ring.descriptor(0, ring.data(0), 100, 0, 0);
            ring.offer(0);
        }),
        ("a receive buffer nowhere", 0, &|ring| {
            ring.descriptor(0, 0, 2000, WRITE, 0);
            ring.offer(0);
        }),
        ("a receive loop", 0, &|ring| {
            ring.descriptor(0, ring.data(0), 0, WRITE | NEXT, 0);
            ring.offer(0);
        }),
    ];
    for (what, index, break_it) in cases {
        let (mut port, mut guest) = connected(2, EVENT_IDX);
        break_it(&mut guest.rings[*index]);
        if *index == 0 {
            guest.stop(2);
            port.send(&frame(60, 1));
        }
        port.until_malformed(1);
        guest.rings[*index].kick.write(1).unwrap();
        guest.rings[3].send(&PLAIN, &frame(99, 3));
        assert_eq!(port.take(), frame(99, 3), "{what}");
        port.until_malformed(1);
        // The driver is loaded again.
        guest.stop(*index);
        let base = guest.rings[*index].seen;
        guest.rings[*index].available = base;
        guest.rings[*index].publish(base);
        guest.start(*index, base);
        if *index == 0 {
            guest.rings[0].offer_buffer(5);
            port.send(&frame(61, 2));
            assert_eq!(guest.rings[0].receive(), (frame(61, 2), 1), "{what}");
        } else {
            guest.rings[1].send(&PLAIN, &frame(61, 2));
            assert_eq!(port.take(), frame(61, 2), "{what}");
        }
    }
}

/// Frames to this guest are lost once the ring to it is full; all else works.
#[test]
fn a_guest_that_takes_nothing_loses_its_frames_only() {
    let (mut port, mut guest) = connected(1, EVENT_IDX);
    let mut sent = 0u32;
    while port
        .engine
        .send(&[&sent.to_be_bytes()[..], &[7; 1400]].concat())
    {
        sent += 1;
        port.engine.flush();
        assert!(sent < 10_000, "it is never full");
    }
    guest.rings[1].send(&PLAIN, &frame(99, 3));
    assert_eq!(port.take(), frame(99, 3));
    // The frames in the ring are still in order when the guest continues.
    let receive = &mut guest.rings[0];
    for slot in 0..SIZE {
        receive.offer_buffer(slot);
    }
    for n in 0..sent {
        let (frame, _) = receive.receive();
        assert_eq!(frame[..4], n.to_be_bytes());
        receive.offer_buffer(n as u16 % SIZE);
    }
}

/// No frame is lost, and memory is bounded: the frames stay in the guest.
#[test]
fn a_guest_that_sends_faster_than_the_engine_takes_is_held_up() {
    let (mut port, mut guest) = connected(1, EVENT_IDX);
    let send = &mut guest.rings[1];
    let place = send.data(0);
    send.write(place, &[0; 12]);
    for slot in 0..SIZE {
        send.descriptor(slot, place, 60_000, 0, 0);
        send.offer(slot);
    }
    // The ring to the engine has 1 MiB; 64 KiB of it stay free for the next frame.
    for _ in 0..17 {
        send.used();
    }
    assert_eq!(send.try_used(), None);
    for _ in 0..SIZE {
        assert_eq!(port.take().len(), 60_000 - HEADER);
    }
    assert_eq!(port.engine.status().lost.load(Ordering::Relaxed), 0);
}

/// Frames are dropped while there is no driver. They do not arrive late.
#[test]
fn frames_for_a_guest_without_a_driver_are_counted() {
    let mut port = Port::new();
    let socket = UnixStream::connect(&port.path).unwrap();
    port.until("connected", |engine| {
        engine.status().is_connected.load(Ordering::Relaxed)
    });
    port.send(&frame(60, 1));
    port.until_not_sent(1);
    drop(socket);
}

/// QEMU enables a ring before it sets features, when the guest's driver starts.
#[test]
fn a_ring_may_be_enabled_before_features_are_set() {
    let mut port = Port::new();
    let mut socket = UnixStream::connect(&port.path).unwrap();
    let words = |words: [u32; 5]| words.map(u32::to_ne_bytes).concat();
    // With an answer: 0 for success.
    socket.write_all(&words([18, 1 | 8, 8, 0, 1])).unwrap();
    let mut answer = [0; 20];
    socket.read_exact(&mut answer).unwrap();
    assert_eq!(answer.to_vec(), words([18, 1 | 4, 8, 0, 0]));
    socket.write_all(&words([18, 1, 8, 1, 0])).unwrap();
    // The connection continues: the test asks for the features.
    socket.write_all(&words([1, 1, 0, 0, 0])[..12]).unwrap();
    socket.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..4], 1u32.to_ne_bytes());
    // A ring that does not exist.
    socket.write_all(&words([18, 1, 8, 16, 1])).unwrap();
    guest::until_closed(&socket);
    port.until_malformed(1);
}

/// Such messages neither end the port nor delay its end.
#[test]
fn invalid_and_endless_messages_close_the_connection() {
    let mut port = Port::new();
    let message = |request: u32, size: u32| {
        [request, 1, size]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect::<Vec<u8>>()
    };
    let cases = [
        message(1, 1000),
        message(1, 0)[..5].to_vec(),
        message(1, u32::MAX),
        message(0, 0),
        message(9999, 0),
        [message(8, 8), vec![0xff; 8]].concat(),
        [message(9, 40), vec![0xff; 40]].concat(),
        [message(5, 8), vec![0xff; 8]].concat(),
        [message(2, 8), vec![0xff; 8]].concat(),
    ];
    for (count, octets) in cases.iter().enumerate() {
        let mut socket = UnixStream::connect(&port.path).unwrap();
        socket.write_all(octets).unwrap();
        guest::until_closed(&socket);
        port.until_malformed(count as u64 + 1);
    }
    let mut guest = Guest::new(1, 0);
    guest.connect(&port.path);
    guest.rings[1].send(&PLAIN, &frame(60, 1));
    assert_eq!(port.take(), frame(60, 1));
    // A front end that stops in the middle of a message while the port ends.
    guest.disconnect();
    let mut socket = UnixStream::connect(&port.path).unwrap();
    socket.write_all(&message(1, 1000)).unwrap();
    port.until("connected", |engine| {
        engine.status().is_connected.load(Ordering::Relaxed)
    });
}
