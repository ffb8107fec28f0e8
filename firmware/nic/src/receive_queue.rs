//! Receive work requests, and the rings that hold them.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "entries and records lie within their ring, which does not wrap (`Ring::load`), and have at most 255 SGEs"
)]

use std::mem::offset_of;

use faultline_abi::Status;
use faultline_abi::wqe::{RQ_WQE_DATA, RqWqe, Sge, WqRecord};
use smallvec::SmallVec;
use zerocopy::FromBytes;

use crate::dma::{Dma, DmaError};
use crate::ring::Ring;
use crate::tag::message::Class;

/// Scatter/gather entry, in native numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SgEntry {
    /// I/O virtual address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Local key.
    pub lkey: u32,
}

/// Scatter/gather list; two entries fit without allocation.
pub(crate) type SgList = SmallVec<[SgEntry; 2]>;

/// A receive work request, copied from the ring when it was taken.
#[derive(Clone, Debug)]
pub(crate) struct RecvWr {
    /// Returned in the completion.
    pub tag: u32,
    /// The buffers of the message.
    pub sges: SgList,
    /// Sum of the lengths.
    pub capacity: u64,
    /// The shared receive queue that it is from.
    pub srqn: Option<u32>,
    /// The result of tag matching, if the queue matches tags.
    pub class: Option<Class>,
}

/// Why no receive work request could be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakeError {
    /// None is posted.
    Empty,
    /// The ring, or a request in it, is broken.
    Broken,
}

/// A ring of receive work requests, followed by the record.
#[derive(Debug)]
pub(crate) struct RecvRing {
    ring: Ring,
    max_sge: u8,
    consumer: u32,
    /// The producer index when it was last read.
    producer: u32,
}

/// Bytes of the longest receive work request.
const MAX_STRIDE: usize = 1 << faultline_abi::wqe::MAX_STRIDE_SHIFT;

impl RecvRing {
    /// A queue from which no request has been taken.
    pub(crate) fn new(ring: Ring, max_sge: u8) -> Self {
        Self {
            ring,
            max_sge,
            consumer: 0,
            producer: 0,
        }
    }

    /// Requests that fit.
    pub(crate) fn depth(&self) -> u32 {
        self.ring.depth()
    }

    /// Requests posted, as of the last look at the record, and requests taken.
    pub(crate) fn indices(&self) -> (u32, u32) {
        (self.producer, self.consumer)
    }

    /// log2 of the bytes of a request.
    pub(crate) fn stride_shift(&self) -> u8 {
        self.ring.stride_shift()
    }

    /// Moves the requests that have not been taken to the start of another ring, where indices begin at 0. After an
    /// error nothing has changed: `InUse` if they don't fit. Also returns the number of bytes that were moved.
    pub(crate) fn resize<M: Dma>(&mut self, mem: &M, ring: Ring) -> (Result<(), Status>, usize) {
        let Ok(posted) = self.posted(mem, u32::MAX) else {
            return (Err(Status::BadRing), 0);
        };
        if posted > ring.depth() {
            return (Err(Status::InUse), 0);
        }
        let bytes = posted as usize * self.ring.stride();
        if self.move_to(mem, &ring, posted).is_err() {
            return (Err(Status::DmaError), bytes);
        }
        self.ring = ring;
        self.consumer = 0;
        self.producer = posted;
        (Ok(()), bytes)
    }

    fn move_to<M: Dma>(&self, mem: &M, ring: &Ring, posted: u32) -> Result<(), DmaError> {
        let mut bytes = [0; MAX_STRIDE];
        let entry = bytes.get_mut(..self.ring.stride()).unwrap_or_default();
        for i in 0..posted {
            mem.read(self.ring.entry(self.consumer.wrapping_add(i)), entry)?;
            mem.write(ring.entry(i), entry)?;
        }
        mem.store_u32(ring.consumer_word(), 0)?;
        mem.store_u32(
            ring.record() + offset_of!(WqRecord, producer) as u64,
            posted,
        )
    }

    /// Empties the queue, as the transition of a QP to RESET does. The driver zeroes its indices too.
    pub(crate) fn reset(&mut self) {
        self.consumer = 0;
        self.producer = 0;
    }

    /// Number of posted requests, read from the record if fewer than `enough` are known.
    pub(crate) fn posted<M: Dma>(&mut self, mem: &M, enough: u32) -> Result<u32, TakeError> {
        let known = self.producer.wrapping_sub(self.consumer);
        if known >= enough {
            return Ok(known);
        }
        let producer = mem
            .load_u32(self.ring.record())
            .map_err(|_| TakeError::Broken)?;
        let posted = producer.wrapping_sub(self.consumer);
        if posted > self.ring.depth() {
            return Err(TakeError::Broken);
        }
        self.producer = producer;
        Ok(posted)
    }

    /// Takes the oldest request.
    pub(crate) fn take<M: Dma>(&mut self, mem: &M) -> Result<RecvWr, TakeError> {
        if self.posted(mem, 1)? == 0 {
            return Err(TakeError::Empty);
        }
        let wr = self.parse(mem);
        self.consumer = self.consumer.wrapping_add(1);
        mem.store_u32(self.ring.consumer_word(), self.consumer)
            .map_err(|_| TakeError::Broken)?;
        wr
    }

    /// The oldest request, which is not taken. `None` if there is none, or it is broken: see [`RecvRing::take`].
    #[inline]
    pub(crate) fn peek<M: Dma>(&mut self, mem: &M) -> Option<RecvWr> {
        match self.posted(mem, 1) {
            Ok(1..) => self.parse(mem).ok(),
            Ok(0) | Err(_) => None,
        }
    }

    /// Takes the request that [`RecvRing::peek`] has returned. After an error it is not taken.
    #[inline]
    pub(crate) fn consume<M: Dma>(&mut self, mem: &M) -> Result<(), DmaError> {
        let consumer = self.consumer.wrapping_add(1);
        mem.store_u32(self.ring.consumer_word(), consumer)?;
        self.consumer = consumer;
        Ok(())
    }

    fn parse<M: Dma>(&self, mem: &M) -> Result<RecvWr, TakeError> {
        /// Bytes of the header and two entries: all of nearly all requests.
        const FIRST: usize = RQ_WQE_DATA as usize + 2 * size_of::<Sge>();
        const DATA: usize = RQ_WQE_DATA as usize;
        let addr = self.ring.entry(self.consumer);
        let mut first = [0; FIRST];
        let len = FIRST.min(self.ring.stride());
        let part = first.get_mut(..len).ok_or(TakeError::Broken)?;
        mem.read(addr, part).map_err(|_| TakeError::Broken)?;
        let (header, _) = RqWqe::ref_from_prefix(&first).map_err(|_| TakeError::Broken)?;
        if header.num_sge > self.max_sge || header.reserved != [0; 11] {
            return Err(TakeError::Broken);
        }
        let end = DATA + usize::from(header.num_sge) * size_of::<Sge>();
        let sges = if end <= len {
            parse_sges(first.get(DATA..end).unwrap_or(&[]))
        } else {
            let mut whole = [0; MAX_STRIDE];
            let whole = whole.get_mut(..end).ok_or(TakeError::Broken)?;
            mem.read(addr, whole).map_err(|_| TakeError::Broken)?;
            parse_sges(whole.get(DATA..).unwrap_or(&[]))
        };
        Ok(RecvWr {
            tag: header.tag.get(),
            capacity: sges.iter().map(|sge| u64::from(sge.len)).sum(),
            sges,
            srqn: None,
            class: None,
        })
    }

    /// Sets whether software must ring FAULTLINE_DB_RQ after posting.
    pub(crate) fn set_notify<M: Dma>(&self, mem: &M, on: bool) {
        let word = self.ring.record() + offset_of!(WqRecord, notify) as u64;
        // If the record can't be written, taking the next request fails, too.
        let _ = mem.store_u32(word, u32::from(on));
        // Software stores the producer index, then reads `notify`; the device stores `notify`, then reads the producer index. With a full
        // barrier between both accesses on both sides, at least one side sees the other's store.
        core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
    }
}

/// Scatter/gather entries from the bytes of a work request.
#[inline]
pub(crate) fn parse_sges(bytes: &[u8]) -> SgList {
    let mut list = SgList::new();
    for chunk in bytes.chunks_exact(size_of::<Sge>()) {
        if let Ok(sge) = Sge::ref_from_bytes(chunk) {
            list.push(SgEntry {
                addr: sge.addr.get(),
                len: sge.length.get(),
                lkey: sge.lkey.get(),
            });
        }
    }
    list
}
