//! Computes colors from the bits of frame numbers, checks them by eviction tests, and gives them up if the tests contradict them.

use isochrome_model::palette::infer::color_of_tests;
use isochrome_model::units::{Bytes, Color, FrameNumber};

use super::Survey;
use crate::color::classify::{classify_again, contradictions};
use crate::color::error::ColorError;
use crate::color::pagemap;
use crate::sys::memory::page_bytes;

/// Largest share of eviction tests of colors from frame bits that may fail before the bits are rejected. Each test is the lowest of
/// several, so a wrong result is rare, and wrong bits fail half of the tests or more.
const BITS_CONTRADICTED: f64 = 0.1;

/// One in this many pages with a color by frame bits is tested. The bits may be right only for a part of the memory, if a host gives its guest
/// some memory in huge pages, or if the set index hashes higher bits.
const BITS_CHECKED: usize = 16;

/// Least number of pages with a color by frame bits that are tested.
const BITS_CHECKED_AT_LEAST: usize = 256;

/// Largest share of tested pages whose color may differ from the color by their frame bits before the bits are rejected.
const BITS_WRONG: f64 = 0.02;

/// Result of checking the colors of frames by eviction tests.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Confirmed {
    /// Number of colors tested.
    colors: usize,
    /// Number of colors whose pages are not evicted by their own set, or are evicted by another set.
    wrong: usize,
}

impl Survey {
    /// Groups pages by the color that follows from their frame numbers, and checks the groups by eviction tests.
    pub(super) fn confirm_bits(mut survey: Survey) -> Result<Survey, ColorError> {
        let geometry = survey.target.geometry;
        let color_of = |frame| Some(geometry.color_of(frame, Bytes(page_bytes() as u64)));
        let tested = survey.confirm(survey.target.search().colors_expected, color_of)?;
        if tested.wrong as f64 > BITS_CONTRADICTED * tested.colors as f64 {
            return Err(ColorError::BitsContradicted { what: "colors", wrong: tested.wrong, tested: tested.colors });
        }
        Ok(survey)
    }

    /// Makes one group for each of `colors` colors from pages whose frames have that color by `color_of`, and checks the groups by eviction
    /// tests. Touches more memory until every group is complete.
    fn confirm(
        &mut self,
        colors: usize,
        color_of: impl Fn(FrameNumber) -> Option<Color>,
    ) -> Result<Confirmed, ColorError> {
        let set_len = self.target.search().set_len();
        let mut groups = vec![Vec::new(); colors];
        let (mut pages, mut known) = (0u32, 0);
        while groups.iter().any(|group| group.len() < set_len) {
            if pages as usize == self.pages_at_most() {
                return Err(ColorError::PaletteUntested { pages: pages as usize, known });
            }
            self.make_ready(self.target.pages_to_search().max(2 * pages as usize));
            let frames = pagemap::frames(self.eviction_test.arena(), pages as usize..self.ready as usize);
            for (page, frame) in (pages..).zip(frames) {
                let frame = frame.ok_or(ColorError::FramesHidden)?;
                if let Some(color) = color_of(frame) {
                    known += 1;
                    groups[usize::from(color.0)].push(page);
                }
            }
            pages = self.ready;
        }
        for group in &mut groups {
            group.truncate(set_len);
        }
        self.know(groups);
        self.eviction_test.failure().map_or(Ok(()), Err)?;
        let (wrong, colors) = contradictions(&self.cross);
        Ok(Confirmed { colors, wrong })
    }

    /// Tests a sample of the pages of `range` whose colors follow from frame bits.
    ///
    /// Fails with [`ColorError::BitsContradicted`] if eviction tests find other colors.
    pub(super) fn check_bits(&mut self, range: std::ops::Range<u32>) -> Result<(), ColorError> {
        let Survey { target, eviction_test, groups, pages, rng, .. } = self;
        let other = |page: &u32| !groups.iter().any(|group| group.contains(page));
        let count = (range.len() / BITS_CHECKED).max(BITS_CHECKED_AT_LEAST);
        let sample = rng.choose_multiple(range.filter(other), count);
        let colors: Vec<Color> = (0..groups.len() as u16).map(Color).collect();
        classify_again(&mut **eviction_test, groups, &colors, sample.clone(), pages, rng);
        let (mut tested, mut wrong) = (0, 0);
        for page in sample {
            let page = &pages[page as usize];
            let by_bits = page.frame.map(|frame| target.geometry.color_of(frame, Bytes(page_bytes() as u64)));
            if let Some(color) = color_of_tests(page, &colors) {
                tested += 1;
                wrong += usize::from(Some(color) != by_bits);
            }
        }
        if wrong as f64 > BITS_WRONG * f64::from(tested) {
            return Err(ColorError::BitsContradicted { what: "pages", wrong, tested: tested as usize });
        }
        Ok(())
    }

    /// Gives up the frame bits, and classifies all pages by eviction tests.
    pub(super) fn test_instead(&mut self) -> Result<(), ColorError> {
        self.method = self.tested_by;
        self.find_groups()?;
        self.pages.iter_mut().for_each(|page| page.tests.clear());
        self.test_pages(0..self.pages.len() as u32);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use isochrome_model::palette::{Method, PageSample};

    use super::super::fixture::{against, target};
    use super::*;
    use crate::color::modeled::ModeledEvictionTest;

    #[test]
    fn frame_bits_that_are_right_for_some_of_the_memory_only_are_given_up() {
        let eviction_test = ModeledEvictionTest::new(16, 8, 4096, 1);
        let colors = eviction_test.colors.clone();
        let mut survey = Survey::new(target(), Method::Bits, Box::new(eviction_test), 1, Instant::now());
        survey.tested_by = Method::Timing;
        let of_color = |color| (0u32..).zip(&colors).filter(move |(_, of)| **of == color).map(|(page, _)| page);
        survey.know((0..16).map(|color| of_color(color).take(12).collect()).collect());
        survey.ready = 4096;
        // The frames in the last quarter of the memory have bits that give another color.
        let frame = |page: usize, color: u16| FrameNumber(u64::from(if page < 3072 { color } else { color ^ 1 }));
        survey.pages.resize_with(4096, PageSample::default);
        for (page, color) in colors.iter().enumerate() {
            survey.pages[page].frame = Some(frame(page, *color));
        }
        survey.check_bits(0..3072).unwrap();
        let error = survey.check_bits(2048..4096).unwrap_err();
        assert!(matches!(error, ColorError::BitsContradicted { what: "pages", .. }), "{error}");
        survey.test_instead().unwrap();
        let found = survey.finish();
        assert_eq!((found.samples.method, against(&colors, &found)), (Method::Timing, (1.0, 0)));
    }
}
