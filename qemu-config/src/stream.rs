//! A TCP stream in which every byte depends on its position. Bytes are checked as they arrive.
//!
//! A checksum at the end would be slower under TCG and would not say where the first wrong byte was.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

const CHUNK: usize = 64 << 10;

/// The eight bytes at offset `8 * index` (splitmix64 of the index).
fn word(index: u64) -> [u8; 8] {
    let mut z = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).to_le_bytes()
}

/// Fills `buffer` with the stream's bytes from `offset` (a multiple of 8) on.
fn fill(buffer: &mut [u8], offset: u64) {
    for (position, bytes) in buffer.chunks_mut(8).enumerate() {
        let word = word(offset / 8 + position as u64);
        bytes.copy_from_slice(word.get(..bytes.len()).unwrap_or_default());
    }
}

/// Connects to `address` and sends `total` bytes (a multiple of the chunk size), or fewer if the file `until` is
/// created, then waits for the result. Returns how fast it was, as text.
pub fn send(address: &str, total: u64, until: Option<&Path>) -> Result<String> {
    let mut stream =
        TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
    let mut buffer = vec![0; CHUNK];
    let started = Instant::now();
    let mut offset = 0;
    while offset < total && !until.is_some_and(Path::exists) {
        fill(&mut buffer, offset);
        stream
            .write_all(&buffer)
            .with_context(|| format!("sending at offset {offset}"))?;
        offset += CHUNK as u64;
    }
    stream
        .shutdown(std::net::Shutdown::Write)
        .context("ending the stream")?;
    let mut verdict = String::new();
    stream
        .read_to_string(&mut verdict)
        .context("waiting for the receiver's verdict")?;
    ensure!(
        verdict == format!("{offset} right\n"),
        "the receiver said {verdict:?}"
    );
    let seconds = started.elapsed().as_secs_f64();
    Ok(format!(
        "{offset} bytes in {seconds:.2} s, {:.1} MiB/s",
        offset as f64 / seconds / f64::from(1 << 20)
    ))
}

/// Accepts one connection on `port` and checks every byte of it. Returns their number, as text.
pub fn receive(port: u16) -> Result<String> {
    let listener =
        TcpListener::bind(("0.0.0.0", port)).with_context(|| format!("listening on {port}"))?;
    receive_from(&listener)
}

/// The same with a socket that listens.
pub fn receive_from(listener: &TcpListener) -> Result<String> {
    let (mut stream, _) = listener.accept().context("accepting")?;
    let received = check(&mut stream)?;
    stream
        .write_all(format!("{received} right\n").as_bytes())
        .context("sending the verdict")?;
    Ok(format!("{received} bytes right"))
}

/// Reads to the end. Returns the number of bytes, all of which were right.
fn check(stream: &mut impl Read) -> Result<u64> {
    let (mut buffer, mut expected) = (vec![0; CHUNK], vec![0; CHUNK]);
    let mut offset = 0;
    loop {
        let mut length = 0;
        while let Some(rest) = buffer.get_mut(length..)
            && !rest.is_empty()
        {
            match stream
                .read(rest)
                .with_context(|| format!("receiving at offset {offset}"))?
            {
                0 => break,
                more => length += more,
            }
        }
        fill(&mut expected, offset);
        // As a whole first, which is the fast way.
        if buffer[..length] != expected[..length] {
            let mut pairs = buffer.iter().zip(&expected);
            let position = pairs.position(|(got, wanted)| got != wanted);
            let at = offset + position.unwrap_or(length) as u64;
            anyhow::bail!("the byte at offset {at} is wrong");
        }
        offset += length as u64;
        if length < CHUNK {
            return Ok(offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_is_located() {
        let mut data = vec![0; 3 * CHUNK];
        fill(&mut data, 0);
        assert_eq!(check(&mut data.as_slice()).unwrap(), 3 * CHUNK as u64);
        data[CHUNK + 77] ^= 1;
        let error = check(&mut data.as_slice()).unwrap_err().to_string();
        assert!(error.contains(&format!("{}", CHUNK + 77)), "{error}");
    }

    #[test]
    fn swapped_chunks_are_noticed() {
        let mut data = vec![0; 2 * CHUNK];
        fill(&mut data, 0);
        data.rotate_left(CHUNK);
        assert!(check(&mut data.as_slice()).is_err());
    }
}
