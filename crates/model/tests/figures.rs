//! Tests of the papers' figures: simulated counts equal counts by hand. crates/report/tests/papers.rs tests that all figures are simulated.

use isochrome_model::papers::{Paper, Played};

fn played(name: &str) -> Played {
    let paper = Paper::find(name).unwrap();
    paper.figures[0].play(&paper).unwrap()
}

#[test]
fn the_figures_of_the_papers_are_there() {
    let wanted = [
        ("liedtke1997", &["4", "5", "7"][..]),
        ("hanemaaijer1993", &["map", "histogram", "penalty"]),
        ("kim2013", &["8", "9", "10", "11", "12", "13", "14", "15", "16", "table-2"]),
        ("loeser1999", &["7", "8"]),
        ("sebek2002", &["5", "7", "8", "10", "table-1"]),
    ];
    for (key, figures) in wanted {
        for figure in figures {
            assert_eq!(Paper::find(&format!("{key}/{figure}")).unwrap().figures.len(), 1);
        }
    }
    for unknown in ["sebek2002/99", "sebek2002/", "nobody/1", ""] {
        let message = Paper::find(unknown).unwrap_err().to_string();
        assert!(message.contains(unknown) && message.contains("--list"), "{message}");
    }
}

#[test]
fn an_entry_that_names_what_was_not_played_is_an_error_that_lists_what_was() {
    let paper = Paper::find("sebek2002/table-1").unwrap();
    let mut figure = paper.figures[0].clone();
    figure.numbers[0].here = Some("worst case, us".to_owned());
    let played = figure.play(&paper).unwrap();
    let message = figure.compare(&paper, &played).unwrap_err().to_string();
    assert!(
        message.contains("papers/sebek2002.toml, figure table-1") && message.contains("worst case, resume, us"),
        "{message}"
    );
}

#[test]
fn a_loop_misses_as_counted_by_hand() {
    // 1216 lines in 512 sets of 2: 192 sets hold 3 lines, and miss in all of them. 576 of 1216 = 47.37 %.
    let played = played("sebek2002/5");
    assert!((played.value("2 ways, example, %").unwrap() - 100.0 * 576.0 / 1216.0).abs() < 1e-9);
    // One line more than the cache, direct-mapped: two lines of 1025 miss. 102 % are 1044 lines, so 20 sets miss twice.
    assert!((played.value("1 ways @ 102").unwrap() - 100.0 * 40.0 / 1044.0).abs() < 1e-9);
}

#[test]
fn a_refill_of_the_whole_first_level_takes_the_time_of_its_lines() {
    // 1024 lines of 81 cycles at 367 MHz.
    let largest = played("sebek2002/10").value("LRU: largest, us").unwrap();
    assert!((largest - 1024.0 * 81.0 / 367.0).abs() < 1e-9, "{largest}");
}

#[test]
fn random_frames_share_cache_pages_as_often_as_chance_says() {
    // Without replacement, 64 of 1280 frames, 20 of them in each of 64 cache pages. By the hypergeometric distribution
    // P(a cache page holds one) = 20 C(1260, 63) / C(1280, 64).
    let ways: f64 = (0..63).map(|i| f64::from(1260 - i) / f64::from(1279 - i)).product();
    let expected = 64.0 * 64.0 * 20.0 / 1280.0 * ways;
    let found = played("hanemaaijer1993/histogram").value("p(1)").unwrap();
    // The mean over 1000 buffers, each with a deviation of about 3.
    assert!((found - expected).abs() < 0.4, "{found}, expected {expected}");
}

#[test]
fn csv_has_every_point_and_number_once() {
    let played = played("sebek2002/7");
    let points: usize = played.lines().map(|(_, points)| points.len()).sum();
    assert_eq!(played.csv().lines().count(), 1 + points + played.numbers.len());
}
