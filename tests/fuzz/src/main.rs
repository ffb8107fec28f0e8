//! The fuzzer: libFuzzer on the target that `FAULTLINE_FUZZ_TARGET` names. Built by `cargo lab fuzz`.
//!
//! Without `--cfg fuzzing` it runs a target on files: `faultline-fuzz TARGET FILE...`, to look at a finding.

#![forbid(unsafe_code)]
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static TARGET: std::sync::OnceLock<fn(&[u8])> = std::sync::OnceLock::new();
    let run = TARGET.get_or_init(|| {
        let name = std::env::var("FAULTLINE_FUZZ_TARGET").unwrap_or_default();
        match faultline_fuzz::target(&name) {
            Some(run) => run,
            None => panic!("FAULTLINE_FUZZ_TARGET={name:?} is no target"),
        }
    });
    run(data);
});

#[cfg(not(fuzzing))]
fn main() {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_default();
    let Some(run) = faultline_fuzz::target(&name) else {
        let names: Vec<&str> = faultline_fuzz::TARGETS
            .iter()
            .map(|(name, _)| *name)
            .collect();
        eprintln!(
            "usage: faultline-fuzz TARGET FILE...; targets: {}",
            names.join(" ")
        );
        std::process::exit(2);
    };
    for file in words {
        match std::fs::read(&file) {
            Ok(data) => run(&data),
            Err(error) => {
                eprintln!("{file}: {error}");
                std::process::exit(2);
            }
        }
        println!("{file}: no finding");
    }
}
