//! The library on types of the caller's own.

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

/// Records of one namespace, on types: see [`RawStore`], which it stands on.
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

    /// Begins an operation, or tells what became of it: [`RawStore::begin`].
    ///
    /// A result that does not decode is an error, because the outcome cannot be
    /// told; a recorded request that does not is still a mismatch.
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

    /// Frees the key: [`RawStore::fail_transient`].
    pub async fn fail_transient(&mut self, fresh: Fresh) -> Result<(), Error> {
        self.raw.fail_transient(fresh).await
    }

    /// The same on JSON values, with all else that it can do.
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
