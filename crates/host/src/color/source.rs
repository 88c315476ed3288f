//! Sources of the colors of a program's frames: a palette that the user named, the reference, and the saved palette.

use std::fmt;

use isochrome_model::machine::Machine;
use isochrome_model::palette::{Palette, Rule};
use isochrome_model::units::CpuId;

use super::Target;
use super::known::{KnownColors, on_a_cpu};
use super::pagemap;
use super::reference::{Numbers, Ready, Reference};
use super::saved::{self, Boot};
use crate::color::error::ColorError;
use crate::runtime;

/// The requested source of knowledge about colors.
#[derive(Clone, Debug)]
pub struct Source {
    /// A palette that the user named, and that [`fits`] this boot.
    pub palette: Option<Palette>,
    /// Whether that palette, or the saved one, is trusted without eviction tests.
    pub trusted: bool,
    /// The cache level, unless a palette is named, which has a level of its own. If it is `None`, [`Target::of`] chooses the level.
    pub level: Option<u8>,
    /// Random seed of the measurements.
    pub seed: u64,
}

impl Source {
    /// Returns the known colors for a program that runs on `cpus`, and where the numbers of colors come from. The latter is `None` if the
    /// palette is trusted.
    ///
    /// The reference is measured if it does not exist yet.
    ///
    /// Fails as [`Reference::obtain`], [`Reference::order_by_frames`] and [`Target::of`] do. If the palette is trusted, fails with
    /// [`ColorError::FramesHidden`] and as [`saved::load`] does.
    ///
    /// # Panics
    ///
    /// If `cpus` is empty.
    pub fn known(
        self,
        machine: &Machine,
        boot: &Boot,
        cpus: &[CpuId],
    ) -> Result<(KnownColors, Option<Numbers>), ColorError> {
        let folder = runtime::folder();
        let cpu = *cpus.first().expect("a program runs somewhere");
        if self.trusted {
            if pagemap::hidden() {
                return Err(ColorError::FramesHidden);
            }
            let trusted = match self.palette {
                Some(palette) => palette,
                None => saved::load(&folder, Target::of(machine, self.level, cpu)?.level, boot)?,
            };
            return Ok((KnownColors::trusted(trusted), None));
        }
        let level = self.palette.as_ref().map(|palette| palette.level).or(self.level);
        let target = Target::of(machine, level, cpu)?;
        let ready = on_a_cpu(cpus, || Reference::obtain(&folder, target, self.seed, boot))?;
        let Ready { reference, mut tester, numbers } = ready;
        let is_named = self.palette.is_some();
        let palette = match self.palette {
            Some(palette) => {
                if let Some(order) = reference.order_by_frames(&tester, &palette)? {
                    tester.renumber(&order);
                }
                Some(palette)
            }
            // The saved palette only saves time, so no defect of it is a reason to stop.
            None => {
                let saved = saved::load_numbered(&folder, target.level, boot, Some(&reference.numbering));
                saved.ok().or(reference.rule.clone())
            }
        };
        let reference = reference.with_sets(tester.sets().to_vec());
        Ok((KnownColors::measured(reference, palette, is_named, cpus.to_vec()), Some(numbers)))
    }
}

/// Why a palette does not apply to the frames of this machine and boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// The palette was made where the kernel hid frame numbers.
    Hidden,
    /// The palette is of another machine.
    Foreign,
    /// The palette lists frames, and was made before this boot.
    Stale,
}

impl fmt::Display for Misfit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Misfit::Hidden => "holds no colors of frames, because the kernel hid frame numbers",
            Misfit::Foreign => "was measured on another machine",
            Misfit::Stale => "a table of frames holds for one boot, and this is another",
        })
    }
}

/// Checks whether `palette` applies to the frames of this boot, as far as that can be decided without eviction tests.
pub fn fits(palette: &Palette, now: &Boot) -> Result<(), Misfit> {
    match (&palette.fingerprint, &palette.boot_id, &palette.rule) {
        (_, _, Rule::Hidden) => Err(Misfit::Hidden),
        (Some(of), ..) if *of != now.fingerprint => Err(Misfit::Foreign),
        (_, of, Rule::Table { .. }) if of.as_ref() != Some(&now.boot_id) => Err(Misfit::Stale),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use isochrome_model::palette::SCHEMA;

    use super::*;

    #[test]
    fn a_table_of_frames_fits_its_own_boot_only_and_a_formula_every_boot_of_its_machine() {
        let now = Boot { fingerprint: "this".to_owned(), boot_id: "today".to_owned() };
        let palette = |machine: &str, boot: &str, rule: Rule| Palette {
            schema: SCHEMA.to_owned(),
            level: 2,
            colors: 16,
            rule,
            fingerprint: Some(machine.to_owned()),
            boot_id: Some(boot.to_owned()),
        };
        let table = || Rule::Table { frames: Vec::new(), colors: Vec::new() };
        assert_eq!(fits(&palette("this", "today", table()), &now), Ok(()));
        assert_eq!(fits(&palette("this", "yesterday", table()), &now), Err(Misfit::Stale));
        assert_eq!(fits(&palette("this", "yesterday", Rule::Bits), &now), Ok(()));
        assert_eq!(fits(&palette("other", "today", Rule::Bits), &now), Err(Misfit::Foreign));
        assert_eq!(fits(&palette("this", "today", Rule::Hidden), &now), Err(Misfit::Hidden));
    }
}
