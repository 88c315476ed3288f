//! The palette of this boot: saved once, found again by every later invocation.
//!
//! The file begins with a line of JSON that names the boot, machine and cache level. The color of each frame follows, from the first measured
//! frame to the last. A color takes one byte (two if the level has more than 255 colors). All its bits are set if the color is not known.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use isochrome_model::machine::Machine;
use isochrome_model::palette::{Palette, Rule};
use isochrome_model::units::{Color, FrameNumber};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::color::error::ColorError;
use crate::machine::sysfs::Sysfs;
use crate::runtime;

/// Version of the file format.
const SCHEMA: &str = "isochrome-saved-palette/1";

/// Number of frames in a block that a host moves as a whole: 2 MiB in pages of 4 KiB. If a host moves other blocks, further samples find the
/// moved frames.
pub const BLOCK_FRAMES: u64 = 512;

/// Corrections of a saved table that follow from the measurements of a command.
#[derive(Clone, Debug)]
pub struct Corrections {
    /// [Numbering](crate::color::reference::Reference::numbering) of the colors.
    pub numbering: Option<String>,
    /// By frame number, the color that was measured, and the color that the table gave the frame before.
    pub measured: HashMap<FrameNumber, (Color, Option<Color>)>,
    /// Blocks of [`BLOCK_FRAMES`] frames for which the table is wrong, by number.
    pub contradicted: HashSet<u64>,
    /// Whether the table is kept for all other frames.
    pub keeps_rest: bool,
}

#[derive(Serialize, Deserialize)]
struct Header {
    saved: String,
    /// [Numbering](crate::color::reference::Reference::numbering) of the colors; absent if it is not known.
    #[serde(default)]
    numbering: Option<String>,
    /// The palette with an empty table.
    palette: Palette,
    /// First frame whose color is stored behind the header line.
    first: FrameNumber,
    /// Number of frames whose color is known.
    known: usize,
}

/// Returns the path where the palette of `level` is saved in `folder`.
pub fn path(folder: &Path, level: u8) -> PathBuf {
    folder.join(format!("palette-l{level}"))
}

/// The machine and boot that a palette holds for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    /// Identifier of the machine: [`Machine::fingerprint`].
    pub fingerprint: String,
    /// The kernel's random identifier of the boot.
    pub boot_id: String,
}

impl Boot {
    /// Returns the present boot of `machine`.
    pub fn of(machine: &Machine, sysfs: &Sysfs) -> Boot {
        let boot_id = sysfs.text("proc/sys/kernel/random/boot_id").unwrap_or_default();
        Boot { fingerprint: machine.fingerprint(), boot_id }
    }
}

/// Saves `palette` in `folder` for `boot`, and replaces what was saved before. `numbering`: the
/// [numbering](crate::color::reference::Reference::numbering) of its colors, if it is known.
///
/// Fails with [`ColorError::FramesHidden`] if the palette knows no frames.
pub fn save(folder: &Path, palette: Palette, boot: &Boot, numbering: Option<&str>) -> Result<PathBuf, ColorError> {
    runtime::make(folder)?;
    let _lock = locked(folder, palette.level);
    write(folder, palette, boot, numbering)
}

/// Waits until no other command writes the palette of `level`. `None` if this user may not write it.
fn locked(folder: &Path, level: u8) -> Option<File> {
    let path = path(folder, level).with_extension("lock");
    let file = File::options().create(true).truncate(false).write(true).open(path).ok()?;
    flock(&file, FlockOperation::LockExclusive).is_ok().then_some(file)
}

/// Does what [`save`] does, while the palette is [locked](locked).
fn write(folder: &Path, mut palette: Palette, boot: &Boot, numbering: Option<&str>) -> Result<PathBuf, ColorError> {
    let path = path(folder, palette.level);
    let known = palette.frames().map_or(0, <[FrameNumber]>::len);
    let (mut first, mut bytes) = (FrameNumber(0), Vec::new());
    match &mut palette.rule {
        Rule::Table { frames, colors } => {
            let width = color_bytes(palette.colors);
            if let (Some(lowest), Some(highest)) = (frames.first(), frames.last()) {
                first = *lowest;
                bytes = vec![u8::MAX; (highest.0 - first.0 + 1) as usize * width];
            }
            for (frame, color) in frames.drain(..).zip(colors.drain(..)) {
                let at = (frame.0 - first.0) as usize * width;
                bytes[at..at + width].copy_from_slice(&color.0.to_le_bytes()[..width]);
            }
        }
        Rule::Hidden => return Err(ColorError::FramesHidden),
        Rule::Bits | Rule::Linear { .. } => {}
    }
    palette.fingerprint = Some(boot.fingerprint.clone());
    palette.boot_id = Some(boot.boot_id.clone());
    let numbering = numbering.map(str::to_owned);
    let header = Header { saved: SCHEMA.to_owned(), numbering, palette, first, known };
    let mut file = serde_json::to_vec(&header).expect("a header is plain data");
    file.push(b'\n');
    file.append(&mut bytes);
    runtime::replace(&path, &file)?;
    Ok(path)
}

/// Loads the palette of `level` saved in `folder` for `boot`. The caller has to check its colors of frames in use.
///
/// Fails with [`ColorError::NoSavedPalette`] if no palette is saved, and if the saved one is damaged, of another machine, or of an earlier
/// boot.
pub fn load(folder: &Path, level: u8, boot: &Boot) -> Result<Palette, ColorError> {
    load_numbered(folder, level, boot, None)
}

/// Does the same as [`load`], but treats a palette as missing if its colors are known to have another numbering than `numbering`.
pub fn load_numbered(folder: &Path, level: u8, boot: &Boot, numbering: Option<&str>) -> Result<Palette, ColorError> {
    let path = path(folder, level);
    let Some(file) = runtime::read(&path)? else { return Err(ColorError::NoSavedPalette { path, level }) };
    let (palette, of_file, bytes) =
        parse(&file).ok_or_else(|| ColorError::SavedPaletteDamaged { path: path.clone() })?;
    if are_others(of_file.as_deref(), numbering) {
        return Err(ColorError::NoSavedPalette { path, level });
    }
    if palette.fingerprint.as_ref() != Some(&boot.fingerprint) || palette.level != level {
        return Err(ColorError::SavedPaletteForeign { path });
    }
    if palette.boot_id.as_ref() != Some(&boot.boot_id) {
        return Err(ColorError::SavedPaletteStale { path });
    }
    bytes.ok_or(ColorError::SavedPaletteDamaged { path })
}

/// Whether two numberings are known to differ.
fn are_others(one: Option<&str>, other: Option<&str>) -> bool {
    one.zip(other).is_some_and(|(one, other)| one != other)
}

/// Corrects the table of `level` saved in `folder`, and adds the frames measured since. Returns `false` if there is no table, or one whose colors
/// have other numbers.
///
/// If the color of a frame in the table has changed since the command began, another command has measured it later. That color stays.
pub fn repair(folder: &Path, level: u8, corrections: &Corrections) -> Result<bool, ColorError> {
    let path = path(folder, level);
    // Two commands that end together correct the table one after the other.
    let Some(_lock) = locked(folder, level) else { return Ok(false) };
    let Ok(Some(file)) = runtime::read(&path) else { return Ok(false) };
    let Some((_, numbering, Some(mut palette))) = parse(&file) else { return Ok(false) };
    if are_others(numbering.as_deref(), corrections.numbering.as_deref()) {
        return Ok(false);
    }
    let (Some(fingerprint), Some(boot_id)) = (palette.fingerprint.clone(), palette.boot_id.clone()) else {
        return Ok(false);
    };
    let Rule::Table { frames, colors } = &mut palette.rule else { return Ok(false) };
    let Corrections { measured, contradicted, keeps_rest, .. } = corrections;
    let mut table: BTreeMap<FrameNumber, Color> = frames.drain(..).zip(colors.drain(..)).collect();
    let is_unchanged = |frame, before| table.get(frame).is_none_or(|now| Some(*now) == before);
    let added: Vec<(FrameNumber, Color)> = measured
        .iter()
        .filter(|(frame, (_, before))| is_unchanged(frame, *before))
        .map(|(frame, (color, _))| (*frame, *color))
        .collect();
    table.retain(|frame, _| *keeps_rest && !contradicted.contains(&(frame.0 / BLOCK_FRAMES)));
    table.extend(added);
    (*frames, *colors) = table.into_iter().unzip();
    write(folder, palette, &Boot { fingerprint, boot_id }, numbering.as_deref()).map(|_| true)
}

/// Parses a file, and returns the palette of the header, its numbering, and the whole palette if the table behind the header fits. Returns
/// `None` if the header is damaged or of another version.
fn parse(file: &[u8]) -> Option<(Palette, Option<String>, Option<Palette>)> {
    let end = file.iter().position(|byte| *byte == b'\n')?;
    let header: Header = serde_json::from_slice(&file[..end]).ok()?;
    if header.saved != SCHEMA {
        return None;
    }
    Some((header.palette.clone(), header.numbering.clone(), table(header, &file[end + 1..])))
}

/// Returns the bytes per frame that distinguish `colors` colors and an unknown color.
fn color_bytes(colors: u32) -> usize {
    if colors < 256 { 1 } else { 2 }
}

fn table(Header { mut palette, first, known, .. }: Header, bytes: &[u8]) -> Option<Palette> {
    let width = color_bytes(palette.colors);
    let Rule::Table { frames, colors } = &mut palette.rule else {
        return bytes.is_empty().then_some(palette);
    };
    if !bytes.len().is_multiple_of(width) || first.0.checked_add(bytes.len() as u64).is_none() {
        return None;
    }
    for (frame, color) in (first.0..).zip(bytes.chunks_exact(width)) {
        if color.iter().any(|byte| *byte != u8::MAX) {
            frames.push(FrameNumber(frame));
            colors.push(Color(color.iter().rev().fold(0, |number, byte| number << 8 | u16::from(*byte))));
        }
    }
    (frames.len() == known && colors.iter().all(|color| u32::from(color.0) < palette.colors)).then_some(palette)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn boot() -> Boot {
        Boot { fingerprint: "f".to_owned(), boot_id: "b".to_owned() }
    }

    fn palette(colors: u32, rule: Rule) -> Palette {
        let schema = isochrome_model::palette::SCHEMA.to_owned();
        Palette { schema, level: 2, colors, rule, fingerprint: None, boot_id: None }
    }

    fn of_frames(colors: u32) -> Palette {
        let frames: Vec<FrameNumber> = (100..200).chain(5000..5003).chain([9000]).map(FrameNumber).collect();
        let found = frames.iter().map(|frame| Color((frame.0 % u64::from(colors)) as u16)).collect();
        palette(colors, Rule::Table { frames, colors: found })
    }

    #[test]
    fn a_palette_comes_back_as_it_was_saved() {
        let folder = tempfile::tempdir().unwrap();
        let linear = Rule::Linear { masks: vec![3, 5] };
        for saved in [of_frames(16), of_frames(512), palette(4, linear), palette(16, Rule::Bits)] {
            let path = save(folder.path(), saved.clone(), &boot(), None).unwrap();
            let loaded = load(folder.path(), 2, &boot()).unwrap();
            assert_eq!((&loaded.rule, loaded.colors), (&saved.rule, saved.colors));
            assert_eq!(path.file_name().unwrap(), "palette-l2");
        }
        // The file has one byte per frame behind the header line, for frames 100 to 9000.
        let path = save(folder.path(), of_frames(16), &boot(), None).unwrap();
        let file = fs::read(path).unwrap();
        assert_eq!(file.len() - file.iter().position(|byte| *byte == b'\n').unwrap() - 1, 8901);
    }

    #[test]
    fn a_table_loses_what_was_contradicted_and_gains_what_was_measured() {
        let folder = tempfile::tempdir().unwrap();
        let repaired = |contradicted: &[u64], keeps_rest| {
            save(folder.path(), of_frames(16), &boot(), None).unwrap();
            // Frame 150 had color 6 in the table, as it has now; but another command has changed the color of frame 151.
            let measured = [(150, 3, Some(6)), (151, 3, Some(9)), (20_000, 7, None)];
            let measured =
                measured.map(|(frame, color, before)| (FrameNumber(frame), (Color(color), before.map(Color))));
            let (measured, contradicted) = (HashMap::from(measured), contradicted.iter().copied().collect());
            let corrections = Corrections { numbering: None, measured, contradicted, keeps_rest };
            assert!(repair(folder.path(), 2, &corrections).unwrap());
            let table = load(folder.path(), 2, &boot()).unwrap();
            let color = |frame| table.color_of(FrameNumber(frame)).map(|color| color.0);
            ([149, 150, 151, 5000, 9000, 20_000].map(color), table.frames().unwrap().len())
        };
        assert_eq!(repaired(&[], true), ([Some(5), Some(3), Some(7), Some(8), Some(8), Some(7)], 105));
        // Block 0 holds the frames 100 to 199, block 9 the frames around 5000.
        assert_eq!(repaired(&[0, 9], true), ([None, Some(3), None, None, Some(8), Some(7)], 3));
        assert_eq!(repaired(&[9], false), ([None, Some(3), None, None, None, Some(7)], 2));
        fs::remove_file(path(folder.path(), 2)).unwrap();
        let nothing = |numbering: Option<&str>| Corrections {
            numbering: numbering.map(str::to_owned),
            measured: HashMap::new(),
            contradicted: HashSet::new(),
            keeps_rest: true,
        };
        assert!(!repair(folder.path(), 2, &nothing(None)).unwrap(), "no table is created");
        // A table with other numbers is neither corrected nor believed.
        save(folder.path(), of_frames(16), &boot(), Some("one")).unwrap();
        assert!(repair(folder.path(), 2, &nothing(Some("one"))).unwrap());
        assert!(!repair(folder.path(), 2, &nothing(Some("other"))).unwrap());
        let refused = load_numbered(folder.path(), 2, &boot(), Some("other"));
        assert!(matches!(refused, Err(ColorError::NoSavedPalette { .. })), "{refused:?}");
        assert!(load_numbered(folder.path(), 2, &boot(), Some("one")).is_ok());
    }

    #[test]
    fn what_is_absent_stale_foreign_or_damaged_is_refused_with_a_hint() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |boot: &Boot| {
            let error = load(folder.path(), 2, boot).unwrap_err();
            assert!(error.to_string().contains("hint: measure and save it"), "{error}");
            error
        };
        assert!(matches!(refused(&boot()), ColorError::NoSavedPalette { level: 2, .. }));
        let path = save(folder.path(), of_frames(16), &boot(), None).unwrap();
        let later = Boot { boot_id: "another".to_owned(), ..boot() };
        assert!(matches!(refused(&later), ColorError::SavedPaletteStale { .. }));
        let elsewhere = Boot { fingerprint: "another".to_owned(), ..boot() };
        assert!(matches!(refused(&elsewhere), ColorError::SavedPaletteForeign { .. }));
        let whole = fs::read(&path).unwrap();
        let mut wrong_color = whole.clone();
        *wrong_color.last_mut().unwrap() = 16;
        for damaged in [&whole[..whole.len() - 1], &whole[..20], &b"{}\n"[..], &b""[..], &wrong_color[..]] {
            fs::write(&path, damaged).unwrap();
            assert!(matches!(refused(&boot()), ColorError::SavedPaletteDamaged { .. }));
        }
        assert!(matches!(save(folder.path(), palette(16, Rule::Hidden), &boot(), None), Err(ColorError::FramesHidden)));
    }
}
