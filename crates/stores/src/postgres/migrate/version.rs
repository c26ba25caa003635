//! The version of a table: checked when a store opens, and by a migration.

use tokio_postgres::error::SqlState;
use tokio_postgres::{GenericClient, SimpleQueryMessage};

use super::super::table::Table;
use super::LATEST;

/// The version of a table, compared with this program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Version {
    /// The table does not exist.
    Missing,
    /// The table exists, but Onceward did not create it.
    Foreign,
    /// The table exists, but this role may not read it.
    Hidden,
    /// An older Onceward created it.
    Behind(u32),
    /// It has the version of this program.
    Current,
    /// A newer Onceward created it.
    Newer(u32),
}

impl Version {
    fn of(number: u32) -> Self {
        match number {
            // A migration that creates a version records it in the same transaction.
            0 => Self::Foreign,
            number if number < LATEST => Self::Behind(number),
            number if number > LATEST => Self::Newer(number),
            _ => Self::Current,
        }
    }

    /// Why a store cannot use the table, and what to do; `None` where it can.
    pub fn refusal(self, table: &Table, database: &str) -> Option<String> {
        let name = match *table == Table::default() {
            true => String::new(),
            false => format!(" --table {table}"),
        };
        let migrate = format!(
            "run `onceward migrate apply --store URL{name}`, or apply the SQL of `onceward migrate print{name}`"
        );
        Some(match self {
            Self::Current => return None,
            Self::Missing => {
                format!("the table {table} does not exist in database {database}; {migrate}")
            }
            Self::Foreign => format!(
                "the table {table} in database {database} was not created by Onceward; use another table name, and {migrate}"
            ),
            Self::Hidden => format!(
                "the table {table} in database {database} cannot be read by this user; grant it SELECT, INSERT, UPDATE and DELETE on {table} and {table}_document, SELECT on {table}_migration, USAGE on the sequence {table}_fence and EXECUTE on {table}_sweep, or connect as the owner"
            ),
            Self::Behind(number) => format!(
                "the table {table} in database {database} has version {number}, but this program needs {LATEST}; {migrate}"
            ),
            Self::Newer(number) => format!(
                "the table {table} in database {database} has version {number}, created by a newer Onceward; this program knows versions up to {LATEST}: use the newer one"
            ),
        })
    }
}

/// Reads the version of a table. It changes nothing and prepares nothing, so it
/// works behind a pooler.
pub async fn version<C>(client: &C, table: &Table) -> Result<Version, tokio_postgres::Error>
where
    C: GenericClient + Sync,
{
    match look(client, table).await {
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            Ok(Version::Hidden)
        }
        seen => seen,
    }
}

/// The same; without the right to read it, the server's error is returned.
pub(super) async fn look<C>(client: &C, table: &Table) -> Result<Version, tokio_postgres::Error>
where
    C: GenericClient + Sync,
{
    // As texts: a simple query returns only texts.
    let asked = table.fill(
        "SELECT (to_regclass('{table}') IS NOT NULL)::text, \
         (to_regclass('{table}_migration') IS NOT NULL)::text",
    );
    let there = client.simple_query(&asked).await?;
    match (cell(&there, 0), cell(&there, 1)) {
        (Some("true"), Some("true")) => {
            let asked = table.fill("SELECT coalesce(max(version), 0) FROM {table}_migration");
            let said = client.simple_query(&asked).await?;
            let number = cell(&said, 0).and_then(|text| text.parse().ok());
            Ok(Version::of(number.unwrap_or(0)))
        }
        (Some("true"), _) => Ok(Version::Foreign),
        // A table that was dropped by hand may have left its versions behind.
        _ => Ok(Version::Missing),
    }
}

/// A column of the first row.
fn cell(said: &[SimpleQueryMessage], column: usize) -> Option<&str> {
    said.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(column),
        _ => None,
    })
}
