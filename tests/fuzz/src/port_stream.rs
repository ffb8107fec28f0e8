//! Frames of a peer of a `stream` port.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use faultline_ports::address::StreamAddress;
use faultline_ports::channel::{self, MAX_FRAME};
use faultline_ports::stream::{Peers, StreamPort};

/// Fits into a socket, which no one reads meanwhile.
const MAX_STREAM: usize = 4096;

/// All that a peer ever sends. The engine gets the frames before the first length that no frame has, and nothing else.
pub fn frames(data: &[u8]) {
    let data = data.get(..MAX_STREAM).unwrap_or(data);
    let (mut peer, socket) = UnixStream::pair().expect("a pair of sockets");
    peer.write_all(data).expect("the socket holds it");
    peer.shutdown(Shutdown::Write).expect("the socket is open");
    socket.set_nonblocking(true).expect("the socket is open");
    let (mut engine, end) = channel::pair(|| {}).expect("a channel");
    // It is given its peer.
    let peers = Peers::Connect(StreamAddress::Unix("none".into()), Duration::ZERO);
    StreamPort::new(peers, end).serve(socket.into());

    let (mut rest, mut frame, mut malformed) = (data, Vec::new(), 0);
    while let Some((length, after)) = rest.split_first_chunk() {
        let length = u32::from_be_bytes(*length) as usize;
        if !(1..=MAX_FRAME).contains(&length) {
            malformed = 1;
            break;
        }
        let Some((expected, after)) = after.split_at_checked(length) else {
            break;
        };
        assert!(
            engine.take(&mut frame),
            "a frame of {length} octets is lost"
        );
        assert!(frame == expected);
        rest = after;
    }
    assert!(!engine.take(&mut frame), "not sent: {frame:x?}");
    let status = engine.status();
    assert_eq!(status.malformed.load(Ordering::Relaxed), malformed);
    assert!(!status.is_connected.load(Ordering::Relaxed));
}
