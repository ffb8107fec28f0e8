//! Reading the figures that RDMA tools print.

/// The last row of a perftest table: the values for the largest size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bandwidth {
    /// Message size in bytes.
    pub bytes: u64,
    /// Average MiB/s.
    pub mib_per_second: f64,
}

/// A row of a perftest latency table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Latency {
    /// Message size in bytes.
    pub bytes: u64,
    /// Typical (median) half round trip in µs.
    pub typical: f64,
    /// Average in µs.
    pub average: f64,
    /// 99th percentile in µs.
    pub p99: f64,
}

/// The rows below the header that starts with `#bytes`.
fn rows(text: &str) -> impl Iterator<Item = Vec<f64>> + '_ {
    text.lines()
        .skip_while(|line| !line.trim_start().starts_with("#bytes"))
        .skip(1)
        .filter_map(|line| {
            let row: Option<Vec<f64>> = line
                .split_whitespace()
                .map(|word| word.parse().ok())
                .collect();
            row.filter(|row| row.len() >= 4)
        })
}

/// Bandwidth in the output of an `ib_*_bw`: bytes, iterations, peak, average, message rate.
pub fn bandwidth(text: &str) -> Option<Bandwidth> {
    let row = rows(text).last()?;
    Some(Bandwidth {
        bytes: *row.first()? as u64,
        mib_per_second: *row.get(3)?,
    })
}

/// Latency in the output of an `ib_*_lat`: bytes, iterations, min, max, typical, average, deviation, 99 %, 99.9 %.
pub fn latency(text: &str) -> Option<Latency> {
    let row = rows(text).last()?;
    Some(Latency {
        bytes: *row.first()? as u64,
        typical: *row.get(4)?,
        average: *row.get(5)?,
        p99: *row.get(7)?,
    })
}

/// Microseconds per iteration in the output of an `ibv_*_pingpong`.
pub fn pingpong(text: &str) -> Option<f64> {
    text.lines().find_map(|line| {
        let rest = line.strip_suffix(" usec/iter")?;
        rest.rsplit(' ').next()?.parse().ok()
    })
}

/// The average round trip in ms in the output of `ping`.
pub fn ping(text: &str) -> Option<f64> {
    text.lines().find_map(|line| {
        line.strip_prefix("rtt ")?
            .split(" = ")
            .nth(1)?
            .split('/')
            .nth(1)?
            .parse()
            .ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perftest_tables_are_read() {
        let text = " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\n \
                    65536      500              46.10              45.97                0.000736\n----\n";
        assert_eq!(
            bandwidth(text),
            Some(Bandwidth {
                bytes: 65536,
                mib_per_second: 45.97
            })
        );
        let text = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n \
                    2       1000          1.00           9.00         1.50                1.75             0.10            3.00                    8.00\n";
        assert_eq!(
            latency(text),
            Some(Latency {
                bytes: 2,
                typical: 1.5,
                average: 1.75,
                p99: 3.0
            })
        );
        assert_eq!(bandwidth("nothing"), None);
    }

    #[test]
    fn ping_and_pingpong_are_read() {
        assert_eq!(
            pingpong("x\n1000 iters in 10.22 seconds = 10223.56 usec/iter\n"),
            Some(10223.56)
        );
        assert_eq!(
            ping("rtt min/avg/max/mdev = 2.004/13.675/25.346/11.671 ms\n"),
            Some(13.675)
        );
    }
}
