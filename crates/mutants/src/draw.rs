//! Bugs drawn from a seed: places that a look at the tokens finds, of the kinds that engineers put in by hand and no
//! test noticed. The same seed over the same sources draws the same bugs.

mod kinds;
mod syntax;

use std::path::{Path, PathBuf};

use crate::item::{Item, Source};
use crate::list::Bug;
use crate::place::Sources;
use kinds::{KINDS, Kind};

/// Where bugs are drawn from, by turns.
const AREAS: [&str; 4] = ["translator", "io", "flexcp", "bpf"];

/// A stream of numbers from a seed (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// One of 0 to below `limit`, which is not 0.
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let mixed = mixed ^ mixed >> 31;
        // The remainder's bias is one in 2^40 for what is drawn here.
        usize::try_from(mixed % limit as u64).unwrap_or(0)
    }
}

/// Candidates of one kind in one area.
struct Pool {
    kind: &'static Kind,
    bugs: Vec<Bug>,
}

/// Draws `count` bugs that `compiles` lets pass, none twice.
pub(crate) fn draw(
    sources: &mut Sources,
    seed: u64,
    count: usize,
    mut compiles: impl FnMut(&Bug) -> Result<bool, String>,
) -> Result<Vec<Bug>, String> {
    let mut random = Random::new(seed);
    let mut areas = Vec::new();
    for area in AREAS {
        areas.push(pools(sources, area)?);
    }
    let mut drawn = Vec::new();
    while drawn.len() < count {
        let area = drawn.len() % AREAS.len();
        let pools = &mut areas[area];
        if pools.is_empty() {
            return Err(format!("nothing more to draw from {}", AREAS[area]));
        }
        let index = random.below(pools.len());
        let pool = &mut pools[index];
        let mut bug = pool.bugs.swap_remove(random.below(pool.bugs.len()));
        let kind = pool.kind.name;
        if pool.bugs.is_empty() {
            pools.remove(index);
        }
        // One that does not stand alone in its function has no address.
        if sources.find(&bug).is_err() || !compiles(&bug)? {
            continue;
        }
        bug.name = format!(
            "seed {seed} #{}: {kind} in {}",
            drawn.len() + 1,
            bug.function
        );
        drawn.push(bug);
    }
    Ok(drawn)
}

/// What can be drawn from an area, by kind.
fn pools(sources: &mut Sources, area: &str) -> Result<Vec<Pool>, String> {
    let mut pools: Vec<Pool> = Vec::new();
    for kind in KINDS {
        let mut bugs = Vec::new();
        for (file, source) in sources.of(area)? {
            let place = place_of(file, area);
            for item in source.items.iter().filter(|item| is_product(file, item)) {
                let found = (kind.find)(source, item);
                bugs.extend(found.into_iter().map(|change| Bug {
                    name: String::new(),
                    place: place.clone(),
                    function: item.path.clone(),
                    old: change.old,
                    new: change.new,
                }));
            }
        }
        if !bugs.is_empty() {
            pools.push(Pool { kind, bugs });
        }
    }
    Ok(pools)
}

/// Whether an item is neither a test nor words about a value.
fn is_product(file: &Path, item: &Item) -> bool {
    let name = item.path.rsplit("::").next().unwrap_or_default();
    let in_tests = item.path.split("::").any(|part| part == "tests")
        || file.components().any(|part| {
            part.as_os_str()
                .to_str()
                .is_some_and(|part| matches!(part, "tests" | "tests.rs" | "bin"))
        });
    !in_tests && item.body.is_some() && !matches!(name, "fmt" | "drop" | "main" | "default")
}

/// A file as the lists name it.
fn place_of(file: &Path, area: &str) -> String {
    let below: PathBuf = match area {
        "bpf" => return file.display().to_string(),
        _ => file.components().skip(3).collect(),
    };
    format!("{area}/{}", below.display())
}

/// A place in a function, and what stands there instead.
struct Change {
    old: String,
    new: String,
}

impl Change {
    /// From one token of a source to before another.
    fn new(source: &Source, tokens: std::ops::Range<usize>, new: impl Into<String>) -> Self {
        Self {
            old: source.written(tokens).to_owned(),
            new: new.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_the_same_numbers_and_another_does_not() {
        let take = |seed| {
            let mut random = Random::new(seed);
            std::array::from_fn::<_, 8, _>(|_| random.below(1000))
        };
        assert_eq!(take(7), take(7));
        assert_ne!(take(7), take(8));
    }

    #[test]
    fn bugs_of_the_workspace_are_drawn_alike_and_find_their_place() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let draw = |seed| {
            let mut sources = Sources::new(&root);
            let bugs = draw(&mut sources, seed, 12, |_| Ok(true)).unwrap();
            assert!(
                bugs.iter()
                    .all(|bug| sources.find(bug).is_ok() && bug.old != bug.new)
            );
            bugs
        };
        let bugs = draw(1);
        assert_eq!(bugs, draw(1));
        assert_ne!(bugs, draw(2));
        for area in AREAS {
            assert_eq!(
                bugs.iter().filter(|bug| bug.area() == area).count(),
                3,
                "{area}"
            );
        }
    }
}
