//! Each target on its corpus. To look at one input: `cargo run -p faultline-fuzz TARGET FILE`.

use std::fs;
use std::path::Path;

use faultline_fuzz::TARGETS;

fn replay(name: &str) {
    let run = faultline_fuzz::target(name).expect("a target");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(name);
    let mut inputs = 0;
    for entry in fs::read_dir(&folder).expect("a corpus") {
        let path = entry.expect("an entry").path();
        let data = fs::read(&path).expect("an input");
        // Where a panic comes from.
        println!("{}", path.display());
        run(&data);
        inputs += 1;
    }
    assert!(inputs > 0, "{}: no inputs", folder.display());
    // What every target must bear.
    run(&[]);
    run(&[0xff; 64]);
}

macro_rules! corpora {
    ($($name:ident),*) => {
        $(#[test]
        fn $name() {
            replay(stringify!($name));
        })*

        #[test]
        fn every_target_is_replayed() {
            let replayed = [$(stringify!($name)),*];
            assert!(TARGETS.iter().map(|(name, _)| *name).eq(replayed));
        }
    };
}

corpora!(
    packet,
    responder,
    forger,
    commands,
    offload,
    tcp,
    fpdu,
    stream,
    port_stream,
    vhost_user,
    packet_checker,
    page_table,
    config,
    scenario,
    scenario_run,
    profile,
    lumina
);
