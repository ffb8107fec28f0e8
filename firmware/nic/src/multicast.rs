//! Multicast groups: the queue pairs that receive the datagrams of each group (IBTA 10.5.2).

use std::collections::BTreeMap;

use faultline_abi::Status;
use faultline_wire::Gid;

/// All groups with members here.
#[derive(Debug)]
pub(crate) struct Groups {
    members: BTreeMap<Gid, Vec<u32>>,
    max_groups: u32,
    max_members: u32,
}

impl Groups {
    pub(crate) fn new(max_groups: u32, max_members: u32) -> Self {
        Self {
            members: BTreeMap::new(),
            max_groups,
            max_members,
        }
    }

    /// Adds a member. Returns false if it is one already.
    pub(crate) fn attach(&mut self, group: Gid, qpn: u32) -> Result<bool, Status> {
        if !group.is_multicast() {
            return Err(Status::BadGroup);
        }
        if !self.members.contains_key(&group) && self.members.len() >= self.max_groups as usize {
            return Err(Status::NoResources);
        }
        let members = self.members.entry(group).or_default();
        if members.contains(&qpn) {
            return Ok(false);
        }
        if members.len() >= self.max_members as usize {
            return Err(Status::NoResources);
        }
        members.push(qpn);
        Ok(true)
    }

    /// Removes a member.
    pub(crate) fn detach(&mut self, group: Gid, qpn: u32) -> Result<(), Status> {
        let members = self.members.get_mut(&group).ok_or(Status::NotAttached)?;
        let at = members.iter().position(|member| *member == qpn);
        members.remove(at.ok_or(Status::NotAttached)?);
        if members.is_empty() {
            self.members.remove(&group);
        }
        Ok(())
    }

    /// All groups and their members, in the order of the GIDs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Gid, &[u32])> {
        let groups = self.members.iter();
        groups.map(|(gid, members)| (gid, members.as_slice()))
    }

    /// Members of a group, the oldest first.
    pub(crate) fn members(&self, group: Gid) -> &[u32] {
        self.members.get(&group).map_or(&[], Vec::as_slice)
    }
}
