//! Terminal display of `watch`: a table of tasks, and below it a timeline of each task with its miss ratio. [Sebek2002, Figure 6]

use std::io;
use std::time::Duration;

use isochrome_model::printable;
use isochrome_model::watch::{COLUMNS, COUNTED, Order, Watched};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table, Wrap};
use ratatui::{DefaultTerminal, Frame};

/// Orders in which tasks can be sorted, each with its column.
const ORDERS: [(Order, usize); 6] = [
    (Order::Time, 3),
    (Order::WorstMissRatio, 10),
    (Order::Misses, 11),
    (Order::Slice, 7),
    (Order::Job, 8),
    (Order::Slices, 4),
];

/// Columns that are left out if the terminal is too narrow, in this order.
const LEFT_OUT: [usize; 6] = [6, 5, 4, 12, 11, 2];

/// Rows that show no tasks: two lines about all tasks, two headings, two lines about the cost, and the keys.
const ROWS_AROUND: u16 = 7;

/// Request that a pressed key makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAction {
    /// No request.
    Nothing,
    /// Draw the display anew.
    Change,
    /// End the watch.
    Quit,
}

/// Settings of the display.
#[derive(Default)]
struct Settings {
    /// Index in [`ORDERS`] of the order that tasks are sorted by.
    order: usize,
    /// State that is shown while the display is paused; `None` if it is not paused.
    paused: Option<Watched>,
}

impl Settings {
    fn key(&mut self, key: KeyEvent, watched: &Watched) -> KeyAction {
        match key.code {
            // The terminal is in raw mode, in which Ctrl-C is a key and sends no signal.
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => KeyAction::Quit,
            KeyCode::Char('q') | KeyCode::Esc => KeyAction::Quit,
            KeyCode::Char('s') => {
                self.order = (self.order + 1) % ORDERS.len();
                KeyAction::Change
            }
            KeyCode::Char('p' | ' ') => {
                self.paused = if self.paused.is_some() { None } else { Some(watched.clone()) };
                KeyAction::Change
            }
            _ => KeyAction::Nothing,
        }
    }
}

/// The terminal, which is restored when this is dropped.
pub struct View {
    terminal: DefaultTerminal,
    settings: Settings,
}

impl View {
    /// Takes over the terminal.
    pub fn open() -> io::Result<View> {
        Ok(View { terminal: ratatui::try_init()?, settings: Settings::default() })
    }

    /// Handles the keys that were pressed since the last call, and returns what they request.
    pub fn keys(&mut self, watched: &Watched) -> io::Result<KeyAction> {
        let mut action = KeyAction::Nothing;
        while event::poll(Duration::ZERO)? {
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => match self.settings.key(key, watched) {
                    KeyAction::Nothing => {}
                    KeyAction::Change => action = KeyAction::Change,
                    KeyAction::Quit => return Ok(KeyAction::Quit),
                },
                Event::Resize(..) => action = KeyAction::Change,
                _ => {}
            }
        }
        Ok(action)
    }

    /// Draws `watched`, or the state at the pause if the display is paused.
    pub fn show(&mut self, watched: &Watched) -> io::Result<()> {
        let View { terminal, settings } = self;
        terminal.draw(|frame| draw(frame, watched, settings))?;
        Ok(())
    }
}

impl Drop for View {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Returns the columns that a terminal of `width` has room for.
fn columns(width: u16, counters: bool) -> Vec<usize> {
    let mut columns: Vec<usize> = (0..COLUMNS.len()).filter(|column| counters || !COUNTED.contains(column)).collect();
    for left_out in LEFT_OUT {
        // One space separates two columns.
        if columns.iter().map(|column| COLUMNS[*column].1 + 1).sum::<usize>() <= usize::from(width) + 1 {
            break;
        }
        columns.retain(|column| *column != left_out);
    }
    columns
}

fn draw(frame: &mut Frame, watched: &Watched, settings: &Settings) {
    let watched = settings.paused.as_ref().unwrap_or(watched);
    let area = frame.area();
    let (order, sorted_by) = ORDERS[settings.order];
    let rows = area.height.saturating_sub(ROWS_AROUND) / 2;
    let mut shown = watched.sorted(order);
    shown.truncate(usize::from(rows));
    let rows = shown.len() as u16;
    let heights = [2, 1 + rows, 1 + rows, 2, 1].map(Constraint::Length);
    let [head, table, strips, cost, keys] = Layout::vertical(heights).areas(area);

    frame.render_widget(Paragraph::new(watched.head()).wrap(Wrap { trim: true }), head);

    let columns = columns(area.width, watched.has_counters());
    let cell = |column: usize, text: String| {
        let alignment = if COLUMNS[column].0 == "name" { Alignment::Left } else { Alignment::Right };
        Cell::from(Text::from(text).alignment(alignment))
    };
    let heads = columns.iter().map(|column| {
        let style = if *column == sorted_by { Modifier::REVERSED } else { Modifier::BOLD };
        cell(*column, COLUMNS[*column].0.to_owned()).style(Style::new().add_modifier(style))
    });
    let tasks = shown.iter().map(|(thread, task)| {
        let cells = watched.cells(*thread, task);
        Row::new(columns.iter().map(|column| cell(*column, cells[*column].clone())).collect::<Vec<_>>())
    });
    let widths = columns.iter().map(|column| Constraint::Length(COLUMNS[*column].1 as u16));
    frame.render_widget(Table::new(tasks, widths).header(Row::new(heads.collect::<Vec<_>>())), table);

    if let Some(from) = watched.kept_since(&shown) {
        let mut lines = vec![Line::from(watched.strip_head(from)).style(Modifier::BOLD)];
        let name = |thread: i32, name: &str| format!("{thread:>8} {name:16} |");
        let bars = area.width.saturating_sub(name(0, "").len() as u16 + 1);
        lines.extend(shown.iter().map(|(thread, task)| {
            Line::from(format!("{}{}|", name(*thread, &printable::line(&task.name)), watched.strip(task, from, bars)))
        }));
        frame.render_widget(Paragraph::new(lines), strips);
    }

    frame.render_widget(Paragraph::new(watched.cost_text()), cost);
    let pause = if settings.paused.is_some() { "p go on (paused)" } else { "p pause" };
    let sort = COLUMNS[sorted_by].0;
    frame.render_widget(
        Paragraph::new(format!("q quit   s sort (by {sort})   {pause}")).style(Modifier::REVERSED),
        keys,
    );
}

#[cfg(test)]
mod tests {
    use isochrome_model::units::{CpuId, Ns};
    use isochrome_model::watch::{Counts, CpuSteal, Entry, Slice, SwitchOut};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    /// Two tasks that alternate: `calm` runs longer, `wild` misses half of the time.
    fn two(counters: bool) -> Watched {
        let mut watched = Watched::default();
        for slice_number in 0..4u64 {
            for (thread, name, begin, end, misses) in [(7, "calm", 0, 600, 0), (8, "wild", 600, 1000, 5000)] {
                let counts = counters.then_some(Counts { accesses: 10_000, misses, instructions: 900, cycles: 600 });
                let (begin, end) = (Ns(1000 * slice_number + begin), Ns(1000 * slice_number + end));
                let (cpu, name) = (CpuId(0), name.to_owned());
                watched.note(&Entry::Slice(Slice { cpu, thread, name, begin, end, left: SwitchOut::Asleep, counts }));
            }
        }
        watched.state.steal.push(CpuSteal { cpu: CpuId(0), share: 0.25 });
        watched
    }

    fn shown(watched: &Watched, settings: &Settings, width: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, 16)).unwrap();
        terminal.draw(|frame| draw(frame, watched, settings)).unwrap();
        terminal.backend().to_string()
    }

    /// Returns the first line of `screen` that contains `text`.
    fn line(screen: &str, text: &str) -> String {
        screen.lines().find(|line| line.contains(text)).unwrap_or_else(|| panic!("{text}: {screen}")).to_owned()
    }

    fn press(settings: &mut Settings, key: char, watched: &Watched) -> KeyAction {
        settings.key(KeyEvent::from(KeyCode::Char(key)), watched)
    }

    #[test]
    fn the_view_tells_of_tasks_steal_and_misses() {
        let screen = shown(&two(true), &Settings::default(), 120);
        assert!(line(&screen, "2 tasks").contains("CPU 0 steal 25.0 %"), "{screen}");
        // The values are the share, the worst miss ratio, and the instructions per cycle.
        let wild = line(&screen, "wild");
        assert!(wild.contains("40.0 %") && wild.contains("50.0 %") && wild.contains("1.50"), "{screen}");
        assert!(line(&screen, "calm").contains("60.0 %") && screen.contains("q quit"), "{screen}");
    }

    #[test]
    fn the_timeline_shows_the_miss_ratio_while_a_task_has_the_cpu() {
        // 100 bars for 4000 ns: 15 of calm's alternate with 10 of wild's; half of the height where half of the accesses miss.
        let screen = shown(&two(true), &Settings::default(), 128);
        let strip = |name: &str| {
            let line = screen.lines().rfind(|line| line.contains(name)).unwrap().to_owned();
            line.split('|').nth(1).unwrap().to_owned()
        };
        assert_eq!(strip("calm"), " ".repeat(100));
        assert_eq!(strip("wild"), format!("{}{}", " ".repeat(15), "▄".repeat(10)).repeat(4), "{screen}");
    }

    #[test]
    fn s_sorts_by_another_column() {
        let (watched, mut settings) = (two(true), Settings::default());
        let first = |settings: &Settings| shown(&watched, settings, 120).lines().nth(3).unwrap().to_owned();
        assert!(first(&settings).contains("calm"));
        assert_eq!(press(&mut settings, 's', &watched), KeyAction::Change);
        assert!(first(&settings).contains("wild"));
        assert!(shown(&watched, &settings, 120).contains("s sort (by worst)"));
        ORDERS.iter().skip(1).for_each(|_| assert_eq!(press(&mut settings, 's', &watched), KeyAction::Change));
        assert!(first(&settings).contains("calm"));
    }

    #[test]
    fn p_keeps_what_is_shown_until_it_is_pressed_again() {
        let (mut watched, mut settings) = (two(true), Settings::default());
        press(&mut settings, 'p', &watched);
        watched.lost = 5;
        assert!(!shown(&watched, &settings, 120).contains("5 events lost"));
        assert!(shown(&watched, &settings, 120).contains("paused"));
        press(&mut settings, 'p', &watched);
        assert!(shown(&watched, &settings, 120).contains("5 events lost"));
    }

    #[test]
    fn q_and_control_c_quit_and_other_keys_do_nothing() {
        let (watched, mut settings) = (Watched::default(), Settings::default());
        assert_eq!(press(&mut settings, 'q', &watched), KeyAction::Quit);
        assert_eq!(press(&mut settings, 'c', &watched), KeyAction::Nothing);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(settings.key(control_c, &watched), KeyAction::Quit);
    }

    #[test]
    fn without_counters_or_room_columns_are_left_out() {
        let screen = shown(&two(false), &Settings::default(), 120);
        assert!(screen.contains("no counters") && !screen.contains("misses/s"), "{screen}");
        assert!(screen.contains("share of the time on a CPU"), "{screen}");
        let narrow = shown(&two(true), &Settings::default(), 80);
        assert!(!narrow.contains("migr") && narrow.contains("worst") && narrow.contains("job max"), "{narrow}");
        // Terminals of any size can be drawn on.
        for (width, height) in [(1, 1), (10, 3), (30, 40)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| draw(frame, &two(true), &Settings::default())).unwrap();
        }
    }
}
