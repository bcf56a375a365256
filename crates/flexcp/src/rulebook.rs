//! What clients of the API have set. Rules take the place of the file's, over reloads and restarts, until they are taken back;
//! what was told about services holds beside it ([`orders`](crate::orders)). The watcher has both ([`Rulebook`]); a file keeps
//! them ([`Keeper`]).

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tracing::error;

use crate::config::Config;
use crate::config::rule::Rule;
use crate::config::told::{self, Told, Wrong};
use crate::orders::Orders;

/// The rules that were set, and those of the configuration's file.
#[derive(Clone, Default, Debug)]
pub struct Rulebook {
    set: Set,
    of_file: Vec<Rule>,
}

/// What was set.
#[derive(Clone, Default, Debug)]
pub(crate) struct Set {
    /// `None`: the file's are in force.
    pub(crate) rules: Option<Arc<Vec<Told>>>,
    /// About services.
    pub(crate) orders: Arc<Orders>,
    /// So many times that has been changed.
    pub(crate) changes: u64,
}

impl Rulebook {
    /// With what was kept, and the configuration to start with. Rules that were set and are not for that are left out.
    pub(crate) fn begin(kept: Kept, config: Config) -> (Self, Config) {
        let set = Set {
            rules: kept.rules.map(Arc::new),
            orders: Arc::new(kept.orders.about(&config)),
            changes: 0,
        };
        let mut book = Self {
            set,
            of_file: config.rules.clone(),
        };
        match book.in_force(&config) {
            Ok(rules) => (book, Config { rules, ..config }),
            Err(wrong) => {
                error!(
                    "the rules that the API has set don't go with this configuration: {wrong}; its own are in force"
                );
                book.set.rules = None;
                (book, config)
            }
        }
    }

    /// What was set.
    pub(crate) const fn set(&self) -> &Set {
        &self.set
    }

    /// The rules that are in force with a configuration that was read from the file: its own, unless others were set.
    ///
    /// # Errors
    /// When those are not for such a configuration.
    pub(crate) fn in_force(&self, config: &Config) -> Result<Vec<Rule>, Wrong> {
        match &self.set.rules {
            Some(told) => told::rules(config, told),
            None => Ok(config.rules.clone()),
        }
    }

    /// The rules that would be in force with a configuration, were these set; `None`: the file's.
    ///
    /// # Errors
    /// When there is something wrong with them.
    pub(crate) fn wanted(
        &self,
        config: &Config,
        told: Option<&[Told]>,
    ) -> Result<Vec<Rule>, Wrong> {
        match told {
            Some(told) => told::rules(config, told),
            None => Ok(self.of_file.clone()),
        }
    }

    /// Another configuration was read from the file, with these rules.
    pub(crate) fn note_file(&mut self, rules: Vec<Rule>) {
        self.of_file = rules;
    }

    /// Others are set, or taken back.
    pub(crate) fn note_set(&mut self, rules: Option<Vec<Told>>) {
        self.set.rules = rules.map(Arc::new);
        self.set.changes += 1;
    }

    /// Something was told about services, or what was has been forgotten.
    pub(crate) fn note_orders(&mut self, orders: &Arc<Orders>) {
        if self.set.orders != *orders {
            self.set.orders = Arc::clone(orders);
            self.set.changes += 1;
        }
    }
}

/// The file that keeps what was set.
#[derive(Debug)]
pub struct Keeper {
    path: PathBuf,
    /// There is something to save.
    due: Notify,
    saved: watch::Sender<Saved>,
}

/// What the file has.
#[derive(Clone, Default, Debug)]
struct Saved {
    /// So many changes.
    changes: u64,
    /// Why that is not all.
    failed: Option<String>,
}

/// What was kept.
#[derive(Default, Debug)]
pub struct Kept {
    /// `None`: the configuration's are in force.
    pub(crate) rules: Option<Vec<Told>>,
    /// About services.
    pub(crate) orders: Orders,
}

/// What stands in the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content<R, O> {
    rules: Option<R>,
    #[serde(skip_serializing_if = "Option::is_none")]
    services: Option<O>,
}

impl Keeper {
    /// The file `path`.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            due: Notify::new(),
            saved: watch::Sender::new(Saved::default()),
        }
    }

    /// What it keeps; nothing if it is not there.
    ///
    /// # Errors
    /// When it can't be read, or is no such file.
    pub fn read(&self) -> Result<Kept, KeptError> {
        let wrong = |error: io::Error| KeptError {
            path: self.path.clone(),
            error,
        };
        match fs::read(&self.path) {
            Ok(text) => {
                let content = serde_json::from_slice::<Content<Vec<Told>, Orders>>(&text);
                let content = content.map_err(|error| wrong(error.into()))?;
                Ok(Kept {
                    rules: content.rules,
                    orders: content.services.unwrap_or_default(),
                })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Kept::default()),
            Err(error) => Err(wrong(error)),
        }
    }

    /// Something was set.
    pub(crate) fn wake(&self) {
        // It may go well this time.
        self.saved.send_modify(|saved| saved.failed = None);
        self.due.notify_one();
    }

    /// Waits until there is something to save.
    pub(crate) async fn until_due(&self) {
        self.due.notified().await;
    }

    /// Waits until the file has this change.
    ///
    /// # Errors
    /// With the reason why it could not be saved.
    pub(crate) async fn until_saved(&self, change: u64) -> Result<(), String> {
        let mut saved = self.saved.subscribe();
        let there = |saved: &Saved| saved.changes >= change || saved.failed.is_some();
        match saved.wait_for(there).await.as_deref() {
            Ok(saved) if saved.changes >= change => Ok(()),
            Ok(Saved { failed, .. }) => Err(failed.clone().unwrap_or_default()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Saves what is not saved. `beside`: the end of the name that the file has while it is written; whoever else saves at the
    /// time has another one.
    ///
    /// # Errors
    /// When the file can't be written; what it had before is there.
    pub(crate) fn save(&self, set: &Set, beside: &str) -> io::Result<()> {
        if self.saved.borrow().changes >= set.changes {
            return Ok(());
        }
        let written = write(&self.path, set, beside);
        let failed = written.as_ref().err().map(ToString::to_string);
        self.saved.send_modify(|saved| {
            if failed.is_none() {
                saved.changes = set.changes;
            }
            saved.failed = failed;
        });
        written
    }
}

/// In one step: whoever reads it finds all of it, or all of what was there before.
fn write(path: &Path, set: &Set, beside: &str) -> io::Result<()> {
    let beside = path.with_extension(beside);
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let orders = &*set.orders;
    let content = Content {
        rules: set.rules.as_deref(),
        services: Some(orders).filter(|orders| **orders != Orders::default()),
    };
    let mut file = File::create(&beside)?;
    file.write_all(&serde_json::to_vec(&content)?)?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    fs::rename(&beside, path)
}

/// What was kept can't be read.
#[derive(thiserror::Error, Debug)]
#[error(
    "can't read what the API has set, {path}: {error}; mend the file, or remove it to have the rules and weights of the configuration",
    path = path.display()
)]
pub struct KeptError {
    path: PathBuf,
    error: io::Error,
}
