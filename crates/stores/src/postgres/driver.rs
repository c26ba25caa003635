//! The interface between statements and drivers: the store's own pool, a transaction
//! of tokio-postgres, or a transaction of sqlx. Values go in and come out as one
//! small type, so that each statement and each record is written and read in one
//! place.

use async_trait::async_trait;
use bytes::{Buf as _, Bytes};
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, Kind, ToSql, Type, to_sql_checked};

use super::error::Error;

/// The value of a parameter or a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// Nothing.
    Null,
    /// `boolean`.
    Bool(bool),
    /// `bigint`, `integer`.
    Int(i64),
    /// `text`.
    Text(String),
    /// `bytea`.
    Bytes(Bytes),
    /// An array of any of them, or the fields of a row.
    List(Vec<Value>),
}

impl Value {
    /// A text.
    pub(crate) fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }

    /// Bytes.
    pub(crate) fn bytes(bytes: &[u8]) -> Self {
        Self::Bytes(Bytes::copy_from_slice(bytes))
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::text(value)
    }
}

impl From<Bytes> for Value {
    fn from(value: Bytes) -> Self {
        Self::Bytes(value)
    }
}

impl From<Vec<u8>> for Value {
    fn from(value: Vec<u8>) -> Self {
        Self::Bytes(value.into())
    }
}

/// A row, column by column.
pub(crate) type Cells = Vec<Value>;

/// A statement with its table's name filled in, and the types of its parameters, so
/// that it need not be prepared.
#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) sql: String,
    pub(crate) types: Vec<Type>,
}

/// A connection that runs statements.
#[async_trait]
pub(crate) trait Driver: Send {
    /// Runs one statement and returns its rows.
    async fn rows(&mut self, statement: &Statement, values: &[Value]) -> Result<Vec<Cells>, Error>;
}

impl ToSql for Value {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Self::Null => Ok(IsNull::Yes),
            Self::Bool(value) => value.to_sql(ty, out),
            Self::Int(value) if *ty == Type::INT4 => i32::try_from(*value)?.to_sql(ty, out),
            Self::Int(value) => value.to_sql(ty, out),
            Self::Text(value) => value.to_sql(ty, out),
            Self::Bytes(value) => value.as_ref().to_sql(ty, out),
            Self::List(values) => values.as_slice().to_sql(ty, out),
        }
    }

    fn accepts(ty: &Type) -> bool {
        let member = match ty.kind() {
            Kind::Array(member) => member,
            _ => ty,
        };
        [Type::BOOL, Type::INT8, Type::INT4, Type::TEXT, Type::BYTEA].contains(member)
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Value {
    fn from_sql(
        ty: &Type,
        raw: &'a [u8],
    ) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(match *ty {
            Type::BOOL => Self::Bool(bool::from_sql(ty, raw)?),
            Type::INT4 => Self::Int(i64::from(i32::from_sql(ty, raw)?)),
            Type::INT8 => Self::Int(i64::from_sql(ty, raw)?),
            Type::BYTEA => Self::Bytes(Bytes::copy_from_slice(raw)),
            Type::RECORD => Self::List(fields(raw)?),
            _ => Self::Text(String::from_sql(ty, raw)?),
        })
    }

    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self::Null)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::RECORD || <Self as ToSql>::accepts(ty)
    }
}

/// The fields of a `ROW(…)`: their number, then the type, the length and the bytes of
/// each; the length of a null is negative.
fn fields(mut raw: &[u8]) -> Result<Vec<Value>, Box<dyn std::error::Error + Sync + Send>> {
    let count = raw.try_get_i32()?;
    let mut fields = Vec::new();
    for _ in 0..count {
        let ty = Type::from_oid(raw.try_get_u32()?).ok_or("a field of an unknown type")?;
        let field = match usize::try_from(raw.try_get_i32()?) {
            Err(_) => Value::Null,
            Ok(length) => {
                let (field, rest) = raw.split_at_checked(length).ok_or("a field is cut off")?;
                raw = rest;
                Value::from_sql(&ty, field)?
            }
        };
        fields.push(field);
    }
    Ok(fields)
}

/// A row of tokio-postgres.
pub(crate) fn cells(row: &tokio_postgres::Row) -> Result<Cells, Error> {
    (0..row.len())
        .map(|column| row.try_get(column).map_err(Error::Postgres))
        .collect()
}
