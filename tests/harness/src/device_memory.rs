//! Device memory: allocated by the device, mapped here, and registered.

use faultline_abi::admin;
use faultline_abi::device_memory::{AllocDm, CreateDmMkey, DmPlace};
use faultline_abi::{U32, U64, regs};
use faultline_memory::MappedFile;
use std::sync::Arc;
use zerocopy::FromBytes;

use crate::domain::{Mr, Pd};
use crate::error::DriverError;
use crate::nic::{Nic, Object};

/// An allocation of device memory.
#[derive(Debug)]
pub struct Dm {
    object: Arc<Object>,
    place: DmPlace,
    mapped: MappedFile,
}

impl Nic {
    /// Allocates device memory, and maps it.
    pub fn device_memory(&self, length: u64) -> Result<Dm, DriverError> {
        let alloc = AllocDm {
            length: U64::new(length),
            ..AllocDm::default()
        };
        let opcodes = (admin::ALLOC_DM, admin::DEALLOC_DM);
        let (object, answer) = Object::create_with_answer(self, opcodes, &alloc, Vec::new())?;
        let nonsense = |value| DriverError::Nonsense {
            what: "place of device memory",
            value,
        };
        let (place, _) = DmPlace::read_from_prefix(&answer).map_err(|_| nonsense(0))?;
        let (offset, len) = (place.offset.get(), place.length.get());
        let region = self.with_client(|client| client.region_info(regs::BAR_DOORBELL))?;
        let inside = |(from, size): &(u64, u64)| *from <= offset && offset + len <= from + size;
        if !region.sparse.iter().any(inside) || len < length {
            return Err(nonsense(offset));
        }
        let (file, start) = region.file.ok_or(nonsense(1))?;
        Ok(Dm {
            object,
            place,
            mapped: MappedFile::map(&file, start + offset, len as usize)?,
        })
    }
}

impl Dm {
    /// Bytes, whole pages.
    pub fn len(&self) -> u64 {
        self.place.length.get()
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where it is in BAR 2.
    pub fn offset(&self) -> u64 {
        self.place.offset.get()
    }

    /// Reads it as a process does.
    pub fn to_vec(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mapped.read(at, &mut bytes).expect("inside");
        bytes
    }

    /// Writes it as a process does.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.mapped.write(at, bytes).expect("inside");
    }
}

impl Pd {
    /// Registers a part of device memory; its addresses count from zero.
    pub fn register_device(
        &self,
        dm: &Dm,
        offset: u64,
        length: u64,
        access: u32,
    ) -> Result<Mr, DriverError> {
        let create = CreateDmMkey {
            pd: U32::new(self.number()),
            access: U32::new(access),
            dm: U32::new(dm.object.handle()),
            variant: 0xd3,
            offset: U64::new(offset),
            length: U64::new(length),
            ..CreateDmMkey::default()
        };
        let opcodes = (admin::CREATE_DM_MKEY, admin::DESTROY_MKEY);
        let keep = vec![self.object().clone() as _, dm.object.clone() as _];
        let object = Object::create(self.nic(), opcodes, &create, keep)?;
        Ok(Mr::new(object, 0, length))
    }
}
