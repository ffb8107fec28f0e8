//! Addresses of the control server: the `[control]` table of the configuration.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Shortest token in characters.
const MIN_TOKEN: usize = 16;
/// Longest token file in bytes.
const MAX_TOKEN_FILE: u64 = 4096;

/// Settings of the control server. Without `socket` and `listen` there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table of settings of the control server"
)]
pub struct ControlSettings {
    /// Path of the unix socket; mode 0600.
    pub socket: Option<PathBuf>,
    /// Loopback address and port to listen on as well.
    #[serde(deserialize_with = "deserialize_loopback")]
    pub listen: Option<SocketAddr>,
    /// File with the token that requests to `listen` need.
    pub token_file: Option<PathBuf>,
}

/// Settings of the control server that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ControlConfigError {
    /// A TCP address without a token.
    #[error("{0} needs the key control.token_file: any local user can connect to it")]
    NoToken(SocketAddr),
    /// The token file can't be read.
    #[error("can't read the token file {}: {error}", path.display())]
    ReadToken {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        error: std::io::Error,
    },
    /// Other users can read the token.
    #[error("the token file {} has mode {mode:04o}, so that all users can access it: chmod 600 it", path.display())]
    TokenMode {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Another user owns the file, and knows the token.
    #[error("the token file {} belongs to user {owner}: it must belong to the user of this process, or to root", path.display())]
    TokenOwner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// The token is too short or has other characters.
    #[error(
        "the token file {} must have one line of {MIN_TOKEN} or more printable ASCII characters without spaces, for \
         example from: openssl rand -hex 32", path.display()
    )]
    BadToken {
        /// The file.
        path: PathBuf,
    },
}

impl ControlSettings {
    /// Refuses settings that can't work.
    pub fn check(&self) -> Result<(), ControlConfigError> {
        match (self.listen, &self.token_file) {
            (Some(address), None) => Err(ControlConfigError::NoToken(address)),
            _ => Ok(()),
        }
    }
}

/// True if a file of this user can be trusted like an own file.
fn is_trusted(owner: u32, own: u32) -> bool {
    owner == own || owner == 0
}

/// Reads the token from a file that other users can't access.
pub fn read_token(path: &Path) -> Result<String, ControlConfigError> {
    let read_error = |error| ControlConfigError::ReadToken {
        path: path.to_owned(),
        error,
    };
    let file = std::fs::File::open(path).map_err(read_error)?;
    // Of the opened file: the path may name another one meanwhile.
    let metadata = file.metadata().map_err(read_error)?;
    // The owner of this folder is the effective user of the process (proc(5)).
    let own = std::fs::metadata("/proc/self").map_err(read_error)?.uid();
    if !is_trusted(metadata.uid(), own) {
        return Err(ControlConfigError::TokenOwner {
            path: path.to_owned(),
            owner: metadata.uid(),
        });
    }
    let mode = metadata.mode() & 0o7777;
    if mode & 0o007 != 0 {
        return Err(ControlConfigError::TokenMode {
            path: path.to_owned(),
            mode,
        });
    }
    let mut text = String::new();
    let mut file = std::io::Read::take(file, MAX_TOKEN_FILE);
    std::io::Read::read_to_string(&mut file, &mut text).map_err(read_error)?;
    let token = text.trim_end();
    if token.len() < MIN_TOKEN || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(ControlConfigError::BadToken {
            path: path.to_owned(),
        });
    }
    Ok(token.to_owned())
}

fn deserialize_loopback<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let bad = |what: &str| {
        serde::de::Error::custom(format!(
            "{text:?} is {what}, such as 127.0.0.1:9180 or [::1]:9180"
        ))
    };
    let address: SocketAddr = text.parse().map_err(|_| bad("not an address and a port"))?;
    match address.ip().is_loopback() {
        true => Ok(Some(address)),
        false => Err(bad("not a loopback address and a port")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_of_another_user_is_known_to_that_user() {
        assert!(is_trusted(1000, 1000) && is_trusted(0, 1000));
        assert!(!is_trusted(1001, 1000) && !is_trusted(1000, 0));
        // Only root can give a file away.
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        if std::os::unix::fs::chown(&path, Some(12345), None).is_ok() {
            let error = read_token(&path).unwrap_err().to_string();
            assert!(error.contains("belongs to user 12345"), "{error}");
        }
    }

    #[test]
    fn a_token_is_read_from_a_private_file_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let write = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            read_token(&path).map_err(|error| error.to_string())
        };
        assert_eq!(
            write("0123456789abcdef\n", 0o600),
            Ok("0123456789abcdef".into())
        );
        assert!(write("0123456789abcdef\n", 0o640).is_ok());
        let error = write("0123456789abcdef\n", 0o604).unwrap_err();
        assert!(error.contains("mode 0604"), "{error}");
        for bad in [
            "",
            "0123456789abcde",
            "0123456789 abcdef",
            "0123456789abcdef\n2",
        ] {
            let error = write(bad, 0o600).unwrap_err();
            assert!(error.contains("openssl rand"), "{bad:?}: {error}");
        }
        let error = read_token(&directory.path().join("none")).unwrap_err();
        assert!(error.to_string().contains("can't read"), "{error}");
    }
}
