//! Writes of a driver that keeps to no rule: commands, work requests, doorbells.

use std::cell::RefCell;
use std::rc::Rc;

use faultline_abi::admin::{AdminCmd, AdminHdr};
use faultline_abi::cqe;
use faultline_abi::doorbell::Doorbell;
use faultline_abi::qp::*;
use faultline_abi::translation::TqCmd;
use faultline_abi::wqe as wr;
use faultline_abi::{U32, U64};
use faultline_simulation::{Bus, Error, Mr, RAM_BASE};
use faultline_simulator::World;
use zerocopy::{FromBytes, IntoBytes};

use crate::input::{Input, pattern};

const LEN: u64 = 16 << 10;
/// Behind the driver's own rings, whose answers it must find.
const FIRST_RING: u64 = RAM_BASE + 5 * 4096;

fn answered<T>(result: Result<T, Error>) {
    match result {
        Ok(_) | Err(Error::Refused(_)) => {}
        Err(error) => panic!("{error}"),
    }
}

/// Octets for a structure: most are zero, so that few are refused for a reserved field.
fn sparse<const N: usize>(input: &mut Input<'_>) -> [u8; N] {
    let mut bytes = [0; N];
    for _ in 0..input.u8() % 16 {
        let at = usize::from(input.u8()) % N;
        bytes[at] = input.u8();
    }
    bytes
}

/// Another processor of the guest: each entry changes one octet that the device reads, in a read that comes later by
/// the entry's number. Later reads of the same place find the octet unchanged.
#[derive(Clone, Default)]
struct Rival(Rc<RefCell<Vec<(u8, u16, u8)>>>);

impl Rival {
    fn change(&self, input: &mut Input<'_>) {
        let entry = (input.u8() % 64, u16::from(input.u8()), input.u8());
        self.0.borrow_mut().push(entry);
    }

    fn race(&self, addr: u64, read: &mut [u8]) {
        self.0.borrow_mut().retain_mut(|(reads, at, value)| {
            if let Some(left) = reads.checked_sub(1) {
                *reads = left;
                return true;
            }
            let at = usize::from(*at) % read.len().max(1);
            if let Some(byte) = read.get_mut(at)
                && !is_command_id(addr + at as u64)
            {
                *byte = *value;
            }
            false
        });
    }
}

/// The number of a command in the admin ring, by which the driver knows its answer.
fn is_command_id(addr: u64) -> bool {
    const ENTRY: u64 = size_of::<AdminCmd>() as u64;
    const ID: u64 = core::mem::offset_of!(AdminHdr, id) as u64;
    (RAM_BASE..RAM_BASE + 4096).contains(&addr) && (ID..ID + 2).contains(&(addr % ENTRY))
}

/// A command. `page` is memory that can be a ring.
fn any_command(input: &mut Input<'_>, page: u64) -> AdminCmd {
    let mut cmd = AdminCmd::read_from_bytes(&sparse::<128>(input)).expect("its size");
    cmd.hdr.opcode.set(u16::from(input.u8()) % 0x80);
    if !input.u8().is_multiple_of(16) {
        cmd.hdr.reserved0.set(0);
        cmd.hdr.reserved1.set(0);
    }
    cmd.hdr.handle.set(u32::from(input.u8()) % 8);
    if input.u8().is_multiple_of(2) {
        // Something that can be a ring or an address.
        let at = 16 + usize::from(input.u8() % 14) * 8;
        cmd.as_mut_bytes()[at..at + 8].copy_from_slice(&page.to_le_bytes());
    }
    cmd
}

fn any_translation(input: &mut Input<'_>, mr: &Mr, page: u64) -> TqCmd {
    TqCmd {
        opcode: input.u8() % 6,
        flags: input.u8() % 4,
        key: U32::new(if input.u8().is_multiple_of(4) {
            input.u32()
        } else {
            mr.key
        }),
        iova: U64::new(if input.u8().is_multiple_of(4) {
            input.u64()
        } else {
            mr.va & !0xfff
        }),
        count: U64::new(if input.u8().is_multiple_of(4) {
            input.u64()
        } else {
            u64::from(input.u8())
        }),
        list: U64::new(if input.u8().is_multiple_of(4) {
            input.u64()
        } else {
            page | u64::from(input.u8() % 4)
        }),
        token: U64::new(u64::from(input.u16())),
        page_shift: 12 + input.u8() % 24,
        ..TqCmd::default()
    }
}

/// A send work request.
fn any_request(input: &mut Input<'_>, mr: &Mr) -> [u8; 128] {
    let mut entry = sparse::<128>(input);
    entry[0] = input.u8() % 32;
    entry[1] = input.u8() | wr::WR_FLAG_SIGNALED;
    entry[2] = input.u8() % 6;
    if !input.u8().is_multiple_of(4) {
        entry[48..56].copy_from_slice(&(mr.va + u64::from(input.u8())).to_le_bytes());
        entry[56..60].copy_from_slice(&u32::from(input.u16()).to_le_bytes());
        entry[60..64].copy_from_slice(&mr.key.to_le_bytes());
    }
    entry
}

/// Admin and translation commands, send work requests of connected queue pairs of each type, doorbells, time, and memory
/// that changes while the device works and between two of its reads. Commands are answered, and a neighbour's connection
/// works.
pub fn commands(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::new(3, 1);
    // Drivers and peers that break the rules make NICs break them.
    world.permit(&faultline_checker::Rule::ALL);
    let mut pair = world.connect(QPT_RC, LEN, |path| path.timeout = 5);
    let (mr, page) = (pair.mr[0], RAM_BASE + (4 << 20));
    let mut other = [QPT_UC, QPT_UD].map(|kind| {
        let qp = world.hosts[0].qp(kind, &pair.cq[0]).unwrap();
        let path = world.path(1, 77);
        let driver = &mut world.hosts[0].driver;
        let done = match kind {
            QPT_UC => driver.connect(qp.qpn, kind, &path),
            _ => driver.activate(qp.qpn, kind, 5),
        };
        done.expect("a change of state");
        qp
    });
    let rival = Rival::default();
    let race = rival.clone();
    world.race(0, move |addr, read| race.race(addr, read));
    for _ in 0..24 {
        if input.is_empty() {
            break;
        }
        let driver = &mut world.hosts[0].driver;
        match input.u8() % 11 {
            0 | 1 => {
                let cmd = any_command(&mut input, page);
                answered(driver.raw_command(&cmd));
            }
            2 => {
                let cmd = any_translation(&mut input, &mr, page);
                answered(driver.translate(&cmd));
            }
            3..6 => {
                let which = input.u8() % 4;
                let entry = any_request(&mut input, &mr);
                let qp = match which {
                    0 => &mut other[0],
                    1 => &mut other[1],
                    _ => &mut pair.qp[0],
                };
                driver.post_raw_send(qp, &entry);
            }
            6 => {
                let bell = Doorbell {
                    kind: input.u8() % 34,
                    object: u32::from(input.u8()) % 8,
                    value: u32::from(input.u16()),
                };
                // The rings of commands would then hold entries that the driver does not expect.
                if bell.kind != 5 && bell.kind != 6 {
                    driver.bus.doorbell(u32::from(input.u8()) % 3, bell);
                }
            }
            7 | 8 => rival.change(&mut input),
            9 => {
                // Lists of pages, rings and buffers: posted requests change.
                let used = (driver.next_free() - FIRST_RING) / 8;
                let at = match input.u8() % 2 {
                    0 => page + u64::from(input.u8()) * 8,
                    _ => FIRST_RING + u64::from(input.u32()) % used * 8,
                };
                driver.bus.write(at, &input.bytes::<8>());
            }
            _ => world.run_for(u64::from(input.u16()) * 64),
        }
    }
    world.run_for(1_000_000);
    neighbour_works(&mut world);
}

fn neighbour_works(world: &mut World) {
    let cq = [1, 2].map(|i| world.hosts[i].cq(4).unwrap());
    let mut qp = [0, 1].map(|i| world.hosts[i + 1].qp(QPT_RC, &cq[i]).unwrap());
    let mr = [1, 2].map(|i| world.hosts[i].mr(LEN).unwrap());
    for i in 0..2 {
        let path = world.path(2 - i, qp[1 - i].qpn);
        let driver = &mut world.hosts[i + 1].driver;
        driver
            .connect(qp[i].qpn, QPT_RC, &path)
            .expect("a connection");
    }
    let data = pattern(0, 3000);
    let driver = &mut world.hosts[1].driver;
    driver.write_mr(&mr[0], 1, data);
    let send = faultline_simulation::Send {
        opcode: wr::WR_WRITE,
        sges: &[(mr[0].va + 1, 3000, mr[0].key)],
        remote_addr: mr[1].va + 5,
        rkey: mr[1].key,
        ..Default::default()
    };
    driver.post_send(&mut qp[0], &send);
    world.run_for(10_000_000);
    let [mut first, _] = cq;
    let found = world.completions(1, &mut first);
    assert!(
        found.len() == 1 && found[0].status == cqe::SUCCESS,
        "{found:?}"
    );
    assert!(world.hosts[2].driver.read_mr(&mr[1], 5, 3000) == data);
}
