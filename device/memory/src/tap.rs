//! A setting of TAP devices for which no crate has a safe function.

use std::io;

use rustix::fd::AsFd;
use rustix::ioctl;

/// TUNSETVNETHDRSZ of `linux/if_tun.h`.
const SET_HEADER_LENGTH: ioctl::Opcode = ioctl::opcode::write::<libc::c_int>(b'T', 216);

/// Sets the length in octets of the virtio header before each frame of a TAP device with IFF_VNET_HDR. A device that
/// outlasts its programs keeps the length that another program has set, such as QEMU.
///
/// # Errors
///
/// Those of ioctl(2); `InvalidInput` for a length that is no `int`.
pub fn set_tap_header(tap: impl AsFd, octets: usize) -> io::Result<()> {
    let length = libc::c_int::try_from(octets).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the kernel reads an `int` through the pointer of the setter, as its opcode says, and writes nothing.
    unsafe { ioctl::ioctl(tap, ioctl::Setter::<SET_HEADER_LENGTH, _>::new(length)) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_files_than_tap_devices_are_refused() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let error = set_tap_header(file, 10).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
    }
}
