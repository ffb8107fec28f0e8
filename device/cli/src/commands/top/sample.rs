//! Snapshots of a process: answers of the control server, with the time at which they were read.
//!
//! The memory of a snapshot is bounded: of each list at most [`MAX_OBJECTS`] objects of all NICs together are read.

use std::time::{Duration, Instant};

use anyhow::bail;
use faultline_control::objects::{ContextView, FaultView, Page, QueuePairView, RegionView};
use faultline_control::view::{EngineView, NicSummary, NicView};
use serde::de::DeserializeOwned;

use super::super::client::{Remote, segment};

/// Most queue pairs of a snapshot; also most regions, and most contexts.
pub(super) const MAX_OBJECTS: usize = 4096;
/// Most requests for each of these lists. A part may have few objects, if many have been destroyed.
const MAX_PARTS: usize = 64;
/// Faults that the server lists of a NIC.
const MAX_FAULTS: usize = 256;

/// An object and the time at which it was read, since the start of this program.
#[derive(Clone, Debug)]
pub(super) struct Timed<T> {
    pub(super) at: Duration,
    pub(super) item: T,
}

/// The first objects of a list.
#[derive(Clone, Debug)]
pub(super) struct Part<T> {
    pub(super) items: Vec<Timed<T>>,
    /// There are more.
    pub(super) cut: bool,
}

/// A NIC with its objects.
#[derive(Clone, Debug)]
pub(super) struct NicSample {
    pub(super) nic: Timed<NicView>,
    pub(super) pairs: Part<QueuePairView>,
    pub(super) regions: Part<RegionView>,
    pub(super) contexts: Part<ContextView>,
    pub(super) faults: Part<FaultView>,
}

/// The objects that were read at one time.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) engine: Timed<EngineView>,
    pub(super) nics: Vec<NicSample>,
}

/// Reads snapshots.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    remote: Remote,
    /// Only this NIC.
    nic: Option<String>,
    start: Instant,
}

/// The rest of the limits of a list.
struct Room {
    objects: usize,
    parts: usize,
}

impl Room {
    const ALL: Self = Self {
        objects: MAX_OBJECTS,
        parts: MAX_PARTS,
    };
}

impl Reader {
    pub(super) fn new(remote: Remote, nic: Option<String>) -> Self {
        Self {
            remote,
            nic,
            start: Instant::now(),
        }
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<Timed<T>> {
        let item = self.remote.get(path).await?;
        let at = self.start.elapsed();
        Ok(Timed { at, item })
    }

    /// Reads a snapshot.
    pub(super) async fn read(&self) -> anyhow::Result<Snapshot> {
        let engine = self.get("/v1/engine").await?;
        let known: Vec<NicSummary> = self.remote.get("/v1/nics").await?;
        let mut names: Vec<String> = known.into_iter().map(|nic| nic.name).collect();
        if let Some(wanted) = &self.nic {
            if !names.contains(wanted) {
                bail!(
                    "there is no NIC {wanted:?}; the NICs are: {}",
                    names.join(", ")
                );
            }
            names.retain(|name| name == wanted);
        }
        let (mut pairs, mut regions, mut contexts) = (Room::ALL, Room::ALL, Room::ALL);
        let mut nics = Vec::new();
        for name in names {
            let path = format!("/v1/nics/{}", segment(&name));
            let mut nic: Timed<NicView> = self.get(&path).await?;
            nic.item.name = printable(&nic.item.name);
            let faults: Timed<Vec<FaultView>> = self.get(&format!("{path}/faults")).await?;
            let at = faults.at;
            let faults = Part {
                cut: faults.item.len() >= MAX_FAULTS,
                items: faults
                    .item
                    .into_iter()
                    .map(|item| Timed { at, item })
                    .collect(),
            };
            let mut contexts: Part<ContextView> = self
                .list(&format!("{path}/contexts"), &mut contexts)
                .await?;
            for context in &mut contexts.items {
                let program = &mut context.item.program;
                *program = program.as_deref().map(printable);
            }
            nics.push(NicSample {
                nic,
                pairs: self
                    .list(&format!("{path}/queue-pairs"), &mut pairs)
                    .await?,
                regions: self.list(&format!("{path}/regions"), &mut regions).await?,
                contexts,
                faults,
            });
        }
        Ok(Snapshot { engine, nics })
    }

    /// Reads a list as far as there is room.
    async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        room: &mut Room,
    ) -> anyhow::Result<Part<T>> {
        let mut items = Vec::new();
        let mut from = Some(0);
        while let Some(place) = from {
            let Some(parts) = room.parts.checked_sub(1).filter(|_| room.objects > 0) else {
                break;
            };
            room.parts = parts;
            let page: Timed<Page<T>> = self.get(&format!("{path}?from={place}")).await?;
            let at = page.at;
            let found = page.item.items.into_iter().take(room.objects);
            let before = items.len();
            items.extend(found.map(|item| Timed { at, item }));
            let new = items.len().saturating_sub(before);
            room.objects = room.objects.saturating_sub(new);
            from = page.item.next;
        }
        Ok(Part {
            items,
            cut: from.is_some(),
        })
    }
}

/// A text of the server or of a guest without characters that could change the state of a terminal or the order of its text.
pub(super) fn printable(text: &str) -> String {
    let allowed = |c: char| c == ' ' || c.is_ascii_graphic() || c.is_alphanumeric();
    text.chars()
        .map(|c| if allowed(c) { c } else { '?' })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_change_a_terminal() {
        assert_eq!(printable("rping -s"), "rping -s");
        assert_eq!(
            printable("e\x1b[2J\r\n\u{9b}x\u{202e}y\u{7f}"),
            "e?[2J???x?y?"
        );
        assert_eq!(printable("zwölf/日"), "zwölf/日");
    }
}
