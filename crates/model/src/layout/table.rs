//! Tables with aligned columns that fit a width.

use super::{columns, words, wrap};

/// Columns of text are not made narrower than this to make room for others.
const TEXT_MIN: usize = 12;

/// Alignment of the cells of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text: to the left, and broken between words where the table is too wide.
    Left,
    /// Numbers: to the right, and never broken.
    Right,
}

/// A table for a terminal.
///
/// If it is wider than the terminal, these are tried in turn: headings are broken between words; columns stand one space apart instead of two; columns
/// of text are made narrower; the columns are divided among several tables below each other, each of which begins with the first column or columns
/// ([`Table::keys`]).
pub struct Table {
    columns: Vec<(String, Align)>,
    keys: usize,
    indent: usize,
    notes_head: String,
    rows: Vec<Row>,
}

struct Row {
    cells: Vec<String>,
    note: String,
}

/// Columns beside each other: their numbers and widths, and the spaces between two of them.
struct Block {
    columns: Vec<(usize, usize)>,
    gap: usize,
}

impl Block {
    fn width(&self) -> usize {
        self.columns.iter().map(|(_, width)| width).sum::<usize>() + self.gap * self.columns.len().saturating_sub(1)
    }
}

impl Table {
    /// Returns a table without rows. `columns`: headings, and the alignment of the cells below them.
    pub fn new<T: Into<String>>(columns: impl IntoIterator<Item = (T, Align)>) -> Table {
        let columns = columns.into_iter().map(|(head, align)| (head.into(), align)).collect();
        Table { columns, keys: 1, indent: 0, notes_head: String::new(), rows: Vec::new() }
    }

    /// Returns the table with `keys` columns that name the row. Where the columns are divided, they stand in every part.
    pub fn keys(self, keys: usize) -> Table {
        Table { keys, ..self }
    }

    /// Returns the table with all its lines indented by `indent` columns.
    pub fn indented(self, indent: usize) -> Table {
        Table { indent, ..self }
    }

    /// Returns the table with a heading for the notes of its rows.
    pub fn notes(self, head: impl Into<String>) -> Table {
        Table { notes_head: head.into(), ..self }
    }

    /// Adds a row. A row with a single cell is a line of its own, across all columns.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.noted(cells, "");
    }

    /// Adds a row with a note, which stands behind the row if all notes have room there, and below it otherwise.
    pub fn noted<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>, note: impl Into<String>) {
        self.rows.push(Row { cells: cells.into_iter().map(Into::into).collect(), note: note.into() });
    }

    /// Formats the table for `width` columns. A line is wider only if it holds a word that is wider than `width`.
    pub fn text(&self, width: usize) -> String {
        let room = width.saturating_sub(self.indent);
        let blocks = self.blocks(room);
        let (last, others) = blocks.split_last().expect("a table has a part");
        let notes_wide =
            self.rows.iter().map(|row| &row.note).chain([&self.notes_head]).map(|note| columns(note)).max();
        let beside = others.is_empty() && last.width() + 2 + notes_wide.unwrap_or(0) <= room;
        let mut text = String::new();
        for (number, block) in blocks.iter().enumerate() {
            if number > 0 {
                text.push('\n');
            }
            let is_last = number + 1 == blocks.len();
            let note = |note: &str| if is_last { note.to_owned() } else { String::new() };
            let heads = self.columns.iter().map(|(head, _)| head.clone()).collect();
            let heads = Row { cells: heads, note: note(&self.notes_head) };
            self.lines(&mut text, block, &heads, (true, beside), width);
            for row in &self.rows {
                let row = Row { cells: row.cells.clone(), note: note(&row.note) };
                self.lines(&mut text, block, &row, (false, beside), width);
            }
        }
        text
    }

    /// Appends the lines of a row. `is_head`: whether it is the headings, which stand at the bottom of their line; `beside`: whether there is room
    /// for notes behind the rows.
    fn lines(&self, text: &mut String, block: &Block, row: &Row, (is_head, beside): (bool, bool), width: usize) {
        let mut line = |line: &str, indent: usize| {
            text.push_str(format!("{}{line}", " ".repeat(self.indent + indent)).trim_end());
            text.push('\n');
        };
        if let ([cell], true) = (row.cells.as_slice(), self.columns.len() > 1) {
            wrap(cell, width.saturating_sub(self.indent), 2).lines().for_each(|part| line(part, 0));
            return;
        }
        let empty = String::new();
        let cells: Vec<Vec<String>> = block
            .columns
            .iter()
            .map(|(column, wide)| {
                let cell = row.cells.get(*column).unwrap_or(&empty);
                wrap(cell, *wide, 0).lines().map(str::to_owned).collect()
            })
            .collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(0).max(1);
        for at in 0..height {
            let parts = block.columns.iter().zip(&cells).map(|((column, wide), lines)| {
                let above = if is_head { height - lines.len() } else { 0 };
                let part = at.checked_sub(above).and_then(|at| lines.get(at)).map_or("", String::as_str);
                let padding = " ".repeat(wide.saturating_sub(columns(part)));
                if self.columns[*column].1 == Align::Left { part.to_owned() + &padding } else { padding + part }
            });
            let parts = parts.collect::<Vec<_>>().join(&" ".repeat(block.gap));
            let is_noted = beside && at == if is_head { height - 1 } else { 0 } && !row.note.is_empty();
            line(&if is_noted { format!("{parts}  {}", row.note) } else { parts }, 0);
        }
        if !beside && !row.note.is_empty() {
            let room = width.saturating_sub(self.indent + 4);
            wrap(&row.note, room, 2).lines().for_each(|part| line(part, 4));
        }
    }

    /// Divides the columns among as few tables of at most `room` columns as possible.
    fn blocks(&self, room: usize) -> Vec<Block> {
        let all: Vec<usize> = (0..self.columns.len()).collect();
        let (keys, mut rest) = all.split_at(self.keys.min(all.len()));
        if let Some(whole) = self.fitted(&all, room) {
            return vec![whole];
        }
        let mut blocks = Vec::new();
        while !rest.is_empty() {
            let parts = (1..=rest.len()).rev().map(|count| (count, [keys, &rest[..count]].concat()));
            let fitting = parts.into_iter().find_map(|(count, part)| Some((count, self.fitted(&part, room)?)));
            let (count, block) = fitting.unwrap_or_else(|| {
                let widths = [keys, &rest[..1]].concat().into_iter().map(|column| (column, self.narrowest(column).1));
                (1, Block { columns: widths.collect(), gap: 1 })
            });
            blocks.push(block);
            rest = &rest[count..];
        }
        if blocks.is_empty() {
            blocks.push(Block { columns: all.iter().map(|column| (*column, self.natural(*column))).collect(), gap: 2 });
        }
        blocks
    }

    /// Returns the columns in `list` beside each other in at most `room` columns; `None` if they do not fit.
    fn fitted(&self, list: &[usize], room: usize) -> Option<Block> {
        let natural: Vec<usize> = list.iter().map(|column| self.natural(*column)).collect();
        let (cells, least): (Vec<usize>, Vec<usize>) = list.iter().map(|column| self.narrowest(*column)).unzip();
        [(2, &natural), (2, &cells), (1, &cells), (1, &least)].into_iter().find_map(|(gap, narrow)| {
            let available = room.checked_sub(gap * list.len().saturating_sub(1))?;
            let mut left = available.checked_sub(narrow.iter().sum())?;
            let mut widths = narrow.clone();
            // What is left goes to the narrowest of the columns with cells that are broken. Headings get nothing of it: where one is broken, all are.
            while left > 0
                && let Some(at) = (0..list.len()).filter(|at| widths[*at] < cells[*at]).min_by_key(|at| widths[*at])
            {
                widths[at] += 1;
                left -= 1;
            }
            Some(Block { columns: list.iter().copied().zip(widths).collect(), gap })
        })
    }

    /// Returns the width of a column in which nothing is broken.
    fn natural(&self, column: usize) -> usize {
        columns(&self.columns[column].0).max(self.cells_wide(column))
    }

    /// Returns the width of a column in which only the heading is broken, and the width of a column in which cells of text are broken too.
    fn narrowest(&self, column: usize) -> (usize, usize) {
        let (head, align) = &self.columns[column];
        let whole = longest_word(head).max(self.cells_wide(column));
        let least = self.cells(column).map(longest_word).max().unwrap_or(0).max(longest_word(head));
        (whole, if *align == Align::Left { whole.min(least.max(TEXT_MIN)) } else { whole })
    }

    fn cells_wide(&self, column: usize) -> usize {
        self.cells(column).map(columns).max().unwrap_or(0)
    }

    fn cells(&self, column: usize) -> impl Iterator<Item = &str> {
        let rows = self.rows.iter().filter(|row| row.cells.len() > 1 || self.columns.len() == 1);
        rows.filter_map(move |row| row.cells.get(column).map(String::as_str))
    }
}

fn longest_word(text: &str) -> usize {
    words(text).into_iter().map(|(_, word)| columns(word)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new([("task", Align::Left), ("cache misses", Align::Right), ("jobs", Align::Right)]);
        table.row(["control loop", "7", "12"]);
        table.row(["batch", "1234567", "1"]);
        table
    }

    #[test]
    fn a_table_with_room_has_its_columns_two_spaces_apart() {
        let text =
            "task          cache misses  jobs\ncontrol loop             7    12\nbatch              1234567     1\n";
        assert_eq!(table().text(80), text);
    }

    #[test]
    fn headings_are_broken_before_cells_and_cells_before_the_table_is_divided() {
        let headings = "                cache\ntask           misses  jobs\ncontrol loop        7    12\nbatch         1234567     1\n";
        assert_eq!(table().text(27), headings);
        let mut wide = table();
        wide.row(["one two three four", "7", "12"]);
        let cells = "                cache\ntask           misses jobs\ncontrol loop        7   12\nbatch         1234567    1\none two three       7   12\nfour\n";
        assert_eq!(wide.text(26), cells);
        let divided = "                cache\ntask           misses\ncontrol loop        7\nbatch         1234567\n\ntask          jobs\ncontrol loop    12\nbatch            1\n";
        assert_eq!(table().text(21), divided);
    }

    #[test]
    fn notes_stand_behind_the_rows_if_all_have_room_there() {
        let mut table = Table::new([("n", Align::Right)]).notes("name").indented(1);
        table.noted(["1"], "first");
        table.noted(["20"], "the second of all");
        assert_eq!(table.text(80), "  n  name\n  1  first\n 20  the second of all\n");
        assert_eq!(table.text(20), "  n\n     name\n  1\n     first\n 20\n     the second of\n       all\n");
    }

    #[test]
    fn a_row_of_one_cell_goes_across_all_columns() {
        let mut table = table();
        table.row(["all that follows was counted"]);
        assert!(table.text(80).ends_with("\nall that follows was counted\n"));
        assert!(table.text(80).starts_with("task          cache misses"), "it widens no column");
    }

    #[test]
    fn no_line_is_wider_than_asked_for_if_no_word_is() {
        let mut table =
            Table::new((0..9).map(|n| (format!("quantity {n}"), if n < 2 { Align::Left } else { Align::Right })));
        table.row((0..9).map(|n| "word ".repeat(n + 1).trim_end().replace(' ', if n < 2 { " " } else { "-" })));
        for width in 54..200 {
            let text = table.text(width);
            assert!(text.lines().all(|line| columns(line) <= width), "{width}:\n{text}");
            assert_eq!(text.matches("word-word-word-word-word-word-word-word-word").count(), 1, "{text}");
        }
    }
}
