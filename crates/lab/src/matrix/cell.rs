//! A cell: one combination.

use std::fmt;

use super::rows::{Mirror, Reach, Row, rows};
use crate::fault::Direction;
use crate::topology::{Families, Family, Lab, LabBuilder};

/// What FlexCP is between the two ends of a cell. The links with the fault have an end that speaks MPTCP in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Side {
    /// The proxy before a server: the kernel's MPTCP opens the connection.
    Proxy,
    /// The mirror, an aggregation box: FlexCP opens the connection of a TCP client over its uplinks, the kernel's MPTCP answers.
    Box,
    /// A box that goes by an aggregation server: a second FlexCP answers, with `mode = "convert"`, before a server with TCP.
    Converter,
    /// Nothing at all: the kernel's MPTCP opens and answers. What fails there is the kernels' own.
    Kernel,
}

/// One combination of the matrix.
#[derive(Clone, Debug)]
pub struct Cell {
    /// What FlexCP is in it.
    pub side: Side,
    /// The fault.
    pub row: Row,
    /// IP version of everything.
    pub family: Family,
    /// The direction that has the fault.
    pub way: Way,
    /// Access links, and as many subflows.
    pub subflows: u8,
    /// TSO, GSO, GRO and checksum offload of client, proxy and server.
    pub offloads: bool,
}

/// A direction, as it stands in the name of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the end that opens the connection with MPTCP: a proxy's client, or a box.
    Up,
    /// To it.
    Down,
}

impl Cell {
    /// All there are of a side.
    pub fn all(side: Side) -> Vec<Self> {
        let mut cells = vec![];
        for row in rows().into_iter().map(|row| side.row(row)) {
            for family in [Family::V4, Family::V6] {
                for way in row.ways {
                    for subflows in row.subflows {
                        for offloads in [true, false] {
                            cells.push(Self {
                                side,
                                row: row.clone(),
                                family,
                                way: *way,
                                subflows: *subflows,
                                offloads,
                            });
                        }
                    }
                }
            }
        }
        cells.retain(|cell| side.has(cell));
        cells
    }

    /// E.g. `loss-1/v4/down/2/offloads`; with its side behind that, but for the proxy's.
    pub fn name(&self) -> String {
        let Self {
            row, way, subflows, ..
        } = self;
        let family = match self.family {
            Family::V4 => "v4",
            Family::V6 => "v6",
        };
        let offloads = if self.offloads { "offloads" } else { "plain" };
        let side = match self.side {
            Side::Proxy => "",
            Side::Box => "/box",
            Side::Converter => "/converter",
            Side::Kernel => "/kernel",
        };
        format!("{}/{family}/{way}/{subflows}/{offloads}{side}", row.name)
    }

    /// The direction of the links that has the fault. In mirror the lab's client is the end that answers.
    pub(super) const fn direction(&self) -> Direction {
        match (self.way, self.side.is_mirrored()) {
            (Way::Up, false) | (Way::Down, true) => Direction::Up,
            (Way::Down, false) | (Way::Up, true) => Direction::Down,
        }
    }

    /// Whether a link has the fault.
    pub(super) fn reaches(&self, link: u8) -> bool {
        match self.row.reach {
            Reach::All => true,
            Reach::First => link == 1,
            Reach::Others => link > 1,
        }
    }

    /// The faults of one link, one way.
    pub fn faults(&self, link: u8, direction: Direction) -> String {
        let faults = match (self.reaches(link), direction == self.direction()) {
            (true, true) => self.row.faults,
            (true, false) => self.row.back,
            (false, _) => "",
        };
        match faults {
            "" => BASE.to_owned(),
            // A rate of its own takes the place of ours.
            faults if faults.contains("rate=") => faults.to_owned(),
            faults => format!("{faults},{BASE}"),
        }
    }

    /// The lab of this cell.
    pub fn lab(&self, seed: u64) -> LabBuilder {
        let families = match self.family {
            Family::V4 => Families::V4,
            Family::V6 => Families::V6,
        };
        let mut builder = Lab::builder()
            .access_links(self.subflows)
            .families(families)
            .offloads(self.offloads)
            .fault_seed(seed);
        if self.side.is_mirrored() {
            // A server that asks for no joins of its own.
            builder = builder.endpoints(Families::Neither);
        }
        for link in 1..=self.subflows {
            for direction in [Direction::Up, Direction::Down] {
                builder = builder.faults(link, direction, &self.faults(link, direction));
            }
        }
        for (name, value) in self.row.sysctls {
            builder = builder.client_sysctl(name, value);
            if name.starts_with("net.ipv4.") {
                builder = builder.server_sysctl(name, value);
            }
        }
        builder
    }
}

impl Side {
    /// Whether FlexCP is a box, so that the lab's ends have changed places.
    pub(super) const fn is_mirrored(self) -> bool {
        matches!(self, Self::Box | Self::Converter)
    }

    /// What becomes of a row.
    fn row(self, row: Row) -> Row {
        match row.mirror {
            Mirror::Changed(change) if self.is_mirrored() => change(row),
            Mirror::Changed(_) | Mirror::Same => row,
        }
    }

    /// Whether a cell is among this side's: by a converter a part of them will do, where both ends of the links are FlexCP's. Those send no
    /// FIN to each other that could be lost: each of them closes subflows when its peer does, and forgets them otherwise.
    fn has(self, cell: &Cell) -> bool {
        let is_v4 = cell.family == Family::V4;
        let in_part = cell.subflows == 2 && cell.offloads == is_v4;
        self != Self::Converter || (in_part && cell.row.name != "drop-fin")
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Up => "up",
            Self::Down => "down",
        })
    }
}

/// Every link has it: slow enough that a transfer does not end before its joins.
const BASE: &str = "rate=80mbit:200kb,delay=2ms";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn matrix_has_many_cells_with_names_of_their_own() {
        let mut names = BTreeSet::new();
        let mut all = 0;
        for (side, least) in [
            (Side::Proxy, 900),
            (Side::Box, 900),
            (Side::Converter, 100),
            (Side::Kernel, 900),
        ] {
            let cells = Cell::all(side);
            assert!(cells.len() >= least, "{side:?}: {}", cells.len());
            all += cells.len();
            names.extend(cells.iter().map(Cell::name));
        }
        assert_eq!(names.len(), all);
    }

    #[test]
    fn faults_of_every_cell_can_be_read() {
        for cell in [Side::Proxy, Side::Box, Side::Converter]
            .map(Cell::all)
            .concat()
        {
            for link in 1..=cell.subflows {
                for direction in [Direction::Up, Direction::Down] {
                    let faults = cell.faults(link, direction);
                    let read = faults.parse::<flexcp_faults::Faults>();
                    assert!(read.is_ok(), "{}: {read:?}", cell.name());
                }
            }
        }
    }

    fn hits(name: &str, side: Side) -> impl Fn(u8, Direction) -> bool {
        let mut cells = Cell::all(side).into_iter();
        let cell = cells.find(|cell| cell.name() == name);
        let cell = cell.expect("such a cell");
        let fault = cell.row.faults;
        move |link, direction| cell.faults(link, direction).contains(fault)
    }

    #[test]
    fn fault_is_on_its_links_and_its_way_alone() {
        let hit = hits("flap/v4/down/2/plain", Side::Proxy);
        assert!(hit(1, Direction::Down));
        assert!(!hit(1, Direction::Up) && !hit(2, Direction::Down) && !hit(2, Direction::Up));
    }

    #[test]
    fn way_of_a_box_is_that_of_who_opens_the_connection() {
        let hit = hits("strip-join-syn/v4/up/2/plain/box", Side::Box);
        assert!(hit(1, Direction::Down) && hit(2, Direction::Down));
        assert!(!hit(1, Direction::Up) && !hit(2, Direction::Up));
    }

    #[test]
    fn what_a_box_sends_is_not_joined() {
        let ways = |side| {
            let cells = Cell::all(side).into_iter();
            let cells = cells.filter(|cell| cell.row.name == "coalesce");
            cells
                .map(|cell| cell.way.to_string())
                .collect::<BTreeSet<_>>()
        };
        assert_eq!(ways(Side::Proxy), BTreeSet::from(["up".to_owned()]));
        assert_eq!(ways(Side::Box), BTreeSet::from(["down".to_owned()]));
    }
}
