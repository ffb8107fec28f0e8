//! Numbers as text.

/// Instead of a figure that was not measured.
pub const NOT_MEASURED: &str = "not measured";

/// A duration in nanoseconds with three significant digits.
pub fn time(ns: f64) -> String {
    match ns {
        _ if ns.is_nan() => NOT_MEASURED.to_owned(),
        _ if ns < 1e3 => format!("{ns:.0} ns"),
        _ if ns < 1e6 => format!("{} µs", digits(ns / 1e3)),
        _ if ns < 1e9 => format!("{} ms", digits(ns / 1e6)),
        _ => format!("{} s", digits(ns / 1e9)),
    }
}

/// A number with about three significant digits.
pub fn digits(value: f64) -> String {
    match value.abs() {
        magnitude if magnitude >= 100.0 => format!("{value:.0}"),
        magnitude if magnitude >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A measured value with its unit.
pub fn quantity(value: f64, unit: &str) -> String {
    match unit {
        _ if value.is_nan() => NOT_MEASURED.to_owned(),
        "us" => time(value * 1e3),
        _ if value.fract() == 0.0 => format!("{value:.0} {unit}"),
        _ => format!("{} {unit}", digits(value)),
    }
}

/// A factor.
pub fn times(factor: f64) -> String {
    match factor {
        _ if factor.is_nan() => NOT_MEASURED.to_owned(),
        _ if factor >= 100.0 => format!("{factor:.0} ×"),
        _ => format!("{} ×", digits(factor)),
    }
}

/// The median of numbers; the upper one of two.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_digits() {
        let shown = [0.0, 999.0, 1500.0, 23_456.0, 220_000.0, 67_100_000.0, 2e9].map(time);
        assert_eq!(
            shown,
            [
                "0 ns", "999 ns", "1.50 µs", "23.5 µs", "220 µs", "67.1 ms", "2.00 s"
            ]
        );
    }

    #[test]
    fn quantities_have_their_unit() {
        assert_eq!(quantity(3.0, "pages"), "3 pages");
        assert_eq!(quantity(0.123, "%"), "0.12 %");
        assert_eq!(quantity(1234.5, "us"), "1.23 ms");
        assert_eq!(
            (times(731.4), times(1.0)),
            ("731 ×".into(), "1.00 ×".into())
        );
        assert_eq!(quantity(f64::NAN, "us"), NOT_MEASURED);
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[])), (Some(2.0), None));
    }
}
