//! A client that outlives its servers.

#![cfg(test)]

use crate::common::{
    Client, Log, Reply, TestDevice, access, borrow, memfd, message, version, words,
};
use faultline_vfio_user::{Listener, Relay, Shutdown, pci_index};
use proptest::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::getpid;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time limit that distinguishes a hang from a busy machine.
const LONG: Duration = Duration::from_secs(60);
/// Time after which QEMU takes a device for dead: a limit of the product, not of the test.
const QEMU_WAITS: Duration = Duration::from_secs(5);
/// A request that waits for a server waits for longer.
const WAIT: Duration = Duration::from_secs(2);

/// A relay.
struct Stage {
    folder: tempfile::TempDir,
    shutdown: Shutdown,
    thread: Option<JoinHandle<()>>,
    /// Servers that the relay has killed.
    killed: Arc<AtomicUsize>,
}

impl Stage {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let shutdown = Shutdown::new().unwrap();
        let listener = Listener::listen(folder.path().join("clients")).unwrap();
        let killed = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&killed);
        let kill = move |pid| {
            assert_eq!(pid, getpid());
            count.fetch_add(1, Ordering::SeqCst);
        };
        let relay = Relay::new(
            listener,
            folder.path().join("server"),
            |client| assert_eq!(client, Some(getpid().as_raw_nonzero().get())),
            kill,
        );
        let stop = shutdown.clone();
        let thread = Some(std::thread::spawn(move || relay.run(&stop)));
        Self {
            folder,
            shutdown,
            thread,
            killed,
        }
    }

    fn server_path(&self) -> PathBuf {
        self.folder.path().join("server")
    }

    fn client(&self) -> Client {
        let stream = UnixStream::connect(self.folder.path().join("clients")).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        Client { stream, id: 0 }
    }

    /// A client with VERSION done.
    fn negotiated(&self) -> Client {
        let mut client = self.client();
        assert_eq!(client.call(1, &version("{}"), &[]).error, 0);
        client
    }

    /// The same of a server of the test.
    fn negotiated_with(&self, listener: &UnixListener) -> (Client, Raw) {
        let mut client = self.client();
        client.send(1, &version("{}"), &[]);
        let mut server = Raw::accept(listener);
        let request = server.request();
        server.reply(request, &version("{}"));
        assert_eq!(client.reply().unwrap().error, 0);
        (client, server)
    }

    /// The same with a map.
    fn mapped_with(&self, listener: &UnixListener) -> (Client, Raw) {
        let (mut client, mut server) = self.negotiated_with(listener);
        client.send(2, &map(1), &[]);
        let request = server.request();
        server.reply(request, &[]);
        assert_eq!(client.reply().unwrap().error, 0);
        (client, server)
    }

    fn server(&self) -> Server {
        self.server_of(TestDevice::new())
    }

    fn server_of(&self, mut device: TestDevice) -> Server {
        let listener = Listener::listen(self.server_path()).unwrap();
        let (log, shutdown) = (device.log.clone(), Shutdown::new().unwrap());
        let stop = shutdown.clone();
        let thread = std::thread::spawn(move || {
            listener.serve(&mut device, &stop);
            device
        });
        Server {
            log,
            shutdown,
            thread: Some(thread),
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.shutdown.trigger();
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

struct Server {
    log: Arc<Mutex<Log>>,
    shutdown: Shutdown,
    thread: Option<JoinHandle<TestDevice>>,
}

impl Server {
    /// Ends it.
    fn end(mut self) -> TestDevice {
        self.shutdown.trigger();
        self.thread.take().unwrap().join().unwrap()
    }

    /// Waits until its log is so.
    #[track_caller]
    fn wait_for(&self, is_so: impl Fn(&Log) -> bool) {
        let start = Instant::now();
        while !is_so(&self.log.lock().unwrap()) {
            assert!(start.elapsed() < LONG, "{:#?}", self.log.lock().unwrap());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.trigger();
    }
}

/// A connection of a server of the test.
struct Raw(UnixStream);

impl Raw {
    fn accept(listener: &UnixListener) -> Self {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        Self(stream)
    }

    /// Number and command of the next request.
    fn request(&mut self) -> (u16, u16) {
        let mut header = [0; 16];
        self.0.read_exact(&mut header).unwrap();
        let half = |at: usize| u16::from_le_bytes(header[at..at + 2].try_into().unwrap());
        let size = u32::from_le_bytes(header[4..8].try_into().unwrap());
        let mut body = vec![0; size as usize - 16];
        self.0.read_exact(&mut body).unwrap();
        (half(0), half(2))
    }

    fn reply(&mut self, (id, command): (u16, u16), body: &[u8]) {
        self.0.write_all(&message(id, command, 1, body)).unwrap();
    }
}

fn events(fd: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(fd, &mut count) {
        Ok(_) => u64::from_ne_bytes(count),
        Err(_) => 0,
    }
}

/// Body of a DMA_MAP or DMA_UNMAP of this page.
fn map(page: u32) -> Vec<u8> {
    words(&[32, 3, 0, 0, page << 12, 0, 0x1000, 0])
}

fn unmap(page: u32) -> Vec<u8> {
    words(&[24, 0, page << 12, 0, 0x1000, 0])
}

fn region_info(index: u32) -> Vec<u8> {
    words(&[32, 0, index, 0, 0, 0, 0, 0])
}

#[test]
fn a_client_outlives_its_servers() {
    let stage = Stage::new();
    let first = stage.server();
    let mut client = stage.negotiated();
    assert_eq!(client.call(5, &region_info(0), &[]).error, 0);
    assert_eq!(client.call(7, &words(&[16, 0, 2, 0]), &[]).error, 0);
    let ram = memfd(1 << 16);
    for page in 1..5 {
        assert_eq!(client.call(2, &map(page), &[ram.as_fd()]).error, 0);
    }
    assert_eq!(client.call(3, &unmap(2), &[]).error, 0);
    let fds: Vec<OwnedFd> = (0..3)
        .map(|_| eventfd(0, EventfdFlags::NONBLOCK).unwrap())
        .collect();
    let set = |flags, start, count| words(&[20, flags, 2, start, count]);
    assert_eq!(client.call(8, &set(0x24, 4, 3), &borrow(&fds)).error, 0);
    // QEMU stops the guest when the device reports an error.
    let error = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let body = words(&[20, 0x24, pci_index::ERR_IRQ, 0, 1]);
    assert_eq!(client.call(8, &body, &[error.as_fd()]).error, 0);
    // One is detached, one masked.
    assert_eq!(client.call(8, &set(0x24, 5, 1), &[]).error, 0);
    assert_eq!(client.call(8, &set(0x09, 6, 1), &[]).error, 0);
    let config = pci_index::CONFIG_REGION;
    for (offset, data) in [(4, &[6, 0][..]), (16, &[1, 2, 3, 4])] {
        assert_eq!(client.call(10, &access(offset, config, data), &[]).error, 0);
    }
    client.works();
    let device = first.end();
    let maps = |log: &Log| -> Vec<u64> { log.maps.iter().map(|map| map.0 >> 12).collect() };
    assert_eq!(maps(&device.log.lock().unwrap()), [1, 2, 3, 4]);

    let second = stage.server();
    second.wait_for(|log| log.irqs.len() == 4);
    client.works();
    {
        let log = second.log.lock().unwrap();
        assert_eq!(maps(&log), [1, 3, 4]);
        assert!(log.maps.iter().all(|map| map.5), "{:?}", log.maps);
        assert_eq!(
            log.irqs,
            [
                "2 4+1 Trigger",
                "2 6+1 Mask",
                "2 6+1 Trigger",
                "3 0+1 Trigger"
            ]
        );
        // The driver gets interrupts to look at the device; masked ones were not raised.
        assert_eq!((events(&fds[0]), events(&fds[2])), (1, 0));
        assert_eq!(events(&error), 0);
        let vectors = log.vectors.as_ref().unwrap();
        assert!(vectors.trigger(4) && !vectors.trigger(6));
        assert_eq!((events(&fds[0]), events(&fds[2])), (1, 0));
    }
    let device = second.end();
    assert_eq!(device.config[4..6], [6, 0]);
    assert_eq!(device.config[16..20], [1, 2, 3, 4]);

    // When the client ends, all of it is forgotten.
    let third = stage.server();
    third.wait_for(|log| !log.maps.is_empty());
    drop(client);
    third.wait_for(|log| log.disconnects == 1);
    drop(third.end());
    let fourth = stage.server();
    stage.negotiated().works();
    assert!(fourth.log.lock().unwrap().maps.is_empty());
}

/// A guest with a virtual IOMMU may have many maps of few files.
#[test]
fn many_maps_of_a_file_take_one_descriptor() {
    let stage = Stage::new();
    let mut device = TestDevice::new();
    device.keeps_files = false;
    let _server = stage.server_of(device);
    let mut client = stage.negotiated();
    let held = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let ram = memfd(1 << 24);
    let before = held();
    for page in 1..1000 {
        assert_eq!(client.call(2, &map(page), &[ram.as_fd()]).error, 0);
    }
    // Other tests of this program have some, too.
    assert!(held() < before + 500, "{} descriptors", held() - before);
}

#[test]
fn a_request_waits_for_the_next_server() {
    let stage = Stage::new();
    let first = stage.server();
    let mut client = stage.negotiated();
    first.end();
    client.send(10, &access(64, 0, &[1, 2, 3, 4]), &[]);
    std::thread::sleep(Duration::from_millis(200));
    let second = stage.server();
    let reply = client.reply().unwrap();
    assert_eq!((reply.id, reply.error), (client.id, 0));
    client.works();
    drop(second);
}

#[test]
fn without_a_server_registers_are_refused_and_maps_are_kept() {
    let stage = Stage::new();
    let first = stage.server();
    let mut client = stage.negotiated();
    first.end();
    let start = Instant::now();
    assert_ne!(client.call(9, &words(&[64, 0, 0, 4]), &[]).error, 0);
    let waited = start.elapsed();
    assert!(waited > WAIT && waited < QEMU_WAITS, "{waited:?}");
    let start = Instant::now();
    assert_ne!(client.call(9, &words(&[64, 0, 0, 4]), &[]).error, 0);
    assert!(start.elapsed() < WAIT, "it waits again");
    let ram = memfd(1 << 16);
    for page in 1..4 {
        assert_eq!(client.call(2, &map(page), &[ram.as_fd()]).error, 0);
    }
    let reply = client.call(3, &unmap(2), &[]);
    assert_eq!((reply.error, reply.body), (0, unmap(2)));
    let second = stage.server();
    second.wait_for(|log| log.maps.len() == 2);
    client.works();
}

/// The client can't learn that a region has another size now.
#[test]
fn another_device_ends_the_connection() {
    let stage = Stage::new();
    let first = stage.server();
    let mut client = stage.negotiated();
    for index in 0..9 {
        assert_eq!(client.call(5, &region_info(index), &[]).error, 0);
    }
    first.end();
    let mut device = TestDevice::new();
    device.len = 8192;
    let _second = stage.server_of(device);
    let mut byte = [0];
    assert_eq!(client.stream.read(&mut byte).unwrap(), 0);
}

#[test]
fn a_request_that_ends_servers_is_refused() {
    let stage = Stage::new();
    let listener = UnixListener::bind(stage.server_path()).unwrap();
    let (mut client, mut server) = stage.negotiated_with(&listener);
    client.send(9, &words(&[64, 0, 0, 4]), &[]);
    assert_eq!(server.request().1, 9);
    // The second one ends inside of its reply.
    drop(server);
    let mut server = Raw::accept(&listener);
    let request = server.request();
    server.reply(request, &version("{}"));
    assert_eq!(server.request().1, 9);
    server.0.write_all(&[1; 10]).unwrap();
    drop(server);
    let reply = client.reply().unwrap();
    assert_eq!((reply.id, reply.error), (client.id, 5));
    drop(listener);
    std::fs::remove_file(stage.server_path()).unwrap();
    let _good = stage.server();
    client.works();
}

#[test]
fn replies_that_come_late_are_of_no_other_request() {
    let stage = Stage::new();
    let listener = UnixListener::bind(stage.server_path()).unwrap();
    let (mut client, mut server) = stage.mapped_with(&listener);
    // The server is stopped for a while.
    let read = words(&[64, 0, 0, 4]);
    for limit in [QEMU_WAITS, WAIT] {
        let start = Instant::now();
        assert_ne!(client.call(9, &read, &[]).error, 0);
        assert!(start.elapsed() < limit);
    }
    // Requests that only change kept state are accepted, and the next server gets them.
    assert_eq!(client.call(2, &map(2), &[]).error, 0);
    let late = [server.request(), server.request()];
    for request in late {
        server.reply(request, &[read.clone(), vec![0xbb; 4]].concat());
    }
    let request = server.request();
    server.reply(request, &[]);
    std::thread::sleep(Duration::from_millis(50));
    client.send(9, &read, &[]);
    let request = server.request();
    server.reply(request, &[read.clone(), vec![0xcc; 4]].concat());
    let reply: Reply = client.reply().unwrap();
    assert_eq!((reply.error, reply.word(16)), (0, 0xcccc_cccc));
    drop((server, listener));
    std::fs::remove_file(stage.server_path()).unwrap();
    let next = stage.server();
    client.works();
    assert_eq!(next.log.lock().unwrap().maps.len(), 2);
}

/// It might still access the memory, which the guest reuses once the unmap is accepted.
#[test]
fn a_server_with_a_late_unmap_is_killed() {
    let stage = Stage::new();
    let listener = UnixListener::bind(stage.server_path()).unwrap();
    let (mut client, mut server) = stage.mapped_with(&listener);
    client.send(3, &unmap(1), &[]);
    assert_eq!(server.request().1, 3);
    let start = Instant::now();
    while stage.killed.load(Ordering::SeqCst) == 0 {
        assert!(start.elapsed() < LONG, "it is not killed");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop((server, listener));
    assert_eq!(client.reply().unwrap().error, 0);
    assert!(
        start.elapsed() < QEMU_WAITS,
        "QEMU takes the device for dead"
    );
    std::fs::remove_file(stage.server_path()).unwrap();
    let next = stage.server();
    client.works();
    assert_eq!(next.log.lock().unwrap().maps, []);
    assert_eq!(stage.killed.load(Ordering::SeqCst), 1);
}

/// A server that was late once and continues is not killed, even if it has not replied since.
#[test]
fn a_server_that_was_late_takes_an_unmap() {
    let stage = Stage::new();
    let listener = UnixListener::bind(stage.server_path()).unwrap();
    let (mut client, mut server) = stage.mapped_with(&listener);
    // Too late: the client gets an error.
    let read = words(&[64, 0, 0, 4]);
    assert_ne!(client.call(9, &read, &[]).error, 0);
    client.send(3, &unmap(1), &[]);
    let late = [server.request(), server.request()];
    server.reply(late[0], &[read, vec![0xbb; 4]].concat());
    server.reply(late[1], &unmap(1));
    assert_eq!(client.reply().unwrap().error, 0);
    assert_eq!(stage.killed.load(Ordering::SeqCst), 0);
}

/// The state is the most likely cause, and the clients of all NICs wait.
#[test]
fn a_client_whose_state_ends_servers_is_disconnected() {
    let stage = Stage::new();
    let listener = UnixListener::bind(stage.server_path()).unwrap();
    let (mut client, server) = stage.negotiated_with(&listener);
    drop(server);
    for _ in 0..10 {
        let mut server = Raw::accept(&listener);
        assert_eq!(server.request().1, 1);
    }
    assert_eq!(client.stream.read(&mut [0]).unwrap(), 0);
    let (mut client, mut server) = stage.negotiated_with(&listener);
    client.send(9, &words(&[64, 0, 0, 4]), &[]);
    assert_eq!(server.request().1, 9);
}

/// A map that ends servers is not sent to the next one.
#[test]
fn a_map_that_ends_servers_is_refused() {
    let stage = Stage::new();
    let listener = UnixListener::bind(stage.server_path()).unwrap();
    let (mut client, mut server) = stage.negotiated_with(&listener);
    client.send(2, &map(1), &[]);
    assert_eq!(server.request().1, 2);
    drop(server);
    let mut server = Raw::accept(&listener);
    let request = server.request();
    server.reply(request, &version("{}"));
    assert_eq!(server.request().1, 2);
    drop(server);
    assert_eq!(client.reply().unwrap().error, 5);
    drop(listener);
    std::fs::remove_file(stage.server_path()).unwrap();
    let good = stage.server();
    client.works();
    assert_eq!(good.log.lock().unwrap().maps, []);
}

/// A request that a server has refused is not kept, whatever it contains.
#[test]
fn refused_writes_of_config_space_are_not_kept() {
    let stage = Stage::new();
    let first = stage.server();
    let mut client = stage.negotiated();
    let config = pci_index::CONFIG_REGION;
    for offset in [254, 1 << 20, u64::MAX - 1000] {
        let write = access(offset, config, &[1; 1000]);
        assert_ne!(client.call(10, &write, &[]).error, 0);
    }
    let write = access(16, config, &[1, 2, 3, 4]);
    assert_eq!(client.call(10, &write, &[]).error, 0);
    first.end();
    let second = stage.server();
    client.works();
    assert_eq!(
        second.end().config[..20],
        [&[0; 16][..], &[1, 2, 3, 4]].concat()
    );
}

/// Requests without replies are executed in order, also when a server ends between them.
#[test]
fn requests_without_replies_get_none() {
    let stage = Stage::new();
    let mut server = stage.server();
    let mut client = stage.negotiated();
    for value in 1..4 {
        client.raw(&message(7, 10, 0x10, &access(0, 0, &[value; 4])), &[]);
        client.works();
        assert_eq!(server.end().regs[..4], [value; 4]);
        server = stage.server();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever a client sends, the next one is served.
    #[test]
    fn a_bad_client_harms_no_other(bytes in prop::collection::vec(any::<u8>(), 0..200), command in 0u16..16) {
        let stage = Stage::new();
        let _server = stage.server();
        let mut bad = stage.negotiated();
        bad.raw(&message(3, command, 0, &bytes), &[]);
        let _ = bad.stream.write_all(&bytes);
        drop(bad);
        let start = Instant::now();
        loop {
            let mut client = stage.client();
            let _ = client.stream.write_all(&message(1, 1, 0, &version("{}")));
            match client.reply() {
                Ok(_) => { client.works(); break; }
                // The bad one is still attached.
                Err(error) => prop_assert!(
                    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
                        && start.elapsed() < LONG,
                    "{error}"
                ),
            }
        }
    }
}
