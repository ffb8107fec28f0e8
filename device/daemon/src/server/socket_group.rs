//! The group whose members can connect virtual machines: its number in the system's database.

use nix::errno::Errno;
use nix::unistd::Group;
use rustix::fs::Gid;

/// The group of the sockets can't be used.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// There is no such group.
    #[error(
        "socket_group: there is no group {0:?} on this system; create it with `groupadd --system {0}`, or name another one"
    )]
    Absent(String),
    /// The database can't be read.
    #[error("socket_group: cannot look up the group {name:?}: {errno}")]
    Lookup {
        /// Its name.
        name: String,
        /// The system's reason.
        errno: Errno,
    },
}

/// Looks up a group by its name.
pub(crate) fn find_group(name: &str) -> Result<Gid, GroupError> {
    match Group::from_name(name) {
        Ok(Some(group)) => Ok(Gid::from_raw(group.gid.as_raw())),
        Ok(None) => Err(GroupError::Absent(name.to_owned())),
        Err(errno) => Err(GroupError::Lookup {
            name: name.to_owned(),
            errno,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_name() {
        assert_eq!(find_group("root").unwrap(), Gid::ROOT);
        let error = find_group("no-such-group").unwrap_err().to_string();
        assert!(error.contains("groupadd --system no-such-group"), "{error}");
    }
}
