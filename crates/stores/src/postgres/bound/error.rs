//! From errors of the database to errors of the application interface.

use onceward_core::application::Error;
use onceward_core::store::StoreError;

use super::super::error::Error as DatabaseError;
use super::TableStatements;

/// The server's function that checks rows against policies.
const POLICY: &str = "ExecWithCheckOptions";

/// An error message of the database.
struct ServerMessage {
    code: String,
    /// The server's function that raised it; unlike the text, it is the same in all
    /// languages.
    routine: Option<String>,
}

impl ServerMessage {
    fn of(error: &DatabaseError) -> Option<Self> {
        match error {
            DatabaseError::Postgres(error) => error.as_db_error().map(|said| Self {
                code: said.code().code().to_owned(),
                routine: said.routine().map(ToOwned::to_owned),
            }),
            #[cfg(feature = "sqlx")]
            DatabaseError::Sqlx(sqlx::Error::Database(said)) => {
                let said = said.try_downcast_ref::<sqlx::postgres::PgDatabaseError>()?;
                Some(Self {
                    code: said.code().to_owned(),
                    routine: said.routine().map(ToOwned::to_owned),
                })
            }
            _ => None,
        }
    }
}

impl TableStatements {
    /// The error to return, with what to do about it.
    pub(super) fn error(&self, error: DatabaseError) -> Error {
        let table = || self.table.to_string();
        let Some(said) = ServerMessage::of(&error) else {
            return StoreError::from(error).into();
        };
        match said.code.as_str() {
            "25P01" => Error::NotInTransaction,
            "25P02" => Error::TransactionFailed(Box::new(error)),
            "40001" | "40P01" => Error::Conflict(Box::new(error)),
            // No such table, column, function or schema.
            "42P01" | "42703" | "42883" | "3F000" => Error::NotMigrated {
                table: table(),
                source: Box::new(error),
            },
            // A row without an owner passes no policy.
            "42501" if said.routine.as_deref() == Some(POLICY) => Error::MissingUser {
                table: table(),
                source: Box::new(error),
            },
            "42501" => Error::Rights {
                table: table(),
                source: Box::new(error),
            },
            _ => StoreError::from(error).into(),
        }
    }
}
