//! A frame on its way from one fabric to another.

use faultline_fabric::frame::{Frame, FrameMut, Octets};
use faultline_fabric::others::OtherFrame;
use faultline_fabric::outside::Outside;
use faultline_fabric::{Fabric, PortId};
use faultline_nic::{Dma, Instant, Origin, Segment, TxFrame};

use crate::bus::RAM_BASE;

/// Memory for the payload of a frame: that of a turn, and of one frame beyond it.
pub const PAYLOAD: usize = 128 << 10;

/// A frame between two fabrics.
#[derive(Clone, Debug)]
pub struct Crossing {
    at: Instant,
    from: PortId,
    sender: u32,
    contents: Contents,
}

#[derive(Clone, Debug)]
enum Contents {
    /// Headers, and the octets of the payload.
    Typed(Box<TxFrame>, Vec<u8>),
    Octets(Origin, Vec<u8>),
}

impl Crossing {
    /// A copy of a frame that queue pair `sender` (0: not known) has sent at port `from`. `memory`: that of the payload of a frame by
    /// reference. Returns `None` if it cannot be read.
    pub fn new<M: Dma>(
        at: Instant,
        (from, sender): (PortId, u32),
        frame: Frame<'_>,
        memory: Option<&M>,
    ) -> Option<Self> {
        let contents = match frame {
            Frame::Octets(Octets { mark, bytes }) => Contents::Octets(mark.origin, bytes.to_vec()),
            Frame::ByReference(frame) => {
                let mut payload = Vec::new();
                for segment in &frame.payload {
                    let mut part = vec![0; usize::try_from(segment.len).ok()?];
                    memory?.read(segment.addr, &mut part).ok()?;
                    payload.append(&mut part);
                }
                Contents::Typed(Box::new(frame.clone()), payload)
            }
        };
        Some(Self {
            at,
            from,
            sender,
            contents,
        })
    }

    /// Octets of its payload, or of the whole frame.
    pub fn octets(&self) -> usize {
        match &self.contents {
            Contents::Typed(_, payload) => payload.len(),
            Contents::Octets(_, octets) => octets.len(),
        }
    }

    /// Packets.
    pub fn packets(&self) -> u32 {
        match &self.contents {
            Contents::Typed(frame, _) => frame.packets,
            Contents::Octets(..) => 1,
        }
    }

    /// Delivers it to a fabric. `payload`: the memory that the fabric has in place of the memory of NICs of other
    /// fabrics, of [`PAYLOAD`] bytes from [`RAM_BASE`] on. Advances `now` beyond the time at which the frame was sent.
    pub fn deliver<O: Outside>(
        self,
        fabric: &mut Fabric<O>,
        out: &mut O,
        now: &mut Instant,
        payload: &O::Memory,
    ) {
        let other = |frame| OtherFrame {
            at: self.at,
            from: self.from,
            sender: self.sender,
            frame,
        };
        match self.contents {
            Contents::Typed(mut frame, octets) => {
                // One frame at a time is delivered.
                if payload.write(RAM_BASE, &octets).is_err() {
                    return;
                }
                frame.payload.clear();
                if let Ok(len @ 1..) = u32::try_from(octets.len()) {
                    frame.payload.push(Segment {
                        addr: RAM_BASE,
                        len,
                    });
                }
                fabric.receive_from_other(out, now, other(FrameMut::ByReference(&mut frame)));
            }
            Contents::Octets(origin, bytes) => {
                let frame = FrameMut::Octets(Octets::new(origin, &bytes));
                fabric.receive_from_other(out, now, other(frame));
            }
        }
    }
}
