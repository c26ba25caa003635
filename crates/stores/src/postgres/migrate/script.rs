//! The SQL of a migration, the same for `print` and for `apply`. It is one `DO`
//! block: in a transaction or not, all of it takes effect or nothing. It checks
//! which objects exist and creates the others.

use super::super::table::Table;
use super::LATEST;
use super::options::{OptionError, Options, Resource, RowSecurity};

/// `onceward` as a number: a migration holds its advisory lock.
const LOCK: i64 = i64::from_be_bytes(*b"onceward");

/// The SQL of each version, on top of the one before. The SQL of a released version
/// never changes.
const VERSIONS: [&str; LATEST as usize] = [include_str!("../sql/migration-1.sql")];

/// The text that is printed. A table without a schema in its name is in `schema`.
pub(super) fn document(options: &Options, schema: &str) -> Result<String, OptionError> {
    let block = block(options, schema)?;
    let table = options.table.within(schema);
    let name = table.name();
    let place = match options.table.schema() {
        Some(_) => String::new(),
        None => format!(
            "-- The name was given without a schema, so the table is created in \"{schema}\"; for\n\
             -- another schema, use --table schema.{name}.\n"
        ),
    };
    let header = fill(
        include_str!("../sql/header.sql"),
        &table,
        &[
            ("latest", &LATEST.to_string()),
            ("program", env!("CARGO_PKG_VERSION")),
            ("place", &place),
            ("command", &command(options)),
        ],
    );
    Ok(header + &block)
}

/// Takes the lock of migrations before the catalog is read; the block takes it
/// again.
pub(super) fn lock() -> String {
    format!("SET LOCAL lock_timeout = '60s'; SELECT pg_advisory_xact_lock({LOCK})")
}

/// The block for a table that is in `schema` if its name has none.
pub(super) fn block(options: &Options, schema: &str) -> Result<String, OptionError> {
    options.check()?;
    let table = options.table.within(schema);
    let mut steps = String::new();
    for (number, sql) in (1..).zip(VERSIONS) {
        steps.push_str(&version(number, sql, &table, options.partitions));
    }
    if let Some(count) = options.partitions {
        let sql = include_str!("../sql/partitions.sql");
        steps.push_str(&fill(sql, &table, &[("count", &count.to_string())]));
    }
    for one in &options.resources {
        steps.push_str(&resource(one, &table)?);
    }
    if !options.resources.is_empty() {
        steps.push_str(&fill(include_str!("../sql/one_resource.sql"), &table, &[]));
    }
    if let Some(security) = &options.rls {
        steps.push_str(&row_security(security, &table, schema));
    }
    Ok(fill(
        include_str!("../sql/migrate.sql"),
        &table,
        &[
            ("tag", &tag(&steps)),
            ("lock", &LOCK.to_string()),
            ("latest", &LATEST.to_string()),
            ("steps", &steps),
        ],
    ))
}

/// A version, created unless it exists.
fn version(number: u32, sql: &str, table: &Table, partitions: Option<u32>) -> String {
    let (partitioned, partitions) = match partitions {
        Some(count) => (
            " PARTITION BY HASH (digest)",
            partition_tables(table, count),
        ),
        None => ("", String::new()),
    };
    let made = fill(
        sql.trim_end(),
        table,
        &[("partitioned", partitioned), ("partitions", &partitions)],
    );
    format!(
        "\nIF known < {number} THEN\n{made}\n\
         INSERT INTO {table}_migration (version) VALUES ({number});\nEND IF;\n"
    )
}

fn partition_tables(table: &Table, count: u32) -> String {
    let tables = (0..count).map(|place| {
        format!(
            "CREATE TABLE {table}_p{place} PARTITION OF {table} \
             FOR VALUES WITH (MODULUS {count}, REMAINDER {place});\n"
        )
    });
    tables.collect()
}

fn resource(resource: &Resource, table: &Table) -> Result<String, OptionError> {
    let type_ = resource.type_().ok_or_else(|| OptionError::NoType {
        name: resource.name().to_owned(),
        resource: resource.to_string(),
    })?;
    let target = resource.target();
    let column = resource.column();
    Ok(fill(
        include_str!("../sql/resource.sql"),
        table,
        &[
            ("resource", resource.name()),
            ("type", type_),
            ("target", &target),
            ("target_text", &literal(&target)),
            ("column", &column.quoted()),
            ("column_text", &literal(column.as_str())),
        ],
    ))
}

fn row_security(security: &RowSecurity, table: &Table, schema: &str) -> String {
    let owner = fill(
        include_str!("../sql/owner.sql"),
        table,
        &[("user", security.user_expression())],
    );
    fill(
        include_str!("../sql/rls.sql"),
        table,
        &[
            ("schema", table.schema().unwrap_or(schema)),
            ("role", &security.role().quoted()),
            ("role_text", &literal(security.role().as_str())),
            ("owner", &literal(&owner)),
        ],
    )
}

/// Fills the table's name and other values into a text. Filled-in values are not
/// scanned for placeholders: users may choose any values.
fn fill(text: &str, table: &Table, more: &[(&str, &str)]) -> String {
    let mut parts = text.split('{');
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once('}').unwrap_or((part, ""));
        match more.iter().find(|(known, _)| *known == name) {
            Some((_, value)) => filled.push_str(value),
            None => filled.push_str(&table.fill(&format!("{{{name}}}"))),
        }
        filled.push_str(rest);
    }
    filled
}

/// A text as an SQL literal that does not depend on `standard_conforming_strings`.
fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    match quoted.contains('\\') {
        true => format!("E'{}'", quoted.replace('\\', "\\\\")),
        false => format!("'{quoted}'"),
    }
}

/// The dollar-quoting tag, which must not occur in the body.
fn tag(body: &str) -> String {
    let tags = (1..).map(|number| match number {
        1 => "$onceward$".to_owned(),
        number => format!("$onceward_{number}$"),
    });
    tags.into_iter()
        .find(|tag| !body.contains(tag.as_str()))
        .expect("a text does not hold all of endlessly many others")
}

/// The command that prints this, in one line.
fn command(options: &Options) -> String {
    let mut words = vec!["onceward migrate print".to_owned()];
    let mut say = |option: &str, value: &str| words.push(format!("{option} {}", shell(value)));
    if options.table != Table::default() {
        say("--table", &options.table.to_string());
    }
    if let Some(count) = options.partitions {
        say("--partitions", &count.to_string());
    }
    if let Some(security) = &options.rls {
        say("--rls-role", security.role().as_str());
        say("--rls-user", security.user_expression());
    }
    for resource in &options.resources {
        say("--resource", &resource.to_string());
    }
    // A comment ends with its line.
    words.join(" ").replace(['\n', '\r'], " ")
}

fn shell(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.=:".contains(c);
    match word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_as_sql_literals() {
        let cases = [
            ("app", "'app'"),
            ("", "''"),
            ("o'clock", "'o''clock'"),
            ("a\\b'c", "E'a\\\\b''c'"),
        ];
        for (text, want) in cases {
            assert_eq!(literal(text), want);
        }
        assert_eq!(shell("project=a.b"), "project=a.b");
        assert_eq!(shell("it's $HOME"), "'it'\\''s $HOME'");
    }

    #[test]
    fn no_option_can_end_the_sql_block() {
        let user = "'$onceward$' || '$onceward_2$'";
        let options = Options {
            rls: RowSecurity::new("app", user).ok(),
            ..Options::default()
        };
        let block = block(&options, "public").expect("good options");
        assert!(block.starts_with("DO $onceward_3$\n"), "{block}");
        assert_eq!(block.matches("$onceward_3$").count(), 2);
        assert!(block.ends_with("\n$onceward_3$;\n"), "{block}");
    }

    #[test]
    fn placeholders_in_options_are_not_filled_in() {
        let options = Options {
            rls: RowSecurity::new("{table}", "'{schema}{steps}{role}{owner}{user}'").ok(),
            ..Options::default()
        };
        let block = block(&options, "public").expect("good options");
        assert!(block.contains("TO \"{table}\";"), "{block}");
        assert!(
            block.contains("''{schema}{steps}{role}{owner}{user}''"),
            "{block}"
        );
    }
}
