//! The answer of `flexcp show stats --json`, as those read it who run FlexCP. A name that is not there is an error, never
//! a count of 0: a counter that was renamed would be 0 for ever.

use std::fmt;

use serde_json::Value;

/// What FlexCP counts, in groups.
#[derive(Clone, Debug)]
pub struct Stats(Value);

/// What the answer lacks.
#[derive(thiserror::Error, Debug)]
pub enum StatsError {
    /// Something else was said.
    #[error("the answer is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// No such group of numbers.
    #[error("no group of numbers `{0}` in {1}")]
    Group(String, Stats),
    /// No such number.
    #[error("no number `{0}` in {1}")]
    Number(String, Stats),
}

impl Stats {
    /// Reads the answer.
    ///
    /// # Errors
    /// When it is not JSON.
    pub fn parse(answer: &[u8]) -> Result<Self, StatsError> {
        Ok(Self(serde_json::from_slice(answer)?))
    }

    /// One of `counters`.
    ///
    /// # Errors
    /// When it is not there.
    pub fn counter(&self, name: &str) -> Result<u64, StatsError> {
        self.number(&format!("counters.{name}"))
    }

    /// A number by its path, such as `carrier.device_rx`, `causes.plain_syn.memory` or `connections`.
    ///
    /// # Errors
    /// When it is not there.
    pub fn number(&self, path: &str) -> Result<u64, StatsError> {
        let found = self.find(path).and_then(Value::as_u64);
        found.ok_or_else(|| StatsError::Number(path.to_owned(), self.clone()))
    }

    /// All numbers of a group; there may be none, as in `offload` without one.
    ///
    /// # Errors
    /// When there is no such group, or something else than numbers in it.
    pub fn group(&self, path: &str) -> Result<Vec<(&str, u64)>, StatsError> {
        let members = self.find(path).and_then(Value::as_object);
        let members = members.ok_or_else(|| StatsError::Group(path.to_owned(), self.clone()))?;
        let named = members.iter().map(|(name, number)| {
            let missing = || StatsError::Number(format!("{path}.{name}"), self.clone());
            Ok((name.as_str(), number.as_u64().ok_or_else(missing)?))
        });
        named.collect()
    }

    fn find(&self, path: &str) -> Option<&Value> {
        path.split('.').try_fold(&self.0, |at, name| at.get(name))
    }
}

impl From<Value> for Stats {
    fn from(value: Value) -> Self {
        Self(value)
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
