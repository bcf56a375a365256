//! What clients of the API have set. Rules take the place of the file's, over reloads and restarts, until they are taken back;
//! what was told about services holds beside it (`orders`). The watcher has both ([`Rulebook`]); a file keeps
//! them ([`Keeper`]).

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use tokio::sync::{Notify, watch};
use tracing::error;

use crate::config::Config;
use crate::config::edit::{self, Edit, Edited};
use crate::config::mar;
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
    /// The document of multi-access rules that they are from; `None`: they are from none, or were changed since.
    pub(crate) mar: Option<Arc<Json>>,
    /// About services.
    pub(crate) orders: Arc<Orders>,
    /// So many times that has been changed.
    pub(crate) changes: u64,
}

/// What a client of the API wants.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Change {
    /// These rules, in place of those there.
    Set(Vec<Told>),
    /// Those of the file.
    TakeBack,
    /// Those there, with some changes.
    Edit(Vec<Edit>),
    /// Those of a document of multi-access rules, in place of those there.
    Mar(Json),
}

/// What comes of a change.
#[derive(Debug)]
pub(crate) struct Next {
    /// The rules that are in force then.
    pub(crate) rules: Vec<Rule>,
    /// What is set then.
    set: Kept,
    /// So many of the rules are new, where some were changed.
    pub(crate) new: usize,
}

impl Rulebook {
    /// With what was kept, and the configuration to start with. Rules that were set and are not for that are left out.
    pub(crate) fn begin(kept: Kept, config: Config) -> (Self, Config) {
        let set = Set {
            rules: kept.rules.map(Arc::new),
            mar: kept.mar.map(Arc::new),
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
                book.set = Set::default();
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

    /// What would come of a change with a configuration. Changes of single rules are made to those in force: as the first is
    /// made to the file's, all of them count as set from then on.
    ///
    /// # Errors
    /// When there is something wrong with it.
    pub(crate) fn wanted(&self, config: &Config, change: Change) -> Result<Next, Wrong> {
        let next = |rules, set, new| Next {
            rules,
            set: Kept {
                rules: set,
                ..Kept::default()
            },
            new,
        };
        Ok(match change {
            Change::TakeBack => next(self.of_file.clone(), None, 0),
            Change::Set(told) => next(told::rules(config, &told)?, Some(told), 0),
            Change::Mar(document) => {
                let (told, rules) = mar::rules(config, &document)?;
                let mut next = next(rules, Some(told), 0);
                next.set.mar = Some(document);
                next
            }
            Change::Edit(edits) => {
                let Edited { told, rules, new } = match &self.set.rules {
                    Some(set) => edit::edited(config, set.iter().cloned(), edits)?,
                    None => edit::edited(config, told_by(&self.of_file)?, edits)?,
                };
                next(rules, Some(told), new)
            }
        })
    }

    /// Another configuration was read from the file, with these rules.
    pub(crate) fn note_file(&mut self, rules: Vec<Rule>) {
        self.of_file = rules;
    }

    /// That is in force from here on. Gives its rules.
    pub(crate) fn note(&mut self, next: Next) -> Vec<Rule> {
        self.set = Set {
            rules: next.set.rules.map(Arc::new),
            mar: next.set.mar.map(Arc::new),
            orders: Arc::clone(&self.set.orders),
            changes: self.set.changes + 1,
        };
        next.rules
    }

    /// Something was told about services, or what was has been forgotten.
    pub(crate) fn note_orders(&mut self, orders: &Arc<Orders>) {
        if self.set.orders != *orders {
            self.set.orders = Arc::clone(orders);
            self.set.changes += 1;
        }
    }
}

/// The rules as they would be told.
///
/// # Errors
/// When one has a mode of the program's own: changed one by one, the others would take its place without that.
fn told_by(rules: &[Rule]) -> Result<impl Iterator<Item = Told>, Wrong> {
    match rules.iter().find(|rule| rule.own_mode.is_some()) {
        Some(rule) => Err(Wrong::new(
            format!("rule `{}`", rule.name.value),
            "its mode is the program's own, which can't be told; set all rules at once with PUT /v1/rules",
        )),
        None => Ok(rules.iter().map(told::of)),
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

/// What stands in the file.
#[derive(Default, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// The rules; `None`: none are set.
    pub(crate) rules: Option<Vec<Told>>,
    /// The document that they are from.
    #[serde(default)]
    pub(crate) mar: Option<Json>,
    /// What was told about services.
    #[serde(default, rename = "services")]
    pub(crate) orders: Orders,
}

/// The same, to be written.
#[derive(Serialize)]
struct Keeps<'a> {
    rules: Option<&'a [Told]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mar: Option<&'a Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    services: Option<&'a Orders>,
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
            Ok(text) => serde_json::from_slice(&text).map_err(|error| wrong(error.into())),
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
    let kept = Keeps {
        rules: set.rules.as_ref().map(|rules| rules.as_slice()),
        mar: set.mar.as_deref(),
        services: Some(&*set.orders).filter(|orders| **orders != Orders::default()),
    };
    let mut file = File::create(&beside)?;
    file.write_all(&serde_json::to_vec(&kept)?)?;
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
