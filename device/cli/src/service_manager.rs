//! The notification that a service has started, as sd_notify(3) defines it.
//!
//! systemd starts units that need the sockets after it, and reports an error of the start to the caller of `systemctl start`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Environment variable with the address of the service manager's socket.
pub(crate) const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";

/// Reports to the service manager at this address that the sockets of this process exist.
pub(crate) fn notify_ready(address: &OsStr) -> io::Result<()> {
    // An address that begins with @ is an abstract one.
    let address = match address.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(address)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A service manager that does not read must not stop the start.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(b"READY=1", &address).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_addresses_are_notified() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("faultline-test-{}", std::process::id());
        let named = SocketAddr::from_abstract_name(&name).unwrap();
        for (manager, address) in [
            (UnixDatagram::bind(&path).unwrap(), path.into_os_string()),
            (
                UnixDatagram::bind_addr(&named).unwrap(),
                format!("@{name}").into(),
            ),
        ] {
            notify_ready(&address).unwrap();
            let mut text = [0; 16];
            let length = manager.recv(&mut text).unwrap();
            assert_eq!(&text[..length], b"READY=1");
        }
        assert!(notify_ready(OsStr::new("/nonexistent/notify")).is_err());
    }
}
