//! Files of keys for probes.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use flexcp_location::probe::Key;

/// The keys of a file, one a line; empty lines and those that begin with `#` are none.
///
/// # Errors
/// When it can't be read, others than its owner and group may read it, or one is too short to keep anybody out.
pub fn read(path: &Path) -> Result<Vec<Key>, KeyError> {
    let wrong = |error| KeyError::Read {
        path: path.into(),
        error,
    };
    let mode = std::fs::metadata(path).map_err(wrong)?.mode();
    if mode & 0o007 != 0 {
        return Err(KeyError::Open { path: path.into() });
    }
    let text = std::fs::read_to_string(path).map_err(wrong)?;
    let mut keys = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let key = Key::new(line.as_bytes()).map_err(|_| KeyError::Weak {
            path: path.into(),
            line: number,
        })?;
        keys.push(key);
    }
    if keys.is_empty() {
        return Err(KeyError::Weak {
            path: path.into(),
            line: 1,
        });
    }
    if keys.len() > MOST {
        return Err(KeyError::Many { path: path.into() });
    }
    Ok(keys)
}

/// Keys can't be used.
#[derive(thiserror::Error, Debug)]
pub enum KeyError {
    /// Anybody may read them.
    #[error("everybody may read the key file {path}; chmod o= {path}", path = path.display())]
    Open {
        /// The file.
        path: PathBuf,
    },
    /// The file can't be read.
    #[error("can't read the key file {path}: {error}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        error: io::Error,
    },
    /// One is soon guessed.
    #[error(
        "the key file {path} has no key in line {line}; write 16 characters at least, like those of: openssl rand -hex 32",
        path = path.display()
    )]
    Weak {
        /// The file.
        path: PathBuf,
        /// Which line of it.
        line: usize,
    },
    /// There are too many.
    #[error("the key file {path} has more than {MOST} keys; let boxes of one owner share one", path = path.display())]
    Many {
        /// The file.
        path: PathBuf,
    },
}

/// Most keys of a file: a datagram's is looked for among them.
const MOST: usize = 1024;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn keys_are_read_from_a_file_that_others_can_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("probe.key");
        assert!(matches!(read(&file), Err(KeyError::Read { .. })));
        fs::write(
            &file,
            "# of the boxes\n0123456789abcdef\n\n fedcba9876543210 \n",
        )
        .unwrap();
        let allow = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        for mode in [0o644, 0o642, 0o601] {
            allow(mode);
            assert!(
                matches!(read(&file), Err(KeyError::Open { .. })),
                "{mode:o}"
            );
        }
        allow(0o640);
        let ids: Vec<_> = read(&file).unwrap().iter().map(Key::id).collect();
        let of = |secret: &[u8]| Key::new(secret).unwrap().id();
        assert_eq!(ids, [of(b"0123456789abcdef"), of(b"fedcba9876543210")]);
        fs::write(&file, "0123456789abcdef\ntoo short\n").unwrap();
        let said = read(&file).unwrap_err().to_string();
        assert!(
            said.contains("has no key in line 2; write 16 characters"),
            "{said}"
        );
        fs::write(&file, "\n# none\n").unwrap();
        assert!(matches!(read(&file), Err(KeyError::Weak { .. })));
    }
}
