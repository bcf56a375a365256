//! The operator's end of answers that are read while they come: connections one by one, events line by line.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::marker::PhantomData;
use std::ops::ControlFlow;

use serde::Deserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::VERSION;
use super::client::{Client, ClientError, Envelope, judge, target};
use super::wanted::Wanted;

impl Client {
    /// Asks for the connections that are `wanted`, and gives each to `each` as it comes, until that breaks.
    ///
    /// # Errors
    /// When FlexCP is not running, doesn't answer, or refuses; also after some connections, when that is why no more come.
    pub fn connections<T: DeserializeOwned>(
        &mut self,
        wanted: &Wanted,
        each: impl FnMut(T) -> ControlFlow<()>,
    ) -> Result<(), ClientError> {
        let query = wanted.query();
        let mark = if query.is_empty() { "" } else { "?" };
        let body = self.request(&format!("{}{mark}{query}", target::CONNECTIONS))?;
        let status = body.head.status;
        let mut document = Document {
            each,
            envelope: Envelope::default(),
            has_enough: false,
            of: PhantomData,
        };
        let mut body = BufReader::new(body);
        let mut reader = serde_json::Deserializer::from_reader(&mut body);
        let read = (&mut document).deserialize(&mut reader).and_then(|()| {
            // The end of the line, and with it of the answer.
            reader.end()
        });
        let Document {
            envelope,
            has_enough,
            ..
        } = document;
        match read {
            Ok(()) => {
                self.keep(body.into_inner());
                envelope.judge(status).map_err(|wrong| self.said(wrong))
            }
            Err(_) if has_enough => Ok(()),
            Err(_) if envelope.says_no() => {
                envelope.judge(status).map_err(|wrong| self.said(wrong))
            }
            Err(error) => Err(self.broken(error.into())),
        }
    }

    /// Asks for what happens from now on, and gives each line to `each`, the first when the daemon listens, until that
    /// breaks.
    ///
    /// # Errors
    /// When FlexCP is not running or refuses, and when it ends.
    pub fn events(
        &mut self,
        mut each: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<(), ClientError> {
        let body = self.request(target::EVENTS)?;
        let status = body.head.status;
        let mut body = BufReader::new(body);
        let mut line = String::new();
        body.read_line(&mut line)
            .map_err(|error| self.broken(error))?;
        judge(status, &line).map_err(|wrong| self.said(wrong))?;
        // From here on nothing may happen for as long as it likes.
        body.get_ref().wait().map_err(|error| self.broken(error))?;
        while !line.is_empty() {
            if each(line.trim_end()).is_break() {
                return Ok(());
            }
            line.clear();
            // One that ends in the middle has ended all the same.
            if body.read_line(&mut line).is_err() {
                break;
            }
        }
        Err(self.ended())
    }
}

/// The answer with connections, of which each connection goes where it belongs as soon as it is read.
struct Document<T, F> {
    each: F,
    envelope: Envelope,
    /// Whoever takes the connections has enough.
    has_enough: bool,
    of: PhantomData<T>,
}

/// The connections in it.
struct Connections<'a, T, F>(&'a mut Document<T, F>);

impl<'de, T, F> DeserializeSeed<'de> for &mut Document<T, F>
where
    T: DeserializeOwned,
    F: FnMut(T) -> ControlFlow<()>,
{
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, T, F> Visitor<'de> for &mut Document<T, F>
where
    T: DeserializeOwned,
    F: FnMut(T) -> ControlFlow<()>,
{
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an answer with connections")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                // It comes first: nothing is read in another version than ours.
                "version" => {
                    self.envelope.version = map.next_value()?;
                    if self.envelope.version != VERSION {
                        return Err(A::Error::custom("another version"));
                    }
                }
                "error" => self.envelope.error = map.next_value()?,
                "connections" => map.next_value_seed(Connections(&mut *self))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

impl<'de, T, F> DeserializeSeed<'de> for Connections<'_, T, F>
where
    T: DeserializeOwned,
    F: FnMut(T) -> ControlFlow<()>,
{
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T, F> Visitor<'de> for Connections<'_, T, F>
where
    T: DeserializeOwned,
    F: FnMut(T) -> ControlFlow<()>,
{
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("connections")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut connections: A) -> Result<(), A::Error> {
        while let Some(connection) = connections.next_element()? {
            if (self.0.each)(connection).is_break() {
                self.0.has_enough = true;
                return Err(A::Error::custom("enough"));
            }
        }
        Ok(())
    }
}
