//! The corpus: small inputs that reach far, one file each in `corpus/<target>/`, and in
//! `regressions/<target>/` each input that once found something.

use std::path::PathBuf;
use std::{fs, io};

use crate::Target;

/// Inputs of a target by name, in the order of their names.
///
/// # Errors
/// When a file can't be read.
pub fn load(target: &Target) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut inputs = Vec::new();
    for kind in ["corpus", "regressions"] {
        let directory = directory(kind, target.name);
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let path = entry?.path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            inputs.push((format!("{kind}/{}/{name}", target.name), fs::read(&path)?));
        }
    }
    inputs.sort();
    Ok(inputs)
}

/// Where inputs of a target lie.
#[must_use]
pub fn directory(kind: &str, target: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), kind, target].iter().collect()
}
