//! Moving the programs of the experiment between the conditions, and verifying where their pages are.

use std::time::Instant;

use isochrome_host::coloring::Coloring;
use isochrome_host::error::without_hint;
use isochrome_host::interrupt;
use isochrome_host::process::Pid;
use isochrome_host::recolor::RecolorError;
use isochrome_host::recolor::census::Census;
use isochrome_host::recolor::claim::Claim;
use isochrome_host::recolor::watch::family;
use isochrome_model::units::{Color, format_list};

use super::{Condition, Placed};

/// Least share of the movable pages of each program that must have allowed colors in a window that counts.
pub const ON_COLOR: f64 = 0.95;
/// Most that a placement may be [uneven](Census::crowding) in a window that counts.
pub const CROWDING: f64 = 2.0;
/// Number of pages of a program, per color, below which shares are not judged, because one page more or less changes them much.
const FEW: f64 = 4.0;

/// Why a program was not placed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// This placement failed; the next one may succeed.
    #[error("{0}")]
    Failed(String),
    /// The program cannot be moved.
    #[error("{0}")]
    Refused(String),
}

/// Moves the programs between the conditions.
pub trait Place {
    /// Gives the first `own` colors to the victim in windows apart, and the rest to the neighbor.
    fn divide(&mut self, own: u32);

    /// Gives all movable pages of all programs fresh frames as `condition` demands. Returns where the pages of each program are.
    fn place(&mut self, condition: Condition) -> Result<Vec<Placed>, PlaceError>;

    /// Tests by eviction a sample of the pages of each program, and adds the result to `placed`.
    fn verify(&mut self, condition: Condition, placed: &mut [Placed]);

    /// Checks where the pages are after a window, and corrects `placed` if they are worse placed.
    fn look_again(&mut self, condition: Condition, placed: &mut [Placed]) -> Result<(), PlaceError>;

    /// Leaves the programs that go on as they were found, and describes how they were left, in sentences.
    fn restore(&mut self) -> Vec<String>;
}

/// A program that is moved.
pub struct Side {
    /// Name of the program.
    pub name: String,
    /// Process of the program.
    pub pid: Pid,
    /// Whether the program ends with the experiment.
    pub is_ours: bool,
    /// All colors, for both programs.
    pub spread: Coloring,
    /// The program's own colors.
    pub apart: Coloring,
    /// Colors that the program held before the experiment; `None` if it held none.
    pub held: Option<Vec<Color>>,
    /// The processes of the program that were moved last, with their start times.
    pub placed: Vec<(Pid, u64)>,
}

impl Side {
    fn coloring(&self, condition: Condition) -> &Coloring {
        if condition == Condition::Apart { &self.apart } else { &self.spread }
    }

    fn trouble(&self, error: &RecolorError) -> PlaceError {
        let text = format!("{}: {}", self.name, without_hint(error));
        match error {
            error if error.may_pass() || error.doubts_reference() || error.is_gone() => PlaceError::Failed(text),
            RecolorError::Interrupted { .. } => PlaceError::Failed(text),
            _ => PlaceError::Refused(text),
        }
    }

    fn census(&self, condition: Condition) -> Result<Census, PlaceError> {
        let alive = self.placed.iter().filter(|(pid, since)| pid.start_time() == Some(*since));
        let alive: Vec<Pid> = alive.map(|(pid, _)| *pid).collect();
        self.coloring(condition).census(&alive).map_err(|error| self.trouble(&error))
    }

    /// Moves the program and its descendants. Descendants that end or cannot be moved are left out: a shell starts many that live for an
    /// instant.
    fn place(&mut self, condition: Condition) -> Result<Placed, PlaceError> {
        self.placed.clear();
        let mut moved = 0;
        for pid in family(self.pid) {
            let since = pid.start_time();
            match self.coloring(condition).move_anew(pid) {
                Ok(pages) => {
                    moved += pages as u64;
                    self.placed.extend(since.map(|since| (pid, since)));
                }
                Err(error) if pid == self.pid => return Err(self.trouble(&error)),
                Err(_) => {}
            }
        }
        let colors = self.coloring(condition).colors();
        let mut placed = placed_of(&self.census(condition)?, colors);
        if placed.on_color < 1.0 {
            // Pages that came during this round, and pages for which no frame was found, get another chance.
            for (pid, _) in &self.placed {
                match self.coloring(condition).move_to_colors(&[*pid]) {
                    Err(error) if *pid == self.pid => return Err(self.trouble(&error)),
                    _ => {}
                }
            }
            placed = placed_of(&self.census(condition)?, colors);
        }
        Ok(Placed { moved, ..placed })
    }

    /// Puts the program back on the colors that it held, or spreads it evenly over all.
    fn restore(&self) -> String {
        let (what, coloring) = match &self.held {
            Some(held) => {
                let list: Vec<u32> = held.iter().map(|color| u32::from(color.0)).collect();
                let coloring = self.spread.of_another(held.clone(), self.spread.cpus().to_vec());
                (format!("on colors {} as before", format_list(&list)), coloring)
            }
            None => ("spread evenly over all colors".to_owned(), self.spread.clone()),
        };
        let name = &self.name;
        let descendants = family(self.pid).into_iter().filter(|pid| *pid != self.pid);
        let left = coloring.move_anew(self.pid);
        // A descendant that cannot be moved now could not be moved before.
        descendants.for_each(|pid| drop(coloring.move_anew(pid)));
        let is_uneven =
            || coloring.census(&[self.pid]).is_ok_and(|census| census.crowding(coloring.colors(), FEW) > CROWDING);
        match left {
            Ok(_) if is_uneven() => format!("{name} was left {what}, but too few frames of some colors were found."),
            Ok(_) => format!("{name} was left {what}."),
            Err(error) if error.is_gone() => format!("{name} has ended."),
            Err(error) => format!("{name} could not be left {what}: {}.", without_hint(&error)),
        }
    }
}

/// Returns where the pages of a program with `colors` are, by a census of its pages.
fn placed_of(census: &Census, colors: &[Color]) -> Placed {
    Placed {
        pages: census.movable(),
        immovable: census.immovable,
        moved: 0,
        on_color: census.share_on(colors),
        crowding: census.crowding(colors, FEW),
        verified: None,
    }
}

/// Returns why a window with this placement does not count; `None` if it does.
pub fn is_wrong(placed: &[Placed]) -> Option<String> {
    placed.iter().find_map(|placed| {
        let Placed { on_color, crowding, verified, .. } = *placed;
        match verified {
            _ if on_color < ON_COLOR => Some(format!("{:.0} % of the pages were on color", 100.0 * on_color)),
            _ if crowding > CROWDING => {
                Some(format!("a color had {crowding:.1} times more or fewer pages than an even share"))
            }
            Some(share) if share < ON_COLOR => {
                Some(format!("{:.0} % of a sample were on color by eviction tests", 100.0 * share))
            }
            _ => None,
        }
    })
}

/// Moves running programs.
pub struct Sides {
    /// The victim, and the neighbor if there is one.
    pub sides: Vec<Side>,
    /// Whether anything was moved yet.
    moved: bool,
    /// The claimed processes, and the claims that make an `exec` that watches over one of them stand aside.
    claimed: (Vec<Pid>, Vec<Claim>),
    /// Number of placements so far, and the time that they took, in s.
    pub placements: (u64, f64),
}

impl Sides {
    /// Returns the mover of `sides`.
    pub fn new(sides: Vec<Side>) -> Sides {
        Sides { sides, moved: false, claimed: (Vec::new(), Vec::new()), placements: (0, 0.0) }
    }
}

impl Sides {
    /// Claims the processes of all programs until they are put back.
    fn claim(&mut self) -> Result<(), PlaceError> {
        for side in &self.sides {
            let (pids, claims) = &mut self.claimed;
            let new: Vec<Pid> = family(side.pid).into_iter().filter(|pid| !pids.contains(pid)).collect();
            if !new.is_empty() {
                claims.push(Claim::of(&new).map_err(|error| side.trouble(&error))?);
                pids.extend(new);
            }
        }
        Ok(())
    }
}

impl Place for Sides {
    fn divide(&mut self, own: u32) {
        for (number, side) in self.sides.iter_mut().enumerate() {
            let (own, all) = (own as usize, side.spread.colors().to_vec());
            let colors = if number == 0 { &all[..own.min(all.len())] } else { &all[own.min(all.len())..] };
            side.apart = side.spread.of_another(colors.to_vec(), side.spread.cpus().to_vec());
        }
    }

    fn place(&mut self, condition: Condition) -> Result<Vec<Placed>, PlaceError> {
        self.moved = true;
        self.claim()?;
        let begin = Instant::now();
        let placed = self.sides.iter_mut().map(|side| side.place(condition)).collect::<Result<Vec<_>, _>>()?;
        let (count, seconds) = self.placements;
        self.placements = (count + 1, seconds + begin.elapsed().as_secs_f64());
        Ok(placed)
    }

    fn verify(&mut self, condition: Condition, placed: &mut [Placed]) {
        for (side, placed) in self.sides.iter().zip(placed) {
            // What cannot be tested now is tested in another block.
            let pids: Vec<Pid> = side.placed.iter().map(|(pid, _)| *pid).collect();
            let verified = side.coloring(condition).verify_sample(&pids).ok().flatten();
            placed.verified = verified.filter(|it| it.pages > 0).map(|it| it.on_color as f64 / it.pages as f64);
        }
    }

    fn look_again(&mut self, condition: Condition, placed: &mut [Placed]) -> Result<(), PlaceError> {
        for (side, placed) in self.sides.iter().zip(placed) {
            let now = placed_of(&side.census(condition)?, side.coloring(condition).colors());
            placed.on_color = placed.on_color.min(now.on_color);
            placed.crowding = placed.crowding.max(now.crowding);
        }
        Ok(())
    }

    fn restore(&mut self) -> Vec<String> {
        if !std::mem::take(&mut self.moved) {
            return vec!["No page was moved.".to_owned()];
        }
        // A signal that ended the experiment must not keep programs from being put back.
        let _finishing = interrupt::finish();
        let going_on = self.sides.iter().filter(|side| !side.is_ours && side.pid.start_time().is_some());
        let left = going_on.map(Side::restore).collect();
        self.claimed = (Vec::new(), Vec::new());
        left
    }
}

impl Drop for Sides {
    fn drop(&mut self) {
        self.restore();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn census(by_color: &[u64], unknown: u64) -> Census {
        Census { by_color: by_color.to_vec(), anonymous: vec![0; 8], unknown, immovable: 7 }
    }

    #[test]
    fn a_window_counts_if_the_pages_are_where_they_should_be() {
        let colors: Vec<Color> = (0..4).map(Color).collect();
        let of = |by_color: &[u64], unknown| placed_of(&census(by_color, unknown), &colors);
        let even = of(&[25, 25, 24, 24, 0, 0, 0, 2], 0);
        assert_eq!((even.pages, even.immovable, even.on_color), (100, 7, 0.98));
        assert_eq!(is_wrong(&[even]), None);
        // Pages of unknown color count as off color.
        assert!(is_wrong(&[even, of(&[25, 25, 24, 20, 0, 0, 0, 0], 6)]).unwrap().contains("94 %"));
        assert!(is_wrong(&[of(&[80, 7, 7, 6, 0, 0, 0, 0], 0)]).unwrap().contains("4.2 times"));
        // A color without pages would leave less of the cache.
        assert!(is_wrong(&[of(&[33, 33, 34, 0, 0, 0, 0, 0], 0)]).unwrap().contains("25.0 times"));
        // What a program works on must be even by itself.
        let of_anonymous =
            placed_of(&Census { anonymous: vec![60, 10, 10, 10, 0, 0, 0, 0], ..census(&[25; 4], 0) }, &colors);
        assert!(is_wrong(&[of_anonymous]).unwrap().contains("2.7 times"));
        // Of eight pages one color may have seven by chance.
        assert_eq!(is_wrong(&[of(&[7, 1, 0, 0, 0, 0, 0, 0], 0)]), None);
        assert!(is_wrong(&[Placed { verified: Some(0.9), ..even }]).unwrap().contains("eviction tests"));
        assert_eq!(is_wrong(&[]), None);
    }
}
