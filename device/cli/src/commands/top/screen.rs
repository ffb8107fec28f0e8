//! The terminal: raw mode, the alternate screen, and pictures.
//!
//! The terminal is restored when the [`Screen`] is dropped, and before the message of a panic is printed.

use std::io::{ErrorKind, Read, Write};
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use ratatui_core::buffer::{Buffer, Cell};
use ratatui_core::layout::Rect;
use ratatui_core::style::Modifier;
use rustix::termios::{
    OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use tokio::sync::mpsc::{Receiver, channel};

/// Alternate screen, no cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const CLEAR: &str = "\x1b[0m\x1b[2J";
const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";
/// Size of a terminal that does not know it, such as a serial line.
const USUAL: (u16, u16) = (80, 24);
/// Largest size that is used.
const LARGEST: (u16, u16) = (1024, 512);

/// Settings of the terminal to restore.
static SAVED: Mutex<Option<Termios>> = Mutex::new(None);

/// A terminal in raw mode.
#[derive(Debug)]
pub(super) struct Screen {
    /// What it shows.
    shown: Buffer,
}

impl Screen {
    /// Takes the terminal of standard input and output.
    pub(super) fn enter() -> anyhow::Result<Self> {
        let saved = tcgetattr(std::io::stdin())?;
        let mut raw = saved.clone();
        raw.make_raw();
        // A read waits for the first byte, and returns all present ones.
        raw.special_codes[SpecialCodeIndex::VMIN] = 1;
        raw.special_codes[SpecialCodeIndex::VTIME] = 0;
        *SAVED.lock().unwrap_or_else(PoisonError::into_inner) = Some(saved);
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            hook(panic);
        }));
        let screen = Self {
            shown: Buffer::empty(Rect::ZERO),
        };
        tcsetattr(std::io::stdin(), OptionalActions::Now, &raw)?;
        write(ENTER)?;
        Ok(screen)
    }

    /// Height of the last picture.
    pub(super) fn lines(&self) -> u16 {
        self.shown.area().height
    }

    /// Draws everything anew at the next time.
    pub(super) fn forget(&mut self) {
        self.shown = Buffer::empty(Rect::ZERO);
    }

    /// Shows the picture that `draw` makes.
    pub(super) fn show(&mut self, draw: impl FnOnce(&mut Buffer)) -> anyhow::Result<()> {
        let area = area();
        let mut next = Buffer::empty(area);
        draw(&mut next);
        let mut text = String::new();
        if *self.shown.area() != area {
            self.shown = Buffer::empty(area);
            text += CLEAR;
        }
        text += &changes(&self.shown.diff(&next));
        self.shown = next;
        write(&text)
    }
}

/// The input of the user. A thread waits for it, because a terminal that is shared with other programs must not become
/// non-blocking. The channel ends with the terminal.
pub(super) fn input() -> anyhow::Result<Receiver<Vec<u8>>> {
    let (bytes, typed) = channel(1);
    let read = move || {
        let mut buffer = [0; 64];
        loop {
            let part = match std::io::stdin().read(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Ok(count @ 1..) => buffer.get(..count).unwrap_or_default(),
                Ok(_) | Err(_) => return,
            };
            if bytes.blocking_send(part.to_vec()).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("input".to_owned())
        .spawn(read)
        .context("can't start a thread for input")?;
    Ok(typed)
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal, if it was taken.
fn restore() {
    let saved = SAVED.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(saved) = saved {
        // Without the terminal, nothing can be done.
        let _ = write(LEAVE);
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &saved);
    }
}

fn write(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

fn area() -> Rect {
    let size = tcgetwinsize(std::io::stdout()).map(|size| (size.ws_col, size.ws_row));
    let (width, height) = match size {
        Ok((width, height)) if width > 0 && height > 0 => (width, height),
        _ => USUAL,
    };
    Rect::new(0, 0, width.min(LARGEST.0), height.min(LARGEST.1))
}

/// Control sequences (ECMA-48) that write these cells.
fn changes(cells: &[(u16, u16, &Cell)]) -> String {
    let mut text = String::new();
    let mut expected = None;
    let mut modifier = Modifier::empty();
    for (x, y, cell) in cells {
        if expected != Some((*x, *y)) {
            text += &format!("\x1b[{};{}H", u32::from(*y) + 1, u32::from(*x) + 1);
        }
        if cell.modifier != modifier {
            modifier = cell.modifier;
            text += "\x1b[0";
            for (bit, code) in [
                (Modifier::BOLD, ";1"),
                (Modifier::DIM, ";2"),
                (Modifier::REVERSED, ";7"),
            ] {
                if modifier.contains(bit) {
                    text += code;
                }
            }
            text += "m";
        }
        text += cell.symbol();
        // After a wide character the position is not known.
        expected = cell
            .symbol()
            .is_ascii()
            .then_some((x.saturating_add(1), *y));
    }
    if !modifier.is_empty() {
        text += "\x1b[0m";
    }
    text
}

#[cfg(test)]
mod tests {
    use ratatui_core::style::Style;

    use super::*;

    #[test]
    fn only_changes_are_written() {
        let area = Rect::new(0, 0, 10, 3);
        let empty = Buffer::empty(area);
        let mut next = Buffer::empty(area);
        let bold = Style::new().add_modifier(Modifier::BOLD);
        next.set_string(1, 0, "ab", Style::new());
        next.set_string(3, 2, "c", bold);
        assert_eq!(
            changes(&empty.diff(&next)),
            "\x1b[1;2Hab\x1b[3;4H\x1b[0;1mc\x1b[0m"
        );
        assert_eq!(changes(&next.diff(&next)), "");
        let mut wide = Buffer::empty(area);
        wide.set_string(0, 1, "日x", Style::new());
        assert_eq!(changes(&empty.diff(&wide)), "\x1b[2;1H日\x1b[2;3Hx");
    }
}
