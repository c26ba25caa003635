//! Reads the text and the environment into one tree with the location of each
//! value.
//!
//! `${NAME}` in a string is a variable (`$${` is a literal `${`), and a variable
//! such as `ONCEWARD__SERVER__LISTEN` overrides a key. Variables are passed in;
//! their values are never shown, because they may be secrets.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::mistake::{Location, Mistake};

/// The prefix of variables that override keys.
const OVERRIDE: &str = "ONCEWARD__";
/// The deepest key that a variable may override.
const DEPTH_MAX: usize = 8;

/// A value and its location.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) location: Location,
    /// The text of the variable, where the value came from one: whether `123`
    /// is a number or a text is known only to the key.
    pub(super) variable: Option<String>,
}

/// A value.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    Integer(i64),
    Float(f64),
    Boolean(bool),
    Date,
    List(Vec<Node>),
    Table(BTreeMap<String, TableEntry>),
    /// A wrong value that has been reported.
    Broken,
}

/// A value under its key.
#[derive(Clone, Debug)]
pub(super) struct TableEntry {
    pub(super) key: Location,
    pub(super) node: Node,
}

impl Node {
    /// The kind of value, for messages.
    pub(super) fn noun(&self) -> &'static str {
        match self.value {
            Value::Text(_) => "a string",
            Value::Integer(_) => "an integer",
            Value::Float(_) => "a number",
            Value::Boolean(_) => "true or false",
            Value::Date => "a date",
            Value::List(_) => "a list",
            Value::Table(_) => "a table",
            Value::Broken => "nothing",
        }
    }

    /// The tree as JSON, without broken values.
    pub(super) fn to_json(&self) -> Json {
        match &self.value {
            Value::Text(text) => Json::from(text.as_str()),
            Value::Integer(number) => Json::from(*number),
            Value::Float(number) => Json::from(*number),
            Value::Boolean(boolean) => Json::from(*boolean),
            Value::Date | Value::Broken => Json::Null,
            Value::List(nodes) => nodes.iter().map(Self::to_json).collect(),
            Value::Table(entries) => entries
                .iter()
                .filter(|(_, entry)| !matches!(entry.node.value, Value::Broken))
                .map(|(key, entry)| (key.clone(), entry.node.to_json()))
                .collect::<serde_json::Map<_, _>>()
                .into(),
        }
    }

    fn table(location: Location) -> Self {
        Self {
            value: Value::Table(BTreeMap::new()),
            location,
            variable: None,
        }
    }
}

/// The result of reading.
pub(super) struct Source {
    pub(super) root: Node,
    pub(super) locations: Locations,
    pub(super) mistakes: Vec<Mistake>,
    /// Whether the text is valid TOML. If not, the tree has the valid parts.
    pub(super) whole: bool,
}

/// The location of each key.
#[derive(Debug)]
pub(super) struct Locations {
    file: PathBuf,
    said: BTreeMap<String, KeySource>,
}

#[derive(Debug)]
struct KeySource {
    location: Location,
    /// The text before variables were expanded.
    written: Option<String>,
}

impl Locations {
    /// The location of a key, or of the table that would contain it.
    pub(super) fn of(&self, key: &str) -> Location {
        let mut key = key;
        loop {
            if let Some(said) = self.said.get(key) {
                return said.location.clone();
            }
            match key.rfind(['.', '[']) {
                Some(end) => key = &key[..end],
                None => return Location::File(self.file.clone()),
            }
        }
    }

    /// Whether a key is present, valid or not.
    pub(super) fn says(&self, key: &str) -> bool {
        self.said.contains_key(key)
    }

    /// A text as it was written, so that a variable's value is not shown.
    pub(super) fn written<'a>(&'a self, key: &str, text: &'a str) -> &'a str {
        let said = self.said.get(key);
        said.and_then(|said| said.written.as_deref())
            .unwrap_or(text)
    }
}

/// Reads the text, expands variables, and applies overrides.
pub(super) fn read(text: &str, file: &Path, environment: &BTreeMap<String, String>) -> Source {
    let (table, errors) = DeTable::parse_recoverable(text);
    let lines = LineIndex::new(text, file);
    let mut reader = Reader {
        environment,
        mistakes: errors
            .iter()
            .map(|error| Mistake {
                location: lines.location(&error.span().unwrap_or_default()),
                key: String::new(),
                problem: format!("invalid TOML: {}", error.message()),
                right: "see https://toml.io".to_owned(),
            })
            .collect(),
        written: BTreeMap::new(),
    };
    let whole = errors.is_empty();
    let mut root = Node {
        value: Value::Broken,
        location: Location::File(file.to_owned()),
        variable: None,
    };
    root.value = reader.table(table.get_ref(), &lines, "");
    reader.override_all(&mut root);
    let mut said = BTreeMap::new();
    note(&root, &root.location, "", &reader.written, &mut said);
    Source {
        root,
        locations: Locations {
            file: file.to_owned(),
            said,
        },
        mistakes: reader.mistakes,
        whole,
    }
}

/// The dotted path of a key in the table with this path.
pub(super) fn join(path: &str, key: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    match (path, !key.is_empty() && key.chars().all(plain)) {
        ("", true) => key.to_owned(),
        ("", false) => format!("{key:?}"),
        (path, true) => format!("{path}.{key}"),
        (path, false) => format!("{path}.{key:?}"),
    }
}

struct Reader<'a> {
    environment: &'a BTreeMap<String, String>,
    mistakes: Vec<Mistake>,
    /// Strings with variables, as they are written in the file.
    written: BTreeMap<String, String>,
}

impl Reader<'_> {
    fn table(&mut self, table: &DeTable<'_>, lines: &LineIndex<'_>, path: &str) -> Value {
        let entries = table.iter().map(|(key, value)| {
            let entry = TableEntry {
                key: lines.location(&key.span()),
                node: self.node(value, lines, &join(path, key.get_ref())),
            };
            (key.get_ref().to_string(), entry)
        });
        Value::Table(entries.collect())
    }

    fn node(&mut self, value: &Spanned<DeValue<'_>>, lines: &LineIndex<'_>, path: &str) -> Node {
        let location = lines.location(&value.span());
        let value = match value.get_ref() {
            DeValue::String(text) => self.expand(text, path, &location),
            DeValue::Table(table) => self.table(table, lines, path),
            DeValue::Array(array) => {
                let nodes = array.iter().enumerate();
                Value::List(
                    nodes
                        .map(|(at, value)| self.node(value, lines, &format!("{path}[{at}]")))
                        .collect(),
                )
            }
            other => scalar(other),
        };
        Node {
            value,
            location,
            variable: None,
        }
    }

    /// Expands `${NAME}`.
    fn expand(&mut self, text: &str, path: &str, location: &Location) -> Value {
        if !text.contains("${") {
            return Value::Text(text.to_owned());
        }
        self.written.insert(path.to_owned(), text.to_owned());
        let (mut expanded, mut rest, mut whole) = (String::new(), text, true);
        while let Some(at) = rest.find("${") {
            let (before, after) = (&rest[..at], &rest[at + 2..]);
            if let Some(before) = before.strip_suffix('$') {
                expanded.push_str(before);
                expanded.push_str("${");
                rest = after;
                continue;
            }
            expanded.push_str(before);
            let name = after.split_once('}').filter(|(name, _)| is_variable(name));
            let Some((name, after)) = name else {
                self.mistakes.push(Mistake {
                    location: location.clone(),
                    key: path.to_owned(),
                    problem: "${ is not followed by a variable name and }".to_owned(),
                    right: "write ${NAME}, or $${ for a literal ${".to_owned(),
                });
                return Value::Broken;
            };
            match self.environment.get(name) {
                Some(value) => expanded.push_str(value),
                None => {
                    whole = false;
                    self.mistakes.push(Mistake {
                        location: location.clone(),
                        key: path.to_owned(),
                        problem: format!("the environment variable {name} is not set"),
                        right: format!("set it, or write $${{{name}}} for the literal text"),
                    });
                }
            }
            rest = after;
        }
        expanded.push_str(rest);
        match whole {
            true => Value::Text(expanded),
            false => Value::Broken,
        }
    }

    fn override_all(&mut self, root: &mut Node) {
        let environment = self.environment;
        let mut overrides: Vec<_> = environment
            .iter()
            .filter_map(|(name, text)| Some((name, name.strip_prefix(OVERRIDE)?, text)))
            .map(|(name, keys, text)| (keys.split("__").collect::<Vec<_>>(), name, text))
            .collect();
        // Indices are ordered as numbers: entry 2 is added before entry 10.
        overrides.sort_by_cached_key(|(keys, ..)| {
            let keys = keys.iter().map(|key| (key.parse::<usize>().ok(), *key));
            keys.collect::<Vec<_>>()
        });
        for (keys, name, text) in overrides {
            let location = Location::Variable(name.clone());
            let refused = match keys.iter().any(|key| key.is_empty()) || keys.len() > DEPTH_MAX {
                true => Err("it does not name a key".to_owned()),
                false => set(root, &keys, given(text, &location)),
            };
            if let Err(problem) = refused {
                self.mistakes.push(Mistake {
                    location,
                    key: String::new(),
                    problem,
                    right: "write ONCEWARD__SERVER__LISTEN for server.listen, and ONCEWARD__ROUTES__0__CLASS for the class of the first route".to_owned(),
                });
            }
        }
    }
}

/// The value of a variable: TOML if it is valid TOML, otherwise a string.
fn given(text: &str, location: &Location) -> Node {
    let value = match DeValue::parse(text) {
        Ok(value) => owned(value.get_ref(), location),
        Err(_) => Value::Text(text.to_owned()),
    };
    Node {
        value,
        location: location.clone(),
        variable: Some(text.to_owned()),
    }
}

fn owned(value: &DeValue<'_>, location: &Location) -> Value {
    let node = |value: &Spanned<DeValue<'_>>| Node {
        value: owned(value.get_ref(), location),
        location: location.clone(),
        variable: None,
    };
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Array(array) => Value::List(array.iter().map(node).collect()),
        DeValue::Table(table) => {
            let entries = table.iter().map(|(key, value)| {
                let entry = TableEntry {
                    key: location.clone(),
                    node: node(value),
                };
                (key.get_ref().to_string(), entry)
            });
            Value::Table(entries.collect())
        }
        other => scalar(other),
    }
}

/// A value that is not a table or list. A number that is too large becomes infinite,
/// which no key accepts.
fn scalar(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Value::Integer(number),
            Err(_) => Value::Float(f64::INFINITY),
        },
        DeValue::Float(number) => Value::Float(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(boolean) => Value::Boolean(*boolean),
        DeValue::Datetime(_) => Value::Date,
        DeValue::String(_) | DeValue::Array(_) | DeValue::Table(_) => Value::Broken,
    }
}

/// Sets the value of a nested key, and creates missing tables and lists.
fn set(root: &mut Node, keys: &[&str], value: Node) -> Result<(), String> {
    let Some((key, rest)) = keys.split_first() else {
        *root = value;
        return Ok(());
    };
    if let Value::List(nodes) = &mut root.value {
        let at: usize = key
            .parse()
            .map_err(|_| format!("{key} is not an index of the list"))?;
        if at == nodes.len() {
            nodes.push(Node::table(value.location.clone()));
        }
        let count = nodes.len();
        let node = nodes
            .get_mut(at)
            .ok_or_else(|| format!("entry {at} does not exist; the next new entry is {count}"))?;
        return set(node, rest, value);
    }
    if !matches!(root.value, Value::Table(_)) {
        *root = Node::table(value.location.clone());
    }
    let Value::Table(entries) = &mut root.value else {
        return Ok(());
    };
    // Variables have no lower-case letters and no hyphens.
    let same = |name: &&String| name.replace('-', "_").eq_ignore_ascii_case(key);
    let name = entries.keys().find(same).cloned();
    let name = name.unwrap_or_else(|| key.to_ascii_lowercase());
    let location = value.location.clone();
    let entry = entries.entry(name).or_insert_with(|| {
        let mut node = Node::table(location.clone());
        if rest
            .first()
            .is_some_and(|next| next.parse::<usize>().is_ok())
        {
            node.value = Value::List(Vec::new());
        }
        TableEntry {
            key: location,
            node,
        }
    });
    if rest.is_empty() {
        entry.key = value.location.clone();
    }
    set(&mut entry.node, rest, value)
}

fn is_variable(name: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(letter) && name.chars().all(|c| letter(c) || c.is_ascii_digit())
}

/// Records the location of each key. The location of a table is that of its name.
fn note(
    node: &Node,
    location: &Location,
    path: &str,
    written: &BTreeMap<String, String>,
    said: &mut BTreeMap<String, KeySource>,
) {
    if !path.is_empty() {
        let from_file = node.location.variable().is_none();
        let text = written.get(path).filter(|_| from_file).cloned();
        let hidden = node.variable.as_ref().map(|_| "…".to_owned());
        said.insert(
            path.to_owned(),
            KeySource {
                location: location.clone(),
                written: text.or(hidden),
            },
        );
    }
    match &node.value {
        Value::Table(entries) => {
            for (key, entry) in entries {
                note(
                    &entry.node,
                    &entry.node.location,
                    &join(path, key),
                    written,
                    said,
                );
            }
        }
        Value::List(nodes) => {
            for (at, node) in nodes.iter().enumerate() {
                note(
                    node,
                    &node.location,
                    &format!("{path}[{at}]"),
                    written,
                    said,
                );
            }
        }
        _ => {}
    }
}

/// The positions of line starts in a text.
struct LineIndex<'a> {
    text: &'a str,
    file: &'a Path,
    begins: Vec<usize>,
}

impl<'a> LineIndex<'a> {
    fn new(text: &'a str, file: &'a Path) -> Self {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let begins = std::iter::once(0).chain(breaks.map(|(at, _)| at + 1));
        Self {
            text,
            file,
            begins: begins.collect(),
        }
    }

    fn location(&self, span: &Range<usize>) -> Location {
        let start = span.start.min(self.text.len());
        let line = self.begins.partition_point(|begin| *begin <= start);
        let begin = self.begins[line - 1];
        // A span may begin within a character where the text is not TOML.
        let before = String::from_utf8_lossy(&self.text.as_bytes()[begin..start]);
        Location::Line {
            file: self.file.to_owned(),
            line,
            column: before.chars().count() + 1,
        }
    }
}
