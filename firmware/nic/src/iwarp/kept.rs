//! Octets of a stream that have been acknowledged, or selectively acknowledged, and cannot be used yet.

use std::collections::BTreeMap;

use crate::budget::{Budget, Held};
use crate::dma::Dma;
use crate::payload::Payload;

/// What a piece or a copy costs besides its octets.
pub(super) const OVERHEAD: usize = 64;
/// Octets in a piece that have been used, before they are removed.
const COMPACT: usize = 32 << 10;

/// What octets cost that are kept in one piece.
pub(super) fn cost(len: usize) -> usize {
    len.saturating_add(OVERHEAD)
}

/// Contiguous octets.
#[derive(Debug, Default)]
pub(super) struct Piece {
    octets: Vec<u8>,
    /// Octets in front that have been used.
    used: usize,
}

impl Piece {
    /// The octets that have not been used.
    pub(super) fn rest(&self) -> &[u8] {
        self.octets.get(self.used..).unwrap_or_default()
    }
}

/// Memory for octets that a connection keeps: those that have arrived, and copies of those that leave. Of either kind a connection keeps at
/// most as many as all connections together may keep in addition, so a connection leaves a quarter of the memory to the others, or half if
/// it keeps one kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptRoom<'a> {
    /// Of the NIC.
    nic: &'a Budget,
    /// Of all connections of the NIC.
    shared: &'a Budget,
    /// Octets that a connection keeps also if there is no memory, from the first one on that was not taken. So a stream whose segments do not
    /// begin with an FPDU makes progress.
    reserve: usize,
}

impl<'a> KeptRoom<'a> {
    /// Memory of these budgets, and of the reserve.
    pub(super) fn new(nic: &'a Budget, shared: &'a Budget, reserve: usize) -> Self {
        Self {
            nic,
            shared,
            reserve,
        }
    }

    /// True if a connection that holds `own` bytes may hold `cost` more.
    pub(super) fn fits(self, own: usize, cost: usize) -> bool {
        cost <= self.nic.left() && own.saturating_add(cost) <= self.shared.left()
    }

    /// Reservations of no bytes.
    pub(super) fn none(self) -> [Held; 2] {
        [self.nic.none(), self.shared.none()]
    }
}

/// Kept octets by offset in the stream. Pieces that adjoin are one, so there are few: a connection has few ranges. Their memory is the
/// guest's: it counts in the budget of the NIC.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pieces: BTreeMap<u64, Piece>,
    /// Offset of the first octet that was not taken.
    next: u64,
    held: Option<[Held; 2]>,
}

impl Kept {
    /// Octets that are kept.
    pub(super) fn octets(&self) -> u64 {
        let pieces = self.pieces.values().map(|piece| piece.rest().len() as u64);
        pieces.fold(0, u64::saturating_add)
    }

    /// Octets before `next` have been taken.
    pub(super) fn set_next(&mut self, next: u64) {
        self.next = next;
    }

    /// True if there is memory for `len` octets that follow the octets before `offset`.
    fn has_room(&self, room: KeptRoom<'_>, offset: u64, len: usize) -> bool {
        let own = self.held.as_ref().map_or(0, |[held, _]| held.bytes());
        let fits = room.fits(own, cost(len));
        let end = self.front_end();
        let front = end.saturating_sub(self.next).saturating_add(len as u64);
        fits || (end == offset && front <= room.reserve as u64)
    }

    /// The end of the octets that are kept from `next` on.
    fn front_end(&self) -> u64 {
        let front = self.pieces.get(&self.next);
        let len = front.map_or(0, |piece| piece.rest().len());
        self.next.saturating_add(len as u64)
    }

    /// Keeps a copy of octets from `offset` on. Returns false if there is no memory, or they cannot be read.
    pub(super) fn add<M: Dma>(
        &mut self,
        room: KeptRoom<'_>,
        offset: u64,
        octets: &Payload<'_, M>,
    ) -> bool {
        let len = octets.len();
        if !self.has_room(room, offset, len) {
            return false;
        }
        let end = |(start, piece): (&u64, &Piece)| start.saturating_add(piece.rest().len() as u64);
        let before = self.pieces.range(..=offset).next_back();
        let adjoins = before.filter(|entry| end(*entry) == offset);
        let place = adjoins.map_or(offset, |(start, _)| *start);
        let piece = self.pieces.entry(place).or_default();
        let old = piece.octets.len();
        piece.octets.resize(old.saturating_add(len), 0);
        let to = piece.octets.get_mut(old..).unwrap_or_default();
        let is_read = octets.read(0, to).is_ok();
        if !is_read {
            piece.octets.truncate(old);
            if piece.octets.is_empty() {
                self.pieces.remove(&place);
            }
        } else if let Some(behind) = self.pieces.remove(&offset.saturating_add(len as u64))
            && let Some(piece) = self.pieces.get_mut(&place)
        {
            piece.octets.extend_from_slice(behind.rest());
        }
        self.account(room);
        is_read
    }

    /// Takes the piece that contains `offset` out, as far as its octets have not been used. [`Kept::put_back`] must follow.
    pub(super) fn take(&mut self, offset: u64) -> Option<Piece> {
        let start = *self.pieces.range(..=offset).next_back()?.0;
        let mut piece = self.pieces.remove(&start)?;
        let skip = usize::try_from(offset.saturating_sub(start)).ok()?;
        piece.used = piece.used.saturating_add(skip);
        (!piece.rest().is_empty()).then_some(piece)
    }

    /// Puts a piece back that begins at `offset`, after `used` octets of it have been used.
    pub(super) fn put_back(
        &mut self,
        room: KeptRoom<'_>,
        offset: u64,
        mut piece: Piece,
        used: usize,
    ) {
        self.next = offset.saturating_add(used as u64);
        piece.used = piece.used.saturating_add(used);
        if piece.used >= COMPACT {
            piece.octets.drain(..piece.used.min(piece.octets.len()));
            piece.used = 0;
            // The rest counts by its length, and stays as long as the peer wants, so it does not keep the memory of a whole window.
            piece.octets.shrink_to_fit();
        }
        if !piece.rest().is_empty() {
            self.pieces.insert(self.next, piece);
        }
        self.account(room);
    }

    /// The octets at `offset`, as far as they are in one piece.
    pub(super) fn at(&self, offset: u64) -> &[u8] {
        let piece = self.pieces.range(..=offset).next_back();
        let rest = piece.and_then(|(start, piece)| {
            let skip = usize::try_from(offset.saturating_sub(*start)).ok()?;
            piece.rest().get(skip..)
        });
        rest.unwrap_or_default()
    }

    fn account(&mut self, room: KeptRoom<'_>) {
        if self.pieces.is_empty() {
            self.held = None;
            return;
        }
        let costs = self.pieces.values();
        let bytes = costs
            .map(|piece| cost(piece.octets.len()))
            .fold(0, usize::saturating_add);
        let held = self.held.get_or_insert_with(|| room.none());
        held.iter_mut().for_each(|held| held.set(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dma::{DmaError, Persist};

    /// No memory.
    #[derive(Debug)]
    struct NoMemory;

    const NONE: DmaError = DmaError { addr: 0 };

    impl Dma for NoMemory {
        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), DmaError> {
            Err(NONE)
        }
        fn write(&self, _: u64, _: &[u8]) -> Result<(), DmaError> {
            Err(NONE)
        }
        fn load_u32(&self, _: u64) -> Result<u32, DmaError> {
            Err(NONE)
        }
        fn store_u32(&self, _: u64, _: u32) -> Result<(), DmaError> {
            Err(NONE)
        }
        fn store_u64(&self, _: u64, _: u64) -> Result<(), DmaError> {
            Err(NONE)
        }
        fn fetch_add_u64(&self, _: u64, _: u64) -> Result<u64, DmaError> {
            Err(NONE)
        }
        fn compare_exchange_u64(&self, _: u64, _: u64, _: u64) -> Result<u64, DmaError> {
            Err(NONE)
        }
        fn persist(&self, _: u32, _: Option<&[(u64, u64)]>) -> Persist {
            Persist::Done
        }
        fn new_doorbell_page(&self, _: u32) {}
        fn copy_from(&self, _: u64, _: &Self, _: u64, _: usize) -> Result<(), DmaError> {
            Err(NONE)
        }
    }

    /// Segments of a stream arrive in any order, and are one piece as soon as none is missing.
    #[test]
    fn pieces_join_at_both_ends() {
        let stream: Vec<u8> = (0..=250).collect();
        let parts = [(0, 50), (50, 130), (130, 131), (131, 251)];
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
            let (nic, shared) = (Budget::new(10_000), Budget::new(10_000));
            let room = room(&nic, &shared);
            let mut kept = Kept::default();
            for at in order {
                let (from, to) = parts[at];
                let octets: Payload<'_, NoMemory> = Payload::Bytes(&stream[from..to]);
                assert!(kept.add(room, 1000 + from as u64, &octets));
            }
            assert_eq!(kept.at(1000), stream, "{order:?}");
            assert_eq!(kept.at(1100), &stream[100..]);
            // A part is used, then the rest.
            let piece = kept.take(1000).unwrap();
            assert_eq!(piece.rest(), stream);
            kept.put_back(room, 1000, piece, 70);
            assert_eq!(kept.at(1070), &stream[70..]);
            assert!(nic.used() >= stream.len());
            let piece = kept.take(1070).unwrap();
            kept.put_back(room, 1070, piece, stream.len() - 70);
            assert_eq!((kept.at(1070), nic.used(), shared.used()), (&[][..], 0, 0));
        }
    }

    /// Memory with a reserve of 50 octets.
    fn room<'a>(nic: &'a Budget, shared: &'a Budget) -> KeptRoom<'a> {
        KeptRoom::new(nic, shared, 50)
    }

    fn zeros(len: usize) -> Payload<'static, NoMemory> {
        static ZEROS: [u8; 5000] = [0; 5000];
        Payload::Bytes(&ZEROS[..len])
    }

    /// A peer decides how long the part of an FPDU behind many others stays.
    #[test]
    fn the_rest_of_a_long_piece_has_no_memory_that_does_not_count() {
        let (nic, shared) = (Budget::new(1 << 20), Budget::new(1 << 20));
        let room = room(&nic, &shared);
        let mut kept = Kept::default();
        for n in 0..52 {
            assert!(kept.add(room, n * 5000, &zeros(5000)));
        }
        for (at, used) in [(0, 200_000), (200_000, 59_000), (259_000, 990)] {
            let piece = kept.take(at).unwrap();
            kept.put_back(room, at, piece, used as usize);
            let taken: usize = kept
                .pieces
                .values()
                .map(|piece| piece.octets.capacity())
                .sum();
            assert!(taken <= 2 * nic.used(), "{taken} of {}", nic.used());
        }
        assert_eq!(kept.octets(), 10);
    }

    #[test]
    fn without_memory_a_connection_keeps_the_front_of_its_stream_only() {
        let (nic, shared) = (Budget::new(100), Budget::new(1000));
        let _spent = nic.take(100);
        let room = room(&nic, &shared);
        let mut kept = Kept::default();
        kept.set_next(7);
        assert!(!kept.add(room, 8, &zeros(1)), "out of order");
        assert!(!kept.add(room, 7, &zeros(51)));
        assert!(kept.add(room, 7, &zeros(20)) && kept.add(room, 27, &zeros(30)));
        assert!(!kept.add(room, 57, &zeros(1)));
        assert!(nic.used() >= 150);
        let piece = kept.take(7).unwrap();
        kept.put_back(room, 7, piece, 40);
        assert!(kept.add(room, 57, &zeros(40)));
    }

    #[test]
    fn one_connection_leaves_memory_to_the_others() {
        let (nic, shared) = (Budget::new(1 << 20), Budget::new(10_000));
        let room = room(&nic, &shared);
        let mut connections: Vec<Kept> = (0..3).map(|_| Kept::default()).collect();
        // Each keeps segments of 100 octets out of order, as many as possible.
        let mut greedy = |kept: &mut Kept| {
            let mut at = 1000;
            while kept.add(room, at, &zeros(100)) {
                at += 100;
            }
            at - 1000
        };
        let found: Vec<u64> = connections.iter_mut().map(&mut greedy).collect();
        let near = |octets: u64, share: u64| octets.abs_diff(share) < 400;
        assert!(near(found[0], 5000) && near(found[1], 2500), "{found:?}");
        assert!(near(found[2], 1250), "{found:?}");
    }
}
