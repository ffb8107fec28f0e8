//! Parameters of connections from messages of the connection manager (IBTA chapter 12).
//!
//! REQ and REP name the queue pairs, their starting PSNs, and the number of READs and atomics that each side may have outstanding. Other
//! messages are ignored. The parameters apply only to a connection that begins with the PSN in the message, not to a later connection of
//! the same queue pairs.

use faultline_wire::{Gid, Psn};

use crate::flow::{FLOW_LIMIT, Key};
use crate::recent::Recent;

/// Octets of a MAD, and of its common header (IBTA 13.4.2).
const MAD_LEN: usize = 256;
const HEADER_LEN: usize = 24;
/// Base version, management class, class version and method (Send) of each message (IBTA 13.4, 16.7).
const KIND: [u8; 4] = [1, 0x07, 2, 0x03];
/// Place of the attribute ID in the common header.
const ATTRIBUTE: usize = 16;
const REQ: u16 = 0x0010;
const REP: u16 = 0x0013;

/// The fields of a message that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Req {
        local_id: u32,
        qpn: u32,
        starting_psn: Psn,
    },
    Rep {
        /// Local communication ID of the REQ.
        remote_id: u32,
        qpn: u32,
        starting_psn: Psn,
        responder_resources: u8,
        initiator_depth: u8,
    },
}

impl Message {
    /// Reads a MAD. Returns `None` for other messages and incomplete ones.
    fn parse(mad: &[u8]) -> Option<Self> {
        if mad.len() != MAD_LEN || !mad.starts_with(&KIND) {
            return None;
        }
        let attribute = u16::from_be_bytes(*mad.get(ATTRIBUTE..)?.first_chunk()?);
        let data = mad.get(HEADER_LEN..)?;
        let octet = |at: usize| data.get(at).copied();
        let long = |at: usize| Some(u32::from_be_bytes(*data.get(at..)?.first_chunk()?));
        // The upper 24 bits.
        let number = |at: usize| Some(long(at)? >> 8);
        match attribute {
            // IBTA 12.6.5.
            REQ => Some(Self::Req {
                local_id: long(0)?,
                qpn: number(32)?,
                starting_psn: Psn::new(number(44)?),
            }),
            // IBTA 12.6.8.
            REP => Some(Self::Rep {
                remote_id: long(4)?,
                qpn: number(12)?,
                starting_psn: Psn::new(number(20)?),
                responder_resources: octet(24)?,
                initiator_depth: octet(25)?,
            }),
            _ => None,
        }
    }
}

/// A REQ.
#[derive(Clone, Copy, Debug)]
struct Asked {
    to: Gid,
    qpn: u32,
    starting_psn: Psn,
}

/// Parameters for the requests of one side.
#[derive(Clone, Copy, Debug)]
struct Agreed {
    starting_psn: Psn,
    /// READs, atomics, FLUSHes and ATOMIC WRITEs that may be outstanding.
    reads: u8,
}

/// Connections whose REQ and REP were seen.
#[derive(Debug, Default)]
pub(crate) struct ConnectionManager {
    /// By the source address of the REQ and its local communication ID.
    requests: Recent<(Gid, u32), Asked, FLOW_LIMIT>,
    /// Parameters of connections that have not sent a packet yet.
    agreed: Recent<Key, Agreed, FLOW_LIMIT>,
}

impl ConnectionManager {
    /// Bytes on the heap.
    pub(crate) fn bytes(&self) -> usize {
        self.requests.bytes().saturating_add(self.agreed.bytes())
    }

    /// A packet with this payload is sent to the queue pair of the connection manager.
    pub(crate) fn sent(&mut self, from: Gid, to: Gid, mad: &[u8]) {
        match Message::parse(mad) {
            Some(Message::Req {
                local_id,
                qpn,
                starting_psn,
            }) => {
                let asked = Asked {
                    to,
                    qpn,
                    starting_psn,
                };
                self.requests.insert((from, local_id), asked);
            }
            Some(Message::Rep {
                remote_id,
                qpn,
                starting_psn,
                responder_resources,
                initiator_depth,
            }) => {
                let asked = self.requests.get(&(to, remote_id)).copied();
                let Some(asked) = asked.filter(|asked| asked.to == from) else {
                    return;
                };
                // Each message has the PSN with which the other side begins (IBTA 12.7).
                let by_asker = Agreed {
                    starting_psn,
                    reads: responder_resources,
                };
                let key = Key {
                    from: to,
                    to: from,
                    qpn,
                };
                self.agree(key, by_asker);
                let by_other = Agreed {
                    starting_psn: asked.starting_psn,
                    reads: initiator_depth,
                };
                let key = Key {
                    from,
                    to,
                    qpn: asked.qpn,
                };
                self.agree(key, by_other);
            }
            None => {}
        }
    }

    /// If several messages are about one connection, the other side uses one of them: the largest limit causes no false finding.
    fn agree(&mut self, key: Key, mut agreed: Agreed) {
        let before = self.agreed.get(&key);
        if let Some(before) = before.filter(|before| before.starting_psn == agreed.starting_psn) {
            agreed.reads = agreed.reads.max(before.reads);
        }
        self.agreed.insert(key, agreed);
    }

    /// A flow begins with PSN `first`. Returns the number of READs and atomics that its requester may have outstanding, if messages have
    /// set it.
    pub(crate) fn begin(&mut self, key: &Key, first: Psn) -> Option<u32> {
        let agreed = self.agreed.remove(key)?;
        (agreed.starting_psn == first).then_some(agreed.reads.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mad(attribute: u16) -> Vec<u8> {
        let mut mad: Vec<u8> = (0..=255).collect();
        mad[..4].copy_from_slice(&KIND);
        mad[16..18].copy_from_slice(&attribute.to_be_bytes());
        mad
    }

    #[test]
    fn fields_are_at_their_places() {
        let req = Message::Req {
            local_id: 0x18191a1b,
            qpn: 0x38393a,
            starting_psn: Psn::new(0x444546),
        };
        assert_eq!(Message::parse(&mad(REQ)), Some(req));
        let rep = Message::Rep {
            remote_id: 0x1c1d1e1f,
            qpn: 0x242526,
            starting_psn: Psn::new(0x2c2d2e),
            responder_resources: 0x30,
            initiator_depth: 0x31,
        };
        assert_eq!(Message::parse(&mad(REP)), Some(rep));
    }

    #[test]
    fn other_messages_are_not_read() {
        for attribute in 0..=u16::MAX {
            let is_read = Message::parse(&mad(attribute)).is_some();
            assert_eq!(is_read, [REQ, REP].contains(&attribute), "{attribute:#x}");
        }
        for at in 0..KIND.len() {
            let mut other = mad(REQ);
            other[at] ^= 0x80;
            assert_eq!(Message::parse(&other), None);
        }
        for attribute in [REQ, REP] {
            let mut mad = mad(attribute);
            for len in 0..mad.len() {
                assert_eq!(Message::parse(&mad[..len]), None);
            }
            mad.push(0);
            assert_eq!(Message::parse(&mad), None);
        }
    }
}
