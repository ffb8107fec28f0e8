//! Octets of a stream that have been acknowledged, or selectively acknowledged, and cannot be used yet.

use std::collections::BTreeMap;

use crate::budget::{Budget, Held};
use crate::dma::Dma;
use crate::payload::Payload;

/// What a piece costs besides its octets.
const OVERHEAD: usize = 64;
/// Octets that have been used are removed from a piece when they are so many.
const COMPACT: usize = 32 << 10;

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

/// Kept octets by offset in the stream. Pieces that adjoin are one, so there are few: a connection has few ranges. Their memory is the
/// guest's: it counts in the budget of the NIC.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pieces: BTreeMap<u64, Piece>,
    held: Option<Held>,
}

impl Kept {
    /// Keeps a copy of octets from `offset` on. Returns false if the budget has no room, or they cannot be read.
    pub(super) fn add<M: Dma>(
        &mut self,
        budget: &Budget,
        offset: u64,
        octets: &Payload<'_, M>,
    ) -> bool {
        let len = octets.len();
        if budget.take(len.saturating_add(OVERHEAD)).is_none() {
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
        self.account(budget);
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
    pub(super) fn put_back(&mut self, budget: &Budget, offset: u64, mut piece: Piece, used: usize) {
        piece.used = piece.used.saturating_add(used);
        if piece.used >= COMPACT {
            piece.octets.drain(..piece.used.min(piece.octets.len()));
            piece.used = 0;
        }
        if !piece.rest().is_empty() {
            self.pieces
                .insert(offset.saturating_add(used as u64), piece);
        }
        self.account(budget);
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

    fn account(&mut self, budget: &Budget) {
        if self.pieces.is_empty() {
            self.held = None;
            return;
        }
        let costs = self.pieces.values();
        let bytes = costs
            .map(|piece| piece.octets.len().saturating_add(OVERHEAD))
            .fold(0, usize::saturating_add);
        self.held.get_or_insert_with(|| budget.none()).set(bytes);
    }
}
