//! Receive side scaling: selects the work queue of a frame by a hash of its headers.

use faultline_abi::Status;
use faultline_abi::steering::*;
use smallvec::SmallVec;

use crate::budget::Held;
use crate::counters::CounterSet;
use crate::headers::{IpVersion, ParsedHeaders, Transport};
use crate::references::References;

/// Length of a Toeplitz key in bytes.
const KEY_LEN: usize = 40;

/// An indirection table: the work queues over which frames are distributed.
#[derive(Debug)]
pub(crate) struct RwqIndTable {
    /// Numbers of work queues or of raw queue pairs; the length is a power of two.
    queues: Vec<u32>,
    /// User context to which all of them belong.
    pub uctx: u32,
    /// Number of RSS queue pairs that use it.
    pub refs: References,
}

impl RwqIndTable {
    pub(crate) fn new(queues: Vec<u32>, uctx: u32) -> Self {
        Self {
            queues,
            uctx,
            refs: References::default(),
        }
    }

    pub(crate) fn queues(&self) -> &[u32] {
        &self.queues
    }

    /// The queue for frames with this hash.
    pub(crate) fn queue(&self, hash: u32) -> Option<u32> {
        let index = (hash as usize).checked_rem(self.queues.len())?;
        self.queues.get(index).copied()
    }
}

/// Hash of a frame.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FrameHash {
    pub value: u32,
    /// Addresses and ports were hashed, so that the hash identifies a flow.
    pub of_flow: bool,
}

/// An RSS queue pair: distributes the frames of its flows over the queues of an indirection table. It has no queues.
#[derive(Debug)]
pub(crate) struct RssQp {
    /// Protection domain.
    pub pd: u32,
    /// User context that owns it.
    pub uctx: u32,
    /// Set of counters to which the frames are added.
    pub counters: CounterSet,
    /// Flows that name it. It can't be destroyed while there are any.
    pub references: References,
    /// How it selects a queue.
    pub rss: Rss,
    /// Its bytes of the budget.
    _held: Held,
}

impl RssQp {
    pub(crate) fn new(pd: u32, uctx: u32, rss: Rss, held: Held) -> Self {
        Self {
            pd,
            uctx,
            counters: CounterSet::DEVICE,
            references: References::default(),
            rss,
            _held: held,
        }
    }
}

/// The hash function of an RSS queue pair, and its indirection table.
#[derive(Clone, Debug)]
pub(crate) struct Rss {
    /// Its indirection table.
    pub(crate) table: u32,
    fields: u32,
    key: [u8; KEY_LEN],
}

impl Rss {
    /// Checks the parameters of a command.
    pub(crate) fn new(table: u32, fields: u32, key: [u8; KEY_LEN]) -> Result<Self, Status> {
        const TCP: u32 = HASH_SRC_PORT_TCP | HASH_DST_PORT_TCP;
        const UDP: u32 = HASH_SRC_PORT_UDP | HASH_DST_PORT_UDP;
        if fields >> 8 != 0 {
            return Err(Status::BadParameter);
        }
        // As in libibverbs, ports of one protocol only.
        if fields & TCP != 0 && fields & UDP != 0 {
            return Err(Status::BadParameter);
        }
        Ok(Self { table, fields, key })
    }

    /// Hash of a frame that begins with these bytes; 0 if it has none of the fields.
    pub(crate) fn hash(&self, head: &[u8]) -> FrameHash {
        let Some(parsed) = ParsedHeaders::parse(head) else {
            return FrameHash::default();
        };
        let fields = parsed.fields(head);
        let mut input: SmallVec<[u8; 40]> = SmallVec::new();
        let mut add = |bits: [u32; 2], parts: [&[u8]; 2]| {
            let mut all = true;
            for (bit, bytes) in bits.into_iter().zip(parts) {
                match self.fields & bit {
                    0 => all = false,
                    _ => input.extend_from_slice(bytes),
                }
            }
            all
        };
        let addresses = match parsed.ip {
            Some(IpVersion::V4) => add(
                [HASH_SRC_IPV4, HASH_DST_IPV4],
                [&fields.src_ip[12..], &fields.dst_ip[12..]],
            ),
            Some(IpVersion::V6) => add(
                [HASH_SRC_IPV6, HASH_DST_IPV6],
                [&fields.src_ip, &fields.dst_ip],
            ),
            None => false,
        };
        let ports = [&fields.src_port[..], &fields.dst_port[..]];
        // Only the first fragment of a packet has ports, so no fragment is hashed by ports.
        let ports = match parsed.transport.filter(|_| !parsed.is_fragment) {
            Some(Transport::Tcp) => add([HASH_SRC_PORT_TCP, HASH_DST_PORT_TCP], ports),
            Some(Transport::Udp) => add([HASH_SRC_PORT_UDP, HASH_DST_PORT_UDP], ports),
            None => false,
        };
        FrameHash {
            value: toeplitz(&self.key, &input),
            of_flow: addresses && ports,
        }
    }
}

/// The Toeplitz hash, as Microsoft's RSS specification defines it: for each bit of the input that is set, the 32
/// bits of the key from there on.
fn toeplitz(key: &[u8; KEY_LEN], input: &[u8]) -> u32 {
    let mut rest = key.iter();
    let mut window = rest
        .by_ref()
        .take(4)
        .fold(0u32, |word, byte| word << 8 | u32::from(*byte));
    let mut hash = 0;
    for byte in input {
        let next = rest.next().copied().unwrap_or(0);
        for bit in (0..8).rev() {
            if byte >> bit & 1 != 0 {
                hash ^= window;
            }
            window = window << 1 | u32::from(next >> bit & 1);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key and the table of Microsoft's "Verifying the RSS Hash Calculation".
    const KEY: [u8; KEY_LEN] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    /// Addresses, ports, hash of the addresses, hash of all.
    type Case = ([u8; 4], [u8; 4], u16, u16, u32, u32);

    #[test]
    fn toeplitz_gives_the_published_values() {
        let cases: [Case; 3] = [
            (
                [66, 9, 149, 187],
                [161, 142, 100, 80],
                2794,
                1766,
                0x323e_8fc2,
                0x51cc_c178,
            ),
            (
                [199, 92, 111, 2],
                [65, 69, 140, 83],
                14230,
                4739,
                0xd718_262a,
                0xc626_b0ea,
            ),
            (
                [24, 19, 198, 95],
                [12, 22, 207, 184],
                12898,
                38024,
                0xd2d0_a5de,
                0x5c2b_394a,
            ),
        ];
        for (src, dst, sport, dport, addresses, all) in cases {
            let mut input = [src, dst].concat();
            assert_eq!(toeplitz(&KEY, &input), addresses);
            input.extend(sport.to_be_bytes());
            input.extend(dport.to_be_bytes());
            assert_eq!(toeplitz(&KEY, &input), all);
        }
    }
}
