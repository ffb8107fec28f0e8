//! Cost of the octets of packets: RoCEv2 packets that are built with iCRC and parsed again with its check, against a
//! copy and a CRC-32 of the same bytes between the same buffers, in turns.
//!
//! A packet needs its CRC twice, where it is built and where it is checked. The floor has it once.

use std::hint::black_box;

use anyhow::ensure;
use faultline_wire::bth::{Bth, Psn};
use faultline_wire::{Ip, Ipv4, MacAddr, Opcode, Reth, RoceHeader, WireError, parse};

use super::{Figure, median_ratio, time_rounds};

/// Packets of a round have buffers of their own: some 64 KiB of payload, as a turn of a NIC has.
const BUFFERS: usize = 16;
/// Bytes of payload that a round of 4 KiB packets moves; one of short packets takes about as long.
const ROUND_PACKETS: [(usize, usize); 2] = [(64, 512), (4096, 64)];
/// The part of the packet without the CRC of Ethernet: all but the Ethernet header and the iCRC itself.
const ETHERNET: usize = 14;
const ICRC: usize = 4;

/// Measures both sizes.
pub(crate) fn measure(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let (turns, rounds) = if quick { (10, 100) } else { (40, 200) };
    let mut figures = Vec::new();
    for (len, packets) in ROUND_PACKETS {
        figures.extend(measure_size(len, packets, turns, rounds)?);
    }
    Ok(figures)
}

fn measure_size(
    len: usize,
    packets: usize,
    turns: usize,
    rounds: usize,
) -> anyhow::Result<Vec<Figure>> {
    let mut bench = Packets::new(len);
    let mut rates: [Vec<f64>; 4] = Default::default();
    for turn in 0..=turns {
        for (place, rates) in rates.iter_mut().enumerate() {
            let time = time_rounds(rounds, |round| {
                (0..packets).try_for_each(|n| bench.run(place, round * packets + n))
            })?;
            // The first turn fills caches.
            if turn > 0 {
                rates.push(packets as f64 / time);
            }
        }
    }
    let [floor, full, built, parsed] = &rates;
    let size = match len {
        64 => "64 B",
        _ => "4 KiB",
    };
    let floor_name = format!("copy and CRC-32, {size}");
    let figure = |name: &str, rates: &[f64]| {
        Figure::median(&format!("{name}, {size}"), rates, 1e-6, "M/s")
            .against(&floor_name, median_ratio(rates, floor))
    };
    let full = figure("packets built and parsed", full);
    Ok(vec![
        Figure::median(&floor_name, floor, 1e-6, "M/s"),
        match len {
            64 => full,
            _ => full.at_least(0.5),
        },
        figure("packets built", built),
        figure("packets parsed", parsed),
    ])
}

/// Payloads, and the frames that they become.
struct Packets {
    header: RoceHeader,
    payloads: Vec<Vec<u8>>,
    frames: Vec<Vec<u8>>,
}

impl Packets {
    fn new(len: usize) -> Self {
        let mac = |last| MacAddr([2, 0, 0, 0, 0, last]);
        let ip = Ip::V4(Ipv4 {
            src: [192, 0, 2, 1],
            dst: [192, 0, 2, 2],
            ttl: 64,
            ..Ipv4::default()
        });
        let bth = Bth::new(Opcode::RcWriteOnly, 17, Psn::new(0));
        let header = RoceHeader {
            reth: Some(Reth {
                addr: 0x7f00_0000_1000,
                rkey: 0x1234,
                len: len as u32,
            }),
            ..RoceHeader::new(mac(1), mac(2), ip, bth)
        };
        let payload = |n: usize| (0..len).map(|at| (at * 7 + n * 13) as u8).collect();
        Self {
            header,
            payloads: (0..BUFFERS).map(payload).collect(),
            frames: vec![vec![0; header.frame_len(len)]; BUFFERS],
        }
    }

    /// One packet: 0 the floor, 1 built and parsed, 2 built, 3 parsed from the last packet built in this buffer.
    fn run(&mut self, what: usize, n: usize) -> anyhow::Result<()> {
        let (Some(payload), Some(frame)) = (
            self.payloads.get(n % BUFFERS),
            self.frames.get_mut(n % BUFFERS),
        ) else {
            return Ok(());
        };
        let payload = black_box(payload.as_slice());
        if what == 0 {
            copy_and_crc(self.header.header_len(), payload, frame);
        }
        if what == 1 || what == 2 {
            self.header.bth.psn = self.header.bth.psn.add(1);
            build(black_box(&self.header), payload, frame)?;
        }
        if what == 1 || what == 3 {
            let parsed = parse(black_box(frame));
            let is_whole = black_box(&parsed)
                .as_ref()
                .is_ok_and(|parsed| parsed.icrc_ok && parsed.payload.len() == payload.len());
            ensure!(is_whole, "a packet is not what was built: {parsed:?}");
        }
        Ok(())
    }
}

fn build(header: &RoceHeader, payload: &[u8], frame: &mut [u8]) -> Result<(), WireError> {
    let at = header.emit(payload.len(), frame)?;
    if let Some(to) = frame.get_mut(at..at + payload.len()) {
        to.copy_from_slice(payload);
    }
    header.seal(payload.len(), frame)
}

/// The copy of the payload, and the CRC-32 of as many bytes as the iCRC covers. The frame stays one that can be parsed.
fn copy_and_crc(at: usize, payload: &[u8], frame: &mut [u8]) {
    if let Some(to) = frame.get_mut(at..at + payload.len()) {
        to.copy_from_slice(payload);
    }
    let covered = frame.get(ETHERNET..frame.len().saturating_sub(ICRC));
    black_box(crc32fast::hash(black_box(covered.unwrap_or_default())));
}
