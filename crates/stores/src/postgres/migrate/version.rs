//! How far a table is, for a store before it starts and for a migration.

use tokio_postgres::error::SqlState;
use tokio_postgres::{GenericClient, SimpleQueryMessage};

use super::super::table::Table;
use super::LATEST;

/// How far a table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// It is not there.
    Missing,
    /// It is there, but no migration of ours made it.
    Foreign,
    /// It is there, but this role may not look.
    Hidden,
    /// An older program made it.
    Behind(u32),
    /// It is as this program wants it.
    Current,
    /// A newer program made it.
    Newer(u32),
}

impl Version {
    fn of(number: u32) -> Self {
        match number {
            // Whoever stops between making a version and noting it has made none.
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
                "the table {table} in database {database} was not made by Onceward; use another name for Onceward's own, and {migrate}"
            ),
            Self::Hidden => format!(
                "the table {table} in database {database} may not be read by this user; grant it SELECT, INSERT, UPDATE and DELETE on {table} and {table}_document, SELECT on {table}_migration, USAGE on the sequence {table}_fence and EXECUTE on {table}_sweep, or connect as the owner"
            ),
            Self::Behind(number) => format!(
                "the table {table} in database {database} has version {number} and this program needs {LATEST}; {migrate}"
            ),
            Self::Newer(number) => format!(
                "the table {table} in database {database} has version {number}, made by a newer Onceward, and this program knows versions up to {LATEST}; start the newer one"
            ),
        })
    }
}

/// Looks how far a table is. It changes nothing, prepares nothing, and may be
/// asked behind a pooler.
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

/// The same; who may not look is told so by the server.
pub(super) async fn look<C>(client: &C, table: &Table) -> Result<Version, tokio_postgres::Error>
where
    C: GenericClient + Sync,
{
    // As texts: that is what a simple query gives in any case.
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
