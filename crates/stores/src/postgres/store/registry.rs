//! Small documents of operators.

use async_trait::async_trait;
use bytes::Bytes;
use onceward_core::store::{Added, Collection, PAGE_MAX, Registry, SortOrder, StoreError};

use super::super::driver::Value;
use super::super::error::Error;
use super::super::row::RowReader;
use super::{PostgresStore, count};

impl PostgresStore {
    fn document(&self, sheet: Collection, name: &str) -> Vec<Value> {
        vec![
            self.namespace(),
            sheet.as_str().into(),
            Value::bytes(name.as_bytes()),
        ]
    }
}

#[async_trait]
impl Registry for PostgresStore {
    async fn put(&self, sheet: Collection, name: &str, document: Bytes) -> Result<(), StoreError> {
        let mut values = self.document(sheet, name);
        values.push(document.into());
        self.rows(&self.statements.put, &values).await?;
        Ok(())
    }

    async fn add(
        &self,
        sheet: Collection,
        name: &str,
        document: Bytes,
    ) -> Result<Added, StoreError> {
        let mut values = self.document(sheet, name);
        values.push(document.into());
        let added = self.rows(&self.statements.add, &values).await?;
        Ok(if added.is_empty() {
            Added::Known
        } else {
            Added::Done
        })
    }

    async fn read(&self, sheet: Collection, name: &str) -> Result<Option<Bytes>, StoreError> {
        let values = self.document(sheet, name);
        let rows = self.rows(&self.statements.read, &values).await?;
        let row = rows.into_iter().next().map(RowReader::new);
        let document = row.map(|mut row| row.bytes("document"));
        Ok(document.transpose()?)
    }

    async fn remove(&self, sheet: Collection, name: &str) -> Result<(), StoreError> {
        let values = self.document(sheet, name);
        self.rows(&self.statements.remove, &values).await?;
        Ok(())
    }

    async fn documents(
        &self,
        sheet: Collection,
        order: SortOrder,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Bytes)>, StoreError> {
        let values = [
            self.namespace(),
            sheet.as_str().into(),
            after.map(|name| Value::bytes(name.as_bytes())).into(),
            count(limit.min(PAGE_MAX)).into(),
        ];
        let statement = match order {
            SortOrder::Ascending => &self.statements.rising,
            SortOrder::Descending => &self.statements.falling,
        };
        let rows = self.rows(statement, &values).await?;
        rows.into_iter()
            .map(|row| {
                let mut row = RowReader::new(row);
                let name = String::from_utf8(row.bytes("name")?.into());
                let name = name.map_err(|_| Error::Column("name"))?;
                Ok((name, row.bytes("document")?))
            })
            .collect::<Result<_, Error>>()
            .map_err(StoreError::from)
    }
}
