//! Names that clients ask for, which somebody else resolves.

use alloc::boxed::Box;

use crate::handle::StableId;

/// A name to be resolved for a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lookup {
    /// Whose it is.
    pub id: StableId,
    /// As the client has written it: 1 to 255 bytes of letters, digits, dots, hyphens, underscores and colons.
    pub name: Box<str>,
}
