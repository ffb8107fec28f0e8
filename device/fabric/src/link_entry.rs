//! Frames that enter modelled links.

use faultline_nic::Instant;

use crate::fabric::Fabric;
use crate::frame::{Frame, Octets};
use crate::outside::{Outside, Place};
use crate::switch::PortId;

impl<O: Outside> Fabric<O> {
    /// Calls `pass` for each packet of a frame, as octets. Returns the number of packets whose payload cannot be read any more; these are
    /// lost.
    #[inline(always)]
    pub(crate) fn for_each_packet(
        &mut self,
        out: &mut O,
        from: PortId,
        frame: Frame<'_>,
        mut pass: impl FnMut(&mut Self, &mut O, Octets<'_>),
    ) -> u32 {
        let frame = match frame {
            Frame::Octets(octets) => {
                pass(self, out, octets);
                return 0;
            }
            Frame::ByReference(frame) => frame,
        };
        let mut unread = 0u32;
        let mut buffer = std::mem::take(&mut self.octets);
        for packet in 0..frame.packets {
            let ram = self.memories.get(from);
            match ram.and_then(|ram| Octets::of_packet(frame, packet, ram, &mut buffer)) {
                Some(octets) => pass(self, out, octets),
                None => unread = unread.saturating_add(1),
            }
        }
        self.octets = buffer;
        unread
    }

    /// Sends a frame that has entered at port `from` into the link of a port, packet by packet. Returns false if the link has no model.
    #[cold]
    pub(crate) fn enter_link(
        &mut self,
        out: &mut O,
        now: Instant,
        from: PortId,
        (port, dir): Place,
        frame: Frame<'_>,
    ) -> bool {
        if !self.links.has(port, dir) {
            return false;
        }
        // A packet that cannot be read is lost.
        let _ = self.for_each_packet(out, from, frame, |fabric, out, octets| {
            let effects = fabric.links.send(now, port, dir, octets);
            if let Some(effects) = effects.filter(|_| out.watches_frames()) {
                fabric.show_on_link(out, now, (from, (port, dir)), (frame, octets), effects);
            }
        });
        true
    }
}
