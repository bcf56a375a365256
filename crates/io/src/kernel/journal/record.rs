//! What a journal says, and whether FlexCP can have said it.

use std::fs;

use serde::{Deserialize, Serialize};

use super::super::Plan;
use super::super::address::is_interface_name;
use super::super::filter::Filter;
use super::super::sysctl::Change;

/// What is to be undone, by whom and where it was done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    pub(crate) device: String,
    process: u32,
    /// The kernel's name for the network namespace: the switches of another are none of ours.
    pub(crate) namespace: String,
    /// The kernel's name for the time since boot: a reboot has undone everything.
    boot: String,
    pub(crate) changes: Vec<Change>,
    /// Filters at devices, which outlive the process.
    #[serde(default)]
    pub(crate) filters: Vec<Filter>,
}

impl Record {
    pub(crate) fn new(plan: &Plan, changes: &[Change]) -> Self {
        Self {
            version: VERSION,
            device: plan.device.clone(),
            process: std::process::id(),
            namespace: namespace(),
            boot: boot(),
            changes: changes.to_vec(),
            filters: Vec::new(),
        }
    }

    /// Reads it, or says why it is none of FlexCP's, in a few words.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        Self::believed(text).map_err(|reason| reason.chars().take(REASON_MAX).collect())
    }

    fn believed(text: &[u8]) -> Result<Self, String> {
        let record: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        if record.version != VERSION {
            return Err(format!("version {}", record.version));
        }
        if !is_interface_name(&record.device) {
            return Err(format!("device {:?}", record.device));
        }
        for name in [&record.namespace, &record.boot] {
            if name.len() > NAME_MAX || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(format!("namespace or boot {name:?}"));
            }
        }
        if let Some(change) = record.changes.iter().find(|change| !change.is_plausible()) {
            return Err(format!("{change:?}"));
        }
        if let Some(filter) = record.filters.iter().find(|filter| !filter.is_plausible()) {
            return Err(format!("{filter:?}"));
        }
        Ok(record)
    }

    /// Whether there is nothing to undo.
    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.filters.is_empty()
    }

    /// Whose it is, in words.
    pub(super) fn owner(&self) -> String {
        format!("process {}, device {}", self.process, self.device)
    }

    pub(crate) fn is_of_this_namespace(&self) -> bool {
        self.namespace == namespace() && self.boot == boot()
    }
}

/// The kernel's name for the network namespace.
pub(crate) fn namespace() -> String {
    fs::read_link("/proc/thread-self/ns/net")
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// The kernel's name for the time since boot.
pub(crate) fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

const VERSION: u32 = 1;
/// Of what is quoted from a journal, in characters.
const REASON_MAX: usize = 160;
/// Of the kernel's names, in bytes.
const NAME_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn text(namespace: &str, boot: &str, rest: &str) -> String {
        let [namespace, boot] = [namespace, boot].map(|name| serde_json::json!(name));
        format!(r#"{{"version":1,"process":7,"namespace":{namespace},"boot":{boot},{rest}}}"#)
    }

    const EMPTY: &str = r#""device":"flexcp0","changes":[]"#;

    #[test]
    fn of_another_namespace_or_boot() {
        let of = |namespace: &str, boot: &str| {
            let record = Record::parse(text(namespace, boot, EMPTY).as_bytes());
            record.unwrap().is_of_this_namespace()
        };
        assert!(of(&namespace(), &boot()));
        assert!(!of("net:[1]", &boot()) && !of(&namespace(), "0000"));
    }

    #[test]
    fn what_flexcp_can_not_have_written() {
        let refused = |text: &str| Record::parse(text.as_bytes()).unwrap_err();
        for (rest, reason) in [
            (r#""device":"../x","changes":[]"#, "device \"../x\""),
            (
                r#""device":"a","changes":[{"key":"kernel/modprobe","before":"0","after":"1"}]"#,
                "Change { key: \"kernel/modprobe\"",
            ),
            (
                r#""device":"a","changes":[],"filters":[{"interface":"a/b","index":3,"made_qdisc":true}]"#,
                "Filter { interface: \"a/b\"",
            ),
            (
                r#""device":"a","changes":[],"filters":[{"interface":"b","index":0,"made_qdisc":true}]"#,
                "Filter { interface: \"b\", index: 0",
            ),
        ] {
            let said = refused(&text("net:[1]", "0", rest));
            assert!(said.starts_with(reason), "{said}");
        }
        let said = refused(&text("\u{1b}[2J", "0", EMPTY));
        assert!(said.starts_with("namespace or boot \"\\u{1b}"), "{said}");
        let said = refused(&text("net:[1]", &"7".repeat(1000), EMPTY));
        assert_eq!(said.len(), REASON_MAX);
    }
}
