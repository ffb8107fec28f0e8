//! Each kind of invalid message: its errno, and the state of the stream afterwards.

#![cfg(test)]

use crate::common::{Client, Pair, access, borrow, memfd, message, version, words};
use faultline_vfio_user::{Ended, Errno, MAX_DATA_XFER, MAX_DRAIN, MAX_MESSAGE, MAX_MSG_FDS};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

fn refused(client: &mut Client, command: u16, body: &[u8], errno: Errno) {
    let error = client.call(command, body, &[]).error;
    assert_eq!(
        error,
        errno.raw_os_error() as u32,
        "command {command}, body {body:x?}"
    );
    client.works();
}

#[test]
fn bodies_that_are_too_short_or_too_long() {
    let mut pair = Pair::negotiated();
    let whole: [(u16, Vec<u8>); 7] = [
        (2, words(&[32, 3, 0, 0, 0x1000, 0, 0x1000, 0])),
        (3, words(&[24, 0, 0x1000, 0, 0x1000, 0])),
        (4, words(&[16, 0, 0, 0])),
        (5, words(&[32, 0, 0])),
        (7, words(&[16, 0, 2])),
        (8, words(&[20, 0x24, 2, 0, 1])),
        (9, words(&[0, 0, 0, 4])),
    ];
    for (command, body) in whole {
        let least = if command == 4 { 4 } else { body.len() };
        for len in 0..least {
            refused(&mut pair.client, command, &body[..len], Errno::INVAL);
        }
        assert_eq!(
            pair.client.call(command, &body, &[]).error,
            0,
            "command {command}"
        );
    }
    refused(&mut pair.client, 9, &words(&[0, 0, 0, 4, 0]), Errno::INVAL);
    refused(&mut pair.client, 13, &[0], Errno::INVAL);
    let map = words(&[32, 3, 0, 0, 0x1000, 0, 0x1000, 0, 0]);
    refused(&mut pair.client, 2, &map, Errno::INVAL);
    for claimed in [0, 3, 5, 0x1000] {
        let mut body = access(0, 0, &[1, 2, 3, 4]);
        body[12..16].copy_from_slice(&u32::to_le_bytes(claimed));
        refused(&mut pair.client, 10, &body, Errno::INVAL);
    }
    assert_eq!(pair.log.lock().unwrap().resets, 0);
    assert_eq!(pair.hang_up(), Ended::Disconnected);
}

#[test]
fn too_short_argsz() {
    let mut pair = Pair::negotiated();
    for argsz in [0, 15] {
        refused(&mut pair.client, 4, &words(&[argsz, 0, 0, 0]), Errno::INVAL);
        refused(&mut pair.client, 7, &words(&[argsz, 0, 2, 0]), Errno::INVAL);
        refused(
            &mut pair.client,
            8,
            &words(&[argsz + 4, 0x21, 2, 0, 0]),
            Errno::INVAL,
        );
        refused(
            &mut pair.client,
            3,
            &words(&[argsz + 8, 0, 0, 0, 0, 0]),
            Errno::INVAL,
        );
        refused(
            &mut pair.client,
            5,
            &words(&[argsz + 16, 0, 0, 0, 0, 0, 0, 0]),
            Errno::INVAL,
        );
        let map = words(&[argsz + 16, 3, 0, 0, 0, 0, 0x1000, 0]);
        refused(&mut pair.client, 2, &map, Errno::INVAL);
    }
}

#[test]
fn commands_that_do_not_exist() {
    let mut pair = Pair::negotiated();
    for command in [0, 6, 11, 12, 14, 15, 16, 255, u16::MAX] {
        refused(&mut pair.client, command, &[], Errno::OPNOTSUPP);
        refused(&mut pair.client, command, &[0xff; 100], Errno::OPNOTSUPP);
    }
}

#[test]
fn indices_and_limits() {
    let mut pair = Pair::negotiated();
    let client = &mut pair.client;
    for index in [9, u32::MAX] {
        refused(
            client,
            5,
            &words(&[32, 0, index, 0, 0, 0, 0, 0]),
            Errno::INVAL,
        );
        refused(client, 9, &words(&[0, 0, index, 4]), Errno::INVAL);
        refused(client, 10, &access(0, index, &[0; 4]), Errno::INVAL);
        refused(client, 7, &words(&[16, 0, index, 0]), Errno::INVAL);
        refused(client, 8, &words(&[20, 0x21, index, 0, 0]), Errno::INVAL);
    }
    refused(client, 7, &words(&[16, 0, 5, 0]), Errno::INVAL);
    for count in [MAX_DATA_XFER + 1, u32::MAX] {
        refused(client, 9, &words(&[0, 0, 0, count]), Errno::MSGSIZE);
    }
    refused(client, 9, &words(&[0, 0, 0, 0]), Errno::INVAL);
    refused(client, 9, &words(&[u32::MAX, u32::MAX, 0, 4]), Errno::INVAL);
    refused(client, 9, &words(&[4093, 0, 0, 4]), Errno::INVAL);
    // The device's own errno.
    refused(client, 9, &words(&[0, 0, 1, 4]), Errno::IO);
    refused(client, 2, &words(&[32, 3, 0, 0, 0, 0, 0, 0]), Errno::INVAL);
    // Unknown flags of DMA_MAP and DMA_UNMAP.
    refused(
        client,
        2,
        &words(&[32, 7, 0, 0, 0, 0, 0x1000, 0]),
        Errno::INVAL,
    );
    refused(client, 3, &words(&[24, 1, 0, 0, 0x1000, 0]), Errno::INVAL);
    refused(client, 3, &words(&[24, 3, 0, 0, 0x1000, 0]), Errno::INVAL);
}

#[test]
fn the_largest_access_works() {
    let mut pair = Pair::negotiated();
    // Refused by the device, whose region is small, not by the server.
    let body = access(0, 0, &vec![1; MAX_DATA_XFER as usize]);
    refused(&mut pair.client, 10, &body, Errno::INVAL);
    let body = access(0, 0, &[7; 4096]);
    assert_eq!(pair.client.call(10, &body, &[]).error, 0);
    let reply = pair.client.call(9, &words(&[0, 0, 0, 4096]), &[]);
    assert_eq!(&reply.body[16..], &[7; 4096]);
}

#[test]
fn interrupt_sets() {
    let mut pair = Pair::negotiated();
    let client = &mut pair.client;
    let mut bad = |flags, index, start, count| {
        refused(
            client,
            8,
            &words(&[20, flags, index, start, count]),
            Errno::INVAL,
        );
    };
    for flags in [0, 1, 0x20, 0x23, 0x25, 0x31, 0x61, 0x27, 0x8000_0021] {
        bad(flags, 2, 0, 1);
    }
    bad(0x21, 2, 32, 1);
    bad(0x21, 2, 0, 33);
    bad(0x24, 2, 31, 2);
    bad(0x24, 2, u32::MAX, 2);
    bad(0x24, 2, 0, u32::MAX);
    bad(0x24, 0, 0, 1);
    bad(0x24, 2, 0, 0);
    bad(0x22, 2, 0, 0);
    bad(0x09, 2, 0, 0);
    // Bools without their bytes.
    bad(0x22, 2, 0, 1);
    let files: Vec<OwnedFd> = (0..3).map(|_| memfd(0)).collect();
    for (flags, count) in [(0x24, 2), (0x24, 4), (0x21, 3), (0x22, 3), (0x21, 0)] {
        let body = words(&[20, flags, 2, 0, count, 0]);
        assert_eq!(
            client.call(8, &body, &borrow(&files)).error,
            22,
            "{flags:#x} {count}"
        );
    }
    client.works();
    assert!(pair.log.lock().unwrap().irqs.is_empty());
}

/// The number of links to an open file is not visible, but a pipe shows that its last writer is
/// closed.
fn closed(reader: &mut std::io::PipeReader) -> bool {
    reader.read(&mut [0]).unwrap() == 0
}

#[test]
fn unused_descriptors_are_closed() {
    let map = words(&[32, 3, 0, 0, 0, 0, 0x1000, 0]);
    let irqs = words(&[20, 0x24, 2, 0, 16]);
    let cases: [(u16, Vec<u8>, usize); 9] = [
        (2, map.clone(), 2),
        (2, map[..20].to_vec(), 1),
        (3, words(&[24, 0, 0, 0, 0x1000, 0]), 1),
        (4, words(&[16, 0, 0, 0]), 1),
        (6, Vec::new(), 1),
        (8, irqs.clone(), 15),
        (8, irqs.clone(), MAX_MSG_FDS + 1),
        (9, words(&[0, 0, 0, 4]), 3),
        (13, Vec::new(), 90),
    ];
    for (command, body, count) in cases {
        let mut pair = Pair::negotiated();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let writer = OwnedFd::from(writer);
        let fds = vec![writer.as_fd(); count];
        assert_ne!(
            pair.client.call(command, &body, &fds).error,
            0,
            "command {command}"
        );
        drop(writer);
        assert!(closed(&mut reader), "command {command}");
        pair.client.works();
    }
}

#[test]
fn descriptors_are_closed_when_their_message_is_cut() {
    let mut pair = Pair::negotiated();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let writer = OwnedFd::from(writer);
    let whole = message(9, 2, 0, &words(&[32, 3, 0, 0, 0, 0, 0x1000, 0]));
    pair.client.raw(&whole[..30], &[writer.as_fd()]);
    drop(writer);
    pair.client
        .stream
        .shutdown(std::net::Shutdown::Both)
        .unwrap();
    assert_eq!(pair.ended(), Ended::Broken);
    assert!(closed(&mut reader));
    assert_eq!(pair.log.lock().unwrap().disconnects, 1);
}

#[test]
fn a_message_in_single_bytes_is_a_message() {
    let mut pair = Pair::negotiated();
    let file = memfd(4096);
    for (i, byte) in message(9, 2, 0, &words(&[32, 1, 0, 0, 0, 0, 0x1000, 0]))
        .iter()
        .enumerate()
    {
        // The descriptor may come with any byte.
        let fds = if i == 20 {
            vec![file.as_fd()]
        } else {
            Vec::new()
        };
        pair.client.raw(&[*byte], &fds);
    }
    assert_eq!(pair.client.reply().unwrap().error, 0);
    assert_eq!(
        pair.log.lock().unwrap().maps,
        [(0, 0x1000, 0, true, false, true)]
    );
    pair.client.works();
}

#[test]
fn sizes_that_make_no_sense_end_the_connection() {
    for size in [0, 1, 15, MAX_DRAIN + 1, u32::MAX] {
        let mut pair = Pair::negotiated();
        let mut bytes = message(7, 9, 0, &[]);
        bytes[4..8].copy_from_slice(&size.to_le_bytes());
        pair.client.raw(&bytes, &[]);
        let reply = pair.client.reply().unwrap();
        assert_eq!((reply.id, reply.command, reply.flags), (7, 9, 0x21));
        assert_ne!(reply.error, 0);
        assert_eq!(pair.client.stream.read(&mut [0]).unwrap(), 0, "size {size}");
        assert_eq!(pair.ended(), Ended::Desynchronized);
        assert_eq!(pair.log.lock().unwrap().disconnects, 1);
    }
}

#[test]
fn too_long_messages_are_skipped() {
    let mut pair = Pair::negotiated();
    let body = vec![0xee; MAX_MESSAGE as usize + 1];
    assert_eq!(
        pair.client.call(10, &body, &[]).error,
        Errno::MSGSIZE.raw_os_error() as u32
    );
    pair.client.works();
}

#[test]
fn streams_that_end_early() {
    for len in [0, 1, 15, 16, 20] {
        let mut pair = Pair::negotiated();
        pair.client
            .raw(&message(1, 9, 0, &words(&[0, 0, 0, 4]))[..len], &[]);
        let expected = if len == 0 {
            Ended::Disconnected
        } else {
            Ended::Broken
        };
        assert_eq!(pair.hang_up(), expected, "after {len} bytes");
    }
}

#[test]
fn versions() {
    let refusals: [(Vec<u8>, Errno); 9] = [
        (Vec::new(), Errno::INVAL),
        (vec![0, 0, 0], Errno::INVAL),
        (vec![1, 0, 0, 0], Errno::PROTONOSUPPORT),
        // No NUL at the end, one in the middle, none but it, no JSON, no object.
        (b"\0\0\0\0{}".to_vec(), Errno::INVAL),
        (b"\0\0\0\0{}\0{}\0".to_vec(), Errno::INVAL),
        (b"\0\0\0\0\0".to_vec(), Errno::INVAL),
        (version("[[[[[[[["), Errno::INVAL),
        (version("{\"capabilities\": 3}"), Errno::INVAL),
        (
            version("{\"capabilities\": {\"max_data_xfer_size\": -1}}"),
            Errno::INVAL,
        ),
    ];
    let mut pair = Pair::new();
    for (body, errno) in refusals {
        let reply = pair.client.call(1, &body, &[]);
        assert_eq!(reply.error, errno.raw_os_error() as u32, "{body:x?}");
    }
    // Nothing else before the version.
    assert_eq!(pair.client.call(4, &words(&[16, 0, 0, 0]), &[]).error, 22);
    assert_eq!(pair.client.call(13, &[], &[]).error, 22);
    // Data is optional, a higher minor version is answered with ours.
    let reply = pair.client.call(1, &[0, 0, 9, 0], &[]);
    assert_eq!((reply.error, reply.word(0)), (0, 0));
    assert_eq!(reply.body.last(), Some(&0));
    pair.client.works();
    assert_eq!(
        pair.client.call(1, &[0, 0, 0, 0], &[]).error,
        22,
        "only once"
    );
    pair.client.works();
}

#[test]
fn deeply_nested_json_is_refused_not_recursed() {
    let mut pair = Pair::new();
    let deep = format!("{{\"capabilities\":{}", "[".repeat(500_000));
    assert_eq!(pair.client.call(1, &version(&deep), &[]).error, 22);
    assert_eq!(pair.client.call(1, &version("{}"), &[]).error, 0);
}

#[test]
fn the_clients_own_limit_counts() {
    let mut pair = Pair::new();
    let caps = version("{\"capabilities\":{\"max_data_xfer_size\":8,\"unknown\":[null]}}");
    assert_eq!(pair.client.call(1, &caps, &[]).error, 0);
    refused(&mut pair.client, 9, &words(&[0, 0, 0, 9]), Errno::MSGSIZE);
    assert_eq!(pair.client.call(9, &words(&[0, 0, 0, 8]), &[]).error, 0);
}

#[test]
fn header_flags() {
    let mut pair = Pair::negotiated();
    let body = words(&[0, 0, 0, 4]);
    for flags in [2, 0xf, 0x20, 0x40, 0x8000_0000] {
        pair.client.raw(&message(3, 9, flags, &body), &[]);
        let reply = pair.client.reply().unwrap();
        assert_eq!((reply.id, reply.error), (3, 22), "flags {flags:#x}");
    }
    // A reply without a request is ignored.
    pair.client.raw(&message(3, 9, 1, &body), &[]);
    // No reply: neither to valid requests nor to refused ones.
    pair.client.raw(&message(4, 13, 0x10, &[]), &[]);
    pair.client.raw(&message(5, 13, 0x10, &[1]), &[]);
    pair.client.raw(&message(6, 99, 0x10, &[]), &[]);
    pair.client.works();
    assert_eq!(pair.log.lock().unwrap().resets, 1);
}

#[test]
fn shutdown_ends_a_server_wherever_it_waits() {
    for sent in [0, 10, 20] {
        let mut pair = Pair::negotiated();
        pair.client
            .raw(&message(1, 9, 0, &words(&[0, 0, 0, 4]))[..sent], &[]);
        std::thread::sleep(std::time::Duration::from_millis(20));
        pair.shutdown.trigger();
        assert_eq!(pair.ended(), Ended::Shutdown);
        assert!(pair.shutdown.is_triggered());
        assert_eq!(pair.log.lock().unwrap().disconnects, 1);
    }
    // A client that asks and never reads.
    let mut pair = Pair::negotiated();
    let ask = message(1, 9, 0, &words(&[0, 0, 0, 4096]));
    pair.client.stream.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut pair.client.stream, &ask).is_ok_and(|n| n == ask.len()) {}
    std::thread::sleep(std::time::Duration::from_millis(50));
    pair.shutdown.trigger();
    assert_eq!(pair.ended(), Ended::Shutdown);
}
