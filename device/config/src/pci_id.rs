//! PCI IDs of NICs: key `pci_id` of the configuration.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use faultline_abi::regs;
use serde::de::{Deserialize, Deserializer, Error};

/// Device IDs below the vendor ID of virtio that virtio's drivers take (virtio 1.2, 4.1.2).
const VIRTIO_VENDOR: u16 = 0x1af4;
const VIRTIO_DEVICES: RangeInclusive<u16> = 0x1000..=0x107f;

/// Vendor and device ID of a PCI function. The default is the one that drivers know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciId {
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
}

/// Why a text is no usable PCI ID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PciIdError {
    /// Not the form of an ID.
    #[error(
        "{0:?} is not a PCI ID: give the vendor and the device as four hexadecimal digits each, such as \"{default}\"",
        default = PciId::default()
    )]
    Syntax(String),
    /// Guests would see no function, or one without a vendor.
    #[error("the PCI ID {0} is reserved: vendors 0000 and ffff are those of no function")]
    Reserved(PciId),
    /// Another driver would take the NIC.
    #[error(
        "the PCI ID {0} is one of virtio ({VIRTIO_VENDOR:04x}:1000 to 107f), whose drivers would take the NIC: give another one"
    )]
    Virtio(PciId),
}

impl Default for PciId {
    fn default() -> Self {
        Self {
            vendor: (regs::PCI_VENDOR & 0xffff) as u16,
            device: (regs::PCI_DEVICE & 0xffff) as u16,
        }
    }
}

impl fmt::Display for PciId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:04x}", self.vendor, self.device)
    }
}

impl FromStr for PciId {
    type Err = PciIdError;

    fn from_str(text: &str) -> Result<Self, PciIdError> {
        let digits = |part: &str| {
            let is_id = part.len() == 4 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_id.then(|| u16::from_str_radix(part, 16).ok()).flatten()
        };
        let parts = text.split_once(':');
        let id = parts.and_then(|(vendor, device)| {
            let (vendor, device) = (digits(vendor)?, digits(device)?);
            Some(Self { vendor, device })
        });
        let id = id.ok_or_else(|| PciIdError::Syntax(text.to_owned()))?;
        if matches!(id.vendor, 0 | 0xffff) {
            return Err(PciIdError::Reserved(id));
        }
        if id.vendor == VIRTIO_VENDOR && VIRTIO_DEVICES.contains(&id.device) {
            return Err(PciIdError::Virtio(id));
        }
        Ok(id)
    }
}

impl<'de> Deserialize<'de> for PciId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, refusal_of_nic};

    #[test]
    fn each_nic_has_its_own_or_that_of_the_defaults_or_the_one_that_drivers_know() {
        let ids = |text: &str| {
            let config = Config::from_toml(text).unwrap();
            let ids = config.nics.iter().map(|nic| nic.pci_id(&config.defaults));
            ids.map(|id| id.to_string()).collect::<Vec<_>>()
        };
        let nics = "[[nic]]\nname = \"a\"\n[[nic]]\nname = \"b\"\npci_id = \"1B36:00ff\"\n";
        assert_eq!(ids(nics), ["1af4:10f0", "1b36:00ff"]);
        let defaults = format!("[defaults]\npci_id = \"1af4:10f1\"\n{nics}");
        assert_eq!(ids(&defaults), ["1af4:10f1", "1b36:00ff"]);
    }

    #[test]
    fn problems_are_reported() {
        let refused = |value: &str| refusal_of_nic(&format!("pci_id = {value}\n"));
        for text in [
            "1af4",
            "1af4:10f",
            "1af4:10f00",
            "1af4:+0f0",
            "",
            "1af4:10f0:0",
        ] {
            assert_eq!(
                refused(&format!("{text:?}")),
                format!(
                    "3:10: nic[0].pci_id: {text:?} is not a PCI ID: give the vendor and the device as four hexadecimal \
                     digits each, such as \"1af4:10f0\""
                )
            );
        }
        for id in ["0000:10f0", "ffff:ffff"] {
            assert_eq!(
                refused(&format!("{id:?}")),
                format!(
                    "3:10: nic[0].pci_id: the PCI ID {id} is reserved: vendors 0000 and ffff are those of no function"
                )
            );
        }
        for id in ["1af4:1000", "1af4:107f"] {
            assert_eq!(
                refused(&format!("{id:?}")),
                format!(
                    "3:10: nic[0].pci_id: the PCI ID {id} is one of virtio (1af4:1000 to 107f), whose drivers would take \
                     the NIC: give another one"
                )
            );
        }
        assert!(refused("6900").contains("nic[0].pci_id: invalid type: integer `6900`"));
    }
}
