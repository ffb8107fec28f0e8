//! Keys, from the bytes that a terminal in raw mode sends (ECMA-48, xterm).

/// Longest sequence that is waited for.
const LONGEST: usize = 16;
const ESCAPE: u8 = 0x1b;

/// The action of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    NextPanel,
    PreviousPanel,
    Up,
    Down,
    PageUp,
    PageDown,
    Pause,
    Sort,
    Redraw,
}

/// Bytes of a sequence that may be incomplete.
#[derive(Debug, Default)]
pub(super) struct Keys {
    pending: Vec<u8>,
}

impl Keys {
    /// Takes bytes, and returns the keys that are complete.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.pending.extend_from_slice(bytes);
        let mut keys = Vec::new();
        let mut rest = self.pending.as_slice();
        while let Some((key, length)) = first(rest) {
            keys.extend(key);
            rest = rest.get(length..).unwrap_or_default();
        }
        self.pending = rest.to_vec();
        keys
    }

    /// True if bytes of an incomplete sequence are kept.
    pub(super) fn are_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// No more bytes come: a single escape character is the key Esc.
    pub(super) fn end(&mut self) -> Option<Key> {
        let pending = std::mem::take(&mut self.pending);
        (pending == [ESCAPE]).then_some(Key::Quit)
    }
}

/// The first key, if it has a meaning, and its length; `None` if it is incomplete.
fn first(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    let key = match *bytes.first()? {
        b'q' | b'Q' | 0x03 => Key::Quit,
        b'\t' => Key::NextPanel,
        b'p' | b' ' => Key::Pause,
        b's' => Key::Sort,
        b'j' => Key::Down,
        b'k' => Key::Up,
        0x0c => Key::Redraw,
        ESCAPE => return sequence(bytes),
        _ => return Some((None, 1)),
    };
    Some((Some(key), 1))
}

fn sequence(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    match bytes.get(1)? {
        b'[' | b'O' => {}
        // Esc, and another key.
        _ => return Some((Some(Key::Quit), 1)),
    }
    let ends = |byte: &u8| (0x40..=0x7e).contains(byte);
    let (introducer, rest) = bytes.split_at_checked(2)?;
    let Some(end) = rest.iter().position(ends) else {
        return (bytes.len() >= LONGEST).then_some((None, bytes.len()));
    };
    let rest = rest.get(..=end)?;
    let key = match rest {
        [.., b'A'] => Some(Key::Up),
        [.., b'B'] => Some(Key::Down),
        [.., b'C'] => Some(Key::NextPanel),
        [.., b'D' | b'Z'] => Some(Key::PreviousPanel),
        b"5~" => Some(Key::PageUp),
        b"6~" => Some(Key::PageDown),
        _ => None,
    };
    Some((key, introducer.len().saturating_add(rest.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_recognized() {
        let mut keys = Keys::default();
        assert_eq!(
            keys.push(b"\tps\x0c\x1b[A\x1bOB\x1b[1;5C\x1b[D\x1b[Z\x1b[5~\x1b[6~x\x1b[15~\x03"),
            [
                Key::NextPanel,
                Key::Pause,
                Key::Sort,
                Key::Redraw,
                Key::Up,
                Key::Down,
                Key::NextPanel,
                Key::PreviousPanel,
                Key::PreviousPanel,
                Key::PageUp,
                Key::PageDown,
                Key::Quit,
            ]
        );
        assert!(!keys.are_pending());
    }

    #[test]
    fn a_sequence_may_come_in_parts() {
        let mut keys = Keys::default();
        assert_eq!(keys.push(b"\x1b"), []);
        assert!(keys.are_pending());
        assert_eq!(keys.push(b"["), []);
        assert_eq!(keys.push(b"Bq"), [Key::Down, Key::Quit]);
        assert_eq!(keys.push(b"\x1b"), []);
        assert_eq!(keys.end(), Some(Key::Quit));
        assert_eq!(keys.push(b"\x1b["), []);
        assert_eq!(keys.end(), None);
        assert_eq!(keys.end(), None);
        // One that never ends is dropped.
        assert_eq!(keys.push(b"\x1b[11"), []);
        assert_eq!(keys.push(&[b'1'; LONGEST]), []);
        assert!(!keys.are_pending());
        assert_eq!(keys.push(b"\x1bq"), [Key::Quit, Key::Quit]);
    }
}
