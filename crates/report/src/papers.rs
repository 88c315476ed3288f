//! The page of results on the papers' figures.

use std::fmt::Write as _;

use isochrome_model::evidence::{Evidence, Section, format};
use isochrome_model::papers::{Agreement, Compared, Paper, PaperFigure};

use super::figure;
use super::markdown::{append, machine};

/// A figure that was played, with its paper.
pub struct Entry<'a> {
    /// The paper.
    pub paper: &'a Paper,
    /// The figure.
    pub figure: &'a PaperFigure,
    /// The paper's numbers beside those that were played.
    pub compared: Vec<Compared>,
    /// Section of a report on the figure.
    pub section: Section,
    /// Measurements on hardware, as `lab paper --measured` leaves them, if any are kept.
    pub hardware: Option<Evidence>,
}

impl Entry<'_> {
    /// Returns the name of the figure's drawing, without extension: `sebek2002-5`.
    pub fn file_name(&self) -> String {
        self.figure.full_name(self.paper).replace('/', "-")
    }

    /// Returns the drawing, as an SVG file.
    pub fn svg(&self) -> String {
        figure::of_sections(&self.section.title, [&self.section]) + "\n"
    }

    /// Returns a sentence on where and when the figure was measured.
    fn place(&self) -> String {
        self.hardware.as_ref().map_or(String::new(), |evidence| {
            format!(" Here on {}, {}:", machine(&evidence.machine), format::utc(evidence.taken_unix_s))
        })
    }

    /// Returns the part of the page on this figure. `figures`: the folder of the drawings, seen from the page.
    pub fn text(&self, figures: &str) -> String {
        let Entry { paper, figure, section, .. } = self;
        let mut text = format!("\n### {}\n", section.title);
        line(
            &mut text,
            &format!("\n[{}], {}. `isochrome lab paper {}`", paper.cited, figure.place, figure.full_name(paper)),
        );
        append(&mut text, section);
        line(&mut text, &format!("\n![{}]({figures}/{}.svg)", figure.title, self.file_name()));
        if !figure.measured.is_empty() {
            let file = format!("{}-measured", self.file_name());
            let commands = figure.measured.iter().map(|it| format!("`isochrome {}`", it.replace("{file}", &file)));
            let commands: Vec<String> = commands.collect();
            line(&mut text, &format!("\n**On hardware,** with `--measured`: {}.{}", commands.join(", "), self.place()));
            self.hardware.iter().flat_map(|evidence| &evidence.sections).for_each(|section| append(&mut text, section));
        }
        if let Some(kept) = &figure.page {
            line(&mut text, &format!("\nSee also: [{}]({kept}).", kept.trim_end_matches(".md")));
        }
        text
    }
}

/// Returns the page on all `entries`, which come paper by paper. `figures`: the folder of the drawings, seen from the page.
pub fn page(entries: &[Entry], figures: &str) -> String {
    let mut page = String::from(HEAD);
    let count = |entries: &mut dyn Iterator<Item = &Entry>, agreement| {
        entries.flat_map(|entry| &entry.compared).filter(|it| it.agreement == agreement).count()
    };
    let papers: Vec<&[Entry]> = entries.chunk_by(|a, b| a.paper.key == b.paper.key).collect();
    for of_paper in &papers {
        let Some(first) = of_paper.first() else { continue };
        let [agree, differ, fitted, missing] =
            [Agreement::Agrees, Agreement::Differs, Agreement::Fitted, Agreement::Missing]
                .map(|agreement| count(&mut of_paper.iter(), agreement));
        let (cited, figures) = (&first.paper.cited, of_paper.len());
        line(
            &mut page,
            &format!("| [{cited}](#{}) | {figures} | {agree} | {differ} | {fitted} | {missing} |", first.paper.key),
        );
    }
    for of_paper in papers {
        for (number, entry) in of_paper.iter().enumerate() {
            if number == 0 {
                line(&mut page, &format!("\n## {}", entry.paper.cited));
            }
            page += &entry.text(figures);
        }
    }
    page
}

const HEAD: &str = "# Results: the papers' figures

Each figure is played on a modeled machine, beside the numbers that its paper prints.

- **Command:** `isochrome lab paper NAME`, with the name of a figure below (`--list` lists them); `-o FOLDER` leaves drawing, points and numbers; `make papers` makes this page
- **Machine:** modeled ones, so the numbers are the same everywhere: a test compares this page with what is played, but for six figures that take longer
- **On hardware:** `isochrome lab paper NAME --measured -o docs/results/papers`, where a figure names a command. Nothing is judged there, because it is another machine

A number agrees within 10 %, or less where that is said. *Derived* numbers are computed from printed ones. The figures of the papers are lost in the sources that were at hand, so nothing is read off a curve. *Fitted* are numbers to which a model was fitted: that they agree shows nothing.
Where a number differs, a cause is stated. These are explanations: none of them was tested by itself.

| paper | figures | numbers that agree | that differ | fitted | not modeled |
| --- | ---: | ---: | ---: | ---: | ---: |
";

fn line(page: &mut String, text: &str) {
    writeln!(page, "{text}").expect("strings do not fail");
}
