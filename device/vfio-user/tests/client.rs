//! The server with independent clients: the crate `vfio_user`, and the messages of QEMU.

#![cfg(test)]

use crate::common::{self, Pair, TestDevice, VECTORS, borrow, memfd, message, words};
use faultline_vfio_user::{DmaUnmap, ListenError, Listener, Shutdown, pci_index};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

fn events(fd: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(fd, &mut count) {
        Ok(_) => u64::from_ne_bytes(count),
        Err(_) => 0,
    }
}

fn eventfds(n: usize) -> Vec<OwnedFd> {
    (0..n)
        .map(|_| eventfd(0, EventfdFlags::NONBLOCK).unwrap())
        .collect()
}

fn with_server(path: &Path, test: impl FnOnce(&Path, &std::sync::Mutex<common::Log>)) {
    let listener = Listener::listen(path).unwrap();
    let mut device = TestDevice::new();
    let log = device.log.clone();
    let shutdown = Shutdown::new().unwrap();
    std::thread::scope(|scope| {
        let stop = shutdown.clone();
        let server = scope.spawn(move || listener.serve(&mut device, &stop));
        // The server must end even if the test fails.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(path, &log)));
        shutdown.trigger();
        server.join().unwrap();
        result.unwrap();
    });
    assert!(!path.exists(), "the socket is removed");
}

#[test]
fn the_vfio_user_crate_drives_the_device() {
    let dir = tempfile::tempdir().unwrap();
    with_server(&dir.path().join("nic.sock"), |path, log| {
        let mode = std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut client = vfio_user::Client::new(path).unwrap();
        for index in 0..9 {
            assert!(client.region(index).is_some(), "region {index}");
        }
        let bar = client.region(2).unwrap();
        assert_eq!(bar.size, 8192);
        let [area] = bar.sparse_areas.as_slice() else {
            panic!("one area")
        };
        assert_eq!((area.offset, area.size), (4096, 4096));
        let file = bar.file_offset.as_ref().expect("descriptor");
        assert_eq!(
            (file.start(), file.file().metadata().unwrap().len()),
            (0, 8192)
        );
        assert_eq!(client.region(0).unwrap().size, 4096);
        assert!(client.region(0).unwrap().file_offset.is_none());

        client
            .region_write(0, 16, &[1, 2, 3, 4, 5, 6, 7, 8])
            .unwrap();
        let mut back = [0; 4];
        client.region_read(0, 18, &mut back).unwrap();
        assert_eq!(back, [3, 4, 5, 6]);

        let ram = memfd(1 << 20);
        client
            .dma_map(0x1000, 0x10_0000, 0x8000, ram.as_raw_fd())
            .unwrap();
        client.dma_unmap(0x10_0000, 0x8000).unwrap();
        let irq = client.get_irq_info(pci_index::MSIX_IRQ).unwrap();
        assert_eq!((irq.count, irq.flags), (VECTORS, 1));
        let fds = eventfds(2);
        let raw: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        client
            .set_irqs(pci_index::MSIX_IRQ, 0x24, 3, 2, &raw)
            .unwrap();
        client.reset().unwrap();

        let seen = log.lock().unwrap();
        assert_eq!(seen.maps, [(0x10_0000, 0x8000, 0x1000, true, true, true)]);
        assert_eq!(
            seen.unmaps,
            [DmaUnmap::Range {
                iova: 0x10_0000,
                size: 0x8000
            }]
        );
        assert_eq!(seen.irqs, ["2 3+2 Trigger"]);
        assert_eq!(seen.resets, 1);
        assert!(seen.vectors.as_ref().unwrap().trigger(4));
        assert_eq!((events(&fds[0]), events(&fds[1])), (0, 1));
        drop(seen);

        client.shutdown().unwrap();
        let start = Instant::now();
        while log.lock().unwrap().disconnects == 0 {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        }
        // The next one may come.
        vfio_user::Client::new(path).unwrap().reset().unwrap();
    });
}

#[test]
fn a_second_client_is_sent_away_at_once() {
    let dir = tempfile::tempdir().unwrap();
    with_server(&dir.path().join("nic.sock"), |path, log| {
        let mut first = vfio_user::Client::new(path).unwrap();
        for _ in 0..3 {
            let mut second = UnixStream::connect(path).unwrap();
            second
                .set_read_timeout(Some(Duration::from_secs(60)))
                .unwrap();
            assert_eq!(second.read(&mut [0]).unwrap(), 0, "end of file");
        }
        first.reset().unwrap();
        assert_eq!(log.lock().unwrap().disconnects, 0);
    });
}

/// DEVICE_GET_REGION_INFO as QEMU asks: header and fixed part of the reply, descriptors.
fn region_info(pair: &mut Pair, index: u32, argsz: u32) -> (Vec<u8>, Vec<OwnedFd>) {
    pair.client
        .send(5, &words(&[argsz, 0, index, 0, 0, 0, 0, 0]), &[]);
    let mut buf = vec![0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut iov = [IoSliceMut::new(&mut buf)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(&pair.client.stream, &mut iov, &mut control, flags).unwrap();
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    buf.truncate(got.bytes);
    (buf, fds)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

#[test]
fn region_info_is_asked_twice() {
    let mut pair = Pair::negotiated();
    let (short, fds) = region_info(&mut pair, 2, 32);
    assert!(fds.is_empty());
    assert_eq!((short.len(), word(&short, 4)), (48, 48));
    let argsz = word(&short, 16);
    assert_eq!(argsz, 32 + 16 + 16);
    // READ, WRITE, MMAP, CAPS; index; cap_offset; size; offset.
    assert_eq!(
        [word(&short, 20), word(&short, 24), word(&short, 28)],
        [15, 2, 32]
    );
    assert_eq!(
        [word(&short, 32), word(&short, 36), word(&short, 40)],
        [8192, 0, 0]
    );
    let (full, fds) = region_info(&mut pair, 2, argsz);
    assert_eq!((full.len(), fds.len()), (16 + argsz as usize, 1));
    assert_eq!(full[16..48], short[16..48]);
    // id 1, version 1, no next; one area.
    assert_eq!(
        [word(&full, 48), word(&full, 52), word(&full, 56)],
        [1 | 1 << 16, 0, 1]
    );
    assert_eq!([word(&full, 64), word(&full, 72)], [4096, 4096]);
    // A region that is mapped as a whole needs one question.
    let (whole, fds) = region_info(&mut pair, 3, 32);
    assert_eq!((whole.len(), fds.len()), (48, 1));
    assert_eq!(
        [word(&whole, 16), word(&whole, 20), word(&whole, 28)],
        [32, 7, 0]
    );
    assert_eq!(word(&whole, 40), 4096, "file offset");
    let (none, fds) = region_info(&mut pair, 0, 32);
    assert_eq!([word(&none, 16), word(&none, 20)], [32, 3]);
    assert!(fds.is_empty());
}

#[test]
fn msix_as_qemu_sets_it() {
    let mut pair = Pair::negotiated();
    let set = |pair: &mut Pair, flags, start, count, fds: &[OwnedFd]| {
        let reply = pair
            .client
            .call(8, &words(&[20, flags, 2, start, count]), &borrow(fds));
        assert_eq!((reply.error, reply.body.len()), (0, 0));
    };
    let trigger = |pair: &Pair, vector| {
        pair.log
            .lock()
            .unwrap()
            .vectors
            .as_ref()
            .unwrap()
            .trigger(vector)
    };
    // Enable without a vector, then 20 vectors in chunks, some of them unused.
    set(&mut pair, 0x24, 0, 1, &[]);
    let fds = eventfds(20);
    set(&mut pair, 0x24, 0, 16, &fds[..16]);
    set(&mut pair, 0x24, 16, 2, &fds[16..18]);
    set(&mut pair, 0x24, 18, 14, &[]);
    assert!((0..18).all(|v| trigger(&pair, v)));
    assert!(fds[..18].iter().all(|fd| events(fd) == 1));
    // An unused vector keeps its interrupt until it is used.
    assert!(!trigger(&pair, 18) && !trigger(&pair, 18));
    let pending = |pair: &Pair| {
        pair.log
            .lock()
            .unwrap()
            .vectors
            .as_ref()
            .unwrap()
            .pending(0)
    };
    assert_eq!(pending(&pair), 1 << 18);
    // Disable and enable again, as while the set is resized.
    set(&mut pair, 0x21, 0, 0, &[]);
    assert!(!trigger(&pair, 0));
    set(&mut pair, 0x24, 0, 1, &fds[..1]);
    set(&mut pair, 0x24, 18, 1, &fds[18..19]);
    assert_eq!(
        (events(&fds[0]), events(&fds[18]), pending(&pair)),
        (1, 1, 0)
    );
    // Fire and mask by message.
    set(&mut pair, 0x21, 18, 1, &[]);
    assert_eq!(events(&fds[18]), 1);
    set(&mut pair, 0x09, 18, 1, &[]);
    assert!(!trigger(&pair, 18));
    set(&mut pair, 0x11, 18, 1, &[]);
    assert_eq!(events(&fds[18]), 1);
    let body = [words(&[22, 0x22, 2, 17, 2]), vec![0, 1]].concat();
    assert_eq!(pair.client.call(8, &body, &[]).error, 0);
    assert_eq!((events(&fds[17]), events(&fds[18])), (0, 1));
    assert!(!trigger(&pair, 32) && !trigger(&pair, usize::MAX));
    let counts = pair.log.lock().unwrap().vectors.as_ref().unwrap().counts();
    assert_eq!(
        (counts.out_of_range, counts.failed, counts.pended),
        (2, 0, 4)
    );
}

#[test]
fn a_full_or_absent_eventfd_does_not_block() {
    let mut pair = Pair::negotiated();
    let full = eventfd(0, EventfdFlags::empty()).unwrap();
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let fds = [full, writer.into(), memfd(0)];
    assert_eq!(
        pair.client
            .call(8, &words(&[20, 0x24, 2, 0, 3]), &borrow(&fds))
            .error,
        0
    );
    let log = pair.log.lock().unwrap();
    let vectors = log.vectors.as_ref().unwrap();
    assert!(vectors.trigger(0), "the client has an interrupt to see");
    (0..20_000).for_each(|_| {
        vectors.trigger(1);
    });
    drop(reader);
    assert!(!vectors.trigger(1));
    assert_eq!(vectors.counts().failed, 1);
}

#[test]
fn requests_in_a_row_are_answered_in_order() {
    // QEMU sends the maps of one memory transaction without waiting in between.
    let mut pair = Pair::negotiated();
    let file = memfd(1 << 20);
    for id in 0..64u16 {
        let fds = if id % 2 == 0 {
            vec![rustix::fd::AsFd::as_fd(&file)]
        } else {
            Vec::new()
        };
        let body = words(&[32, 3, 0, 0, u32::from(id) << 12, 0, 0x1000, 0]);
        pair.client.raw(&message(id, 2, 0, &body), &fds);
    }
    for id in 0..64 {
        let reply = pair.client.reply().unwrap();
        assert_eq!(
            (reply.id, reply.command, reply.error, reply.body.len()),
            (id, 2, 0, 0)
        );
    }
    let log = pair.log.lock().unwrap();
    for (i, map) in log.maps.iter().enumerate() {
        // Each descriptor is with its own message.
        assert_eq!(*map, ((i as u64) << 12, 0x1000, 0, true, true, i % 2 == 0));
    }
    drop(log);
    let reply = pair.client.call(3, &words(&[24, 2, 0, 0, 0, 0]), &[]);
    assert_eq!((reply.error, reply.body), (0, words(&[24, 2, 0, 0, 0, 0])));
    assert_eq!(pair.log.lock().unwrap().unmaps, [DmaUnmap::All]);
}

#[test]
fn paths_that_cannot_be_listened_on() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    assert!(matches!(
        Listener::listen(at("no/nic.sock")),
        Err(ListenError::NoDirectory(_))
    ));
    std::fs::write(at("file"), "kept").unwrap();
    assert!(matches!(
        Listener::listen(at("file")),
        Err(ListenError::NotASocket(_))
    ));
    assert!(matches!(
        Listener::listen(at("file/nic.sock")),
        Err(ListenError::NoDirectory(_))
    ));
    assert!(matches!(
        Listener::listen(dir.path()),
        Err(ListenError::NotASocket(_))
    ));
    assert_eq!(std::fs::read_to_string(at("file")).unwrap(), "kept");
    let long = at(&"x".repeat(120));
    assert!(matches!(
        Listener::listen(&long),
        Err(ListenError::TooLong(_))
    ));
    std::os::unix::fs::symlink("/dev/null", at("link")).unwrap();
    assert!(matches!(
        Listener::listen(at("link")),
        Err(ListenError::NotASocket(_))
    ));
    // Others' sockets, whether or not they accept.
    let other = UnixListener::bind(at("other")).unwrap();
    let error = Listener::listen(at("other")).unwrap_err();
    assert!(matches!(error, ListenError::InUse(_)));
    assert!(
        error.to_string().contains("in use by another process"),
        "{error}"
    );
    drop(other);
    // Now it is stale and is replaced.
    assert!(at("other").exists());
    let listener = Listener::listen(at("other")).unwrap();
    assert!(matches!(
        Listener::listen(at("other")),
        Err(ListenError::InUse(_))
    ));
    assert!(
        std::fs::metadata(at("other"))
            .unwrap()
            .file_type()
            .is_socket()
    );
    drop(listener);
    assert!(!at("other").exists());
}

#[test]
fn a_group_can_connect_to_its_socket() {
    use rustix::fs::Gid;
    use std::os::unix::fs::MetadataExt;

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nic.sock");
    let attributes = |group| {
        let _listener = Listener::listen_for(&path, group).unwrap();
        let file = std::fs::metadata(&path).unwrap();
        (file.mode() & 0o7777, file.gid())
    };
    let own = rustix::process::getegid();
    assert_eq!(attributes(None), (0o600, own.as_raw()));
    assert_eq!(attributes(Some(own)), (0o660, own.as_raw()));
    let other = Gid::from_raw(own.as_raw() + 12345);
    if rustix::process::geteuid().is_root() {
        assert_eq!(attributes(Some(other)), (0o660, other.as_raw()));
    } else {
        let error = Listener::listen_for(&path, Some(other)).unwrap_err();
        assert!(
            error.to_string().contains("as a member of this group"),
            "{error}"
        );
        assert!(!path.exists());
    }
}

#[test]
fn a_replaced_socket_file_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nic.sock");
    let first = Listener::listen(&path).unwrap();
    std::fs::rename(&path, dir.path().join("moved")).unwrap();
    let second = Listener::listen(&path).unwrap();
    drop(first);
    assert!(path.exists(), "it is the second's");
    drop(second);
    assert!(!path.exists());
}

#[test]
fn no_permission_is_said_so() {
    if rustix::process::geteuid().is_root() {
        // Root may write anywhere, but not to procfs.
        let error = Listener::listen("/proc/nic.sock").unwrap_err();
        assert!(error.to_string().contains("/proc/nic.sock"), "{error}");
        return;
    }
    let error = Listener::listen("/nic.sock").unwrap_err();
    assert!(matches!(error, ListenError::Permission(_)), "{error}");
}
