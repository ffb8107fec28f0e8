//! For any input the server neither panics nor hangs, and a framed message with any content leaves
//! the next one intact.

#![cfg(test)]

use crate::common::{self, Pair, memfd, message, words};
use faultline_vfio_user::Ended;
use proptest::prelude::*;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

/// Well-formed bodies to start from, for every command.
fn good(command: u16) -> Vec<u8> {
    match command {
        1 => common::version("{\"capabilities\":{\"max_msg_fds\":8}}"),
        2 => words(&[32, 3, 0, 0, 0x1000, 0, 0x1000, 0]),
        3 => words(&[24, 0, 0x1000, 0, 0x1000, 0]),
        4 => words(&[16, 0, 0, 0]),
        5 => words(&[32, 0, 2, 0, 0, 0, 0, 0]),
        7 => words(&[16, 0, 2, 0]),
        8 => words(&[20, 0x24, 2, 0, 2]),
        9 => words(&[0, 0, 0, 4]),
        10 => common::access(0, 0, &[1, 2, 3, 4]),
        _ => Vec::new(),
    }
}

#[derive(Debug, Clone)]
struct Bad {
    command: u16,
    /// Low bits only: a reply type or no-reply would rightly not be answered.
    flags: u32,
    /// Bytes to overwrite, as (position modulo length, value).
    changes: Vec<(usize, u8)>,
    /// New length of the body, if it changes.
    len: Option<usize>,
    fds: usize,
}

fn bad() -> impl Strategy<Value = Bad> {
    let byte = prop_oneof![Just(0u8), Just(0xff), Just(1), any::<u8>()];
    (
        prop_oneof![8 => 0u16..16, 1 => any::<u16>()],
        prop_oneof![6 => Just(0u32), 1 => prop::sample::select(vec![2, 0x20, 0x40, 0xf])],
        prop::collection::vec((any::<usize>(), byte), 0..6),
        prop::option::weighted(0.3, 0usize..200),
        prop_oneof![3 => 0usize..3, 1 => 0usize..70],
    )
        .prop_map(|(command, flags, changes, len, fds)| Bad {
            command,
            flags,
            changes,
            len,
            fds,
        })
}

impl Bad {
    fn body(&self) -> Vec<u8> {
        let mut body = good(self.command);
        if let Some(len) = self.len {
            body.resize(len, 0xa5);
        }
        for (at, value) in &self.changes {
            if !body.is_empty() {
                let at = at % body.len();
                body[at] = *value;
            }
        }
        body
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn framed_messages_are_answered_and_forgotten(messages in prop::collection::vec(bad(), 1..20)) {
        let mut pair = Pair::negotiated();
        let file: OwnedFd = memfd(4096);
        for (id, bad) in messages.iter().enumerate() {
            let id = 1000 + id as u16;
            let fds = vec![file.as_fd(); bad.fds];
            pair.client.raw(&message(id, bad.command, bad.flags, &bad.body()), &fds);
            let reply = pair.client.reply().expect("an answer");
            prop_assert_eq!((reply.id, reply.command), (id, bad.command));
            prop_assert_eq!(reply.flags & 0x20 != 0, reply.error != 0);
            prop_assert!(bad.flags == 0 || reply.error != 0);
            pair.client.works();
        }
        prop_assert_eq!(pair.hang_up(), Ended::Disconnected);
    }

    #[test]
    fn random_bytes_end_in_good_order(
        first in any::<bool>(),
        bytes in prop::collection::vec(prop_oneof![Just(0u8), 1u8..17, any::<u8>()], 0..400),
    ) {
        let mut pair = if first { Pair::new() } else { Pair::negotiated() };
        // The server may close before it has everything.
        let _ = pair.client.stream.write_all(&bytes);
        let log = pair.log.clone();
        pair.hang_up();
        prop_assert_eq!(log.lock().unwrap().disconnects, 1);
    }

    /// As above, with headers whose bodies are read further.
    #[test]
    fn random_bodies_before_the_version(
        bodies in prop::collection::vec((0u16..16, prop::collection::vec(any::<u8>(), 0..80)), 1..20),
    ) {
        let mut pair = Pair::new();
        for (id, (command, body)) in bodies.iter().enumerate() {
            pair.client.raw(&message(id as u16, *command, 0, body), &[]);
            let reply = pair.client.reply().expect("an answer");
            prop_assert_eq!((reply.id, reply.command), (id as u16, *command));
        }
        prop_assert_eq!(pair.hang_up(), Ended::Disconnected);
    }
}
