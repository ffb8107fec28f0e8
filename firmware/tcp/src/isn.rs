//! Initial sequence numbers and timestamp offsets (RFC 6528, RFC 7323 section 5.4).

use faultline_wire::{Gid, Seq};

use crate::time::Instant;

/// The two ends of a connection. IPv4 addresses are IPv4-mapped IPv6 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Address of this end.
    pub local: Gid,
    /// Port of this end.
    pub local_port: u16,
    /// Address of the peer.
    pub remote: Gid,
    /// Port of the peer.
    pub remote_port: u16,
}

/// First values of the numbers of a connection that a third party must not be able to guess.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// The initial sequence number.
    pub seq: Seq,
    /// The value of the timestamp clock at time 0.
    pub clock: u32,
}

/// A secret key, from which initial sequence numbers and nonces are made. The owner draws it at random when a device starts.
#[derive(Clone, Copy)]
pub struct Secret(pub [u64; 2]);

impl core::fmt::Debug for Secret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// The first values for a connection: a clock of 4 µs plus a keyed hash of both ends (RFC 6528 section 3), so that a new
    /// connection of the same ends begins above the old one, and another pair of ends reveals nothing.
    pub fn start(&self, tuple: &Tuple, now: Instant) -> Start {
        let high = |gid: &Gid| u64::from_be_bytes(*first_half(&gid.0));
        let low = |gid: &Gid| u64::from_be_bytes(*second_half(&gid.0));
        let ports = u64::from(tuple.local_port) << 16 | u64::from(tuple.remote_port);
        let Tuple { local, remote, .. } = tuple;
        let words = [high(local), low(local), high(remote), low(remote), ports];
        let hash = self.hash(&words);
        let ticks = ((now.0 / 4000) & 0xffff_ffff) as u32;
        Start {
            seq: Seq((hash & 0xffff_ffff) as u32).add(ticks),
            clock: (hash >> 32) as u32,
        }
    }

    /// A keyed hash of words. It cannot be predicted without the key, and does not reveal it.
    pub fn hash(&self, words: &[u64]) -> u64 {
        siphash(self.0, words)
    }
}

fn first_half(octets: &[u8; 16]) -> &[u8; 8] {
    octets.first_chunk().unwrap_or(&[0; 8])
}

fn second_half(octets: &[u8; 16]) -> &[u8; 8] {
    octets.last_chunk().unwrap_or(&[0; 8])
}

/// SipHash-2-4 of the little-endian octets of whole words (Aumasson and Bernstein, "SipHash: a fast short-input PRF").
fn siphash([k0, k1]: [u64; 2], words: &[u64]) -> u64 {
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    // The last word has the length in octets, modulo 256, in its highest octet.
    let length = (words.len() as u64).wrapping_mul(8) << 56;
    for word in words.iter().copied().chain([length]) {
        v[3] ^= word;
        v = round(round(v));
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    let [a, b, c, d] = round(round(round(round(v))));
    a ^ b ^ c ^ d
}

fn round([mut a, mut b, mut c, mut d]: [u64; 4]) -> [u64; 4] {
    a = a.wrapping_add(b);
    c = c.wrapping_add(d);
    b = b.rotate_left(13) ^ a;
    d = d.rotate_left(16) ^ c;
    a = a.rotate_left(32);
    c = c.wrapping_add(b);
    a = a.wrapping_add(d);
    b = b.rotate_left(17) ^ c;
    d = d.rotate_left(21) ^ a;
    c = c.rotate_left(32);
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::hash::Hasher;

    /// The standard library has the same function, but only for tests of it: the type is deprecated for other reasons.
    #[test]
    #[expect(deprecated, reason = "the only SipHash-2-4 of the standard library")]
    fn the_hash_is_siphash_2_4() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        for count in 0..6u64 {
            let words: std::vec::Vec<u64> =
                (1..=count).map(|n| n * 0x0123_4567_89ab_cdef).collect();
            let mut theirs = core::hash::SipHasher::new_with_keys(key[0], key[1]);
            for word in &words {
                theirs.write(&word.to_le_bytes());
            }
            assert_eq!(siphash(key, &words), theirs.finish(), "{count}");
        }
    }

    #[test]
    fn each_part_of_a_tuple_counts() {
        let secret = Secret([1, 2]);
        let tuple = Tuple {
            local: Gid::from_ipv4([10, 0, 0, 1]),
            local_port: 1,
            remote: Gid::from_ipv4([10, 0, 0, 2]),
            remote_port: 2,
        };
        let others = [
            Tuple {
                local: Gid::from_ipv4([10, 0, 0, 3]),
                ..tuple
            },
            Tuple {
                local_port: 3,
                ..tuple
            },
            Tuple {
                remote: Gid::from_ipv4([10, 0, 0, 3]),
                ..tuple
            },
            Tuple {
                remote_port: 3,
                ..tuple
            },
        ];
        let start = secret.start(&tuple, Instant(0));
        for other in others {
            let other = secret.start(&other, Instant(0));
            assert!(other.seq != start.seq && other.clock != start.clock);
        }
        assert_ne!(Secret([1, 3]).start(&tuple, Instant(0)), start);
        let later = secret.start(&tuple, Instant(40_000));
        assert_eq!(later.seq, start.seq.add(10));
    }
}
