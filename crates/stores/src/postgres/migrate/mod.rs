//! Creating and upgrading the tables. Versions only go forward; the transaction
//! that creates a version records it in `{table}_migration`. [`apply`] runs the
//! SQL, [`print()`] returns it for the user's own migration tool. It is the same
//! text, and safe to run repeatedly and concurrently.

mod catalog;
mod error;
mod options;
mod script;
mod version;

use futures_util::future::BoxFuture;
use tokio_postgres::Transaction;

use self::catalog::Catalog;
pub use self::error::MigrateError;
pub use self::options::{OptionError, Options, Resource, RowSecurity};
pub use self::version::{Version, version};
use super::address::Address;
use super::connect::connect;
use super::table::Table;

/// The version that this program creates and uses.
pub const LATEST: u32 = 1;

/// The schema that `print` uses for a table name without a schema.
const PRINTED_SCHEMA: &str = "public";

/// The result of a migration.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Applied {
    /// The database.
    pub database: String,
    /// The table, with its schema.
    pub table: Table,
    /// Its version before.
    pub before: Version,
}

/// The SQL, for the user's own migration tool. It can be run by `psql` as it is.
pub fn print(options: &Options) -> Result<String, OptionError> {
    script::document(options, PRINTED_SCHEMA)
}

/// Creates the missing objects, in one transaction: all or nothing.
pub async fn apply(url: &str, options: &Options) -> Result<Applied, MigrateError> {
    apply_boxed(url, options).await
}

/// Boxed as a trait object, so that the client is compiled in this crate once.
fn apply_boxed<'a>(
    url: &'a str,
    options: &'a Options,
) -> BoxFuture<'a, Result<Applied, MigrateError>> {
    Box::pin(connect_and_apply(url, options))
}

async fn connect_and_apply(url: &str, options: &Options) -> Result<Applied, MigrateError> {
    options.check()?;
    check_scheme(url)?;
    let address = Address::parse(url)?;
    let (mut client, driven) = connect(&address).await?;
    let applied = match client.transaction().await {
        Ok(transaction) => migrate(transaction, options, address.database()).await,
        Err(error) => Err(error.into()),
    };
    drop(client);
    // The task ends once the connection is closed; its result does not matter.
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
    // Before the catalog is read, so that it does not change afterwards.
    transaction.batch_execute(&script::lock()).await?;
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
