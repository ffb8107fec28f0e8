//! The stream of vfio-user messages.

use std::io::Write;
use std::net::Shutdown as Half;
use std::os::unix::net::UnixStream;

use faultline_vfio_user::{
    Device, DeviceInfo, DmaMap, DmaUnmap, Errno, IrqFlags, IrqInfo, IrqSet, IrqVectors,
    RegionFlags, RegionInfo, Shutdown, serve_connection,
};

const VECTORS: u32 = 16;
/// Larger reads are refused, so that all replies fit into the socket: no one reads them.
const MAX_READ: usize = 256;
const MAX_STREAM: usize = 4096;

/// Region 0: 4 KiB of octets.
struct Registers {
    bytes: Vec<u8>,
    irqs: IrqVectors,
    ended: u32,
}

impl Registers {
    fn window(&mut self, index: u32, offset: u64, len: usize) -> Result<&mut [u8], Errno> {
        if index != 0 || len > MAX_READ {
            return Err(Errno::INVAL);
        }
        let from = usize::try_from(offset).map_err(|_| Errno::INVAL)?;
        let to = from.checked_add(len).ok_or(Errno::INVAL)?;
        self.bytes.get_mut(from..to).ok_or(Errno::INVAL)
    }
}

impl Device for Registers {
    fn info(&mut self) -> Result<DeviceInfo, Errno> {
        Ok(DeviceInfo::PCI)
    }

    fn region_info(&mut self, index: u32) -> Result<RegionInfo, Errno> {
        assert!(index < DeviceInfo::PCI.num_regions);
        Ok(match index {
            0 => RegionInfo {
                size: 4096,
                flags: RegionFlags::READ | RegionFlags::WRITE,
                mmap: None,
            },
            _ => RegionInfo::default(),
        })
    }

    fn region_read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        assert!(index < DeviceInfo::PCI.num_regions && !data.is_empty());
        assert!(offset.checked_add(data.len() as u64).is_some());
        data.copy_from_slice(self.window(index, offset, data.len())?);
        Ok(())
    }

    fn region_write(&mut self, index: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        assert!(index < DeviceInfo::PCI.num_regions && !data.is_empty());
        assert!(offset.checked_add(data.len() as u64).is_some());
        self.window(index, offset, data.len())?
            .copy_from_slice(data);
        Ok(())
    }

    fn dma_map(&mut self, map: DmaMap) -> Result<(), Errno> {
        assert!(map.fd.is_none(), "no descriptor was sent");
        Ok(())
    }

    fn dma_unmap(&mut self, _: DmaUnmap) -> Result<(), Errno> {
        Ok(())
    }

    fn irq_info(&mut self, index: u32) -> Result<IrqInfo, Errno> {
        assert!(index < DeviceInfo::PCI.num_irqs);
        Ok(IrqInfo {
            count: VECTORS,
            flags: IrqFlags::EVENTFD | IrqFlags::NORESIZE,
        })
    }

    fn set_irqs(&mut self, set: IrqSet) -> Result<(), Errno> {
        let end = set.start.checked_add(set.count);
        assert!(set.count == 0 || end.is_some_and(|end| end <= VECTORS));
        self.irqs.set(set)
    }

    fn reset(&mut self) -> Result<(), Errno> {
        self.irqs.reset();
        Ok(())
    }

    fn disconnected(&mut self) {
        self.ended += 1;
    }
}

/// All octets of a client. The server ends, and notifies the device of it once.
pub fn vfio_user(data: &[u8]) {
    let data = data.get(..MAX_STREAM).unwrap_or(data);
    let (mut client, server) = UnixStream::pair().expect("a pair of sockets");
    client.write_all(data).expect("the socket holds it");
    client.shutdown(Half::Write).expect("the socket is open");
    let mut device = Registers {
        bytes: vec![0; 4096],
        irqs: IrqVectors::new(VECTORS),
        ended: 0,
    };
    let shutdown = Shutdown::new().expect("an eventfd");
    serve_connection(server, &mut device, &shutdown);
    assert_eq!(device.ended, 1);
}
