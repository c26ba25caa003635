//! Running statements by sqlx.

use sqlx::postgres::{PgRow, Postgres};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Column as _, PgConnection, Row as _, TypeInfo as _};
use tokio_postgres::types::Type;

use super::super::driver::{Cells, Statement, Value};
use super::super::error::Error;
use super::connection::Naming;

type Bound<'q> = Query<'q, Postgres, <Postgres as sqlx::Database>::Arguments>;

pub(super) async fn rows(
    connection: &mut PgConnection,
    naming: Naming,
    statement: &Statement,
    values: &[Value],
) -> Result<Vec<Cells>, Error> {
    // The only part from outside is the table's checked name.
    let query = sqlx::query(AssertSqlSafe(statement.sql.as_str()));
    let mut query = query.persistent(naming == Naming::Usual);
    for (value, ty) in values.iter().zip(&statement.types) {
        query = bind(query, value, ty)?;
    }
    let rows = query.fetch_all(connection).await.map_err(Error::Sqlx)?;
    rows.iter().map(cells).collect()
}

fn bind<'q>(query: Bound<'q>, value: &'q Value, ty: &Type) -> Result<Bound<'q>, Error> {
    Ok(match value {
        Value::Bool(value) => query.bind(*value),
        Value::Int(value) if *ty == Type::INT4 => {
            let value = i32::try_from(*value).map_err(|_| Error::Column("integer"))?;
            query.bind(value)
        }
        Value::Int(value) => query.bind(*value),
        Value::Text(value) => query.bind(value.as_str()),
        Value::Bytes(value) => query.bind(value.as_ref()),
        Value::Null => match *ty {
            Type::BOOL => query.bind(None::<bool>),
            Type::INT4 => query.bind(None::<i32>),
            Type::INT8 => query.bind(None::<i64>),
            Type::BYTEA => query.bind(None::<&[u8]>),
            _ => query.bind(None::<&str>),
        },
        // Only the store with its own pool sends lists.
        Value::List(_) => return Err(Error::Column("list")),
    })
}

fn cells(row: &PgRow) -> Result<Cells, Error> {
    let cell = |place: usize| -> Result<Value, sqlx::Error> {
        Ok(match row.column(place).type_info().name() {
            "BOOL" => row.try_get::<Option<bool>, _>(place)?.into(),
            "INT4" => row.try_get::<Option<i32>, _>(place)?.map(i64::from).into(),
            "INT8" => row.try_get::<Option<i64>, _>(place)?.into(),
            "BYTEA" => row.try_get::<Option<Vec<u8>>, _>(place)?.into(),
            _ => row.try_get::<Option<&str>, _>(place)?.into(),
        })
    };
    let places = 0..row.len();
    places
        .map(|place| cell(place).map_err(Error::Sqlx))
        .collect()
}
