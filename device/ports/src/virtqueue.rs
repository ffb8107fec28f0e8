//! Buffers of a split virtqueue, as a network device takes and returns them (VIRTIO 1.3, 2.7).
//!
//! `virtio-queue` reads the rings. This module bounds the work that a chain of descriptors can cause, and publishes
//! several buffers at once: a driver must not see the first of the buffers of a frame without the others.

use std::sync::atomic::{Ordering, fence};

use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemory, GuestMemoryMmap, Permissions};

/// Memory of a guest.
pub(crate) type Memory = GuestMemoryMmap<()>;

/// Descriptors of one frame. Linux uses 19 for one frame at most; a driver that uses one page for each needs 17.
const MAX_DESCRIPTORS: usize = 1024;
/// Flag of the available ring: no interrupts, please (VRING_AVAIL_F_NO_INTERRUPT).
const NO_INTERRUPT: u16 = 1;
/// Octets in front of the entries of both rings, and of an entry of the available and of the used ring.
const RING_HEADER: u64 = 4;
const AVAILABLE: u64 = 2;
const USED: u64 = 8;

/// An error of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A chain that is unusable. It can be returned.
    Chain(u16),
    /// A ring that is unusable, until the driver sets it up again.
    Ring,
}

/// A chain of descriptors that belongs to the device.
struct Chain<'a> {
    head: u16,
    descriptors: DescriptorChain<&'a Memory>,
}

/// True if a ring can be read: the front end starts a ring before it gives the ring's address.
pub(crate) fn is_set_up(queue: &Queue) -> bool {
    queue.ready() && queue.avail_ring() != 0
}

/// The next chain of the driver.
fn take<'a>(queue: &mut Queue, memory: &'a Memory) -> Result<Option<Chain<'a>>, Fault> {
    let size = queue.size();
    if !is_set_up(queue) {
        return Ok(None);
    }
    let next = queue.next_avail();
    // Read once before the iterator reads it again: the driver may add a chain at any time.
    let index = queue.avail_idx(memory, Ordering::Acquire);
    if index.map_err(|_| Fault::Ring)?.0 == next {
        return Ok(None);
    }
    let mut available = queue.iter(memory).map_err(|_| Fault::Ring)?;
    let Some(descriptors) = available.next() else {
        return Err(Fault::Ring);
    };
    let head = descriptors.head_index();
    match head < size {
        true => Ok(Some(Chain { head, descriptors })),
        // It cannot even be returned.
        false => Err(Fault::Ring),
    }
}

/// Reads the next chain of the driver into `buffer`. Returns its head; `None` if there is none.
///
/// # Errors
///
/// The driver is wrong. A chain that can't be read, has octets for the device to write, or more than `limit`, is returned.
pub(crate) fn read_chain(
    queue: &mut Queue,
    memory: &Memory,
    buffer: &mut Vec<u8>,
    limit: usize,
) -> Result<Option<u16>, Fault> {
    let Some(chain) = take(queue, memory)? else {
        return Ok(None);
    };
    let wrong = Fault::Chain(chain.head);
    let mut is_whole = false;
    for descriptor in chain.descriptors.take(MAX_DESCRIPTORS) {
        let at = buffer.len();
        let length = usize::try_from(descriptor.len()).unwrap_or(usize::MAX);
        let end = at.saturating_add(length);
        if descriptor.is_write_only() || end > limit {
            return Err(wrong);
        }
        buffer.resize(end, 0);
        let to = buffer.get_mut(at..).unwrap_or_default();
        memory
            .read_slice(to, descriptor.addr())
            .map_err(|_| wrong)?;
        is_whole = !descriptor.has_next();
    }
    if is_whole {
        Ok(Some(chain.head))
    } else {
        Err(wrong)
    }
}

/// Result of [`Space::collect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// There is space for the frame.
    Enough,
    /// The driver has not made enough buffers available.
    TooFew,
    /// The frame fits into no buffers that this driver can make available at a time.
    TooSmall,
}

/// Buffers of a driver for one frame.
#[derive(Debug, Default)]
pub(crate) struct Space {
    /// Heads, and how much fits into each.
    chains: Vec<(u16, u32)>,
    parts: Vec<(GuestAddress, usize)>,
    octets: usize,
    /// The number of available buffers when they were too few.
    seen: u16,
}

impl Space {
    /// Takes buffers for `needed` octets, several if the driver allows it. Takes none if the result is not [`Found::Enough`].
    ///
    /// # Errors
    ///
    /// The driver is wrong. The ring is unusable then.
    pub(crate) fn collect(
        &mut self,
        queue: &mut Queue,
        memory: &Memory,
        needed: usize,
        is_mergeable: bool,
    ) -> Result<Found, Fault> {
        self.chains.clear();
        self.parts.clear();
        self.octets = 0;
        let most = if is_mergeable { queue.size() } else { 1 };
        while self.octets < needed {
            if self.chains.len() >= usize::from(most) || self.parts.len() >= MAX_DESCRIPTORS {
                self.put_back(queue);
                return Ok(Found::TooSmall);
            }
            let Some(chain) = take(queue, memory)? else {
                self.seen = queue.next_avail();
                self.put_back(queue);
                return Ok(Found::TooFew);
            };
            self.add(chain, memory).ok_or(Fault::Ring)?;
        }
        Ok(Found::Enough)
    }

    fn add(&mut self, chain: Chain<'_>, memory: &Memory) -> Option<()> {
        let mut octets = 0u32;
        let mut is_whole = false;
        for descriptor in chain.descriptors.take(MAX_DESCRIPTORS) {
            let length = usize::try_from(descriptor.len()).ok()?;
            let is_valid = memory.check_range(descriptor.addr(), length, Permissions::Write);
            if !descriptor.is_write_only() || !is_valid {
                return None;
            }
            octets = octets.checked_add(descriptor.len())?;
            self.parts.push((descriptor.addr(), length));
            is_whole = !descriptor.has_next();
        }
        self.octets = self.octets.checked_add(usize::try_from(octets).ok()?)?;
        self.chains.push((chain.head, octets));
        is_whole.then_some(())
    }

    fn put_back(&self, queue: &mut Queue) {
        for _ in &self.chains {
            queue.go_to_previous_position();
        }
    }

    /// Asks the driver to notify when it has more buffers than there were. Returns true if it has more already.
    pub(crate) fn ask_for_more(&self, queue: &mut Queue, memory: &Memory) -> bool {
        let next = queue.next_avail();
        queue.set_next_avail(self.seen);
        let more = queue.enable_notification(memory);
        queue.set_next_avail(next);
        more.unwrap_or(false)
    }

    /// Number of buffers.
    pub(crate) fn buffers(&self) -> u16 {
        u16::try_from(self.chains.len()).unwrap_or(u16::MAX)
    }

    /// Writes header and frame into the buffers and returns them to the driver.
    ///
    /// # Errors
    ///
    /// The memory has changed since the buffers were collected.
    pub(crate) fn fill(
        &mut self,
        queue: &mut Queue,
        memory: &Memory,
        header: &[u8],
        frame: &[u8],
    ) -> Result<(), Fault> {
        let mut rest = [header, frame];
        for (address, length) in &self.parts {
            let (mut address, mut length) = (*address, *length);
            for source in &mut rest {
                let (now, later) = source.split_at(source.len().min(length));
                memory.write_slice(now, address).map_err(|_| Fault::Ring)?;
                *source = later;
                length = length.saturating_sub(now.len());
                address = GuestAddress(address.0.saturating_add(now.len() as u64));
            }
        }
        let mut octets = header.len().saturating_add(frame.len());
        for (_, used) in &mut self.chains {
            let here = octets.min(usize::try_from(*used).unwrap_or(usize::MAX));
            *used = u32::try_from(here).unwrap_or(u32::MAX);
            octets = octets.saturating_sub(here);
        }
        give_back(queue, memory, &self.chains)
    }
}

/// Returns chains to the driver, all at once: heads, and the number of octets written into each.
///
/// # Errors
///
/// The used ring is not in the memory of the guest.
pub(crate) fn give_back(
    queue: &mut Queue,
    memory: &Memory,
    chains: &[(u16, u32)],
) -> Result<(), Fault> {
    let Some(((head, octets), before)) = chains.split_last() else {
        return Ok(());
    };
    let mut next = queue.next_used();
    for (head, octets) in before {
        let index = next.checked_rem(queue.size()).unwrap_or(0);
        let offset = u64::from(index)
            .saturating_mul(USED)
            .saturating_add(RING_HEADER);
        let address = GuestAddress(queue.used_ring().saturating_add(offset));
        let entry = u64::from(*octets) << 32 | u64::from(*head);
        memory
            .write_obj(entry.to_le(), address)
            .map_err(|_| Fault::Ring)?;
        next = next.wrapping_add(1);
    }
    // The last entry publishes the index, and with it the entries before.
    queue.set_next_used(next);
    queue
        .add_used(memory, *head, *octets)
        .map_err(|_| Fault::Ring)
}

/// True if the driver wants an interrupt for the entries of the used ring from `from` on.
pub(crate) fn wants_interrupt(queue: &Queue, memory: &Memory, from: u16) -> bool {
    let to = queue.next_used();
    if from == to {
        return false;
    }
    // Either the driver sees the entries, or this load sees the driver's wish for interrupts.
    fence(Ordering::SeqCst);
    let offset = match queue.event_idx_enabled() {
        true => u64::from(queue.size())
            .saturating_mul(AVAILABLE)
            .saturating_add(RING_HEADER),
        false => 0,
    };
    let address = GuestAddress(queue.avail_ring().saturating_add(offset));
    let Ok(value) = memory.load::<u16>(address, Ordering::Relaxed) else {
        return true;
    };
    let value = u16::from_le(value);
    match queue.event_idx_enabled() {
        true => to.wrapping_sub(value).wrapping_sub(1) < to.wrapping_sub(from),
        false => value & NO_INTERRUPT == 0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use virtio_queue::Queue;

    use super::*;

    const SIZE: u16 = 8;
    const TABLE: u64 = 0x1000;
    const AVAILABLE_RING: u64 = 0x1100;
    const USED_RING: u64 = 0x1200;
    const LIMIT: usize = 5000;

    fn descriptor() -> impl Strategy<Value = (u64, u32, u16, u16)> {
        let address = prop_oneof![
            Just(TABLE),
            0x1000..0x6000u64,
            any::<u64>(),
            Just(u64::MAX - 3)
        ];
        let length = prop_oneof![
            Just(16),
            0..200u32,
            0..6000u32,
            Just(16 * 65_535),
            any::<u32>()
        ];
        (address, length, 0..8u16, 0..SIZE + 2)
    }

    fn ring(
        descriptors: &[(u64, u32, u16, u16)],
        heads: &[u16],
        available: u16,
    ) -> (Memory, Queue) {
        let memory = Memory::from_ranges(&[(GuestAddress(TABLE), 0x4000)]).unwrap();
        for (slot, (address, length, flags, next)) in descriptors.iter().enumerate() {
            let at = GuestAddress(TABLE + 16 * slot as u64);
            let rest = u64::from(*length) | u64::from(*flags) << 32 | u64::from(*next) << 48;
            memory.write_obj([*address, rest], at).unwrap();
        }
        for (slot, head) in heads.iter().enumerate() {
            let at = GuestAddress(AVAILABLE_RING + 4 + 2 * slot as u64);
            memory.write_obj(*head, at).unwrap();
        }
        let at = GuestAddress(AVAILABLE_RING + 2);
        memory.write_obj(available, at).unwrap();
        let mut queue = Queue::new(SIZE).unwrap();
        let place = |address| Some(address as u32);
        queue.set_desc_table_address(place(TABLE), None);
        queue.set_avail_ring_address(place(AVAILABLE_RING), None);
        queue.set_used_ring_address(place(USED_RING), None);
        queue.set_ready(true);
        (memory, queue)
    }

    proptest! {
        /// Whatever a guest writes: no panic, bounded work, no octet beyond the limit, and each chain is returned at
        /// most once.
        #[test]
        fn any_ring_is_read_within_bounds(
            descriptors in prop::collection::vec(descriptor(), usize::from(SIZE)),
            heads in prop::collection::vec(0..SIZE + 1, usize::from(SIZE)),
            available in 0..SIZE + 2,
        ) {
            let (memory, mut queue) = ring(&descriptors, &heads, available);
            let mut buffer = Vec::new();
            let mut count = 0;
            loop {
                buffer.clear();
                let head = match read_chain(&mut queue, &memory, &mut buffer, LIMIT) {
                    Ok(None) | Err(Fault::Ring) => break,
                    Ok(Some(head)) | Err(Fault::Chain(head)) => head,
                };
                prop_assert!(buffer.len() <= LIMIT && head < SIZE);
                give_back(&mut queue, &memory, &[(head, 0)]).unwrap();
                wants_interrupt(&queue, &memory, count);
                count += 1;
                prop_assert!(count <= available);
            }
            prop_assert_eq!(queue.next_used(), count);
        }

        #[test]
        fn any_ring_is_written_within_bounds(
            descriptors in prop::collection::vec(descriptor(), usize::from(SIZE)),
            heads in prop::collection::vec(0..SIZE + 1, usize::from(SIZE)),
            available in 0..SIZE + 2,
            length in 0..9000usize,
            is_mergeable: bool,
        ) {
            let (memory, mut queue) = ring(&descriptors, &heads, available);
            let mut space = Space::default();
            let frame = vec![7; length];
            for _ in 0..=SIZE {
                let before = queue.next_avail();
                let needed = length + 12;
                match space.collect(&mut queue, &memory, needed, is_mergeable) {
                    Ok(Found::Enough) => {
                        let buffers = space.buffers();
                        prop_assert!(is_mergeable || buffers == 1);
                        let used = queue.next_used();
                        // The frame may be written over the rings; this must not harm the process.
                        let _ = space.fill(&mut queue, &memory, &[0; 12], &frame);
                        prop_assert_eq!(queue.next_used(), used + buffers);
                        let octets: u32 = space.chains.iter().map(|(_, octets)| octets).sum();
                        prop_assert_eq!(octets as usize, needed);
                    }
                    Ok(Found::TooFew) => {
                        prop_assert_eq!(queue.next_avail(), before);
                        space.ask_for_more(&mut queue, &memory);
                        prop_assert_eq!(queue.next_avail(), before);
                    }
                    Ok(Found::TooSmall) => prop_assert_eq!(queue.next_avail(), before),
                    Err(_) => break,
                }
            }
        }
    }

    /// A driver adds chains while the device looks for them.
    #[test]
    fn a_chain_that_comes_during_a_look_is_no_fault() {
        const CHAINS: u16 = 30_000;
        let (memory, mut queue) = ring(&[(0x4000, 16, 0, 0)], &[0; SIZE as usize], 0);
        let index = GuestAddress(AVAILABLE_RING + 2);
        let driver = {
            let memory = memory.clone();
            std::thread::spawn(move || {
                for available in 1..=CHAINS {
                    let used = || -> u16 {
                        let index = GuestAddress(USED_RING + 2);
                        memory.load(index, Ordering::Acquire).unwrap()
                    };
                    while available - used() > SIZE {
                        std::thread::yield_now();
                    }
                    memory.store(available, index, Ordering::Release).unwrap();
                }
            })
        };
        let mut count = 0;
        while count < CHAINS {
            let mut buffer = Vec::new();
            match read_chain(&mut queue, &memory, &mut buffer, LIMIT) {
                Ok(Some(head)) => {
                    give_back(&mut queue, &memory, &[(head, 0)]).unwrap();
                    count += 1;
                }
                Ok(None) => std::thread::yield_now(),
                Err(fault) => panic!("{fault:?} after {count} chains"),
            }
        }
        driver.join().unwrap();
    }

    /// A driver that has seen one entry of a frame finds the others, too.
    #[test]
    fn several_chains_are_returned_at_once() {
        let (memory, mut queue) = ring(&[], &[], 0);
        queue.set_event_idx(true);
        queue.set_next_used(u16::MAX);
        give_back(&mut queue, &memory, &[(3, 30), (4, 40), (5, 50)]).unwrap();
        let index: u16 = memory.read_obj(GuestAddress(USED_RING + 2)).unwrap();
        assert_eq!(index, 2);
        for (slot, entry) in [(7, [3, 30]), (0, [4, 40]), (1, [5, 50])] {
            let at = GuestAddress(USED_RING + 4 + 8 * slot);
            assert_eq!(memory.read_obj::<[u32; 2]>(at).unwrap(), entry);
        }
        // The driver wants an interrupt for any of the three.
        for (event, wanted) in [
            (u16::MAX - 1, false),
            (u16::MAX, true),
            (0, true),
            (1, true),
            (2, false),
        ] {
            let at = GuestAddress(AVAILABLE_RING + 4 + 2 * u64::from(SIZE));
            memory.write_obj(event, at).unwrap();
            assert_eq!(
                wants_interrupt(&queue, &memory, u16::MAX),
                wanted,
                "{event}"
            );
        }
    }
}
