//! The JSON Schema of the file, and the validation of a tree against it: unknown
//! keys, wrong types, unknown words, numbers out of range, missing keys.
//!
//! serde would stop at the first mistake. So the tree is compared with the schema
//! that `onceward schema` prints, every mistake is reported, and wrong values are
//! removed; the rest always fits the raw types.

use serde_json::Value as Json;

use super::mistake::{Location, Mistake};
use super::raw;
use super::source::{Locations, Node, Source, Value, join};

/// The JSON Schema of the file. TOML has no null, so the schema has none either.
pub fn schema() -> Json {
    let mut schema = schemars::schema_for!(raw::Config).to_value();
    without_null(&mut schema);
    schema
}

/// Compares the tree with the schema, notes every mistake and removes each value that does not fit.
pub(super) fn validate(source: &mut Source, schema: &Json) {
    let mut validator = Validator {
        schema,
        locations: &source.locations,
        missing_counts: source.whole,
        mistakes: Vec::new(),
    };
    validator.fit(&mut source.root, schema, "");
    source.mistakes.append(&mut validator.mistakes);
}

struct Validator<'a> {
    schema: &'a Json,
    locations: &'a Locations,
    /// In a file that is not valid TOML, a missing key may be in an invalid line.
    missing_counts: bool,
    mistakes: Vec<Mistake>,
}

impl<'a> Validator<'a> {
    fn fit(&mut self, node: &mut Node, whole: &'a Json, path: &str) {
        let Some(schema) = self.choose(node, whole) else {
            let (is, right) = (node.noun(), self.wanted(whole));
            self.broken(node, path, format!("is {is}"), format!("write {right}"));
            return;
        };
        match &mut node.value {
            Value::Text(text) => {
                let words = words(schema);
                if !words.is_empty() && !words.contains(&text.as_str()) {
                    let shown = self.locations.written(path, text);
                    let problem = format!("{shown:?} is not a valid value");
                    let right = format!("write {}", self.wanted(whole));
                    self.broken(node, path, problem, right);
                }
            }
            Value::Integer(number) => {
                let number = *number as f64;
                self.range(node, number, schema, path);
            }
            Value::Float(number) => {
                let number = *number;
                self.range(node, number, schema, path);
            }
            Value::List(_) => self.items(node, &schema["items"], path),
            Value::Table(_) => self.properties(node, schema, path),
            Value::Boolean(_) | Value::Date | Value::Broken => {}
        }
    }

    /// The alternative of a schema that fits the type of a value.
    fn choose(&self, node: &mut Node, schema: &'a Json) -> Option<&'a Json> {
        let all = self.alternatives(schema);
        // Of several tables, the one that has one of the value's keys.
        let of_kind = |node: &Node| {
            let fitting = || all.iter().copied().filter(|one| admits(one, node));
            fitting()
                .find(|one| shares_key(one, node))
                .or_else(|| fitting().next())
        };
        if let Some(schema) = of_kind(node) {
            return Some(schema);
        }
        // The value of a variable that looks like a number may be a string.
        let text = node.variable.clone()?;
        let as_text = Node {
            value: Value::Text(text),
            ..node.clone()
        };
        let schema = of_kind(&as_text)?;
        *node = as_text;
        Some(schema)
    }

    /// Resolves references and flattens `anyOf`.
    fn alternatives(&self, schema: &'a Json) -> Vec<&'a Json> {
        let schema = self.resolve(schema);
        match schema.get("anyOf").and_then(Json::as_array) {
            Some(choice) => choice
                .iter()
                .flat_map(|one| self.alternatives(one))
                .collect(),
            None => vec![schema],
        }
    }

    fn resolve(&self, schema: &'a Json) -> &'a Json {
        match schema["$ref"].as_str() {
            Some(reference) => {
                let pointer = reference.trim_start_matches('#');
                self.schema.pointer(pointer).unwrap_or(schema)
            }
            None => schema,
        }
    }

    fn range(&mut self, node: &mut Node, number: f64, schema: &Json, path: &str) {
        let least = schema["minimum"].as_f64().unwrap_or(f64::MIN);
        let most = schema["maximum"].as_f64().unwrap_or(f64::MAX);
        if !(least..=most).contains(&number) {
            let right = format!("write a number from {least} to {most}");
            self.broken(node, path, format!("{number} is out of range"), right);
        }
    }

    fn items(&mut self, node: &mut Node, schema: &'a Json, path: &str) {
        let Value::List(nodes) = &mut node.value else {
            return;
        };
        for (at, node) in nodes.iter_mut().enumerate() {
            self.fit(node, schema, &format!("{path}[{at}]"));
        }
        // Entries keep their indices: a broken entry becomes an empty table; where
        // the entries are not tables, the whole list is removed.
        let tables = self.resolve(schema)["type"] == "object";
        let mut broken = false;
        for node in nodes {
            if matches!(node.value, Value::Broken) {
                broken = true;
                node.value = Value::Table(std::collections::BTreeMap::new());
            }
        }
        if broken && !tables {
            node.value = Value::Broken;
        }
    }

    fn properties(&mut self, node: &mut Node, schema: &'a Json, path: &str) {
        let location = node.location.clone();
        let Value::Table(entries) = &mut node.value else {
            return;
        };
        let known = schema["properties"].as_object();
        for (key, entry) in entries.iter_mut() {
            let path = join(path, key);
            let schema = match known.and_then(|known| known.get(key)) {
                Some(schema) => schema,
                None if schema["additionalProperties"].is_object() => {
                    &schema["additionalProperties"]
                }
                None => {
                    let known = known.into_iter().flatten().map(|(name, _)| name.as_str());
                    let right = other_keys(key, &known.collect::<Vec<_>>());
                    self.mistakes.push(Mistake {
                        location: entry.key.clone(),
                        key: path,
                        problem: "unknown key".to_owned(),
                        right,
                    });
                    entry.node.value = Value::Broken;
                    continue;
                }
            };
            self.fit(&mut entry.node, schema, &path);
        }
        let required = schema["required"].as_array().into_iter().flatten();
        for key in required.filter_map(Json::as_str) {
            if self.missing_counts && !entries.contains_key(key) {
                let about = schema["properties"][key]["description"].as_str();
                self.mistakes.push(Mistake {
                    location: location.clone(),
                    key: join(path, key),
                    problem: "is missing".to_owned(),
                    right: format!("add it: {}", sentence(about.unwrap_or_default())),
                });
            }
        }
    }

    fn broken(&mut self, node: &mut Node, path: &str, problem: String, right: String) {
        // A broken value has already been reported.
        if !matches!(node.value, Value::Broken) {
            let location: Location = node.location.clone();
            self.mistakes.push(Mistake {
                location,
                key: path.to_owned(),
                problem,
                right,
            });
            node.value = Value::Broken;
        }
    }

    /// Describes the values that a schema accepts.
    fn wanted(&self, schema: &'a Json) -> String {
        let all = self.alternatives(schema);
        let nouns = all.iter().map(|one| {
            let words = words(one);
            match (one["title"].as_str(), one["type"].as_str()) {
                _ if !words.is_empty() => list(&words),
                (Some(title), Some("string")) => format!("{title} such as {}", one["examples"][0]),
                (_, Some("string")) => "a string in quotes".to_owned(),
                (_, Some("integer")) => "an integer".to_owned(),
                (_, Some("number")) => "a number".to_owned(),
                (_, Some("boolean")) => "true or false".to_owned(),
                (_, Some("array")) => {
                    format!(
                        "a list in which each element is {}",
                        self.wanted(&one["items"])
                    )
                }
                _ => match one["properties"].as_object() {
                    Some(known) if !known.is_empty() => {
                        let keys: Vec<_> = known.keys().take(4).map(String::as_str).collect();
                        format!("a table with keys such as {}", keys.join(", "))
                    }
                    _ => "a table".to_owned(),
                },
            }
        });
        nouns.collect::<Vec<_>>().join(", or ")
    }
}

/// Whether a schema accepts values of this type.
fn admits(schema: &Json, node: &Node) -> bool {
    let kind = schema["type"].as_str();
    match node.value {
        Value::Text(_) => kind == Some("string") || !words(schema).is_empty(),
        Value::Integer(_) => matches!(kind, Some("integer" | "number")),
        Value::Float(number) => kind == Some("number") && number.is_finite(),
        Value::Boolean(_) => kind == Some("boolean"),
        Value::List(_) => kind == Some("array"),
        Value::Table(_) => kind == Some("object"),
        Value::Date => false,
        Value::Broken => true,
    }
}

fn shares_key(schema: &Json, node: &Node) -> bool {
    match (&node.value, schema["properties"].as_object()) {
        (Value::Table(entries), Some(known)) => entries.keys().any(|key| known.contains_key(key)),
        _ => true,
    }
}

/// The allowed words; none where any string is allowed.
fn words(schema: &Json) -> Vec<&str> {
    let listed = schema["enum"].as_array().into_iter().flatten();
    let described = schema["oneOf"].as_array().into_iter().flatten();
    let alone = std::iter::once(&schema["const"]);
    listed
        .chain(described.flat_map(|one| {
            let listed = one["enum"].as_array().into_iter().flatten();
            listed.chain(std::iter::once(&one["const"]))
        }))
        .chain(alone)
        .filter_map(Json::as_str)
        .collect()
}

/// `"a", "b" or "c"`.
fn list(words: &[&str]) -> String {
    let quoted: Vec<_> = words.iter().map(|word| format!("{word:?}")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, before)) => format!("{} or {last}", before.join(", ")),
        None => "nothing".to_owned(),
    }
}

/// Suggests a known key.
fn other_keys(key: &str, known: &[&str]) -> String {
    let (close, far) = nearest(key, known);
    match close {
        Some(close) => format!("did you mean {close}?"),
        None if far.is_empty() => "this table has no keys".to_owned(),
        None => format!("the valid keys are {}", far.join(", ")),
    }
}

/// The known name that is most similar, if one is similar enough, and all known names.
pub(crate) fn nearest<'a>(name: &str, known: &[&'a str]) -> (Option<&'a str>, Vec<&'a str>) {
    let by_distance = known.iter().map(|other| (distance(name, other), *other));
    let close = by_distance
        .min()
        .filter(|(distance, other)| match other.len() {
            0..=3 => *distance <= 1,
            length => *distance <= (length / 3).max(2),
        });
    (close.map(|(_, other)| other), known.to_vec())
}

/// The edit distance. Names are short, so a longer text is similar to none.
fn distance(one: &str, other: &str) -> usize {
    const LENGTH_MAX: usize = 64;
    if one.len() > LENGTH_MAX {
        return usize::MAX;
    }
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (column, wanted) in other.iter().enumerate() {
            let change = diagonal + usize::from(letter != *wanted);
            diagonal = row[column + 1];
            row[column + 1] = change.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row.last().copied().unwrap_or(usize::MAX)
}

/// A description as the end of a sentence: lower case, without a full stop.
fn sentence(description: &str) -> String {
    let text = description.trim_end_matches('.');
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => String::new(),
    }
}

/// Removes null from types, alternatives and defaults.
fn without_null(schema: &mut Json) {
    match schema {
        Json::Object(object) => {
            if object.get("default").is_some_and(says_nothing) {
                object.remove("default");
            }
            if let Some(Json::Array(types)) = object.get_mut("type") {
                types.retain(|one| one != "null");
                if let [one] = types.as_slice() {
                    let one = one.clone();
                    object.insert("type".to_owned(), one);
                }
            }
            if let Some(Json::Array(choice)) = object.get_mut("anyOf") {
                choice.retain(|one| one["type"] != "null");
                if let [one] = choice.as_slice() {
                    let one = one.clone();
                    object.remove("anyOf");
                    if let Json::Object(one) = one {
                        for (key, value) in one {
                            object.entry(key).or_insert(value);
                        }
                    }
                }
            }
            object.values_mut().for_each(without_null);
        }
        Json::Array(array) => array.iter_mut().for_each(without_null),
        _ => {}
    }
}

fn says_nothing(default: &Json) -> bool {
    match default {
        Json::Null => true,
        Json::Array(array) => array.is_empty(),
        Json::Object(object) => object.values().all(says_nothing),
        _ => false,
    }
}
