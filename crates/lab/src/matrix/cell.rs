//! A cell: one combination.

use std::fmt;

use super::rows::{Reach, Row, rows};
use crate::fault::Direction;
use crate::topology::{Families, Family, Lab, LabBuilder};

/// One combination of the matrix.
#[derive(Clone, Debug)]
pub struct Cell {
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
    /// From the client to the proxy.
    Up,
    /// From the proxy to the client.
    Down,
}

impl Cell {
    /// All there are.
    pub fn all() -> Vec<Self> {
        let mut cells = vec![];
        for row in rows() {
            for family in [Family::V4, Family::V6] {
                for way in row.ways {
                    for subflows in row.subflows {
                        for offloads in [true, false] {
                            cells.push(Self {
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
        cells
    }

    /// E.g. `loss-1/v4/down/2/offloads`.
    pub fn name(&self) -> String {
        let Self {
            row, way, subflows, ..
        } = self;
        let family = match self.family {
            Family::V4 => "v4",
            Family::V6 => "v6",
        };
        let offloads = if self.offloads { "offloads" } else { "plain" };
        format!("{}/{family}/{way}/{subflows}/{offloads}", row.name)
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
        let faults = match (self.reaches(link), direction == self.way.direction()) {
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

impl Way {
    pub(super) const fn direction(self) -> Direction {
        match self {
            Self::Up => Direction::Up,
            Self::Down => Direction::Down,
        }
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
        let cells = Cell::all();
        assert!(cells.len() >= 500, "{}", cells.len());
        let names: BTreeSet<_> = cells.iter().map(Cell::name).collect();
        assert_eq!(names.len(), cells.len());
    }

    #[test]
    fn faults_of_every_cell_can_be_read() {
        for cell in Cell::all() {
            for link in 1..=cell.subflows {
                for direction in [Direction::Up, Direction::Down] {
                    let faults = cell.faults(link, direction);
                    let read = faults.parse::<flexcp_faults::Faults>();
                    assert!(read.is_ok(), "{}: {read:?}", cell.name());
                }
            }
        }
    }

    #[test]
    fn fault_is_on_its_links_and_its_way_alone() {
        let cells = Cell::all();
        let cell = cells
            .iter()
            .find(|cell| cell.name() == "flap/v4/down/2/plain");
        let cell = cell.expect("such a cell");
        let hit = |link, direction| cell.faults(link, direction).contains("flap");
        assert!(hit(1, Direction::Down));
        assert!(!hit(1, Direction::Up) && !hit(2, Direction::Down) && !hit(2, Direction::Up));
    }
}
