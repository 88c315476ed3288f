//! Text for people that fits the width of a terminal: lines broken between words, and tables with aligned columns.
//!
//! A text that was not made for a width is fitted to it when it is printed ([`fit`]), which breaks the lines that are too long. Tables have to know
//! the width beforehand ([`Table`]). Commands that are to be copied stay on one line, however long they are.

mod table;

pub use table::{Align, Table};

use unicode_width::UnicodeWidthStr as _;

/// Width of a line in columns where no terminal has another width.
pub const WIDTH: usize = 80;

/// Returns the number of columns that `text`, which is on one line, takes in a terminal.
pub fn columns(text: &str) -> usize {
    text.width()
}

/// Returns `text` with its lines broken where they are wider than `width` columns.
///
/// The lines after a break are indented two columns deeper than the first. Lines that are commands to be copied are left as they are.
pub fn fit(text: &str, width: usize) -> String {
    let fitted = text.split_inclusive('\n').map(|line| {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        if columns(line) <= width || is_command(line) {
            return format!("{line}{end}");
        }
        let indent = line.len() - line.trim_start_matches(' ').len();
        wrap(line, width, indent + 2) + end
    });
    fitted.collect()
}

/// Whether `line` is nothing but a command to be copied, behind `$ ` or `hint: ` or alone.
pub fn is_command(line: &str) -> bool {
    let line = line.trim_start();
    let line = line.strip_prefix("hint: ").unwrap_or(line);
    ["$ ", "isochrome "].iter().any(|begin| line.starts_with(begin))
}

/// Returns `line` broken between words into lines of at most `width` columns, those after the first indented by `indent` columns.
///
/// A word that is wider stays whole. Text between backquotes counts as one word.
pub fn wrap(line: &str, width: usize, indent: usize) -> String {
    let (mut text, mut column, mut begun) = (String::new(), 0, false);
    for (gap, word) in words(line) {
        let wide = columns(word);
        if begun && column + gap + wide > width {
            text.push('\n');
            text.push_str(&" ".repeat(indent));
            column = indent;
        } else {
            text.push_str(&" ".repeat(gap));
            column += gap;
        }
        text.push_str(word);
        column += wide;
        begun = true;
    }
    text
}

/// Returns the words of `line`, each with the number of spaces before it. Text between backquotes is one word, because it is copied.
fn words(line: &str) -> Vec<(usize, &str)> {
    // A last backquote without a partner quotes nothing.
    let mut quotes = line.matches('`').count() / 2 * 2;
    let (mut words, mut begin, mut gap, mut is_quoted) = (Vec::new(), None, 0, false);
    for (at, c) in line.char_indices() {
        if c == '`' && quotes > 0 {
            quotes -= 1;
            is_quoted = !is_quoted;
        }
        match (c == ' ' && !is_quoted, begin) {
            (true, Some(from)) => {
                words.push((gap, &line[from..at]));
                (begin, gap) = (None, 1);
            }
            (true, None) => gap += 1,
            (false, None) => begin = Some(at),
            (false, Some(_)) => {}
        }
    }
    words.extend(begin.map(|from| (gap, &line[from..])));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_too_long_are_broken_between_words_and_all_others_are_kept() {
        let text = "  one two  three four\nshort\n\n- a bb ccc dddd\n";
        assert_eq!(fit(text, 12), "  one two\n    three\n    four\nshort\n\n- a bb ccc\n  dddd\n");
        assert_eq!(fit(text, 80), text);
        assert_eq!(fit("no end of line", 80), "no end of line");
        assert_eq!(fit("", 80), "");
    }

    #[test]
    fn a_command_is_not_broken() {
        for command in [
            "     $ sysctl vm.compaction_proactiveness=0",
            "  hint: isochrome palette --save --memory 4G",
            "isochrome plan tasks.json --cores 4",
        ] {
            assert_eq!(fit(command, 20), command);
        }
        assert_eq!(wrap("so type `isochrome plan x` now", 10, 0), "so type\n`isochrome plan x`\nnow");
        // Without a partner a backquote is a character like any other.
        assert_eq!(wrap("`a b` c ` d", 6, 0), "`a b`\nc ` d");
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(columns("名前"), 4);
        assert_eq!(wrap("名前 名前", 8, 0), "名前\n名前");
    }
}
