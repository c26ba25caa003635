//! Tables for people, as wide as the terminal. A key or a tenant may contain any characters, so
//! control characters are escaped: no value can move the cursor or change the terminal.

use std::fmt::Write;

use console::measure_text_width;
use serde_json::Value;

/// The least width of a column that is shortened to fit the terminal.
const COLUMN_WIDTH_MIN: usize = 8;
/// The space between two columns.
const GAP: &str = "  ";

/// The width of the terminal; none where standard output is not one.
pub(crate) fn width() -> Option<usize> {
    let terminal = console::Term::stdout();
    let (_, columns) = terminal.size_checked().filter(|_| terminal.is_term())?;
    Some(columns.into())
}

/// Escapes control characters, and those that change the direction of text or break lines, as
/// `\u{…}`.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        let is_format = matches!(character,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
        if character.is_control() || is_format {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    escaped
}

/// A JSON value as the text of a cell.
pub(crate) fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => escape(text),
        Value::Array(values) => values.iter().map(cell).collect::<Vec<_>>().join(","),
        other => escape(&other.to_string()),
    }
}

/// The items of a page.
pub(crate) fn items<'a>(page: &'a Value, name: &str) -> &'a [Value] {
    let items = page[name].as_array().map(Vec::as_slice);
    items.unwrap_or_default()
}

/// How to get the next page, if there is one.
pub(crate) fn next_page_hint(page: &Value) -> String {
    let next = page["next"].as_str().map(escape);
    next.map_or_else(String::new, |next| {
        format!("More results: --after {next}\n")
    })
}

/// Rows of cells under their titles.
pub(crate) fn table(titles: &[&str], rows: &[Vec<String>], width: Option<usize>) -> String {
    let mut widths: Vec<_> = titles
        .iter()
        .map(|title| measure_text_width(title))
        .collect();
    for row in rows {
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = (*widest).max(measure_text_width(cell));
        }
    }
    if let Some(width) = width {
        fit(&mut widths, width);
    }
    let mut text = String::new();
    let titles: Vec<_> = titles.iter().map(|title| (*title).to_owned()).collect();
    for row in std::iter::once(&titles).chain(rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let cell = cut(cell, *width);
            let rest = width.saturating_sub(measure_text_width(&cell));
            // Writing to a String does not fail.
            let _ = write!(line, "{cell}{:rest$}{GAP}", "");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Names and values, one pair a line.
pub(crate) fn pairs(pairs: &[(&str, String)]) -> String {
    let widest = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines = pairs
        .iter()
        .map(|(name, value)| format!("{name:widest$}{GAP}{value}\n"));
    lines.collect()
}

/// Narrows the widest columns until all fit, or until each has its least width.
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
    fn control_characters_are_escaped() {
        assert_eq!(escape("k-1 é 日"), "k-1 é 日");
        assert_eq!(
            escape("a\u{1b}[2J\r\n\u{7}\u{9b}\u{202e}\u{2028}b"),
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
    fn a_narrow_terminal_shortens_the_widest_column() {
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
    fn an_empty_value_is_a_dash() {
        let values = [
            Value::Null,
            Value::from(""),
            Value::from(7),
            serde_json::json!(["a", "b"]),
        ];
        assert_eq!(values.each_ref().map(cell), ["-", "-", "7", "a,b"]);
    }
}
