//! Tables for people: as wide as the terminal, and never more than text. A key
//! or a tenant may hold anything; what could move the cursor is written out.

use std::fmt::Write;

use console::measure_text_width;
use serde_json::Value;

/// The narrowest that a column is made to fit the terminal.
const COLUMN_WIDTH_MIN: usize = 8;
/// What stands between two columns.
const GAP: &str = "  ";

/// The width to fit into: the terminal's, or any where output goes elsewhere.
pub(crate) fn width() -> Option<usize> {
    let terminal = console::Term::stdout();
    let (_, columns) = terminal.size_checked().filter(|_| terminal.is_term())?;
    Some(columns.into())
}

/// Text that only shows itself: control characters, and those that turn the
/// direction of text or break lines, are written as `\u{…}`.
pub(crate) fn plain(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        let moves = matches!(character,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
        if character.is_control() || moves {
            safe.extend(character.escape_default());
        } else {
            safe.push(character);
        }
    }
    safe
}

/// A JSON value as a cell.
pub(crate) fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => plain(text),
        Value::Array(values) => values.iter().map(cell).collect::<Vec<_>>().join(","),
        other => plain(&other.to_string()),
    }
}

/// What a page lists under this name.
pub(crate) fn listed<'a>(page: &'a Value, name: &str) -> &'a [Value] {
    let listed = page[name].as_array().map(Vec::as_slice);
    listed.unwrap_or_default()
}

/// How to see the next page, if there is one.
pub(crate) fn more(page: &Value) -> String {
    let next = page["next"].as_str().map(plain);
    next.map_or_else(String::new, |next| {
        format!("There are more: --after {next}\n")
    })
}

/// Lines of cells under their titles.
pub(crate) fn table(titles: &[&str], lines: &[Vec<String>], width: Option<usize>) -> String {
    let mut widths: Vec<_> = titles
        .iter()
        .map(|title| measure_text_width(title))
        .collect();
    for line in lines {
        for (widest, cell) in widths.iter_mut().zip(line) {
            *widest = (*widest).max(measure_text_width(cell));
        }
    }
    if let Some(width) = width {
        fit(&mut widths, width);
    }
    let mut text = String::new();
    let titles: Vec<_> = titles.iter().map(|title| (*title).to_owned()).collect();
    for line in std::iter::once(&titles).chain(lines) {
        let mut row = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            let cell = cut(cell, *width);
            let rest = width.saturating_sub(measure_text_width(&cell));
            // A String takes all that is written.
            let _ = write!(row, "{cell}{:rest$}{GAP}", "");
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

/// Names and values, one below the other.
pub(crate) fn list(pairs: &[(&str, String)]) -> String {
    let widest = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines = pairs
        .iter()
        .map(|(name, value)| format!("{name:widest$}{GAP}{value}\n"));
    lines.collect()
}

/// Takes from the widest columns until all fit, or none gives any more.
fn fit(widths: &mut [usize], width: usize) {
    let gaps = GAP.len() * widths.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > width {
        match widths.iter_mut().max() {
            Some(widest) if *widest > COLUMN_WIDTH_MIN => *widest -= 1,
            _ => return,
        }
    }
}

fn cut(cell: &str, width: usize) -> String {
    console::truncate_str(cell, width, "…").into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_cell_moves_the_cursor() {
        assert_eq!(plain("k-1 é 日"), "k-1 é 日");
        assert_eq!(
            plain("a\u{1b}[2J\r\n\u{7}\u{9b}\u{202e}\u{2028}b"),
            r"a\u{1b}[2J\r\n\u{7}\u{9b}\u{202e}\u{2028}b"
        );
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let lines = [
            vec!["a".to_owned(), "long one".to_owned()],
            vec!["日本".to_owned(), "b".to_owned()],
        ];
        assert_eq!(
            table(&["X", "Y"], &lines, None),
            "X     Y\na     long one\n日本  b\n"
        );
    }

    #[test]
    fn a_narrow_terminal_cuts_the_widest_first() {
        let lines = [vec![
            "op_0123456789".to_owned(),
            "x".repeat(30),
            "ok".to_owned(),
        ]];
        let text = table(&["A", "B", "C"], &lines, Some(32));
        assert_eq!(
            text.lines().nth(1),
            Some("op_0123456789  xxxxxxxxxxxx…  ok")
        );
        assert!(
            text.lines().all(|line| measure_text_width(line) <= 32),
            "{text}"
        );
    }

    #[test]
    fn nothing_is_a_dash() {
        let values = [
            Value::Null,
            Value::from(""),
            Value::from(7),
            serde_json::json!(["a", "b"]),
        ];
        assert_eq!(values.each_ref().map(cell), ["-", "-", "7", "a,b"]);
    }
}
