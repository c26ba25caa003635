//! The SQL of a migration, the same for `print` and for `apply`. It is one `DO`
//! block: whoever runs it, in a transaction or not, gets all of it or nothing.
//! It finds out by itself what is there already and makes only the rest.

use super::super::table::Table;
use super::LATEST;
use super::options::{OptionError, Options, Resource, RowSecurity};

/// `onceward` as a number: whoever migrates holds the advisory lock of it.
const LOCK: i64 = i64::from_be_bytes(*b"onceward");

/// What each version adds to the one before. A version that was ever released
/// is never changed.
const VERSIONS: [&str; LATEST as usize] = [include_str!("../sql/migration-1.sql")];

/// The text that is printed. A table whose name says no schema is in `schema`.
pub(super) fn document(options: &Options, schema: &str) -> Result<String, OptionError> {
    let block = block(options, schema)?;
    let table = options.table.within(schema);
    let header = include_str!("../sql/header.sql")
        .replace("{latest}", &LATEST.to_string())
        .replace("{program}", env!("CARGO_PKG_VERSION"));
    let place = match options.table.schema() {
        Some(_) => String::new(),
        None => format!(
            "-- Its name was given without a schema, so it is made in \"{schema}\"; for another,\n\
             -- say --table schema.{}.\n",
            table.name()
        ),
    };
    let header = table.fill(&header).replace("{place}", &place);
    Ok(header.replace("{command}", &command(options)) + &block)
}

/// What holds until the block has been run, for who looks around before it.
pub(super) fn take_turns() -> String {
    format!("SET LOCAL lock_timeout = '60s'; SELECT pg_advisory_xact_lock({LOCK})")
}

/// The block for a table that is said with its schema, `schema`.
pub(super) fn block(options: &Options, schema: &str) -> Result<String, OptionError> {
    options.check()?;
    let table = options.table.within(schema);
    let mut steps = String::new();
    for (number, sql) in (1..).zip(VERSIONS) {
        steps.push_str(&version(number, sql, options.partitions));
    }
    if let Some(count) = options.partitions {
        let sql = include_str!("../sql/partitions.sql");
        steps.push_str(&sql.replace("{count}", &count.to_string()));
    }
    for one in &options.resources {
        steps.push_str(&resource(one)?);
    }
    if !options.resources.is_empty() {
        steps.push_str(include_str!("../sql/one_resource.sql"));
    }
    let mut body = table.fill(&steps);
    if let Some(security) = &options.rls {
        body.push_str(&row_security(security, &table, schema));
    }
    let tag = tag(&body);
    let frame = include_str!("../sql/migrate.sql")
        .replace("{tag}", &tag)
        .replace("{lock}", &LOCK.to_string())
        .replace("{latest}", &LATEST.to_string());
    // What users said goes in last, so that nothing is looked for in it.
    Ok(table.fill(&frame).replace("{steps}", &body))
}

/// A version, made unless it is there.
fn version(number: u32, sql: &str, partitions: Option<u32>) -> String {
    let (partitioned, partitions) = match partitions {
        Some(count) => (" PARTITION BY HASH (digest)", partition_tables(count)),
        None => ("", String::new()),
    };
    let sql = sql
        .replace("{partitioned}", partitioned)
        .replace("{partitions}", &partitions);
    format!(
        "\nIF known < {number} THEN\n{}\nINSERT INTO {{table}}_migration (version) VALUES ({number});\nEND IF;\n",
        sql.trim_end()
    )
}

fn partition_tables(count: u32) -> String {
    let tables = (0..count).map(|place| {
        format!(
            "CREATE TABLE {{table}}_p{place} PARTITION OF {{table}} FOR VALUES WITH (MODULUS {count}, REMAINDER {place});\n"
        )
    });
    tables.collect()
}

fn resource(resource: &Resource) -> Result<String, OptionError> {
    let type_ = resource.type_().ok_or_else(|| OptionError::NoType {
        name: resource.name().to_owned(),
        resource: resource.to_string(),
    })?;
    let target = resource.target();
    let column = resource.column();
    Ok(include_str!("../sql/resource.sql")
        .replace("{resource}", resource.name())
        .replace("{target_text}", &literal(&target))
        .replace("{column_text}", &literal(column.as_str()))
        .replace("{target}", &target)
        .replace("{column}", &column.quoted())
        .replace("{type}", type_))
}

fn row_security(security: &RowSecurity, table: &Table, schema: &str) -> String {
    let owner = table.fill(include_str!("../sql/owner.sql"));
    let owner = owner.replace("{user}", security.user_expression());
    table
        .fill(include_str!("../sql/rls.sql"))
        .replace("{schema}", table.schema().unwrap_or(schema))
        .replace("{role_text}", &literal(security.role().as_str()))
        .replace("{role}", &security.role().quoted())
        .replace("{owner}", &literal(&owner))
}

/// A text as SQL writes it, whatever `standard_conforming_strings` is.
fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    match quoted.contains('\\') {
        true => format!("E'{}'", quoted.replace('\\', "\\\\")),
        false => format!("'{quoted}'"),
    }
}

/// What the body is quoted by: something that does not occur in it.
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
