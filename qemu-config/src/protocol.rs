//! The protocol of the lab and its agent in the guest over a virtio-serial port.
//!
//! A frame has a kind, the id of a command, and a payload. The stream has no start or end, because a port exists longer
//! than its users.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

/// Payload bytes of one frame at most; a larger length means that the stream is out of step.
pub const MAX_PAYLOAD: usize = 1 << 20;
/// Bytes moved per output frame.
pub const CHUNK: usize = 64 << 10;
const MAGIC: u8 = 0xfa;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// To the host, once: the agent is ready.
    Ready = 1,
    /// To the guest: run a command; the payload is an [`Exec`].
    Exec = 2,
    /// To the guest: standard input; empty ends it.
    Input = 3,
    /// To the guest: kill the command and its children.
    Kill = 4,
    /// To the host: standard output.
    Output = 5,
    /// To the host: standard error.
    Error = 6,
    /// To the host: the exit status as a decimal number; 128 + n for signal n.
    Exit = 7,
    /// To the host: a command in the guest waits at a barrier; the payload is its name.
    Barrier = 8,
    /// To the guest: all guests have reached the barrier.
    Release = 9,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        const ALL: [Kind; 9] = [
            Kind::Ready,
            Kind::Exec,
            Kind::Input,
            Kind::Kill,
            Kind::Output,
            Kind::Error,
            Kind::Exit,
            Kind::Barrier,
            Kind::Release,
        ];
        ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its kind.
    pub kind: Kind,
    /// The command it belongs to.
    pub id: u32,
    /// Its content.
    pub payload: Vec<u8>,
}

/// A command to run in a guest.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Exec {
    /// A bash script.
    pub script: String,
    /// Additional environment.
    pub env: Vec<(String, String)>,
    /// True if the host will send standard input; otherwise it is empty.
    pub input: bool,
}

impl Frame {
    /// A frame.
    pub fn new(kind: Kind, id: u32, payload: impl Into<Vec<u8>>) -> Self {
        Self {
            kind,
            id,
            payload: payload.into(),
        }
    }

    /// Writes the frame at once, so that frames of several threads do not mix as long as the writer is locked.
    pub fn write_to(&self, writer: &mut impl Write) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(10 + self.payload.len());
        bytes.extend_from_slice(&[MAGIC, self.kind as u8]);
        bytes.extend_from_slice(&self.id.to_le_bytes());
        bytes.extend_from_slice(&(self.payload.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.payload);
        writer.write_all(&bytes)?;
        writer.flush()
    }

    /// Reads one frame.
    ///
    /// # Errors
    /// `UnexpectedEof` at the end, `InvalidData` if the bytes are not a frame.
    pub fn read_from(reader: &mut impl Read) -> io::Result<Self> {
        let mut header = [0; 10];
        reader.read_exact(&mut header)?;
        let [magic, kind, i0, i1, i2, i3, l0, l1, l2, l3] = header;
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        if magic != MAGIC {
            return Err(invalid(format!(
                "a frame starts with {MAGIC:#x}, not {magic:#x}"
            )));
        }
        let kind = Kind::from_byte(kind).ok_or_else(|| invalid(format!("no frame kind {kind}")))?;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if length > MAX_PAYLOAD {
            return Err(invalid(format!(
                "a payload of {length} bytes is larger than {MAX_PAYLOAD}"
            )));
        }
        let mut payload = vec![0; length];
        reader.read_exact(&mut payload)?;
        Ok(Self {
            kind,
            id: u32::from_le_bytes([i0, i1, i2, i3]),
            payload,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_the_stream() {
        let frames = [
            Frame::new(Kind::Ready, 0, ""),
            Frame::new(Kind::Output, u32::MAX, vec![0; CHUNK]),
            Frame::new(Kind::Exit, 7, "137"),
            Frame::new(Kind::Release, 1, "name"),
        ];
        let mut bytes = Vec::new();
        for frame in &frames {
            frame.write_to(&mut bytes).unwrap();
        }
        let mut reader = bytes.as_slice();
        for frame in &frames {
            assert_eq!(Frame::read_from(&mut reader).unwrap(), *frame);
        }
        assert_eq!(
            Frame::read_from(&mut reader).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }

    #[test]
    fn a_stream_out_of_step_is_noticed() {
        let mut bytes = Vec::new();
        Frame::new(Kind::Exit, 7, "0").write_to(&mut bytes).unwrap();
        for (position, value) in [(0, 0u8), (1, 99), (9, 0xff)] {
            let mut broken = bytes.clone();
            broken[position] = value;
            let error = Frame::read_from(&mut broken.as_slice()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "byte {position}");
        }
    }
}
