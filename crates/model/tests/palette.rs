//! Tests of the inference of colors on saved and on invented samples.

use isochrome_model::geometry::Geometry;
use isochrome_model::gf2::color_under;
use isochrome_model::palette::{Doubt, Group, Method, PageSample, Rule, Samples, agreement, infer, samples};
use isochrome_model::units::{Bytes, Color, FrameNumber};
use proptest::prelude::*;

/// Returns a 512 KiB, 8-way cache with 16 colors.
fn geometry() -> Geometry {
    Geometry::of_size(Bytes(512 << 10), 8, Bytes(64)).unwrap()
}

/// Returns samples of pages of the given frames and colors, with clean tests and one group per color.
fn clean(pages: &[(Option<u64>, u16)], colors: u16) -> Samples {
    let share = |own: bool| if own { 90 } else { 2 };
    let cross = (0..colors).map(|i| (0..colors).map(|j| f32::from(share(i == j)) / 100.0).collect()).collect();
    Samples {
        schema: samples::SCHEMA.to_owned(),
        level: 2,
        geometry: geometry(),
        page_bytes: Bytes(4096),
        method: Method::Timing,
        groups: (0..colors).map(|_| Group { set: vec![] }).collect(),
        cross,
        pages: pages
            .iter()
            .map(|(frame, color)| PageSample {
                frame: frame.map(FrameNumber),
                tests: vec![(0..colors).map(|c| share(c == *color)).collect()],
            })
            .collect(),
    }
}

/// Returns `count` pages in random colors, with hidden frames.
fn hidden(count: usize, colors: u16, seed: u64) -> Vec<(Option<u64>, u16)> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| (None, rng.u16(0..colors))).collect()
}

#[test]
fn samples_saved_on_a_virtual_machine_show_sixteen_colors_and_no_rule() {
    let saved: Samples = serde_json::from_str(include_str!("data/zen3-vm-samples.json")).unwrap();
    let inference = infer(&saved);
    assert_eq!((inference.palette.colors, inference.colors_expected), (16, 16));
    assert_eq!(inference.doubts, []);
    assert_eq!(inference.ambiguous, [] as [u32; 0]);
    assert_eq!(inference.page_colors.len(), 1024);
    // A guest's frame numbers show nothing about the host's cache, so the rule is a table of the measured frames.
    let Rule::Table { frames, .. } = &inference.palette.rule else { panic!("{:?}", inference.palette.rule) };
    for (page, color) in saved.pages.iter().zip(&inference.page_colors) {
        assert_eq!(inference.palette.color_of(page.frame.unwrap()), *color);
    }
    let unknown = (0..).map(FrameNumber).find(|frame| frames.binary_search(frame).is_err()).unwrap();
    assert_eq!(inference.palette.color_of(unknown), None);
}

#[test]
fn samples_that_were_cut_are_refused() {
    let mut samples = clean(&hidden(20, 16, 1), 16);
    samples.check().unwrap();
    samples.pages[7].tests[0].pop();
    let error = samples.check().unwrap_err();
    assert_eq!((error.found, error.expected), (15, 16));
    assert!(error.to_string().contains("page 7") && error.to_string().contains("hint:"));
    samples.cross.pop();
    assert_eq!(samples.check().unwrap_err().what, "the cross table");
}

#[test]
fn samples_of_a_cache_without_a_size_are_refused() {
    for (set_count, page_bytes) in [(0, 4096), (1 << 60, 4096), (1024, 0)] {
        let mut samples = clean(&hidden(20, 16, 1), 16);
        (samples.geometry.set_count, samples.page_bytes.0) = (set_count, page_bytes);
        assert!(samples.check().is_err(), "{set_count} sets, pages of {page_bytes} bytes");
    }
}

#[test]
fn frame_bits_that_two_groups_contradict_are_a_doubt_and_no_panic() {
    let mut samples = clean(&[(Some(15), 15), (Some(3), 3)], 16);
    samples.method = Method::Bits;
    (samples.cross[3][4], samples.cross[4][3]) = (0.4, 0.4);
    let inference = infer(&samples);
    assert_eq!(inference.page_colors, [Some(Color(15)), Some(Color(3))]);
    assert_eq!(inference.doubts.len(), 2, "{:?}", inference.doubts);
    samples.groups.clear();
    samples.cross.clear();
    assert_eq!(samples.check().unwrap_err().expected, 16);
}

#[test]
fn clean_samples_give_every_page_its_color() {
    let pages = hidden(2000, 16, 1);
    let inference = infer(&clean(&pages, 16));
    let colors: Vec<Option<Color>> = pages.iter().map(|(_, color)| Some(Color(*color))).collect();
    assert_eq!(inference.page_colors, colors);
    assert_eq!(inference.per_color.iter().sum::<u64>(), 2000);
    assert_eq!(inference.palette.rule, Rule::Hidden);
    assert_eq!(inference.doubts, []);
}

#[test]
fn noise_in_single_tests_is_outvoted_by_the_lowest() {
    let pages = hidden(500, 16, 2);
    let mut noisy = clean(&pages, 16);
    let mut rng = fastrand::Rng::with_seed(3);
    for page in &mut noisy.pages {
        let clean = page.tests[0].clone();
        // In each of three tests, noise evicts almost the whole page by one random color.
        page.tests = (0..3)
            .map(|_| {
                let mut test = clean.clone();
                test[rng.usize(0..16)] = 95;
                test
            })
            .collect();
    }
    let inference = infer(&noisy);
    let truth: Vec<Option<Color>> = pages.iter().map(|(_, color)| Some(Color(*color))).collect();
    // The same wrong color in all three tests has a chance of 15/16 x 1/256: about 2 of 500 pages are ambiguous, none wrong.
    assert_eq!(agreement(&inference.page_colors, &truth), Some(1.0));
    assert!(inference.ambiguous.len() <= 8, "{:?}", inference.ambiguous);
}

#[test]
fn a_page_without_a_clear_color_is_named() {
    let mut samples = clean(&hidden(100, 16, 4), 16);
    samples.pages[17].tests = vec![vec![40; 16]];
    samples.pages[50].tests = vec![];
    let inference = infer(&samples);
    assert_eq!(inference.ambiguous, [17, 50]);
    assert_eq!(inference.page_colors[17], None);
}

#[test]
fn too_many_pages_without_a_color_put_the_palette_in_doubt() {
    let mut samples = clean(&hidden(100, 16, 4), 16);
    for page in &mut samples.pages[..3] {
        page.tests = vec![vec![0; 16]];
    }
    assert_eq!(infer(&samples).doubts, [Doubt::Ambiguous { pages: 3, of: 100 }]);
}

#[test]
fn missing_colors_are_counted_against_the_geometry() {
    let inference = infer(&clean(&hidden(1000, 13, 5), 13));
    assert_eq!(inference.doubts, [Doubt::Count { found: 13, expected: 16 }]);
}

#[test]
fn groups_that_evict_each_other_are_one_color() {
    // There are 17 groups. The last one is a second group of color 4.
    let pages = hidden(800, 16, 6);
    let mut samples = clean(&pages, 16);
    samples.groups.push(Group { set: vec![] });
    for (i, row) in samples.cross.iter_mut().enumerate() {
        row.push(if i == 4 { 0.6 } else { 0.0 });
    }
    let mut last = vec![0.0; 17];
    (last[4], last[16]) = (0.45, 0.8);
    samples.cross.push(last);
    for page in &mut samples.pages {
        let fourth = page.tests[0][4];
        page.tests[0].push(fourth);
    }
    let inference = infer(&samples);
    assert_eq!(inference.palette.colors, 16);
    assert_eq!(inference.group_colors[16], inference.group_colors[4]);
    assert_eq!(inference.ambiguous, [] as [u32; 0]);
    assert_eq!(inference.doubts, []);
}

#[test]
fn a_group_whose_own_set_leaves_it_alone_is_a_doubt() {
    let mut samples = clean(&hidden(800, 16, 7), 16);
    samples.cross[3][3] = 0.1;
    assert_eq!(infer(&samples).doubts, [Doubt::Blurred { group: 3, by: 3, share: 0.1 }]);
}

#[test]
fn colors_with_far_unequal_pages_are_no_doubt() {
    let mut pages = hidden(1600, 16, 8);
    for (_, color) in pages.iter_mut().take(600) {
        *color = 0;
    }
    // How many pages of a color the kernel hands out says nothing about how well they were measured.
    assert_eq!(infer(&clean(&pages, 16)).doubts, []);
}

#[test]
fn a_machine_with_huge_pages_behind_it_shows_its_linear_colors() {
    // A hashed set index: each color bit is a parity of several frame-number bits.
    let masks = [0b1_0001_0001u64, 0b10_0010_0010, 0b100_0100_0100, 0b1000_1000_1000];
    let mut rng = fastrand::Rng::with_seed(9);
    let pages: Vec<(Option<u64>, u16)> = (0..3000)
        .map(|_| {
            let frame = rng.u64(0..1 << 20);
            (Some(frame), color_under(&masks, frame))
        })
        .collect();
    let mut samples = clean(&pages, 16);
    // The tests of one page in a hundred show a wrong color.
    for page in samples.pages.iter_mut().step_by(100) {
        page.tests[0].rotate_right(1);
    }
    let inference = infer(&samples);
    assert!(matches!(inference.palette.rule, Rule::Linear { .. }), "{}", inference.rule_in_words);
    // The rule has its own numbering of colors, which the colors of pages and groups follow.
    let by_rule: Vec<Option<Color>> =
        pages.iter().map(|(frame, _)| inference.palette.color_of(FrameNumber(frame.unwrap()))).collect();
    let truth: Vec<Option<Color>> = pages.iter().map(|(_, color)| Some(Color(*color))).collect();
    assert_eq!(agreement(&by_rule, &truth), Some(1.0));
    let same = by_rule.iter().zip(&inference.page_colors).filter(|(a, b)| a == b).count();
    assert_eq!(same, 3000 - 30);
}

#[test]
fn confirmed_frame_bits_color_pages_without_tests() {
    let mut samples = clean(&[(Some(0x12345), 5), (Some(0x10), 0), (None, 0)], 16);
    samples.method = Method::Bits;
    let inference = infer(&samples);
    // 0x12345 mod 16 = 5, 0x10 mod 16 = 0; the third frame is hidden.
    assert_eq!(inference.page_colors, [Some(Color(5)), Some(Color(0)), None]);
    assert_eq!(inference.palette.rule, Rule::Bits);
    assert_eq!(inference.palette.color_of(FrameNumber(0x2f)), Some(Color(15)));
}

proptest! {
    #[test]
    fn agreement_does_not_depend_on_how_colors_are_numbered(
        colors in proptest::collection::vec(0u16..8, 1..200),
        shift in 0u16..8,
    ) {
        let a: Vec<Option<Color>> = colors.iter().map(|c| Some(Color(*c))).collect();
        let b: Vec<Option<Color>> = colors.iter().map(|c| Some(Color((*c + shift) % 8))).collect();
        prop_assert_eq!(agreement(&a, &b), Some(1.0));
        prop_assert_eq!(agreement(&a, &vec![None; a.len()]), None);
    }

    #[test]
    fn any_samples_are_answered_without_a_panic(
        groups in 0usize..6,
        tests in proptest::collection::vec(proptest::collection::vec(0u8..=100, 6), 0..50),
        cross in proptest::collection::vec(0f32..1.0, 36),
    ) {
        let pages = tests
            .into_iter()
            .map(|mut test| {
                test.truncate(groups);
                PageSample { frame: None, tests: vec![test] }
            })
            .collect();
        let samples = Samples {
            cross: (0..groups).map(|i| cross[i * 6..i * 6 + groups].to_vec()).collect(),
            groups: (0..groups).map(|_| Group { set: vec![] }).collect(),
            pages,
            ..clean(&[], 0)
        };
        let inference = infer(&samples);
        prop_assert_eq!(
            inference.per_color.iter().sum::<u64>() as usize + inference.ambiguous.len(),
            inference.page_colors.len()
        );
    }
}
