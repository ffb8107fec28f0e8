//! Kernels without compression. A guest under TCG takes 1.5 s of processor time to decompress Debian's; the host does it once.
//!
//! QEMU starts an uncompressed kernel at the entry point that an ELF note names (PVH), without setup code and firmware.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::debug_kernel;
use crate::image::{Base, Kernel};
use crate::workspace::Workspace;

/// The first bytes of data that zstd has compressed (RFC 8878, 3.1.1).
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The ELF note of the PVH entry point: lengths of name and description, type 18, name
/// (xen/interface/elfnote.h, `XEN_ELFNOTE_PHYS32_ENTRY`). The description is an address of 4 or 8 bytes.
const PVH_NOTES: [[u8; 16]; 2] = [pvh_note(4), pvh_note(8)];

const fn pvh_note(length: u8) -> [u8; 16] {
    [
        4, 0, 0, 0, length, 0, 0, 0, 18, 0, 0, 0, b'X', b'e', b'n', 0,
    ]
}

/// The file that QEMU boots: the uncompressed kernel, from the cache, or the image itself if it contains none that QEMU can
/// boot.
pub fn obtain(workspace: &Workspace, base: &Base, kernel: Kernel) -> Result<PathBuf> {
    let image = base.vmlinuz(kernel)?;
    if debug_kernel::config(kernel).is_some() {
        // It is built without the PVH entry point.
        return Ok(image);
    }
    let cache = workspace.cache()?;
    let plain = cache.join(format!("kernel-{}-{}", base.key, kernel.name()));
    if plain.is_file() {
        return Ok(plain);
    }
    let bytes = fs::read(&image).with_context(|| format!("reading {}", image.display()))?;
    let Some(payload) = payload(&bytes) else {
        return Ok(image);
    };
    // Several guests may be started at once: each start makes a file of its own, and the last one stays.
    let partial = tempfile::NamedTempFile::new_in(&cache).context("making a file in the cache")?;
    decompress(payload, partial.as_file())?;
    let content = fs::read(partial.path()).context("reading a decompressed kernel")?;
    if !has_pvh_note(&content) {
        return Ok(image);
    }
    partial
        .persist(&plain)
        .with_context(|| format!("making {}", plain.display()))?;
    Ok(plain)
}

/// The kernel in a bzImage, if it is one that zstd has compressed (Documentation/arch/x86/boot.rst).
fn payload(image: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| -> Option<usize> {
        let bytes = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    // `payload_offset` exists since version 2.08 of the protocol.
    let version = u16::from_le_bytes(image.get(0x206..0x208)?.try_into().ok()?);
    if image.get(0x202..0x206)? != b"HdrS" || version < 0x208 {
        return None;
    }
    let setup_sectors = match *image.get(0x1f1)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (setup_sectors + 1) * 512 + word(0x248)?;
    // The last four bytes are the length of the uncompressed kernel, which zstd does not expect.
    let end = (start + word(0x24c)?).checked_sub(4)?;
    let payload = image.get(start..end)?;
    payload.starts_with(&ZSTD).then_some(payload)
}

fn has_pvh_note(kernel: &[u8]) -> bool {
    kernel.starts_with(b"\x7fELF")
        && PVH_NOTES
            .iter()
            .any(|note| kernel.windows(note.len()).any(|bytes| bytes == note))
}

fn decompress(payload: &[u8], to: &fs::File) -> Result<()> {
    let output = to.try_clone().context("duplicating a descriptor")?;
    let mut zstd = Command::new("zstd")
        .arg("-dqc")
        .stdin(Stdio::piped())
        .stdout(output)
        .spawn()
        .context("starting zstd")?;
    if let Some(mut input) = zstd.stdin.take() {
        input
            .write_all(payload)
            .context("passing a kernel to zstd")?;
    }
    let status = zstd.wait().context("waiting for zstd")?;
    ensure!(status.success(), "zstd could not decompress a kernel");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 3 * 512];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&0x20f_u16.to_le_bytes());
        image[0x248..0x24c].copy_from_slice(&16_u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&(payload.len() as u32 + 4).to_le_bytes());
        image[2 * 512 + 16..][..payload.len()].copy_from_slice(payload);
        image
    }

    #[test]
    fn the_kernel_in_an_image_is_found() {
        let compressed = [&ZSTD[..], b"kernel"].concat();
        assert_eq!(payload(&image(&compressed)), Some(&compressed[..]));
        assert_eq!(payload(&image(b"another compression")), None);
        let mut old = image(&compressed);
        old[0x206] = 7;
        old[0x207] = 2;
        assert_eq!(payload(&old), None);
        assert_eq!(payload(&image(&compressed)[..1040]), None);
        assert_eq!(payload(b"short"), None);
    }

    #[test]
    fn only_kernels_that_qemu_can_start_are_taken() {
        let mut kernel = b"\x7fELF....".to_vec();
        assert!(!has_pvh_note(&kernel));
        kernel.extend(pvh_note(8));
        assert!(has_pvh_note(&kernel));
        assert!(!has_pvh_note(&kernel[1..]));
    }
}
