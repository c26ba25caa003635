//! The name of the table of operations. Statements contain it unquoted, so only
//! names that need no quotes are valid.

use std::fmt;
use std::str::FromStr;

/// The longest name: PostgreSQL allows 63 bytes, and the table's indexes and
/// functions add suffixes to it.
const NAME_BYTES_MAX: usize = 40;

/// A table's checked name, with its schema if that is not on the search path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    schema: Option<String>,
    name: String,
}

impl Table {
    /// Checks a name: `table` or `schema.table`, each of at most 40 lower-case
    /// letters, digits and `_`, not beginning with a digit, and not a reserved word
    /// of SQL.
    pub fn parse(text: &str) -> Result<Self, TableError> {
        let (schema, name) = match text.split_once('.') {
            Some((schema, name)) => (Some(schema), name),
            None => (None, text),
        };
        for part in schema.into_iter().chain([name]) {
            check(part).map_err(|problem| TableError {
                text: text.to_owned(),
                problem,
            })?;
        }
        Ok(Self {
            schema: schema.map(ToOwned::to_owned),
            name: name.to_owned(),
        })
    }

    /// Its name without the schema.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its schema, if the name has one.
    pub fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    /// The same table with this schema, unless its name has one.
    pub(crate) fn within(&self, schema: &str) -> Self {
        Self {
            schema: Some(self.schema.clone().unwrap_or_else(|| schema.to_owned())),
            name: self.name.clone(),
        }
    }

    /// Fills the name into a statement: `{table}` as it was given, `{name}` without
    /// its schema, `{qualified}` with its schema if the name has one.
    pub(crate) fn fill(&self, sql: &str) -> String {
        let said = self.to_string();
        sql.replace("{table}", &said)
            .replace("{qualified}", &said)
            .replace("{name}", &self.name)
    }
}

/// `idempotency_record`, in a schema of the search path.
impl Default for Table {
    fn default() -> Self {
        Self {
            schema: None,
            name: "idempotency_record".to_owned(),
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(schema) = &self.schema {
            write!(f, "{schema}.")?;
        }
        f.write_str(&self.name)
    }
}

impl FromStr for Table {
    type Err = TableError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

/// Why a text is not a valid table name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "table: `{}` {problem}; write `idempotency_record` or `schema.idempotency_record`, for example",
    text.escape_debug()
)]
pub struct TableError {
    text: String,
    problem: Problem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Problem {
    #[error("has an empty name")]
    Empty,
    #[error("has a name of more than {NAME_BYTES_MAX} characters")]
    Long,
    #[error("contains other characters than lower-case letters, digits and `_`")]
    Character,
    #[error("has a name that begins with a digit")]
    Digit,
    #[error("is a reserved word of SQL")]
    Reserved,
}

fn check(part: &str) -> Result<(), Problem> {
    let is_plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
    if part.is_empty() {
        Err(Problem::Empty)
    } else if !part.bytes().all(is_plain) {
        Err(Problem::Character)
    } else if part.len() > NAME_BYTES_MAX {
        Err(Problem::Long)
    } else if part.starts_with(|first: char| first.is_ascii_digit()) {
        Err(Problem::Digit)
    } else if RESERVED.contains(&part) {
        Err(Problem::Reserved)
    } else {
        Ok(())
    }
}

/// The words that PostgreSQL accepts as a table name only in quotes, of all its
/// versions. A test compares them with a server's own list.
#[rustfmt::skip]
const RESERVED: [&str; 101] = [
    "all", "analyse", "analyze", "and", "any", "array", "as", "asc", "asymmetric",
    "authorization", "binary", "both", "case", "cast", "check", "collate", "collation",
    "column", "concurrently", "constraint", "create", "cross", "current_catalog",
    "current_date", "current_role", "current_schema", "current_time", "current_timestamp",
    "current_user", "default", "deferrable", "desc", "distinct", "do", "else", "end", "except",
    "false", "fetch", "for", "foreign", "freeze", "from", "full", "grant", "group", "having",
    "ilike", "in", "initially", "inner", "intersect", "into", "is", "isnull", "join", "lateral",
    "leading", "left", "like", "limit", "localtime", "localtimestamp", "natural", "not",
    "notnull", "null", "offset", "on", "only", "or", "order", "outer", "overlaps", "placing",
    "primary", "references", "returning", "right", "select", "session_user", "similar", "some",
    "symmetric", "system_user", "table", "tablesample", "then", "to", "trailing", "true",
    "union", "unique", "user", "using", "variadic", "verbose", "when", "where", "window",
    "with",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fill_statements() {
        let sql = "{table} {table}_fence {name}_sweep {qualified}";
        let plain = Table::default();
        assert_eq!(
            plain.fill(sql),
            "idempotency_record idempotency_record_fence idempotency_record_sweep idempotency_record"
        );
        let said = Table::parse("app.once").expect("a good name");
        assert_eq!(
            said.fill(sql),
            "app.once app.once_fence once_sweep app.once"
        );
        assert_eq!((said.schema(), said.name()), (Some("app"), "once"));
        assert_eq!(said.within("public"), said);
        assert_eq!(
            plain.within("public").to_string(),
            "public.idempotency_record"
        );
    }

    #[test]
    fn table_names_are_checked() {
        let longest = "t".repeat(NAME_BYTES_MAX);
        for good in ["t", "_", "t1", "a_b", "s.t", "_s._t", longest.as_str()] {
            assert_eq!(
                Table::parse(good).map(|table| table.to_string()),
                Ok(good.to_owned())
            );
        }
        let too_long = "t".repeat(NAME_BYTES_MAX + 1);
        let cases = [
            ("", Problem::Empty),
            (".t", Problem::Empty),
            ("s.", Problem::Empty),
            (".", Problem::Empty),
            (too_long.as_str(), Problem::Long),
            ("T", Problem::Character),
            ("a-b", Problem::Character),
            ("a b", Problem::Character),
            ("\"a\"", Problem::Character),
            ("a;drop table b", Problem::Character),
            ("a'b", Problem::Character),
            ("ä", Problem::Character),
            ("a\0", Problem::Character),
            ("a{name}", Problem::Character),
            ("d.s.t", Problem::Character),
            ("1t", Problem::Digit),
            ("s.1t", Problem::Digit),
            ("user", Problem::Reserved),
            ("s.order", Problem::Reserved),
            ("all.t", Problem::Reserved),
        ];
        for (bad, want) in cases {
            let error = Table::parse(bad).expect_err(bad);
            assert_eq!(error.problem, want, "{bad}");
        }
    }

    #[test]
    fn a_refused_name_is_answered_with_the_rule() {
        let error = Table::parse("My Table\n").expect_err("no name");
        assert_eq!(
            error.to_string(),
            "table: `My Table\\n` contains other characters than lower-case letters, digits and `_`; \
             write `idempotency_record` or `schema.idempotency_record`, for example"
        );
    }
}
