//! Text from outside, such as names of processes, paths and commands, made fit to be shown.
//!
//! A program names itself, its threads and its files as it likes. A terminal obeys the control characters in such a name, and characters that order
//! or hide text let it look like another name. Text that is shown has [`REPLACEMENT`] in their place.

/// Stands for a character that cannot be shown, as it does for bytes that are not UTF-8.
pub const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// Whether `c` can be shown: it neither controls a terminal, nor separates lines, nor orders or hides the text around it, and XML allows it.
/// [Unicode, Standard Annex 9, explicit directional formatting; XML 1.0, section 2.2]
pub fn is_printable(c: char) -> bool {
    let hidden = matches!(
        c,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}'
    );
    let is_noncharacter = u32::from(c) & 0xfffe == 0xfffe;
    !(c.is_control() || hidden || is_noncharacter)
}

/// Returns `text`, such as a name, for a place within a line: it has no line breaks either.
pub fn line(text: &str) -> String {
    text.chars().map(|c| if is_printable(c) { c } else { REPLACEMENT }).collect()
}

/// Returns `text` of several lines, with its line breaks and tabs.
pub fn lines(text: &str) -> String {
    text.chars().map(|c| if is_printable(c) || matches!(c, '\n' | '\t') { c } else { REPLACEMENT }).collect()
}

/// Returns `json` with the characters that cannot be shown as escapes, which parsers read as these characters.
pub fn json(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            // Outside of strings, JSON has no other control characters.
            '\n' => text.push(c),
            c if is_printable(c) => text.push(c),
            c => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| text.push_str(&format!("\\u{unit:04x}"))),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_replaced_and_other_text_is_kept() {
        assert_eq!(line("a\u{1b}[2Jb\0c\u{9b}d\ne"), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}d\u{fffd}e");
        assert_eq!(lines("a\tb\nc\r"), "a\tb\nc\u{fffd}");
        for kept in ["µs", "Größe", "名前", "✓", "1\u{a0}000\u{202f}000", "a<b>&\"'`"] {
            assert_eq!(line(kept), kept);
        }
    }

    #[test]
    fn a_name_cannot_look_like_another_by_order_or_by_what_is_hidden() {
        for hidden in ['\u{202e}', '\u{2066}', '\u{200b}', '\u{200f}', '\u{feff}', '\u{e0041}', '\u{ad}', '\u{2028}'] {
            assert_eq!(line(&format!("a{hidden}b")), "a\u{fffd}b", "{hidden:?}");
        }
    }

    #[test]
    fn json_keeps_its_meaning_without_what_a_terminal_would_obey() {
        let name = "a\u{1b}\u{9b}\u{7f}\u{202e}\u{e0041}\n\"b\\";
        let shown = json(&serde_json::to_string_pretty(&[name]).unwrap());
        assert!(shown.chars().all(|c| is_printable(c) || c == '\n'), "{shown}");
        assert_eq!(serde_json::from_str::<[String; 1]>(&shown).unwrap(), [name]);
    }
}
