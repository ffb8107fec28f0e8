//! Fast registrations: keys to which work requests give memory.

use faultline_abi::admin::{CREATE_MKEY, CreateMkey, MKEY_FAST_REG};
use faultline_abi::cqe::Cqe;
use faultline_abi::wqe::{RegMrWqe, WR_REG_MR};
use faultline_abi::{U32, U64};
use zerocopy::IntoBytes;

use crate::bus::Bus;
use crate::driver::{ALL_ACCESS, Cq, Driver, Error, Mr, Qp};

const PAGE: u64 = 4096;

impl<B: Bus> Driver<B> {
    /// Creates a key without memory for a region of `len` bytes from `va` on, a page boundary, and allocates its memory.
    ///
    /// # Errors
    /// The NIC refuses it, or there is no more memory.
    pub fn create_fast_key(&mut self, pd: u32, va: u64, len: u64) -> Result<Mr, Error> {
        let pages = len.div_ceil(PAGE);
        let addr = self.alloc(pages.saturating_mul(PAGE))?;
        let create = CreateMkey {
            pd: U32::new(pd),
            flags: U32::new(MKEY_FAST_REG),
            length: U64::new(pages),
            page_shift: 12,
            ..CreateMkey::default()
        };
        let key = self.command(CREATE_MKEY, 0, &create)?.handle.get();
        Ok(Mr { key, va, addr, len })
    }

    /// Registers the memory of such a key on a queue pair whose CQ has no other completions. `list`: memory for the addresses of its
    /// pages, 8 bytes each. Returns the completion.
    ///
    /// # Errors
    /// There is no completion.
    pub fn register_fast(
        &mut self,
        (qp, cq): (&mut Qp, &mut Cq),
        region: &Mr,
        list: u64,
    ) -> Result<Cqe, Error> {
        let pages = region.len.div_ceil(PAGE);
        for page in 0..pages {
            let addr = region.addr.wrapping_add(page.wrapping_mul(PAGE));
            let at = list.wrapping_add(page.wrapping_mul(8));
            self.bus.write(at, &addr.to_le_bytes());
        }
        let register = RegMrWqe {
            opcode: WR_REG_MR,
            access: U32::new(ALL_ACCESS),
            key: U32::new(region.key),
            iova: U64::new(region.va),
            length: U64::new(region.len),
            list: U64::new(list),
            num_pages: U32::new(u32::try_from(pages).unwrap_or(u32::MAX)),
            page_shift: U32::new(12),
            ..RegMrWqe::default()
        };
        self.post_raw_send(qp, register.as_bytes());
        loop {
            if let Some(done) = self.poll(cq) {
                return Ok(done);
            }
            if !self.bus.wait() {
                return Err(Error::Silent);
            }
        }
    }
}
