//! From `--colors` and `--palette` to frames: the one place that knows where the color of a frame comes from.

use std::path::Path;

use anyhow::{Context, Result};
use isochrome_host::recolor::{Limits, Wanted};
use isochrome_host::sysfs::Sysfs;
use isochrome_model::palette::{Palette, Rule, SCHEMA};
use isochrome_model::units::{Bytes, Color, FrameNumber, parse_list};

use crate::args::ChosenColors;
use crate::files;

/// Where the palette is kept for later commands.
const SAVED: &str = "/run/isochrome/palette.json";

/// Colors asked for, by a palette that holds here and now.
pub struct Coloring {
    palette: Palette,
    colors: Vec<Color>,
    /// How far to go.
    pub limits: Limits,
}

impl Coloring {
    /// What `chosen` asks for; nothing is touched.
    pub fn of(chosen: &ChosenColors) -> Result<Coloring> {
        let sysfs = Sysfs::system();
        let palette = palette(&sysfs, chosen.palette.as_deref())?;
        if let Some(level) = chosen.level {
            anyhow::ensure!(
                palette.level == level,
                "the palette is of level {}, not {level}\n  hint: isochrome palette --level {level} -o FILE, then --palette FILE",
                palette.level
            );
        }
        let colors: Vec<Color> = parse_list(chosen.colors.as_deref().unwrap_or_default(), palette.colors)?
            .into_iter()
            .map(|color| Color(color as u16))
            .collect();
        anyhow::ensure!(!colors.is_empty(), "no colors were given\n  hint: --colors 0-3");
        let available = available(&sysfs)?;
        let memory = chosen.memory.unwrap_or(Bytes(available.0 / 2));
        anyhow::ensure!(
            memory <= available,
            "a limit of {memory} is more than the {available} of memory that are available\n  hint: lower --memory"
        );
        Ok(Coloring { palette, colors, limits: Limits { memory, force: chosen.force } })
    }

    /// Does `work` with the frames wanted.
    pub fn with<T>(&self, work: impl FnOnce(&Wanted) -> T) -> T {
        let color_of = |frame: FrameNumber| self.palette.color_of(frame);
        work(&Wanted { color_of: &color_of, colors: &self.colors, color_count: self.palette.colors })
    }
}

fn palette(sysfs: &Sysfs, path: Option<&Path>) -> Result<Palette> {
    let path = path.unwrap_or(Path::new(SAVED));
    let shown = path.display();
    let palette: Palette = files::read_json(path, SCHEMA).with_context(|| {
        format!(
            "no palette says which frame has which color\n  hint: isochrome palette -o {shown}, then --palette {shown}"
        )
    })?;
    anyhow::ensure!(
        palette.rule != Rule::Hidden,
        "{shown}: holds no colors of frames, as the kernel hid their numbers\n  hint: as root: isochrome palette -o {shown}"
    );
    if let Some(fingerprint) = &palette.fingerprint {
        anyhow::ensure!(
            *fingerprint == sysfs.machine()?.0.fingerprint(),
            "{shown}: was measured on another machine\n  hint: isochrome palette -o {shown}"
        );
    }
    let boot = sysfs.text("proc/sys/kernel/random/boot_id").unwrap_or_default();
    let of_this_boot = palette.boot_id.as_deref() == Some(boot.trim());
    anyhow::ensure!(
        of_this_boot || !matches!(palette.rule, Rule::Table { .. }),
        "{shown}: a table of frames holds for one boot, and this is another\n  hint: isochrome palette -o {shown}"
    );
    Ok(palette)
}

/// Memory that programs can have without swapping.
fn available(sysfs: &Sysfs) -> Result<Bytes> {
    let text = sysfs.text("proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(Bytes(kib.context("/proc/meminfo does not say how much memory is available\n  hint: --memory 1G")? * 1024))
}
