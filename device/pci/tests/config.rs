//! A driver's view of config space: every test goes through `read` and `write` only.

#![cfg(test)]
#![expect(
    clippy::cast_possible_truncation,
    reason = "test data is cut to the width of a field"
)]

use faultline_pci::{
    Bar, CONFIG_SIZE, ConfigChange, ConfigError, ConfigSpace, MsixLayout, PciIdentity, PowerState,
};
use proptest::prelude::*;

const IDENTITY: PciIdentity = PciIdentity {
    vendor: 0x1af4,
    device: 0x10f0,
    revision: 1,
    class: 0x02_00_00,
    subsystem_vendor: 0x1af4,
    subsystem: 0x1100,
    serial: 0x0123_4567_89ab_cdef,
};

const BARS: [Bar; 3] = [
    Bar {
        index: 0,
        size: 64 << 10,
        wide: true,
        prefetchable: false,
    },
    Bar {
        index: 2,
        size: 8 << 30,
        wide: true,
        prefetchable: true,
    },
    Bar {
        index: 4,
        size: 8 << 10,
        wide: true,
        prefetchable: false,
    },
];

fn nic() -> ConfigSpace {
    ConfigSpace::new(IDENTITY, &BARS, Some(MsixLayout::in_bar(4, 64))).unwrap()
}

fn r<const N: usize>(config: &ConfigSpace, at: u64) -> u64 {
    let mut bytes = [0; 8];
    config.read(at, &mut bytes[..N]);
    u64::from_le_bytes(bytes)
}

/// Capabilities as (id, offset), walked as PCI 3.0 §6.7 describes, from the status bit on.
fn capabilities(config: &ConfigSpace) -> Vec<(u8, u64)> {
    assert_ne!(r::<2>(config, 6) & 0x10, 0, "capability list bit");
    let mut found = Vec::new();
    let mut at = r::<1>(config, 0x34) & !3;
    while at != 0 {
        assert!((0x40..0x100).contains(&at), "capability at {at:#x}");
        assert!(found.len() < 48, "capability list loops");
        found.push((r::<1>(config, at) as u8, at));
        at = r::<1>(config, at + 1) & !3;
    }
    found
}

fn capability(config: &ConfigSpace, id: u8) -> u64 {
    capabilities(config)
        .iter()
        .find(|(found, _)| *found == id)
        .expect("capability")
        .1
}

#[test]
fn header_identifies_the_function() {
    let config = nic();
    assert_eq!(r::<4>(&config, 0), 0x10f0_1af4);
    assert_eq!(r::<4>(&config, 8), 0x0200_0001);
    assert_eq!(r::<1>(&config, 0x0e), 0, "type 0, single function");
    assert_eq!(r::<4>(&config, 0x2c), 0x1100_1af4);
    assert_eq!(r::<1>(&config, 0x3d), 0, "no interrupt pin");
    assert_eq!(r::<4>(&config, 0x30), 0, "no ROM");
}

#[test]
fn bars_are_sized_by_writing_ones() {
    let mut config = nic();
    for bar in BARS {
        let at = 0x10 + 4 * u64::from(bar.index);
        config.write(at, &[0xff; 4]);
        config.write(at + 4, &[0xff; 4]);
        let value = r::<8>(&config, at);
        assert_eq!((value & !0xf).wrapping_neg(), bar.size, "BAR{}", bar.index);
        assert_eq!(value & 7, 4, "64-bit memory");
        assert_eq!(value & 8 != 0, bar.prefetchable);
        config.write(at, &0x0000_0041_8000_0000u64.to_le_bytes());
        let aligned = 0x41_8000_0000 & !(bar.size - 1);
        assert_eq!(config.bar_address(bar.index), Some(aligned));
    }
    assert_eq!(config.bar_address(1), None);
}

#[test]
fn a_narrow_bar_leaves_its_neighbour_alone() {
    let bars = [Bar {
        index: 5,
        size: 1 << 12,
        wide: false,
        prefetchable: false,
    }];
    let mut config = ConfigSpace::new(IDENTITY, &bars, None).unwrap();
    config.write(0x10, &[0xff; 0x20]);
    assert_eq!(r::<8>(&config, 0x10), 0);
    assert_eq!(r::<4>(&config, 0x24), 0xffff_f000);
    assert_eq!(r::<4>(&config, 0x28), 0);
}

#[test]
fn command_switches_are_reported_once() {
    let mut config = nic();
    let none = ConfigChange::default();
    assert_eq!(
        config.write(4, &[0x02]),
        ConfigChange {
            memory: Some(true),
            ..none
        }
    );
    assert_eq!(
        config.write(4, &[0x06]),
        ConfigChange {
            bus_master: Some(true),
            ..none
        }
    );
    assert!(config.write(4, &[0x06]).is_none());
    let both = ConfigChange {
        bus_master: Some(false),
        memory: Some(false),
        ..none
    };
    assert_eq!(config.write(4, &[0, 0, 0, 0]), both);
    config.write(4, &[0xff, 0xff]);
    assert_eq!(r::<2>(&config, 4), 0x0546);
}

#[test]
fn power_goes_to_d3hot_and_back_and_nowhere_else() {
    let mut config = nic();
    let control = capability(&config, 1) + 4;
    assert_eq!(
        config.write(control, &[3, 0]).power,
        Some(PowerState::D3Hot)
    );
    for unsupported in [1, 2] {
        assert!(config.write(control, &[unsupported, 0]).is_none());
        assert_eq!(config.power_state(), PowerState::D3Hot);
    }
    assert_eq!(config.write(control, &[0, 0]).power, Some(PowerState::D0));
    assert_eq!(r::<2>(&config, control), 8, "No_Soft_Reset is read-only");
}

#[test]
fn flr_resets_config_space_and_reads_back_zero() {
    let mut config = nic();
    let fresh = nic();
    let express = capability(&config, 0x10);
    assert_ne!(r::<4>(&config, express + 4) & 1 << 28, 0, "FLR capability");
    config.write(0x10, &0xfe00_0000u32.to_le_bytes());
    config.write(4, &[0x06, 0]);
    let msix = capability(&config, 0x11);
    assert_eq!(config.write(msix + 2, &[0, 0x80]).msix, Some(true));
    let control = r::<2>(&config, express + 8) as u16 | 0x8000;
    let change = config.write(express + 8, &control.to_le_bytes());
    let expected = ConfigChange {
        flr: true,
        bus_master: Some(false),
        memory: Some(false),
        msix: Some(false),
        power: None,
    };
    assert_eq!(change, expected);
    for at in 0..CONFIG_SIZE as u64 {
        assert_eq!(r::<1>(&config, at), r::<1>(&fresh, at), "byte {at:#x}");
    }
}

#[test]
fn flr_needs_its_own_bit() {
    let mut config = nic();
    let express = capability(&config, 0x10);
    assert!(config.write(express + 8, &[0xff, 0x7f]).is_none());
    // As one byte, and as part of a write that begins before the register.
    assert!(config.write(express + 9, &[0x80]).flr);
    assert!(config.write(express + 4, &[0, 0, 0, 0, 0, 0x80, 0, 0]).flr);
}

#[test]
fn an_independent_walk_finds_the_capabilities() {
    let config = nic();
    let ids: Vec<u8> = capabilities(&config).iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [0x01, 0x11, 0x10]);
    let msix = capability(&config, 0x11);
    assert_eq!(
        r::<2>(&config, msix + 2) & 0x7ff,
        63,
        "table size is vectors - 1"
    );
    let (table, pba) = (r::<4>(&config, msix + 4), r::<4>(&config, msix + 8));
    assert_eq!((table & 7, table & !7), (4, 0));
    assert_eq!((pba & 7, pba & !7), (4, 4096));
    let express = capability(&config, 0x10);
    assert_eq!(r::<2>(&config, express + 2), 2, "version 2 endpoint");
    let serial = r::<4>(&config, 0x100);
    assert_eq!(
        (serial & 0xffff, serial >> 16 & 0xf, serial >> 20),
        (3, 1, 0)
    );
    assert_eq!(r::<8>(&config, 0x104), IDENTITY.serial);
}

#[test]
fn without_msix_the_list_skips_it() {
    let config = ConfigSpace::new(IDENTITY, &BARS, None).unwrap();
    let ids: Vec<u8> = capabilities(&config).iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [0x01, 0x10]);
    assert!(!config.msix_enabled());
}

#[test]
fn layouts_that_do_not_fit_are_refused() {
    let bar = |index, size, wide| {
        [Bar {
            index,
            size,
            wide,
            prefetchable: false,
        }]
    };
    let of = |bars: &[Bar], msix| ConfigSpace::new(IDENTITY, bars, msix).err();
    for size in [0, 8, 4097, 1 << 32] {
        assert_eq!(
            of(&bar(0, size, false), None),
            Some(ConfigError::BarSize { index: 0, size })
        );
    }
    for (index, wide) in [(6, false), (5, true), (255, false)] {
        assert_eq!(
            of(&bar(index, 4096, wide), None),
            Some(ConfigError::BarIndex { index })
        );
    }
    let overlap = [bar(0, 4096, true)[0], bar(1, 4096, false)[0]];
    assert_eq!(of(&overlap, None), Some(ConfigError::BarIndex { index: 1 }));
    let layout = MsixLayout::in_bar(4, 64);
    for vectors in [0, 2049] {
        let msix = Some(MsixLayout { vectors, ..layout });
        assert_eq!(of(&BARS, msix), Some(ConfigError::Vectors { vectors }));
    }
    for (pba_bar, pba_offset) in [(4, 8192), (4, 8), (4, 4100), (1, 0), (4, u32::MAX - 7)] {
        let msix = Some(MsixLayout {
            pba_bar,
            pba_offset,
            ..layout
        });
        let expected = Some(ConfigError::MsixPlace {
            bar: pba_bar,
            offset: pba_offset,
        });
        assert_eq!(of(&BARS, msix), expected);
    }
}

proptest! {
    /// Whatever is written, read-only bytes keep their values, and a wide access equals the same
    /// bytes one by one.
    #[test]
    fn writes_are_bytewise_and_masked(
        writes in prop::collection::vec(
            (0u64..4200, prop::collection::vec(any::<u8>(), 1..9)), 1..40),
    ) {
        let (mut wide, mut narrow, fresh) = (nic(), nic(), nic());
        for (offset, data) in &writes {
            let flr = wide.write(*offset, data).flr;
            // An FLR swallows the rest of its write, so only then the two may differ.
            prop_assume!(!flr);
            for (i, byte) in data.iter().enumerate() {
                narrow.write(offset + i as u64, &[*byte]);
            }
        }
        for at in (0..CONFIG_SIZE as u64).chain([4096, 5000, u64::MAX]) {
            prop_assert_eq!(r::<1>(&wide, at), r::<1>(&narrow, at), "byte {:#x}", at);
        }
        for read_only in [0..4u64, 8..0xc, 0x2c..0x3c, 0x3d..0x44, 0x50..0x52, 0x54..0x68] {
            for at in read_only {
                prop_assert_eq!(r::<1>(&wide, at), r::<1>(&fresh, at), "byte {:#x}", at);
            }
        }
    }
}

#[test]
fn offsets_beyond_the_end_are_harmless() {
    let mut config = nic();
    let mut data = [0; 8];
    config.read(4092, &mut data);
    assert_eq!(data, [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    config.read(u64::MAX - 3, &mut data);
    assert_eq!(data, [0xff; 8]);
    assert!(config.write(4092, &[0xff; 8]).is_none());
    assert!(config.write(u64::MAX - 3, &[0xff; 8]).is_none());
}
