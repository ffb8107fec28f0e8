//! The Internet checksum (RFC 1071).

/// A ones' complement sum over any number of byte slices.
#[derive(Clone, Copy, Debug, Default)]
pub struct InternetSum {
    sum: u64,
    /// True after an odd number of bytes: the next byte is the low half of a word.
    odd: bool,
}

impl InternetSum {
    /// Adds the next bytes.
    #[inline]
    pub fn add(&mut self, mut bytes: &[u8]) {
        if self.odd
            && let Some((first, rest)) = bytes.split_first()
        {
            self.add_number(u64::from(*first));
            self.odd = false;
            bytes = rest;
        }
        let words = bytes.chunks_exact(4);
        let tail = words.remainder();
        // A u64 holds the sum of 2^32 32-bit words.
        let sum = words
            .filter_map(|word| word.first_chunk())
            .map(|word| u64::from(u32::from_be_bytes(*word)))
            .fold(0, u64::wrapping_add);
        self.add_number(sum);
        for (n, byte) in tail.iter().enumerate() {
            self.add_number(u64::from(*byte) << if n % 2 == 0 { 8 } else { 0 });
        }
        if !bytes.is_empty() {
            self.odd = tail.len() % 2 == 1;
        }
    }

    /// Adds a number instead of its bytes, for example a length in a pseudo header.
    #[inline]
    pub fn add_number(&mut self, number: u64) {
        self.sum = self.sum.wrapping_add(number);
    }

    #[inline]
    fn fold(self) -> u16 {
        let mut sum = self.sum;
        while sum > 0xffff {
            sum = (sum & 0xffff).wrapping_add(sum >> 16);
        }
        (sum & 0xffff) as u16
    }

    /// The checksum, if the checksum field was zero in the added bytes.
    #[inline]
    pub fn checksum(self) -> u16 {
        !self.fold()
    }

    /// True if the checksum field in the added bytes is correct.
    #[inline]
    pub fn is_right(self) -> bool {
        self.fold() == 0xffff
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_sum_in_pieces_is_the_sum() {
        let bytes: Vec<u8> = (0..1001u32).map(|n| ((n * n / 8) & 0xff) as u8).collect();
        let mut whole = 0u64;
        for pair in bytes.chunks(2) {
            whole += u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low));
        }
        while whole > 0xffff {
            whole = (whole & 0xffff) + (whole >> 16);
        }
        for step in [1, 2, 3, 5, 7, 64, 999, 1001] {
            let mut sum = InternetSum::default();
            for piece in bytes.chunks(step) {
                sum.add(piece);
                sum.add(&[]);
            }
            assert_eq!(u64::from(sum.fold()), whole, "{step}");
        }
    }
}
