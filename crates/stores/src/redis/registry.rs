//! Small documents of operators: per collection a hash of documents, and a sorted set
//! of their names in byte order.

use async_trait::async_trait;
use bytes::Bytes;
use onceward_core::store::{Added, Collection, PAGE_MAX, Registry, SortOrder, StoreError};
use redis::{Cmd, Value, cmd};

use super::RedisStore;
use super::error::{Error, Result};
use super::response;
use super::script::{DOCUMENTS, PUT, REMOVE};
use crate::checksum::{seal, unseal};

impl RedisStore {
    async fn take_on_documents(&self, step: Cmd) -> Result<Value> {
        let confirmed = self.shards.documents_confirmed();
        self.connections
            .run_confirmed_with(0, &confirmed, step)
            .await
    }

    async fn put_step(
        &self,
        sheet: Collection,
        name: &str,
        document: &[u8],
        how: &str,
    ) -> Result<Added> {
        let mut step = PUT.on(&self.shards.sheet(sheet));
        step.arg(name).arg(seal(document)).arg(how);
        match response::number(self.take_on_documents(step).await?)? {
            0 => Ok(Added::Known),
            _ => Ok(Added::Done),
        }
    }

    async fn read_step(&self, sheet: Collection, name: &str) -> Result<Option<Bytes>> {
        let [documents, _] = self.shards.sheet(sheet);
        let mut question = cmd("HGET");
        question.arg(documents).arg(name);
        let sealed = response::bytes(self.connections.run(question).await?)?;
        Ok(sealed.map(unseal).transpose()?)
    }

    async fn remove_step(&self, sheet: Collection, name: &str) -> Result<()> {
        let mut step = REMOVE.on(&self.shards.sheet(sheet));
        step.arg(name);
        self.take_on_documents(step).await.map(drop)
    }

    async fn documents_step(
        &self,
        sheet: Collection,
        order: SortOrder,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Bytes)>> {
        let (way, start) = match order {
            SortOrder::Ascending => ("rising", "-"),
            SortOrder::Descending => ("falling", "+"),
        };
        let from = after.map_or(start.to_owned(), |after| format!("({after}"));
        let mut question = DOCUMENTS.on(&self.shards.sheet(sheet));
        question.arg(way).arg(from).arg(limit.min(PAGE_MAX));
        let mut values = response::array(self.connections.run(question).await?)?.into_iter();
        let mut documents = Vec::new();
        while let (Some(name), Some(document)) = (values.next(), values.next()) {
            let name = response::bytes(name)?.and_then(|name| String::from_utf8(name).ok());
            let document = response::bytes(document)?.ok_or(Error::NoDocument)?;
            documents.push((name.ok_or(Error::DocumentName)?, unseal(document)?));
        }
        Ok(documents)
    }
}

#[async_trait]
impl Registry for RedisStore {
    async fn put(&self, sheet: Collection, name: &str, document: Bytes) -> Result<(), StoreError> {
        self.put_step(sheet, name, &document, "put").await?;
        Ok(())
    }

    async fn add(
        &self,
        sheet: Collection,
        name: &str,
        document: Bytes,
    ) -> Result<Added, StoreError> {
        Ok(self.put_step(sheet, name, &document, "add").await?)
    }

    async fn read(&self, sheet: Collection, name: &str) -> Result<Option<Bytes>, StoreError> {
        Ok(self.read_step(sheet, name).await?)
    }

    async fn remove(&self, sheet: Collection, name: &str) -> Result<(), StoreError> {
        Ok(self.remove_step(sheet, name).await?)
    }

    async fn documents(
        &self,
        sheet: Collection,
        order: SortOrder,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Bytes)>, StoreError> {
        Ok(self.documents_step(sheet, order, after, limit).await?)
    }
}
