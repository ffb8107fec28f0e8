//! Malformed messages to the socket of a served device: each is refused or ends the connection, and affects no other
//! connection. `device/vfio-user/tests` tests the protocol in detail; these tests have the device behind it.

use std::os::fd::AsFd;

use faultline_abi::regs;
use faultline_config::PollMode;
use faultline_harness::client::{
    CONFIG_REGION, Client, ClientError, MAP_READ, MAP_WRITE, MSIX_IRQ, RawReply, command, message,
};
use faultline_harness::testbed::{Fabric, Node};
use faultline_harness::traffic::{Neighbours, exchange_anew};
use faultline_harness::{Choices, Ram, Rng};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;

const PAGE: u64 = 4096;
/// Id of the question that follows a bad message.
const PROBE: u16 = 0x7fff;

fn words(words: &[u64]) -> Vec<u8> {
    let bytes = words.iter().flat_map(|word| (*word as u32).to_le_bytes());
    bytes.collect()
}

fn map(argsz: u32, flags: u32, offset: u64, iova: u64, size: u64) -> Vec<u8> {
    let mut body = words(&[u64::from(argsz), u64::from(flags)]);
    for value in [offset, iova, size] {
        body.extend(value.to_le_bytes());
    }
    body
}

fn unmap(argsz: u32, flags: u32, iova: u64, size: u64) -> Vec<u8> {
    let mut body = words(&[u64::from(argsz), u64::from(flags)]);
    body.extend(iova.to_le_bytes());
    body.extend(size.to_le_bytes());
    body
}

fn access(region: u32, offset: u64, count: u32, data: &[u8]) -> Vec<u8> {
    let mut body = offset.to_le_bytes().to_vec();
    body.extend(words(&[u64::from(region), u64::from(count)]));
    body.extend(data);
    body
}

fn fds(fd: &OwnedFd, count: usize) -> Vec<BorrowedFd<'_>> {
    vec![fd.as_fd(); count]
}

fn is_closed(error: &ClientError) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    match error {
        ClientError::Io(error) => {
            matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
        }
        _ => false,
    }
}

/// Sends bytes and then a question that has an answer; returns the replies before that, or `None` if the device
/// closed the connection. If the device does neither, this panics after the client's time limit.
#[track_caller]
fn answers(client: &mut Client, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Option<Vec<RawReply>> {
    let probe = message(PROBE, command::GET_INFO, 0, &words(&[16, 0, 0, 0]));
    for (bytes, fds) in [(bytes, fds), (&probe[..], &[][..])] {
        match client.send_bytes(bytes, fds) {
            Ok(()) => {}
            Err(error) if is_closed(&error) => return None,
            Err(error) => panic!("{error}"),
        }
    }
    let mut replies = Vec::new();
    loop {
        match client.receive() {
            Ok(reply) if reply.id == PROBE => return Some(replies),
            Ok(reply) => replies.push(reply),
            Err(error) if is_closed(&error) => return None,
            Err(error) => panic!("neither an answer nor a closed connection: {error}"),
        }
    }
}

fn file() -> OwnedFd {
    let ram = Ram::new(1 << 20, 0).unwrap();
    ram.file().fd().try_clone_to_owned().unwrap()
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// A device that works, abused over its socket.
struct Abused {
    fabric: Fabric,
    neighbours: Neighbours,
    other: Node,
}

impl Abused {
    fn new() -> Self {
        let fabric = Fabric::start(PollMode::Adaptive, &["a", "b", "c", "d"]).unwrap();
        let neighbours = Neighbours::start(&fabric, ["c", "d"]).unwrap();
        let other = fabric.node("b").unwrap();
        Self {
            fabric,
            neighbours,
            other,
        }
    }

    fn connect(&self) -> Client {
        Client::connect(&self.fabric.socket("a")).unwrap()
    }

    /// The neighbours never noticed, and the next client has a device that works.
    #[track_caller]
    fn still_works(&mut self) {
        self.neighbours.unharmed();
        let mut a = self.fabric.node("a").unwrap();
        exchange_anew(&mut a, &mut self.other, &mut Rng::new(6));
    }
}

/// Each body must be refused with its errno, independent of earlier refusals.
#[track_caller]
fn refused(client: &mut Client, command: u16, fds: &[BorrowedFd<'_>], cases: &[(Vec<u8>, Errno)]) {
    for (body, errno) in cases {
        let what = format!("command {command}, {} descriptors, {body:x?}", fds.len());
        let bytes = message(5, command, 0, body);
        let replies = answers(client, &bytes, fds);
        let replies = replies.unwrap_or_else(|| panic!("{what}: closed"));
        assert_eq!(replies.len(), 1, "{what}");
        let reply = &replies[0];
        assert_eq!((reply.id, reply.command), (5, command), "{what}");
        assert_eq!(reply.flags, 0x21, "{what}: a reply, and an error");
        assert_eq!(reply.errno, errno.raw_os_error() as u32, "{what}");
    }
}

const INVAL: Errno = Errno::INVAL;
/// Both rights.
const RW: u32 = MAP_READ | MAP_WRITE;
/// An address where the tests map nothing.
const FREE: u64 = 1 << 20;

#[test]
fn bad_maps_are_refused() {
    let mut abused = Abused::new();
    let mut client = abused.connect();
    let file = file();
    let event = event();
    let last = u64::MAX - PAGE + 1;
    let good = || map(32, RW, 0, FREE, PAGE);
    client
        .dma_map(0, 4 * PAGE, 0, RW, Some(file.as_fd()))
        .unwrap();
    let cases = [
        (Vec::new(), INVAL),
        (good()[..31].to_vec(), INVAL),
        (map(31, RW, 0, FREE, PAGE), INVAL),
        (map(32, 8, 0, FREE, PAGE), INVAL),
        (map(32, MAP_WRITE, 0, FREE, PAGE), INVAL),
        (map(32, RW, 0, FREE, 0), INVAL),
        (map(32, RW, 0, FREE, PAGE / 2), INVAL),
        (map(32, RW, 0, FREE + 1, PAGE), INVAL),
        (map(32, RW, 8, FREE, PAGE), INVAL),
        (map(32, RW, 0, last, 2 * PAGE), Errno::OVERFLOW),
        (map(32, RW, last, FREE, 2 * PAGE), Errno::OVERFLOW),
        (map(32, RW, 0, PAGE, u64::MAX), Errno::OVERFLOW),
        (map(32, RW, 0, PAGE, PAGE), Errno::EXIST),
        (map(32, RW, 0, 3 * PAGE, 2 * PAGE), Errno::EXIST),
    ];
    refused(&mut client, command::DMA_MAP, &fds(&file, 1), &cases);
    refused(&mut client, command::DMA_MAP, &[], &cases);
    let beyond = [
        (map(32, RW, 1 << 20, FREE, PAGE), INVAL),
        (map(32, RW, 0, FREE, (1 << 20) + PAGE), INVAL),
    ];
    refused(&mut client, command::DMA_MAP, &fds(&file, 1), &beyond);
    for many in [2, 16, 32] {
        let cases = [(good(), INVAL)];
        refused(&mut client, command::DMA_MAP, &fds(&file, many), &cases);
    }
    let no_memory = [(good(), Errno::NODEV)];
    refused(&mut client, command::DMA_MAP, &fds(&event, 1), &no_memory);
    let cases = [
        (unmap(24, 0, 0, 4 * PAGE)[..23].to_vec(), INVAL),
        (unmap(0, 0, 0, 4 * PAGE), INVAL),
        (unmap(24, 4, 0, 4 * PAGE), INVAL),
        (unmap(24, 0, PAGE, PAGE), INVAL),
        (unmap(24, 0, 0, 3 * PAGE), INVAL),
        (unmap(24, 0, PAGE, u64::MAX), INVAL),
        (unmap(24, 0, 0, 0), INVAL),
    ];
    refused(&mut client, command::DMA_UNMAP, &[], &cases);
    // The map from the beginning is unchanged.
    let there = [(map(32, RW, 0, 3 * PAGE, PAGE), Errno::EXIST)];
    refused(&mut client, command::DMA_MAP, &[], &there);
    client.dma_unmap(0, 4 * PAGE, 0).unwrap();
    drop(client);
    abused.still_works();
    abused.neighbours.finish();
}

#[test]
fn bad_accesses_and_interrupts_are_refused() {
    let mut abused = Abused::new();
    let mut client = abused.connect();
    let file = file();
    let event = event();
    let bells_end = client.region_info(regs::BAR_DOORBELL).unwrap().size;
    let registers_end = u64::from(regs::REGS_SIZE);
    let (registers, bells, msix) = (regs::BAR_REGS, regs::BAR_DOORBELL, regs::BAR_MSIX);
    let all = u64::from(u32::MAX);

    for number in [0, 6, 11, 12, 14, 15, 99, u16::MAX] {
        let cases = [Vec::new(), vec![1; 64]].map(|body| (body, Errno::OPNOTSUPP));
        refused(&mut client, number, &[], &cases);
    }
    refused(&mut client, command::VERSION, &[], &[(vec![0; 4], INVAL)]);
    refused(&mut client, command::RESET, &[], &[(vec![0; 4], INVAL)]);
    let cases = [(Vec::new(), INVAL)];
    refused(&mut client, command::RESET, &fds(&file, 1), &cases);
    let cases = [15, 0].map(|argsz| (words(&[argsz, 0, 0, 0]), INVAL));
    refused(&mut client, command::GET_INFO, &[], &cases);
    let cases = [(31, 0), (32, 9), (32, all)].map(|(argsz, index)| {
        let body = words(&[argsz, 0, index, 0, 0, 0, 0, 0]);
        (body, INVAL)
    });
    refused(&mut client, command::GET_REGION_INFO, &[], &cases);
    let cases = [(15, 2), (16, 5), (16, all)];
    let cases = cases.map(|(argsz, index)| (words(&[argsz, 0, index, 0]), INVAL));
    refused(&mut client, command::GET_IRQ_INFO, &[], &cases);

    // argsz, flags, index, start, count; descriptors.
    for (set, count) in [
        ([19, 0x24, 2, 0, 1], 1),
        ([20, 0x24, 2, 16, 1], 1),
        ([20, 0x24, 2, 1, 16], 16),
        ([20, 0x24, 2, 0, 1], 17),
        ([20, 0x21, 2, all, 2], 0),
        ([20, 0x21, 2, 0, all], 0),
        ([20, 0x24, 2, all, all], 0),
        ([20, 0x24, 7, 0, 1], 1),
        ([20, 0x24, all, 0, 1], 1),
        ([20, 0x24, 0, 0, 1], 1),
        ([20, 0x24, 2, 0, 3], 2),
        ([20, 0x22, 2, 0, 16], 0),
        ([20, 0x34, 2, 0, 1], 1),
        ([20, 0x0c, 2, 0, 1], 1),
        ([20, 0x09, 2, 0, 0], 0),
    ] {
        let cases = [(words(&set), INVAL)];
        refused(&mut client, command::SET_IRQS, &fds(&event, count), &cases);
    }
    let cut = words(&[20, 0x21, 2, 0]);
    refused(&mut client, command::SET_IRQS, &[], &[(cut, INVAL)]);

    let cases = [
        (access(registers, 0, 0, &[]), INVAL),
        (access(registers, 0, 4, &[0; 4]), INVAL),
        (access(registers, 0, u32::MAX, &[]), Errno::MSGSIZE),
        (access(registers, registers_end - 3, 4, &[]), INVAL),
        (access(registers, u64::MAX - 1, 4, &[]), INVAL),
        (access(registers, 1 << 32, 4, &[]), INVAL),
        (access(1, 0, 4, &[]), INVAL),
        (access(9, 0, 4, &[]), INVAL),
        (access(CONFIG_REGION, 4093, 4, &[]), INVAL),
        (access(bells, bells_end, 1, &[]), INVAL),
        (access(msix, 1 << 20, 8, &[]), INVAL),
    ];
    refused(&mut client, command::REGION_READ, &[], &cases);
    let cases = [
        (access(registers, 0, 0, &[]), INVAL),
        (access(registers, 0, 8, &[0; 4]), INVAL),
        (access(registers, 0, 4, &[0; 8]), INVAL),
        (access(registers, registers_end, 1, &[0]), INVAL),
        (access(bells, bells_end - 4, 8, &[0; 8]), INVAL),
        (access(msix, u64::MAX - 7, 8, &[0; 8]), INVAL),
        (access(8, 0, 4, &[0; 4]), INVAL),
    ];
    refused(&mut client, command::REGION_WRITE, &[], &cases);
    drop(client);
    abused.still_works();
    abused.neighbours.finish();
}

#[test]
fn a_stream_out_of_step_costs_the_connection_only() {
    let mut abused = Abused::new();
    let good = message(5, command::REGION_READ, 0, &access(0, 0, 4, &[]));
    // Sizes that can't be.
    for size in [0u32, 1, 15, (16 << 20) + 1, u32::MAX] {
        let mut client = abused.connect();
        let mut bytes = good.clone();
        bytes[4..8].copy_from_slice(&size.to_le_bytes());
        assert!(answers(&mut client, &bytes, &[]).is_none(), "size {size}");
    }
    // A valid length with fewer octets: the device waits, and the client disconnects.
    for (size, len) in [
        (17, 16),
        (32, 31),
        (1 << 20, 40),
        (16 << 20, 5000),
        (16, 1),
        (16, 15),
    ] {
        let mut client = abused.connect();
        let mut bytes = good.clone();
        bytes[4..8].copy_from_slice(&u32::to_le_bytes(size));
        bytes.resize(len, 0);
        client.send_bytes(&bytes, &[]).unwrap();
        client.hang_up();
    }
    // A client that sends nothing, or another message before the version.
    drop(Client::connect_silent(&abused.fabric.socket("a")).unwrap());
    let mut client = Client::connect_silent(&abused.fabric.socket("a")).unwrap();
    let reply = client.exchange(command::REGION_READ, &access(0, 0, 4, &[]), &[]);
    assert_eq!(reply.unwrap().errno, Errno::INVAL.raw_os_error() as u32);
    drop(client);
    abused.still_works();
    abused.neighbours.finish();
}

/// A request that would be right, for a start.
fn request(rng: &mut Rng) -> (u16, Vec<u8>) {
    let iova = rng.below(64) * PAGE;
    let size = (1 + rng.below(8)) * PAGE;
    let region = rng.pick(&[0, 2, 4, CONFIG_REGION]);
    let len = 1 + rng.below(16) as u32;
    match rng.below(9) {
        0 => (
            command::DMA_MAP,
            map(32, 3, rng.below(4) * PAGE, iova, size),
        ),
        1 => (
            command::DMA_UNMAP,
            unmap(24, rng.below(3) as u32, iova, size),
        ),
        2 => (command::GET_INFO, words(&[16, 0, 0, 0])),
        3 => (
            command::GET_REGION_INFO,
            words(&[64, 0, u64::from(region), 0, 0, 0, 0, 0]),
        ),
        4 => (
            command::GET_IRQ_INFO,
            words(&[16, 0, u64::from(MSIX_IRQ), 0]),
        ),
        5 => {
            let flags = rng.pick(&[0x21, 0x22, 0x24, 0x09, 0x0a, 0x11, 0x12]);
            let mut body = words(&[20, flags, u64::from(MSIX_IRQ), rng.below(16), rng.below(4)]);
            body.extend(rng.bytes(4));
            (command::SET_IRQS, body)
        }
        6 => (
            command::REGION_READ,
            access(region, rng.below(8192), len, &[]),
        ),
        7 => {
            let data = rng.bytes(len as usize);
            (
                command::REGION_WRITE,
                access(region, rng.below(8192), len, &data),
            )
        }
        _ => (command::RESET, Vec::new()),
    }
}

#[test]
fn random_changes_of_requests_are_answered() {
    let mut abused = Abused::new();
    let mut rng = Rng::new(7);
    let file = file();
    let mut client = abused.connect();
    let (mut refused, mut taken) = (0, 0);
    for n in 0..6000 {
        let (mut number, mut body) = request(&mut rng);
        if rng.below(20) == 0 {
            number = rng.below(20) as u16;
        }
        for _ in 0..rng.below(4) {
            // A word, a byte, or the length.
            let at = rng.below(body.len().max(1) as u64) as usize;
            let value = rng.edgy();
            match rng.below(3) {
                0 => body
                    .iter_mut()
                    .skip(at & !3)
                    .zip(value.to_le_bytes())
                    .take(4)
                    .for_each(|(a, b)| *a = b),
                1 => body
                    .iter_mut()
                    .skip(at)
                    .take(1)
                    .for_each(|byte| *byte = value as u8),
                _ => body.resize(rng.below(body.len() as u64 + 9) as usize, 0xa5),
            }
        }
        let flags = if rng.below(10) == 0 {
            rng.edgy() as u32
        } else {
            0
        };
        let bytes = message(5, number, flags, &body);
        let count = rng.pick(&[0, 0, 0, 1, 1, 2, 17]);
        let replies = answers(&mut client, &bytes, &fds(&file, count));
        let replies = replies.unwrap_or_else(|| panic!("{n}: closed after {bytes:x?}"));
        // A request is answered unless it says that it wants none, or that it is a reply.
        let silent = flags & 0x10 != 0 || flags & 0xf == 1;
        assert_eq!(replies.len(), usize::from(!silent), "{n}: {bytes:x?}");
        for reply in replies {
            assert_eq!((reply.id, reply.command), (5, number));
            assert_eq!(reply.flags, if reply.errno == 0 { 1 } else { 0x21 });
            refused += u32::from(reply.errno != 0);
            taken += u32::from(reply.errno == 0);
        }
        if n % 500 == 0 {
            abused.neighbours.unharmed();
        }
    }
    assert!(
        refused > 1000 && taken > 1000,
        "{refused} refused, {taken} taken"
    );
    drop(client);
    abused.still_works();
    abused.neighbours.finish();
}

#[test]
fn random_bytes_end_in_an_answer_or_a_closed_connection() {
    let mut abused = Abused::new();
    let mut rng = Rng::new(8);
    let mut closed = 0;
    for n in 0..400 {
        let mut client = match n % 2 {
            0 => abused.connect(),
            _ => Client::connect_silent(&abused.fabric.socket("a")).unwrap(),
        };
        let len = rng.below(300) as usize + 1;
        let mut bytes = rng.bytes(len);
        // Some of them with a header that lets the rest through.
        if rng.below(2) == 0 && bytes.len() >= 16 {
            let size = rng.below(64) as u32;
            bytes[4..8].copy_from_slice(&size.to_le_bytes());
            bytes[3] = 0;
            bytes[2] &= 15;
        }
        // It may have closed before it has everything.
        match client.send_bytes(&bytes, &[]) {
            Ok(()) => {}
            Err(error) => assert!(is_closed(&error), "{error}"),
        }
        client.end_of_requests();
        // It ends the connection now, with any result of the octets, as no more will come.
        loop {
            match client.receive() {
                Ok(_) => {}
                Err(error) => {
                    assert!(is_closed(&error), "{n}: {error}");
                    closed += 1;
                    break;
                }
            }
        }
    }
    assert_eq!(closed, 400);
    abused.still_works();
    abused.neighbours.finish();
}

/// As many maps as there may be, and one more.
#[test]
fn the_table_of_maps_has_an_end() {
    let mut abused = Abused::new();
    let mut client = abused.connect();
    let mut count = 0;
    let error = loop {
        match client.dma_map(count * 2 * PAGE, PAGE, 0, MAP_READ | MAP_WRITE, None) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
        assert!(count < 1 << 17, "there is no end");
    };
    assert_eq!(error.refusal(), Some(Errno::NOSPC));
    assert_eq!(count, 65535);
    abused.neighbours.unharmed();
    drop(client);
    abused.still_works();
    abused.neighbours.finish();
}
