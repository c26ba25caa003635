//! What the database says, in the application's words.

use onceward_core::application::Error;
use onceward_core::store::StoreError;

use super::super::error::Fault;
use super::Speech;

/// Where the server checks rows against policies.
const POLICY: &str = "ExecWithCheckOptions";

/// What a database says is wrong.
struct Said {
    code: String,
    /// The server's own function that says it: unlike the words, it is the same
    /// in all languages.
    routine: Option<String>,
}

impl Said {
    fn of(fault: &Fault) -> Option<Self> {
        match fault {
            Fault::Postgres(error) => error.as_db_error().map(|said| Self {
                code: said.code().code().to_owned(),
                routine: said.routine().map(ToOwned::to_owned),
            }),
            #[cfg(feature = "sqlx")]
            Fault::Sqlx(sqlx::Error::Database(said)) => {
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

impl Speech {
    /// Tells what went wrong, and what to do about it.
    pub(super) fn error(&self, fault: Fault) -> Error {
        let table = || self.table.to_string();
        let Some(said) = Said::of(&fault) else {
            return StoreError::from(fault).into();
        };
        match said.code.as_str() {
            "25P01" => Error::NotInTransaction,
            "25P02" => Error::TransactionFailed(Box::new(fault)),
            "40001" | "40P01" => Error::Conflict(Box::new(fault)),
            // No such table, column, function or schema.
            "42P01" | "42703" | "42883" | "3F000" => Error::NotMigrated {
                table: table(),
                source: Box::new(fault),
            },
            // A row of nobody passes no policy.
            "42501" if said.routine.as_deref() == Some(POLICY) => Error::Nobody {
                table: table(),
                source: Box::new(fault),
            },
            "42501" => Error::Rights {
                table: table(),
                source: Box::new(fault),
            },
            _ => StoreError::from(fault).into(),
        }
    }
}
