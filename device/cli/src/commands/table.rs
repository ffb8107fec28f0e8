//! Tables of text for people.

/// Text in columns, separated by two spaces. Columns whose values are all numbers are aligned to the right.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let cell = |row: &[String], at: usize| row.get(at).cloned().unwrap_or_default();
    let columns: Vec<(usize, bool)> = head
        .iter()
        .enumerate()
        .map(|(at, title)| {
            let lengths = rows.iter().map(|row| cell(row, at).chars().count());
            let width = lengths.chain([title.chars().count()]).max().unwrap_or(0);
            (width, rows.iter().all(|row| is_number(&cell(row, at))))
        })
        .collect();
    let line = |cells: &mut dyn Iterator<Item = String>| {
        let mut line = String::new();
        for ((width, right), text) in columns.iter().zip(cells) {
            let pad = " ".repeat(width.saturating_sub(text.chars().count()));
            line += &match right {
                true => format!("{pad}{text}  "),
                false => format!("{text}{pad}  "),
            };
        }
        line.trim_end().to_owned() + "\n"
    };
    let mut text = line(&mut head.iter().map(|title| (*title).to_owned()));
    for row in rows {
        text += &line(&mut (0..head.len()).map(|at| cell(row, at)));
    }
    text
}

fn is_number(text: &str) -> bool {
    text.bytes().next().is_none_or(|byte| byte.is_ascii_digit()) && !text.contains(':')
}

/// A duration with three digits and a unit.
pub(crate) fn duration(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => scaled(ns, 1_000, "us"),
        1_000_000..1_000_000_000 => scaled(ns, 1_000_000, "ms"),
        _ => scaled(ns, 1_000_000_000, "s"),
    }
}

/// A size with three digits and a unit.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => scaled(bytes, 1 << 10, "KiB"),
        0x10_0000..0x4000_0000 => scaled(bytes, 1 << 20, "MiB"),
        0x4000_0000..0x100_0000_0000 => scaled(bytes, 1 << 30, "GiB"),
        _ => scaled(bytes, 1 << 40, "TiB"),
    }
}

fn scaled(value: u64, unit: u64, name: &str) -> String {
    let value = value as f64 / unit as f64;
    let digits = match value {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {name}")
}

/// "yes" or "no".
pub(crate) fn yes(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

/// A value, or a dash.
pub(crate) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [
            vec!["a".into(), "5".into()],
            vec!["longer".into(), "500".into()],
        ];
        let text = table(&["NAME", "N"], &rows);
        assert_eq!(text, "NAME      N\na         5\nlonger  500\n");
    }

    #[test]
    fn values_have_three_digits() {
        let durations = [999, 1_000, 15_250, 999_999, 61_000_000_000].map(duration);
        assert_eq!(
            durations,
            ["999 ns", "1.00 us", "15.2 us", "1000 us", "61.0 s"]
        );
        let sizes = [0, 1023, 1024, 1 << 20, 5 << 29, 1 << 44].map(size);
        assert_eq!(
            sizes,
            [
                "0 B", "1023 B", "1.00 KiB", "1.00 MiB", "2.50 GiB", "16.0 TiB"
            ]
        );
    }
}
