//! Rare steps: a record is read under a lock, changed by the rules of `core`, and
//! written.

use std::sync::Arc;

use onceward_core::clock::Timestamp;
use onceward_core::identity::Digest;
use onceward_core::record::{Fence, Record, Settled, Settlement, State};

use super::super::driver::Value;
use super::super::error::Error;
use super::super::row::{RowReader, answer_values, moment_ms, state_word, times};
use super::super::session::Session;
use super::{PostgresStore, known};
use crate::lookup::Lookup;

/// Stands for a fence that the server assigns; it never assigns this one.
pub(super) const ANEW: Fence = Fence(u64::MAX);

/// The result of a rule on a record.
pub(super) enum RuleOutcome<T> {
    /// Nothing.
    Leave(T),
    /// Another record; one with [`ANEW`] gets a new fence.
    Write(Box<Record>, T),
    /// Remove the record, except for a mark.
    Purge(T),
}

impl PostgresStore {
    /// Changes a record by a rule, under a lock; `None` if there is no record.
    pub(super) async fn change<T>(
        &self,
        which: Lookup,
        rule: impl FnOnce(&Arc<Record>, Timestamp) -> RuleOutcome<T>,
    ) -> Result<Option<T>, Error> {
        let _turn = self.executor.turn().await;
        let mut session = self.executor.session().await?;
        session.begin().await?;
        let rows = session
            .run(&self.statements.lock, &self.about(which))
            .await?;
        let Some(row) = rows.into_iter().next() else {
            session.commit().await?;
            return Ok(None);
        };
        let mut row = RowReader::new(row);
        let (record, now) = known(&mut row)?;
        let is_requested = row.bool("requested")?;
        let digest = record.digest;
        let answer = match rule(&record, now) {
            RuleOutcome::Leave(answer) => answer,
            // There would be nothing to deliver.
            RuleOutcome::Write(after, _) if after.state == State::Queued && !is_requested => {
                return Err(Error::Column("request"));
            }
            RuleOutcome::Write(after, answer) => {
                self.write(&session, &record, &after).await?;
                answer
            }
            RuleOutcome::Purge(answer) => {
                let digest = Value::bytes(digest.as_bytes());
                let values = [self.namespace(), digest, moment_ms(now).into()];
                session.run(&self.statements.purge, &values).await?;
                answer
            }
        };
        session.commit().await?;
        self.notifier.notify(&digest);
        Ok(Some(answer))
    }

    async fn write(
        &self,
        session: &Session,
        before: &Record,
        record: &Record,
    ) -> Result<(), Error> {
        let [answer, status, mut reply] = answer_values(record.answer.as_ref());
        if record.answer == before.answer {
            // An unchanged reply is not sent again.
            reply = Value::Null;
        }
        let [expires, free, due, sweep] = times(record);
        let values = [
            self.namespace(),
            Value::bytes(record.digest.as_bytes()),
            state_word(record.state).into(),
            (record.fence == ANEW).into(),
            i64::from(record.attempts).into(),
            record.delivered.into(),
            moment_ms(record.until).into(),
            record.completed_at.map(moment_ms).into(),
            record.touched_at.map(moment_ms).into(),
            answer,
            status,
            reply,
            expires,
            free,
            due,
            sweep,
        ];
        session.run(&self.statements.write, &values).await?;
        Ok(())
    }

    /// Settles by the rules of `core`: rare settlements, and those that the fast
    /// statement did not accept.
    pub(super) async fn settle_by_rule(
        &self,
        digest: &Digest,
        fence: Fence,
        settlement: &Settlement,
    ) -> Result<Settled, Error> {
        let settled = self
            .change(Lookup::Digest(*digest), |before, now| {
                let mut record = Record::clone(before);
                let settled = record.settle(fence, settlement, now);
                if record == **before {
                    RuleOutcome::Leave(settled)
                } else {
                    RuleOutcome::Write(Box::new(record), settled)
                }
            })
            .await?;
        Ok(settled.unwrap_or(Settled::Stale))
    }
}
