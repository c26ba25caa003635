//! The tables, made and brought forward. Versions only go forward; each is
//! noted in `{table}_migration` by the transaction that made it. [`apply`] runs
//! the SQL, [`print()`] gives it to the user's own migration tool: it is the same
//! text, safe to run twice and by two at once.

mod catalog;
mod error;
mod options;
mod script;
mod version;

use tokio_postgres::Transaction;

use self::catalog::Catalog;
pub use self::error::MigrateError;
pub use self::options::{OptionError, Options, Resource, RowSecurity};
pub use self::version::{Version, version};
use super::address::Address;
use super::connect::connect;
use super::table::Table;

/// The version that this program makes and uses.
pub const LATEST: u32 = 1;

/// Where a table is made whose name says no schema, when nobody can be asked.
const PRINTED_SCHEMA: &str = "public";

/// What a migration came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The database.
    pub database: String,
    /// The table, with its schema.
    pub table: Table,
    /// How far it was before.
    pub before: Version,
}

/// The SQL, for the user's own migration tool. It can be run by `psql` as it is.
pub fn print(options: &Options) -> Result<String, OptionError> {
    script::document(options, PRINTED_SCHEMA)
}

/// Makes what is missing, in one transaction: all of it, or nothing.
pub async fn apply(url: &str, options: &Options) -> Result<Applied, MigrateError> {
    options.check()?;
    check_scheme(url)?;
    let address = Address::parse(url)?;
    let (mut client, driven) = connect(&address).await?;
    let applied = match client.transaction().await {
        Ok(transaction) => migrate(transaction, options, address.database()).await,
        Err(error) => Err(error.into()),
    };
    drop(client);
    // It ends when the server has been told goodbye; how is of no interest.
    let _ = driven.await;
    applied
}

fn check_scheme(url: &str) -> Result<(), MigrateError> {
    match url.split_once(':') {
        Some(("postgres" | "postgresql", _)) => Ok(()),
        Some((scheme, _)) => Err(MigrateError::Scheme {
            scheme: scheme.to_owned(),
        }),
        None => Err(MigrateError::NoUrl),
    }
}

async fn migrate(
    transaction: Transaction<'_>,
    options: &Options,
    database: &str,
) -> Result<Applied, MigrateError> {
    // Before the first look, so that what is seen stays true.
    transaction.batch_execute(&script::take_turns()).await?;
    let catalog = Catalog {
        transaction: &transaction,
        database,
    };
    let schema = catalog.schema_of(&options.table).await?;
    let mut options = options.clone();
    options.table = options.table.within(&schema);
    for resource in &mut options.resources {
        *resource = catalog.typed(resource).await?;
    }
    let before = version::look(&transaction, &options.table).await?;
    let block = script::block(&options, &schema)?;
    transaction.batch_execute(&block).await?;
    transaction.commit().await?;
    Ok(Applied {
        database: database.to_owned(),
        table: options.table,
        before,
    })
}
