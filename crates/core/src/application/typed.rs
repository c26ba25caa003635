//! The library on the caller's own types.

use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::binding::Binding;
use super::error::Error;
use super::failure::Failure;
use super::key::ScopedKey;
use super::outcome::{Begun, Fresh};
use super::raw::RawStore;

/// Records of one namespace, on the caller's types. Built on [`RawStore`].
pub struct TypedStore<Req, Res, B> {
    raw: RawStore<B>,
    types: PhantomData<fn(Req) -> Res>,
}

impl<Req, Res, B> TypedStore<Req, Res, B>
where
    Req: Serialize + DeserializeOwned,
    Res: Serialize + DeserializeOwned,
    B: Binding,
{
    pub(crate) fn new(raw: RawStore<B>) -> Self {
        Self {
            raw,
            types: PhantomData,
        }
    }

    /// Begins an operation, or returns its outcome: [`RawStore::begin`].
    ///
    /// A recorded result that does not decode is an error; a recorded request that
    /// does not decode is still a mismatch.
    pub async fn begin(
        &mut self,
        key: &ScopedKey,
        request: &Req,
    ) -> Result<Begun<Req, Res>, Error> {
        let request = value("request", request)?;
        self.raw.begin_as(key, &request).await
    }

    /// Records a result: [`RawStore::commit`].
    pub async fn commit(&mut self, fresh: Fresh, result: &Res) -> Result<(), Error> {
        let result = value("result", result)?;
        self.raw.commit(fresh, &result).await
    }

    /// Records an error for good: [`RawStore::fail_permanent`].
    pub async fn fail_permanent<E: Failure>(
        &mut self,
        fresh: Fresh,
        error: &E,
    ) -> Result<(), Error> {
        self.raw.fail_permanent(fresh, error).await
    }

    /// Releases the key: [`RawStore::fail_transient`].
    pub async fn fail_transient(&mut self, fresh: Fresh) -> Result<(), Error> {
        self.raw.fail_transient(fresh).await
    }

    /// The same records on JSON values.
    pub fn raw(&mut self) -> &mut RawStore<B> {
        &mut self.raw
    }
}

fn value(what: &'static str, typed: &impl Serialize) -> Result<Value, Error> {
    serde_json::to_value(typed).map_err(|source| Error::Encode { what, source })
}

impl<Req, Res, B: Binding> fmt::Debug for TypedStore<Req, Res, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Typed{:?}", self.raw)
    }
}
