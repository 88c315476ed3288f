//! Pages of known color, which outlive the process that measured them and give colors their numbers.
//!
//! The pages form an eviction set for each color. They lie in a file on a tmpfs, usually in the runtime folder. Its frames are the same for
//! every process that maps it, and stay the same as long as the file exists. A page that one of these sets evicts has the set's color, so
//! colors have the same numbers in every process, even where frame numbers are hidden. All other pages of the file are holes. Another file
//! lists these pages, and names the boot, in JSON.
//!
//! The first command that needs colors measures these pages. Later commands check them before use.

mod measuring;
mod numbering;

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use isochrome_model::geometry::Geometry;
use isochrome_model::palette::Palette;
use isochrome_model::palette::decode::Answer;
use isochrome_model::units::{Bytes, Color};
use rustix::fs::{FlockOperation, flock};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::measuring::remove_left;
use super::Target;
use super::eviction::{LevelSizes, Traversal};
use super::local::LocalEvictionTest;
use super::saved::Boot;
use super::tester::{Effort, Tester};
use crate::color::error::ColorError;
use crate::color::ledger::Ledger;
use crate::runtime;
use crate::sys::memory::{Arena, page_bytes};

pub use self::numbering::{Order, order_by_eviction};

/// Version of the file format.
const SCHEMA: &str = "isochrome-reference/3";

/// Number of failed checks after which pages left by an earlier command are measured again. It is also the number of attempts at matching
/// color numbers.
const CHECKS: u64 = 3;

/// Time for which undecided checks are repeated.
const CHECK_LIMIT: Duration = Duration::from_secs(5);

/// Pages of known color.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reference {
    saved: String,
    fingerprint: String,
    boot_id: String,
    /// Identifier of the numbering. Two references with the same identifier give each color the same number.
    #[serde(default)]
    pub numbering: String,
    /// Cache level of the colors.
    pub level: u8,
    /// Geometry of that level.
    pub geometry: Geometry,
    /// Size of the next data level inside that level.
    inner: Bytes,
    /// File that holds the pages, if there is one.
    pub path: Option<PathBuf>,
    /// Length of the file that holds the pages.
    pub bytes: Bytes,
    /// For each color, the pages of an eviction set, by their numbers in the file.
    pub sets: Vec<Vec<u32>>,
    /// Which lines of these pages a traversal has to touch.
    pub traversal: Traversal,
    /// The rule by which frame numbers determine colors, if there is one.
    #[serde(default)]
    pub rule: Option<Palette>,
}

/// Pages of known color that were checked, with a tester that uses them.
pub struct Ready {
    /// The pages of known color.
    pub reference: Reference,
    /// Tester that tests other pages by the pages of known color.
    pub tester: Tester<LocalEvictionTest>,
    /// Where the color numbers come from.
    pub numbers: Numbers,
}

/// Origin of the numbers of colors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Numbers {
    /// The numbers of earlier commands.
    Kept,
    /// New numbers, because nothing was measured before.
    New,
    /// The numbers of earlier commands, matched by eviction tests, although pages had lost their colors and were measured again.
    Matched,
    /// New numbers for some colors, because too few pages were left to match them. Matched colors keep their numbers.
    Replaced,
    /// The machine's numbers, matched by eviction tests; this user's own numbers were different.
    Machines,
}

/// Returns a random identifier for a new numbering.
fn new_numbering() -> String {
    format!("{:032x}", fastrand::u128(..))
}

fn path(folder: &Path, level: u8) -> PathBuf {
    folder.join(format!("reference-l{level}"))
}

impl Reference {
    /// Returns checked pages of known color of `target`: the pages saved in `folder` if they pass the eviction test, or else new pages. New
    /// pages get the numbers of the saved ones if these can still be matched.
    ///
    /// If root has numbered the colors of the machine, the pages and grants of an ordinary user get these numbers. The calling thread should
    /// stay on one CPU.
    ///
    /// Fails with [`ColorError::CacheUnsteady`], with [`ColorError::ReferenceInDoubt`], and with [`ColorError::TimingBlurred`] if walks that
    /// hit cannot be distinguished from walks that miss.
    pub fn obtain(folder: &Path, target: Target, seed: u64, boot: &Boot) -> Result<Ready, ColorError> {
        let machines = runtime::machines().ok().flatten().filter(|machines| machines != folder);
        let machines = machines.and_then(|machines| Self::load(&machines, target.level, boot).ok());
        Self::obtain_as(folder, target, seed, boot, machines.as_ref())
    }

    /// Does the same as [`obtain`](Self::obtain), but takes the numbers of the machine from `machines`.
    pub fn obtain_as(
        folder: &Path,
        target: Target,
        seed: u64,
        boot: &Boot,
        machines: Option<&Reference>,
    ) -> Result<Ready, ColorError> {
        let keeps = runtime::make(folder).is_ok();
        // One process measures. The others wait, and then find the measured pages. A process that may only read the folder does not wait.
        let lock = File::options().create(true).truncate(false).write(true).open(folder.join("reference.lock"));
        let _lock = lock.ok().filter(|lock| flock(lock, FlockOperation::LockExclusive).is_ok());
        let mut ready = Self::kept_or_made(folder, keeps, target, seed, boot)?;
        let differs = |machines: &&Reference| machines.numbering != ready.reference.numbering;
        let machines = machines.filter(differs).filter(|machines| machines.geometry == target.geometry);
        let mut order = None;
        if let Some(machines) = machines
            && let Some(number_of) = machines.matched(&mut ready.tester).complete(ready.tester.colors())
        {
            ready.reference.renumber(&number_of);
            ready.tester.renumber(&number_of);
            ready.reference.numbering = machines.numbering.clone();
            ready.numbers = Numbers::Machines;
            let mut new_of = vec![Color(0); number_of.len()];
            (0u16..).zip(&number_of).for_each(|(new, old)| new_of[usize::from(old.0)] = Color(new));
            order = Some(new_of);
            if keeps {
                ready.reference.save(folder, None)?;
            }
        }
        if keeps {
            Ledger::open(folder)?.renumber(target.level, &ready.reference.numbering, order.as_deref())?;
        }
        Ok(ready)
    }

    /// Returns the pages saved in `folder` if they pass the check, or else new pages. `keeps`: whether new pages are saved there.
    fn kept_or_made(folder: &Path, keeps: bool, target: Target, seed: u64, boot: &Boot) -> Result<Ready, ColorError> {
        let old = Self::load(folder, target.level, boot).ok().filter(|old| old.geometry == target.geometry);
        if let Some(old) = &old
            && let Some(ready) = old.checked_again(seed)?
        {
            return Ok(ready);
        }
        let (mut made, mut tester) = Self::make(folder, target, seed, boot)?;
        let mut numbers = Numbers::New;
        if let Some(old) = &old {
            // Other numbers are wrong for every program that is on its colors, so noise alone must not change the numbers.
            let order = old.matched(&mut tester);
            numbers = if order.is_complete() { Numbers::Matched } else { Numbers::Replaced };
            if numbers == Numbers::Matched {
                made.numbering = old.numbering.clone();
            }
            if let Some(order) = order.filled(tester.colors()) {
                made.renumber(&order);
                tester.renumber(&order);
            }
        }
        if keeps && made.path.is_some() {
            made.save(folder, old.as_ref())?;
        }
        Ok(Ready { reference: made, tester, numbers })
    }

    /// Does the same as [`order_by`](Self::order_by), and repeats it while colors are missing.
    fn matched(&self, tester: &mut Tester<LocalEvictionTest>) -> Order {
        let mut order = Order::default();
        for _ in 0..CHECKS {
            order = order.or(self.order_by(tester));
            if order.is_complete() {
                break;
            }
        }
        order
    }

    /// Does the same as [`checked`](Self::checked), and repeats it if pages fail or stay undecided: noise passes, but lost colors stay lost.
    fn checked_again(&self, seed: u64) -> Result<Option<Ready>, ColorError> {
        let begin = Instant::now();
        let (mut failed, mut attempts) = (0, 0);
        while failed < CHECKS {
            let checked = self.clone().checked(seed.wrapping_add(attempts));
            attempts += 1;
            match checked {
                Ok(None) => failed += 1,
                Err(error) if error.may_pass() && begin.elapsed() < CHECK_LIMIT => {}
                // If single sets stay in doubt for so long, other pages are measured instead.
                Err(ColorError::ReferenceInDoubt { .. }) => break,
                done => return done,
            }
        }
        Ok(None)
    }

    /// Returns the same pages if they still have their colors, or else the pages in `folder` that have replaced them, or else new pages.
    pub fn renewed(&self, folder: &Path, seed: u64) -> Result<Ready, ColorError> {
        let boot = Boot { fingerprint: self.fingerprint.clone(), boot_id: self.boot_id.clone() };
        Self::obtain(folder, self.target(), seed, &boot)
    }

    /// Checks these pages, and returns them with a tester if they still have their colors; `None` if they do not. A few pages that have lost
    /// their colors are left out.
    ///
    /// Fails with [`ColorError::ReferenceInDoubt`] if too many pages stay undecided.
    fn checked(mut self, seed: u64) -> Result<Option<Ready>, ColorError> {
        let mut tester = match self.tester(seed) {
            // This error also occurs if no set evicts its own pages.
            Err(ColorError::TimingBlurred { .. }) | Ok(None) => return Ok(None),
            Ok(Some(tester)) => tester,
            Err(error) => return Err(error),
        };
        let answers = match tester.classify_sets(Effort::STATEMENT) {
            Err(ColorError::ReferenceMixed { .. }) => return Ok(None),
            answers => answers?,
        };
        let enough = self.target().search().set_len_min();
        let sets = match confirmed_sets(&self.sets, &answers, enough, Undecided::Kept) {
            Err(undecided) if undecided > 0 => {
                let doubt = format!("{undecided} pages stayed undecided");
                return Err(ColorError::ReferenceInDoubt { doubt });
            }
            Err(_) => return Ok(None),
            Ok(sets) => sets,
        };
        self.sets = sets;
        tester.set_sets(self.sets.clone());
        Ok(Some(Ready { reference: self, tester, numbers: Numbers::Kept }))
    }

    /// Returns a tester that uses these pages in this process, without a check of their colors; `None` if the pages cannot be mapped. Tests carry
    /// controls, which show whether the pages have lost their colors.
    ///
    /// Fails with [`ColorError::TimingBlurred`].
    pub fn tester(&self, seed: u64) -> Result<Option<Tester<LocalEvictionTest>>, ColorError> {
        let Some(arena) = self.map() else { return Ok(None) };
        let line_bytes = self.geometry.line_bytes.0 as usize;
        let eviction_test = LocalEvictionTest::new(arena, line_bytes, &self.sets, true, self.traversal, seed)?;
        Ok(Some(Tester::new(eviction_test, self.sets.clone(), seed)))
    }

    /// Maps the pages privately, because other processes use them. Returns `None` if the file cannot be mapped.
    fn map(&self) -> Option<Arena> {
        let file = runtime::open(self.path.as_ref()?).ok()??;
        Arena::map_file_private(file.as_fd(), self.bytes.0 as usize / page_bytes()).ok()
    }

    /// Saves the list of these pages in `folder`, and removes the file that holds the pages of `old`.
    fn save(&self, folder: &Path, old: Option<&Reference>) -> Result<(), ColorError> {
        let text = serde_json::to_vec(self).expect("a reference is plain data");
        runtime::replace(&path(folder, self.level), &text)?;
        if let Some(before) = old.and_then(|old| old.path.as_ref()).filter(|before| Some(*before) != self.path.as_ref())
        {
            let _ = fs::remove_file(before);
        }
        remove_left(folder, self.level);
        Ok(())
    }

    /// Reads the file at `path`. Returns `None` if it is missing, damaged or of another version.
    fn read(path: &Path) -> Result<Option<Reference>, ColorError> {
        let text = runtime::read(path)?.unwrap_or_default();
        let reference = serde_json::from_slice(&text).ok();
        Ok(reference.filter(|reference: &Reference| reference.saved == SCHEMA))
    }

    /// Loads the pages saved in `folder` for `level` and `boot`. The caller has to check their colors by eviction tests.
    ///
    /// Fails with [`ColorError::NoReference`] if no pages are saved, and if the saved ones are damaged, of another machine, or of an earlier
    /// boot.
    pub fn load(folder: &Path, level: u8, boot: &Boot) -> Result<Reference, ColorError> {
        let path = path(folder, level);
        if !path.exists() {
            return Err(ColorError::NoReference { path, level });
        }
        let Some(reference) = Self::read(&path)? else { return Err(ColorError::SavedPaletteDamaged { path }) };
        if reference.fingerprint != boot.fingerprint || reference.level != level {
            return Err(ColorError::SavedPaletteForeign { path });
        }
        if reference.boot_id != boot.boot_id {
            return Err(ColorError::SavedPaletteStale { path });
        }
        let pages = reference.path.as_deref().map(runtime::open).transpose()?.flatten();
        let there = pages.is_some_and(|pages| pages.metadata().is_ok_and(|file| file.len() == reference.bytes.0));
        if there && reference.is_sound() { Ok(reference) } else { Err(ColorError::SavedPaletteDamaged { path }) }
    }

    /// Whether the sets are large enough and lie within the file. Touching memory behind the end of the file would end a program by SIGBUS.
    fn is_sound(&self) -> bool {
        let pages = self.bytes.0 / page_bytes() as u64;
        let sound = |set: &Vec<u32>| set.len() >= 2 && set.iter().all(|page| u64::from(*page) < pages);
        self.sets.len() >= 2 && self.sets.iter().all(sound) && self.geometry.line_bytes.0.is_power_of_two()
    }

    /// Returns this reference with other sets of its pages.
    pub fn with_sets(self, sets: Vec<Vec<u32>>) -> Reference {
        Reference { sets, ..self }
    }

    /// Returns the number of colors.
    pub fn colors(&self) -> u32 {
        self.sets.len() as u32
    }

    fn target(&self) -> Target {
        Target { level: self.level, geometry: self.geometry, inner: self.inner }
    }

    /// Returns the sizes of the level and of the one inside it.
    pub(crate) fn sizes(&self) -> LevelSizes {
        self.target().sizes()
    }
}

/// What to do with pages of eviction sets that stay undecided.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Undecided {
    /// Undecided pages keep the color that was known before.
    Kept,
    /// Undecided pages are dropped.
    Dropped,
}

/// Returns the pages of `sets` that have the color of their set by `answers`, and the undecided pages if these are [`Undecided::Kept`].
///
/// Fails if a set keeps fewer than `enough` pages, or if less than half of it is confirmed. A set with pages of two colors may evict pages of
/// both, and would give its color to both. The error is the number of undecided pages of the first set that fails. It is 0 if that set fails
/// whatever the decision about these pages.
fn confirmed_sets(
    sets: &[Vec<u32>],
    answers: &[Vec<Option<Answer>>],
    enough: usize,
    undecided: Undecided,
) -> Result<Vec<Vec<u32>>, usize> {
    let of_set = |(color, (set, answers)): (u16, (&Vec<u32>, &Vec<Option<Answer>>))| {
        let own = Some(Answer::Color(Color(color)));
        let is_open = |answer: &Option<Answer>| matches!(answer, Some(Answer::Unsteady) | None);
        let confirmed = answers.iter().filter(|answer| **answer == own).count();
        let open = answers.iter().filter(|answer| is_open(answer)).count();
        let is_kept = |answer: &Option<Answer>| *answer == own || undecided == Undecided::Kept && is_open(answer);
        let kept: Vec<u32> =
            set.iter().zip(answers).filter(|(_, answer)| is_kept(answer)).map(|(page, _)| *page).collect();
        let holds = |kept: usize, confirmed: usize| kept >= enough && 2 * confirmed >= set.len();
        if holds(kept.len(), confirmed) {
            return Ok(kept);
        }
        Err(if holds(confirmed + open, confirmed + open) { open } else { 0 })
    };
    (0..).zip(sets.iter().zip(answers)).map(of_set).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A set that holds pages of another color gives its own color to pages of both. In one such case, colors of others evicted 41 of 512
    /// pages of a program.
    #[test]
    fn sets_lose_pages_of_other_colors_and_those_that_hold_too_many_are_refused() {
        let (own, other) = (Some(Answer::Color(Color(0))), Some(Answer::Color(Color(1))));
        let sets = [(0..14).collect::<Vec<u32>>()];
        let answers = |wrong: usize, open: usize| {
            vec![[vec![other; wrong], vec![None; open], vec![own; 14 - wrong - open]].concat()]
        };
        let left =
            |answers: Vec<_>, undecided| confirmed_sets(&sets, &answers, 12, undecided).map(|sets| sets[0].clone());
        assert_eq!(left(answers(2, 0), Undecided::Dropped), Ok((2..14).collect()));
        assert_eq!(left(answers(6, 0), Undecided::Kept), Err(0));
        assert_eq!(left(answers(0, 2), Undecided::Dropped), Ok((2..14).collect()));
        assert_eq!(left(answers(0, 6), Undecided::Dropped), Err(6));
        assert_eq!(left(answers(0, 6), Undecided::Kept), Ok((0..14).collect()));
        // Undecided pages are a reason to check again, not to give colors other numbers.
        assert_eq!(left(answers(0, 8), Undecided::Kept), Err(8));
        assert_eq!(left(answers(3, 8), Undecided::Kept), Err(0));
    }
}
