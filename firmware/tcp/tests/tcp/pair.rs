//! Two connections of ours.

use faultline_tcp::{Config, Nanos};
use proptest::prelude::*;

use crate::network::{Host, Network, Ours, Report, run};

/// Sends streams in both directions. Each octet is verified by its owner.
fn transfer(
    network: Network,
    seed: u64,
    configs: [Config; 2],
    octets: [u64; 2],
    faults: [u32; 2],
) -> (Report, [Ours; 2]) {
    let mut one = Ours::active(configs[0], 1, 2, octets[0], 1000);
    let mut two = Ours::passive(configs[1], 2, 1, octets[1], 4096);
    two.holding = faults[0];
    two.refusing = faults[1];
    let report = run(network, seed, &mut one, &mut two);
    assert_eq!(two.received(), octets[0], "{network:?} {seed}");
    assert_eq!(one.received(), octets[1], "{network:?} {seed}");
    for (host, config) in [(&one, configs[0]), (&two, configs[1])] {
        // A window field that was rounded up may admit a few octets more.
        let limit = config.receive_window as usize + (1 << 14);
        assert!(host.owner.most_kept <= limit, "{}", host.owner.most_kept);
        assert_eq!(host.owner.kept(), 0);
    }
    (report, [one, two])
}

const LAN: Network = Network {
    loss: 0,
    duplication: 0,
    reordering: 0,
    marking: 0,
    delay: Nanos(50_000),
};

#[test]
fn without_loss_nothing_is_sent_twice() {
    let (report, hosts) = transfer(LAN, 1, [Config::default(); 2], [3_000_000, 500_000], [0, 0]);
    assert_eq!(hosts.map(|host| host.retransmissions), [0, 0]);
    // 3000 records of 1000 octets, 123 of 4096 in three segments each, and acknowledgments.
    assert!(report.packets < 3000 + 3000 + 400 + 100, "{report:?}");
    // Limited by 256 KiB in each round trip of 100 µs, after slow start.
    assert!(report.ended.0 < 1_100_000_000, "{report:?}");
}

#[test]
fn streams_survive_loss_reordering_and_duplication() {
    for seed in 0..30 {
        for loss in [0, 10, 100, 300] {
            for reordering in [0, 200] {
                let network = Network {
                    loss,
                    reordering,
                    duplication: reordering / 4,
                    delay: Nanos::from_millis(5),
                    ..LAN
                };
                let plain = Config {
                    sack: seed % 2 == 0,
                    timestamps: seed % 3 != 0,
                    ..Config::default()
                };
                let small = Config {
                    receive_window: [1, 700, 5000, 60_000, 1 << 20][seed as usize % 5],
                    ..plain
                };
                // One octet at a time takes a while.
                let octets = if small.receive_window == 1 {
                    60
                } else {
                    40_000
                };
                transfer(network, seed, [plain, small], [octets, 30_000], [0, 0]);
            }
        }
    }
}

#[test]
fn streams_survive_faults_of_the_owner() {
    for seed in 0..20 {
        for loss in [0, 50] {
            let network = Network {
                loss,
                reordering: 100,
                delay: Nanos::from_millis(1),
                ..LAN
            };
            let sack = Config {
                sack: seed % 2 == 0,
                receive_window: 20_000,
                ..Config::default()
            };
            transfer(network, seed, [sack; 2], [200_000, 0], [100, 0]);
            transfer(network, seed, [sack; 2], [200_000, 0], [0, 100]);
            transfer(network, seed, [sack; 2], [200_000, 1], [50, 50]);
        }
    }
}

#[test]
fn a_loss_costs_a_round_trip_and_not_a_timeout() {
    let network = Network {
        loss: 5,
        delay: Nanos::from_millis(10),
        ..LAN
    };
    let mut slow = 0;
    for seed in 0..20 {
        for sack in [true, false] {
            let config = Config {
                sack,
                min_rto: Nanos::from_millis(5000),
                ..Config::default()
            };
            let (report, _) = transfer(network, seed, [config; 2], [400_000, 0], [0, 0]);
            slow += u32::from(report.ended.0 > 5_000_000_000);
        }
    }
    // Only the loss of a tail, of a retransmission or of a SYN waits for the timer.
    assert!(slow <= 14, "{slow} of 40");
}

#[test]
fn marks_reduce_the_rate_without_a_loss() {
    let network = Network {
        marking: 20,
        delay: Nanos::from_millis(1),
        ..LAN
    };
    let with = |ecn| {
        let config = Config {
            ecn,
            ..Config::default()
        };
        let (report, [one, _]) = transfer(network, 3, [config; 2], [3_000_000, 0], [0, 0]);
        assert_eq!(one.retransmissions, 0);
        report.ended.0
    };
    let (marked, unmarked) = (with(true), with(false));
    let start = 1_000_000_000;
    assert!(
        marked - start > 2 * (unmarked - start),
        "{marked} {unmarked}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn any_network_delivers_the_stream(
        (loss, duplication, reordering, marking) in (0..250u32, 0..300u32, 0..500u32, 0..300u32),
        delay in 0..30_000_000u64,
        seed in any::<u64>(),
        flags in any::<[bool; 6]>(),
        (mss_one, mss_two) in (88..1460u16, 88..1460u16),
        (window_one, window_two) in (1000..300_000u32, 1000..300_000u32),
        (octets_one, octets_two) in (0..30_000u64, 0..30_000u64),
        (holding, refusing) in (0..100u32, 0..100u32),
    ) {
        let network = Network { loss, duplication, reordering, marking, delay: Nanos(delay) };
        let config = |mss, receive_window, [sack, timestamps, ecn]: [bool; 3]| Config {
            mss, min_mss: 64, receive_window, sack, timestamps, ecn, ..Config::default()
        };
        let [a, b, c, d, e, f] = flags;
        let configs = [config(mss_one, window_one, [a, b, c]), config(mss_two, window_two, [d, e, f])];
        transfer(network, seed, configs, [octets_one, octets_two], [holding, refusing]);
    }
}
