//! The facts about a database that a migration needs.

use tokio_postgres::Transaction;
use tokio_postgres::types::{ToSql, Type};

use super::super::table::Table;
use super::error::MigrateError;
use super::options::Resource;

const FIND_SCHEMA: &str = include_str!("../sql/find_schema.sql");
const FIND_TABLE: &str = include_str!("../sql/find_table.sql");
const FIND_TYPE: &str = include_str!("../sql/find_type.sql");
const CURRENT_SCHEMA: &str = "SELECT current_schema()::text";

/// A database in a transaction.
pub(super) struct Catalog<'a> {
    pub(super) transaction: &'a Transaction<'a>,
    pub(super) database: &'a str,
}

impl Catalog<'_> {
    /// The schema of a table: the one in its name, else the one where the table
    /// exists, else the one where the search path would create it.
    pub(super) async fn schema_of(&self, table: &Table) -> Result<String, MigrateError> {
        let Some(schema) = table.schema() else {
            return self.schema_by_search_path(table).await;
        };
        let found = self.ask(FIND_SCHEMA, &[schema]).await?;
        found.ok_or_else(|| MigrateError::NoSchema {
            schema: schema.to_owned(),
            database: self.database.to_owned(),
        })
    }

    async fn schema_by_search_path(&self, table: &Table) -> Result<String, MigrateError> {
        let found = match self.ask(FIND_TABLE, &[table.name()]).await? {
            Some(schema) => Some(schema),
            None => self.ask(CURRENT_SCHEMA, &[]).await?,
        };
        // A schema whose name needs quotes is not used.
        let found = found.filter(|schema| Table::parse(&format!("{schema}.{table}")).is_ok());
        found.ok_or_else(|| MigrateError::SearchPath {
            database: self.database.to_owned(),
            table: table.name().to_owned(),
        })
    }

    /// A resource with the type of the referenced column.
    pub(super) async fn typed(&self, resource: &Resource) -> Result<Resource, MigrateError> {
        let (target, column) = (resource.target(), resource.column());
        let missing = |what: String| MigrateError::NoResource {
            name: resource.name().to_owned(),
            what,
            database: self.database.to_owned(),
        };
        if self.ask(FIND_TABLE, &[&target]).await?.is_none() {
            return Err(missing(format!("table {target}")));
        }
        let found = self.ask(FIND_TYPE, &[&target, column.as_str()]).await?;
        let found = found.ok_or_else(|| missing(format!("column {column} in table {target}")))?;
        Ok(resource.with_type(found))
    }

    /// The first column of the first row. The types are given, so that nothing is
    /// prepared: a pooler would lose it.
    async fn ask(&self, sql: &str, texts: &[&str]) -> Result<Option<String>, MigrateError> {
        let values: Vec<(&(dyn ToSql + Sync), Type)> = texts
            .iter()
            .map(|text| (text as &(dyn ToSql + Sync), Type::TEXT))
            .collect();
        let row = self.transaction.query_typed_opt(sql, &values).await?;
        Ok(row.and_then(|row| row.get(0)))
    }
}
