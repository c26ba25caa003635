//! Small documents that operators keep.

use std::ops::Bound;

use async_trait::async_trait;
use bytes::Bytes;
use onceward_core::store::{Added, Collection, PAGE_MAX, Registry, SortOrder, StoreError};

use super::JournalStore;
use super::file::Line;

fn place(sheet: Collection, name: &str) -> (String, String) {
    (sheet.as_str().to_owned(), name.to_owned())
}

#[async_trait]
impl Registry for JournalStore {
    async fn put(&self, sheet: Collection, name: &str, document: Bytes) -> Result<(), StoreError> {
        let place = place(sheet, name);
        self.shelf().write(vec![Line::Document { place, document }])
    }

    async fn add(
        &self,
        sheet: Collection,
        name: &str,
        document: Bytes,
    ) -> Result<Added, StoreError> {
        let place = place(sheet, name);
        let mut shelf = self.shelf();
        if shelf.documents.contains_key(&place) {
            return Ok(Added::Known);
        }
        shelf.write(vec![Line::Document { place, document }])?;
        Ok(Added::Done)
    }

    async fn read(&self, sheet: Collection, name: &str) -> Result<Option<Bytes>, StoreError> {
        Ok(self.shelf().documents.get(&place(sheet, name)).cloned())
    }

    async fn remove(&self, sheet: Collection, name: &str) -> Result<(), StoreError> {
        let place = place(sheet, name);
        self.shelf().write(vec![Line::NoDocument { place }])
    }

    async fn documents(
        &self,
        sheet: Collection,
        order: SortOrder,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Bytes)>, StoreError> {
        let shelf = self.shelf();
        let first = Bound::Included(place(sheet, ""));
        let beyond = format!("{}\0", sheet.as_str());
        let last = Bound::Excluded((beyond, String::new()));
        let after = after.map(|name| Bound::Excluded(place(sheet, name)));
        let own =
            |((_, name), document): (&(String, String), &Bytes)| (name.clone(), document.clone());
        let limit = limit.min(PAGE_MAX);
        Ok(match order {
            SortOrder::Ascending => {
                let rest = shelf.documents.range((after.unwrap_or(first), last));
                rest.take(limit).map(own).collect()
            }
            SortOrder::Descending => {
                let rest = shelf.documents.range((first, after.unwrap_or(last)));
                rest.rev().take(limit).map(own).collect()
            }
        })
    }
}
